package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/follow/runner"
	"github.com/spillwaydb/spillway/gateway/route"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Write writes everything in b and returns when it is as safe as the level demands. Rows at times for which no partition
// can be made are refused in b. Errors keep the Kind of the share that failed; the rows kept by then stay.
//
// Shares that met an old map, or no leader, are routed and sent again until the time-out: by then the map is newer or
// another server leads. Acked shares are not sent again.
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
	if b.Atomic { // of metadata there is one row a family, and any number may come again
		if err := t.write(ctx, g, b, b2, level); err != nil {
			return err
		}
		return t.metadata(ctx, b2.Metadata)
	}
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

// write writes rows; those that cannot be placed are refused in b.
func (t *Table) write(ctx context.Context, g *generation, b, rows *point.Batch, level point.Level) error {
	w := attempt{t: t, g: g, request: t.f.follow.Policy.Request(time.Now()), ranks: reserve(t.f.deps.Clock, len(rows.IDs)+len(rows.Hists)+len(rows.Exemplars), &t.f.settings), level: level, rest: rows,
		fresh: fresh{left: t.f.settings.NewPartitionsPerWrite}}
	if b.Atomic {
		w.whole = b
	}
	defer func() { w.drop(rows) }()
	asked := ctx
	if !t.f.follow.Policy.Alone { // a process that is alone has no other to turn to, and its disk may be slow
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, w.request.Deadline())
		defer stop()
	}
	if t.f.settings.Smear && t.f.deps.Staging != nil {
		m, err := t.f.deps.Tables.Ensure(ctx, t.name)
		if err != nil {
			return late(asked, ctx, err)
		}
		if w.smear(ctx, m); w.rest != rows && w.rest.Rows()+len(w.rest.Exemplars) == 0 {
			return nil
		}
	}
	for {
		changes := t.f.follow.Changes() // fetched before looking: what changes after the look ends the wait below
		// One that was dropped may be made again; one that is being dropped accepts nothing.
		m, err := t.f.deps.Tables.Ensure(ctx, t.name)
		if err != nil {
			return late(asked, ctx, err)
		}
		w.m = m
		unplaced, err := w.run(ctx)
		if unplaced > 0 && err == nil {
			b.Refuse(unplaced, point.Refusal{Kind: fault.Invalid, Reason: fmt.Sprintf("no partition can hold the time %d ns, the last there is", int64(math.MaxInt64))})
		}
		if err == nil && len(w.failed) == 0 {
			w.unkept.report(b, rows)
			return w.fresh.err(&t.f.settings, t.name)
		}
		stage := false
		if err == nil {
			stage, err = w.await(ctx, changes)
		}
		if err != nil {
			return late(asked, ctx, err)
		}
		away := w.away()
		w.keep(rows)
		if !stage {
			continue
		}
		if w.unstaged = w.stage(ctx, away); w.unstaged == nil {
			w.unkept.report(b, rows)
			return w.fresh.err(&t.f.settings, t.name)
		}
		t.f.metrics.unstaged.Inc()
		w.request.Unstaged(time.Now())
	}
}

// late turns an end at our own deadline into an Unavailable: the caller is still there, and can come again.
func late(asked, ctx context.Context, err error) error {
	if asked.Err() == nil && ctx.Err() != nil && fault.Is(err, fault.Canceled) {
		return fault.Wrap(err, fault.Unavailable, "no answer in time")
	}
	return err
}

// attempt is a write, at one of its tries: one map, and the rows still to be written.
type attempt struct {
	// Constant.
	t     *Table
	g     *generation
	level point.Level

	request  follow.Request
	whole    *point.Batch // the batch of an atomic write, as it was decoded; nil: shares and pieces are kept one by one
	unstaged error        // why the rows could not be staged

	// Of this try.
	ranks ranks
	m     *topology.Map
	rest  *point.Batch
	fresh fresh // of all tries

	// The outcome.
	mu     sync.Mutex
	failed []follow.Failure
	next   *point.Batch // the rows of those that failed
	unkept unkept
	pieces int // of one of them, the most
	// anew are the ranks of partitions that sent an insert back: the next try of those rows has them too, whether over another stream or by another map.
	anew map[point.PartitionID]ranks
}

