package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/route"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Write takes everything in b and returns when it is as safe as the level says. Rows at times for which no partition can
// be made are refused in b. Errors keep the Kind of the share that failed; what had been kept by then stays.
//
// Shares that met an old map, or no leader, are routed and sent again until the time-out, with ranks of the moment of receipt: by
// then the map is newer or the leader another. Those that were acked are not sent again.
func (t *Table) Write(ctx context.Context, b *point.Batch, level point.Level) error {
	g, b2, err := t.enter(b)
	if err != nil {
		return err
	}
	if b2 != b {
		defer b2.Put()
	}
	defer t.leave(g)
	t.warnMerged(b)
	if err := t.metadata(ctx, b2.Metadata); err != nil {
		return err
	}
	return t.write(ctx, g, b, b2, level)
}

func (t *Table) leave(g *generation) {
	if err := g.leave(); err != nil {
		t.f.deps.Log.Warn("closing the streams of an old generation", "table", t.name, "error", err)
	}
}

// write writes what is in rows; what cannot be placed is refused in b.
func (t *Table) write(ctx context.Context, g *generation, b, rows *point.Batch, level point.Level) error {
	deadline := time.Now().Add(t.f.settings.Timeout)
	asked := ctx
	if !t.f.alone { // a process that is alone has nobody else to turn to, and its disk may be slow
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, deadline)
		defer stop()
	}
	w := attempt{t: t, g: g, ranks: reserve(t.f.deps.Clock, len(rows.IDs)+len(rows.Hists)+len(rows.Exemplars), &t.f.settings), level: level, rest: rows,
		fresh: fresh{left: t.f.settings.NewPartitionsPerWrite}}
	defer func() { w.drop(rows) }()
	for ; ; w.try++ {
		w.tables, w.leaders = t.f.deps.Tables.Changed(), t.f.leaders.Changed() // taken before looking
		// One that was dropped may be made anew; one that is being dropped takes nothing.
		m, err := t.f.deps.Tables.Ensure(ctx, t.name)
		if err != nil {
			return late(asked, ctx, err)
		}
		w.m = m
		homeless, err := w.run(ctx)
		if homeless > 0 && err == nil {
			b.Refuse(homeless, point.Refusal{Kind: fault.Invalid, Reason: w.homelessReason()})
		}
		if err == nil && len(w.failed) == 0 {
			return w.fresh.err(&t.f.settings, t.name)
		}
		if err == nil {
			err = w.await(ctx, deadline)
		}
		if err != nil {
			return late(asked, ctx, err)
		}
		w.keep(rows)
	}
}

// homelessReason says why no partition can be made for some rows.
func (w *attempt) homelessReason() string {
	if most := w.t.f.settings.PartitionsMax; w.m.Len() >= most {
		return fmt.Sprintf("table %q has %d partitions, the most that rows can make, and none for these times: check the timestamps, set a retention or a larger partition width",
			w.t.name, most)
	}
	return fmt.Sprintf("no partition can hold the time %d ns, the last there is", int64(math.MaxInt64))
}

// late makes what ended at our own deadline an Unavailable: the asker is still there, and can come again.
func late(asked, ctx context.Context, err error) error {
	if asked.Err() == nil && ctx.Err() != nil && fault.Is(err, fault.Canceled) {
		return fault.Wrap(err, fault.Unavailable, "no answer in time")
	}
	return err
}

// attempt is a write, at one of its tries: one map, and what is still to be written.
type attempt struct {
	// Constant.
	t     *Table
	g     *generation
	level point.Level

	// Of this try.
	try             int
	ranks           ranks
	m               *topology.Map
	tables, leaders <-chan struct{}
	rest            *point.Batch
	fresh           fresh // of all tries

	// What became of it.
	mu     sync.Mutex
	failed []failure
	next   *point.Batch // the rows of those that failed
	pieces int          // of one of them, the most
}

// failure is a share that may be sent again.
type failure struct {
	partition *topology.Partition
	asked     topology.ServerID // "": there was nobody to ask
	sent      bool
	reason    string
	err       error
}

// run routes and sends by one map. homeless counts the rows for which no partition can be made. An error is final; shares
// that may be tried again are in failed.
func (w *attempt) run(ctx context.Context) (homeless int, err error) {
	t := w.t
	c, _ := t.cutters.Get().(*route.Cutter)
	if c == nil {
		c = new(route.Cutter)
	}
	defer t.cutters.Put(c)
	shares, uncovered := c.Cut(w.m, w.rest)
	for len(uncovered) > 0 {
		all := missing(w.m, uncovered, t.f.settings.PartitionsMax-w.m.Len())
		times := w.allow(all, w.m.Config, time.Now())
		waits := len(times) < len(all)
		if len(times) == 0 {
			if waits {
				w.fresh.deferred += len(uncovered)
				uncovered = nil
			}
			break
		}
		next, err := t.f.deps.Tables.Cover(ctx, t.name, times)
		if err != nil {
			return 0, err
		}
		if next.Seq == w.m.Seq {
			break // times that no partition can hold
		}
		w.m = next
		shares, uncovered = c.Cut(w.m, w.rest)
	}
	if w.try == 0 {
		t.f.budget.earn(len(shares))
	}
	if len(shares) == 1 {
		return len(uncovered), w.send(ctx, &shares[0])
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range shares {
		group.Go(func() error { return w.send(ctx, &shares[i]) })
	}
	return len(uncovered), group.Wait()
}

// missing gives a time of each partition that the uncovered times need, the newest first and at most that many: at the
// bound, what is measured now matters more than what a wrong clock says.
func missing(m *topology.Map, uncovered []point.Nanos, most int) []point.Nanos {
	slots := map[point.Nanos]point.Nanos{}
	for _, at := range uncovered {
		lo, _ := m.Config.Aligned(at)
		slots[lo] = at
	}
	times := slices.SortedFunc(maps.Values(slots), func(a, b point.Nanos) int { return cmp.Compare(b, a) })
	return times[:min(len(times), max(most, 0))]
}

// send takes one share to its leader. What may succeed another time is noted, and is no error.
func (w *attempt) send(ctx context.Context, s *route.Share) error {
	rest := pieces{ids: s.IDs, times: s.Times, values: s.Values, hists: s.Hists, exemplars: s.Exemplars}
	lead, storage, err := w.t.f.server(w.t.name, s.Partition, w.try)
	f := failure{partition: s.Partition, asked: lead.Server, reason: reasonLeader}
	if err != nil && w.try == 0 {
		w.t.f.metrics.leaderless.Inc()
	}
	if err == nil {
		f.sent = true
		err = w.follow(ctx, s.Partition, lead.Server, func(ctx context.Context) error {
			return w.transfer(ctx, lead.Server, storage, s.Partition.ID, &rest)
		})
		w.t.f.metrics.share(err)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errMoved):
		f.reason = reasonMoved
	case fault.Is(err, fault.Stale):
		f.reason = reasonStale
	case fault.Is(err, fault.Unavailable) && !w.t.f.alone:
	default:
		return err
	}
	f.err = err
	w.fail(f, &rest)
	return nil
}