// run routes and sends by one map. The shares lie in memory of the cutter, which another write has next: all sends have ended when it is put back, and rows that are
// to be sent again were copied (fail). unplaced counts the rows for which no partition can be made. An error is final; shares
// that may be retried are in failed.
func (w *attempt) run(ctx context.Context) (unplaced int, err error) {
	t := w.t
	c, _ := t.cutters.Get().(*route.Cutter)
	if c == nil {
		c = new(route.Cutter)
	}
	defer t.cutters.Put(c)
	shares, uncovered := c.Cut(w.m, w.rest)
	for len(uncovered) > 0 {
		all, full := missing(w.m, uncovered, t.f.settings.PartitionsMax-w.m.Len())
		if len(all) == 0 && full {
			w.fresh.full += len(uncovered)
			uncovered = nil
			break
		}
		if w.whole != nil && len(all)+len(shares) > 1 {
			return 0, w.elsewhere() // before partitions are made for rows that are refused
		}
		times := w.allow(all, w.m.Config, time.Now())
		waits := len(times) < len(all)
		if len(times) == 0 {
			if waits {
				w.fresh.deferred += len(uncovered)
				uncovered = nil
			}
			break
		}
		peer.Waiting(ctx)()
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
	if w.whole != nil && (len(uncovered) > 0 || len(shares) > 1) {
		return 0, w.apart(len(uncovered))
	}
	if w.request.Try() == 0 {
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
// bound, present measurements matter more than times from a wrong clock. full reports that more are needed.
func missing(m *topology.Map, uncovered []point.Nanos, most int) (times []point.Nanos, full bool) {
	slots := map[point.Nanos]point.Nanos{}
	for _, at := range uncovered {
		lo, _ := m.Config.Aligned(at)
		slots[lo] = at
	}
	times = slices.SortedFunc(maps.Values(slots), func(a, b point.Nanos) int { return cmp.Compare(b, a) })
	most = max(most, 0)
	return times[:min(len(times), most)], len(times) > most
}

// send sends one share to its leader. A failure that may pass is recorded, and is no error.
func (w *attempt) send(ctx context.Context, s *route.Share) error {
	rest := pieces{ids: s.IDs, times: s.Times, values: s.Values, hists: s.Hists, exemplars: s.Exemplars}
	began, try := time.Now(), w.request.Try()
	lead, storage, err := w.t.f.server(w.t.name, s.Partition, try)
	if err != nil {
		if try == 0 {
			w.t.f.metrics.leaderless.Inc()
		}
		if w.t.f.follow.Policy.Alone || !fault.Is(err, fault.Unavailable) {
			return err
		}
		w.fail(s.Partition, began, follow.Failure{Asked: lead.Server, Reason: follow.Leaderless, Err: err}, &rest)
		return nil
	}
	if !w.t.f.follow.Policy.Alone {
		peer.Waiting(ctx)() // another server encodes and logs it
	}
	at := partitionOf(w.t.name, s.Partition)
	if w.t.f.stages() && w.t.f.absence.skip(at) {
		w.fail(s.Partition, began, follow.Failure{Asked: lead.Server, Guess: lead.Guess, Reason: follow.Unanswered,
			Err: fault.Wrap(runner.ErrSilent, fault.Unavailable, "partition %s/%d: %s", w.t.name, s.Partition.ID, lead.Server)}, &rest)
		return nil
	}
	a := w.t.f.follow.BeginOne(ctx, w.t.name, lead.Server, s.Partition)
	defer a.Close()
	err = w.transfer(a.Context(), lead.Server, storage, s.Partition.ID, &rest)
	verdict, reason := a.End(err)
	deaf := verdict == follow.Again && errors.Is(context.Cause(a.Context()), runner.ErrSilent)
	switch {
	case deaf:
		err = fault.Wrap(runner.ErrSilent, fault.Unavailable, "partition %s/%d: %s (%v)", w.t.name, s.Partition.ID, lead.Server, err)
	case verdict == follow.Again && reason == follow.Moved:
		err = fault.Wrap(runner.ErrMoved, fault.Unavailable, "partition %s/%d: %s said nothing (%v)", w.t.name, s.Partition.ID, lead.Server, err)
	}
	w.t.f.metrics.share(err)
	if verdict != follow.Again {
		w.t.f.absence.answered(at)
		return err
	}
	full := reason == follow.Unanswered && !deaf && !lead.Guess && !errors.Is(err, peer.ErrStreamBroken) && w.t.f.full(lead.Server)
	w.fail(s.Partition, began, follow.Failure{Asked: lead.Server, Guess: lead.Guess, Sent: true, Deaf: deaf, Full: full, Reason: reason, Err: err}, &rest)
	return nil
}

// transfer sends the rest of a share in inserts of a bounded size, and removes the acked rows. A broken stream is opened
// anew, once.
func (w *attempt) transfer(ctx context.Context, id topology.ServerID, storage peer.Storage, p point.PartitionID, rest *pieces) error {
	return w.on(ctx, id, storage, func(l *link) error { return w.insert(ctx, l, p, rest) })
}

// on calls f with the link to a server, and again with another one if it broke.
func (w *attempt) on(ctx context.Context, id topology.ServerID, storage peer.Storage, f func(*link) error) error {
	reason := reasonNew
	for {
		l, err := w.g.links.get(ctx, id, func(ctx context.Context) (peer.Stream, error) {
			w.t.f.metrics.streams.WithLabelValues(reason).Inc()
			return storage.OpenStream(ctx, w.t.name)
		})
		if err != nil {
			return err
		}
		err = f(l)
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

// insert sends rest to a partition, as many rows at a time as a frame holds. Series are offered before the rows are cut by bytes, since the cut needs the longest labels. After
// a refusal, and after a new rank, the insert is built again from the rows that are left. Acked rows are removed from rest: an attempt at another server sends the others alone.
func (w *attempt) insert(ctx context.Context, l *link, p point.PartitionID, rest *pieces) error {
	set := &w.t.f.settings
	in := peer.Insert{Partition: p, MapSeq: w.m.Seq, Level: w.level}
	ranks := w.ranksOf(p)
	for rest.len() > 0 {
		in.Stamp = ranks.of(rest.acked)
		rest.first(&in, set.InsertRowsMax)
		refused, err := l.offer(ctx, w.g.dict, &in)
		if err != nil {
			return err
		}
		if len(refused.IDs) > 0 {
			if err := w.refuse(refused, rest); err != nil {
				return err
			}
			continue
		}
		shorten(&in, set.InsertBytesMax, int(l.longest.Load()), w.g.dict)
		if taken := len(in.IDs) + len(in.Hists) + len(in.Exemplars); w.whole != nil && taken < rest.len() {
			return fault.Errorf(fault.TooLarge, "an atomic request is one frame: of its %d rows %d fit into one (at most %d rows and %d bytes); nothing of it is kept",
				rest.len(), taken, set.InsertRowsMax, set.InsertBytesMax)
		}
		if err := l.stream.Insert(ctx, &in); err != nil {
			if w.restamp(err, &ranks, rest) {
				w.reranked(p, ranks)
				continue
			}
			return err
		}
		rest.drop(&in)
	}
	return nil
}

// ranksOf gives the ranks of a partition's inserts.
func (w *attempt) ranksOf(p point.PartitionID) ranks {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r, is := w.anew[p]; is {
		return r
	}
	return w.ranks
}

// reranked notes that a partition's inserts have other ranks from now on. A try of which no answer came may come to its end in its server much later, behind a later write
// of the same rows: it is recognized by its rank, if that which was acked in its place had the same.
func (w *attempt) reranked(p point.PartitionID, r ranks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anew == nil {
		w.anew = map[point.PartitionID]ranks{}
	}
	w.anew[p] = r
}

// fail records a share that was sent from began on with its rows without an ack, as a copy: shares live in memory that the next cut uses again.
func (w *attempt) fail(p *topology.Partition, began time.Time, f follow.Failure, rest *pieces) {
	f.Partitions = []*topology.Partition{p}
	if w.request.Try() == 0 && f.Reason == follow.Unanswered && w.t.f.dead(f.Asked) {
		w.t.f.metrics.leaderless.Inc()
	}
	if w.t.f.stages() {
		f.Since = w.t.f.absence.failed(began, partitionOf(w.t.name, p), &f)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, f)
	w.pieces = max(w.pieces, rest.acked) // one more may have been kept and not acked: its rank identifies it when it comes again
	if r, is := w.anew[p.ID]; is {
		r.used, r.anew = r.used+rest.acked, 0
		w.anew[p.ID] = r
	}
	if w.next == nil {
		w.next = point.GetBatch(w.g.dict)
	}
	n := w.next
	n.IDs, n.Times, n.Values = append(n.IDs, rest.ids...), append(n.Times, rest.times...), append(n.Values, rest.values...)
	n.Hists, n.Exemplars = append(n.Hists, rest.hists...), append(n.Exemplars, rest.exemplars...)
}

// keep makes the failed part the next to be written. first is the batch that is not ours to put back.
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

// await waits until another try makes sense, or the rows are to be staged. The error is the last try's.
func (w *attempt) await(ctx context.Context, changes runner.Changes) (stage bool, err error) {
	began := time.Now()
	e := w.t.f.follow.Await(ctx, &w.request, w.t.name, w.m, w.failed, changes)
	w.t.f.metrics.waited.WithLabelValues(w.failed[0].Reason.String()).Add(time.Since(began).Seconds())
	err = w.failed[0].Err
	if w.unstaged != nil {
		err = fault.Annotate(err, "not staged either (%v)", w.unstaged)
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return false, cause
	}
	if e.Do == follow.GiveUp || ctx.Err() != nil {
		return false, err
	}
	if e.Do == follow.Stage {
		return true, nil
	}
	if e.Again > 0 && !w.t.f.budget.spend(time.Now(), e.Again) {
		w.t.f.metrics.refused.Add(float64(e.Again))
		return false, fault.Annotate(err, "too much is being sent again already")
	}
	for _, f := range w.failed {
		if f.Sent {
			w.t.f.metrics.retries.WithLabelValues(f.Reason.String()).Inc()
		}
	}
	return false, nil
}