// follow runs f, and ends it when somebody else leads the partition.
func (w *attempt) follow(ctx context.Context, p *topology.Partition, asked topology.ServerID, f func(context.Context) error) error {
	if w.t.f.alone {
		return f(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(silenceMax, func() { w.t.f.follow(ctx, cancel, w.t.name, p, asked) })
	defer watch.Stop()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errMoved) {
		return fault.Wrap(errMoved, fault.Unavailable, "partition %s/%d: %s said nothing (%v)", w.t.name, p.ID, asked, err)
	}
	return err
}

// transfer sends what is left of a share in inserts of a bounded size, and takes off what was acked. A stream that broke
// is opened anew, once.
func (w *attempt) transfer(ctx context.Context, id topology.ServerID, storage peer.Storage, p point.PartitionID, rest *pieces) error {
	reason := reasonNew
	for {
		l, err := w.g.links.get(ctx, id, func(ctx context.Context) (peer.Stream, error) {
			w.t.f.metrics.streams.WithLabelValues(reason).Inc()
			return storage.OpenStream(ctx, w.t.name)
		})
		if err != nil {
			return err
		}
		err = w.insert(ctx, l, p, rest)
		if !errors.Is(err, peer.ErrStreamBroken) {
			return err
		}
		if cerr := w.g.links.drop(id, l); cerr != nil {
			w.t.f.deps.Log.Debug("closing a stream that broke", "table", w.t.name, "server", id, "error", cerr)
		}
		if reason == reasonReopened || ctx.Err() != nil || !w.t.f.budget.spend(time.Now(), 1) {
			return err
		}
		w.t.f.metrics.retries.WithLabelValues(reasonBroken).Inc()
		reason = reasonReopened
	}
}

func (w *attempt) insert(ctx context.Context, l *link, p point.PartitionID, rest *pieces) error {
	set := &w.t.f.settings
	in := peer.Insert{Partition: p, MapSeq: w.m.Seq, Level: w.level}
	for rest.len() > 0 {
		in.Stamp = w.ranks.of(rest.acked)
		rest.first(&in, set.InsertRowsMax)
		if err := l.define(ctx, w.g.dict, &in); err != nil {
			return err
		}
		shorten(&in, set.InsertBytesMax, int(l.longest.Load()), w.g.dict)
		if err := l.stream.Insert(ctx, &in); err != nil {
			return err
		}
		rest.drop(&in)
	}
	return nil
}

// fail notes a share, with the rows that were not acked: shares live in memory that the next cut uses again.
func (w *attempt) fail(f failure, rest *pieces) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, f)
	w.pieces = max(w.pieces, rest.acked+1) // one was perhaps kept and not acked
	if w.next == nil {
		w.next = point.GetBatch(w.g.dict)
	}
	n := w.next
	n.IDs, n.Times, n.Values = append(n.IDs, rest.ids...), append(n.Times, rest.times...), append(n.Values, rest.values...)
	n.Hists, n.Exemplars = append(n.Hists, rest.hists...), append(n.Exemplars, rest.exemplars...)
}

// keep makes what failed what is to be written next. first is the batch that is not ours to put back.
func (w *attempt) keep(first *point.Batch) {
	if w.rest != first {
		w.rest.Put()
	}
	w.rest, w.next, w.failed = w.next, nil, w.failed[:0]
	w.ranks.used, w.pieces = w.ranks.used+w.pieces, 0
	w.t.f.metrics.rerouted.Add(float64(w.rest.Rows()))
}

// drop frees the batches of a write that is over.
func (w *attempt) drop(first *point.Batch) {
	if w.rest != first {
		w.rest.Put()
	}
	if w.next != nil {
		w.next.Put()
	}
}

// await waits until another try makes sense: the map or a leader is another, or some time passed. The error is what the
// last try died of.
func (w *attempt) await(ctx context.Context, deadline time.Time) error {
	err := w.failed[0].err
	if w.stale() {
		w.t.f.maps.Refresh(ctx, w.t.name, w.m)
	}
	timer := time.NewTimer(pause(w.try))
	defer timer.Stop()
	for waiting := true; waiting && !w.news(); {
		select {
		case <-ctx.Done():
			if cause := ctx.Err(); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return err
		case <-timer.C:
			waiting = false
		case <-w.tables:
			w.tables = w.t.f.deps.Tables.Changed()
		case <-w.leaders:
			w.leaders = w.t.f.leaders.Changed()
		}
	}
	if time.Now().After(deadline) {
		return err
	}
	sent := 0
	for _, f := range w.failed {
		if f.sent {
			sent++
		}
	}
	if sent > 0 && !w.t.f.budget.spend(time.Now(), sent) {
		w.t.f.metrics.refused.Add(float64(sent))
		return fault.Annotate(err, "too much is being sent again already")
	}
	for _, f := range w.failed {
		if f.sent {
			w.t.f.metrics.retries.WithLabelValues(f.reason).Inc()
		}
	}
	return nil
}

func (w *attempt) stale() bool {
	return slices.ContainsFunc(w.failed, func(f failure) bool { return f.reason == reasonStale })
}

// news reports whether somebody else is to be asked now.
func (w *attempt) news() bool {
	if m, ok := w.t.f.deps.Tables.Get(w.t.name); !ok || m != w.m && m.Seq > w.m.Seq {
		return true
	}
	for _, f := range w.failed {
		lead, err := w.t.f.leaders.Find(w.t.name, f.partition, w.try)
		if err == nil && lead.Server != f.asked {
			return true
		}
	}
	return false
}

// Bounds of the pause before a share is sent to the same server again.
const (
	pauseMin = 10 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

func pause(try int) time.Duration {
	p := min(pauseMin<<min(try, 10), pauseMax)
	return p/2 + rand.N(p)
}
