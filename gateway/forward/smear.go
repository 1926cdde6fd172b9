package forward

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// Rows of narrow partitions are smeared: those near now wait in staging for a delay that follows from their series, so that the partitions of several servers
// accept rows at once (package smear). A write stages them, in a frame for each delay, before the others go to their leaders. Rows that cannot be staged
// go to their leaders too. The holders route a frame when it is due, by the map of that time (C44).
//
// An atomic write is never smeared: it is one frame. Exemplars are not: readers do not find them in staging.

// smearing is the state that a table's writes share. Times are unix nanoseconds.
type smearing struct {
	delays atomic.Pointer[smear.InForce]
	next   atomic.Int64 // when they are computed again
	full   atomic.Int64 // until then nothing is staged: there was no room

	mu     sync.Mutex
	change smear.Change // guarded by mu
}

const (
	delaysPeriod = point.Nanos(250 * time.Millisecond)
	// fullFor is how long rows go to their leaders after some could not be staged.
	fullFor = point.Nanos(500 * time.Millisecond)
)

// of returns the delays in force.
func (s *smearing) of(now point.Nanos, rule smear.Rule, m *topology.Map, servers func() int) smear.InForce {
	if now >= s.next.Load() && s.mu.TryLock() {
		defer s.mu.Unlock()
		wanted, _ := rule.Delays(m.LoadAt(now, servers()))
		in := s.change.Step(now, wanted)
		s.delays.Store(&in)
		s.next.Store(now + delaysPeriod)
	}
	if in := s.delays.Load(); in != nil {
		return *in
	}
	return smear.InForce{} // another write computes the first ones
}

// waiting are the rows of one delay.
type waiting struct {
	due   point.Nanos
	batch *point.Batch
}

// smear stages the rows that wait, and leaves the others in w.rest. It never fails: rows that cannot be staged are left too.
func (w *attempt) smear(ctx context.Context, m *topology.Map) {
	set, met := &m.Config.Smear, &w.t.f.metrics.smear
	if set.Mode == smear.Off || w.whole != nil {
		return
	}
	rule, now := set.WithDefaults(), point.Nanos(time.Now().UnixNano())
	in := w.t.smearing.of(now, rule, m, w.t.f.deps.Staging.Takers)
	rows := len(w.rest.IDs) + len(w.rest.Hists)
	switch {
	case in.Zero() || rows == 0:
		return
	case w.rest.Smear == point.SmearOff:
		met.direct.WithLabelValues(directOptedOut).Add(float64(rows))
		return
	case now < w.t.smearing.full.Load():
		met.direct.WithLabelValues(directFull).Add(float64(rows))
		return
	}
	lanes, rest, far := w.lanes(m, rule, in, now)
	met.direct.WithLabelValues(directFar).Add(float64(far))
	if len(lanes) == 0 {
		rest.Put()
		return
	}
	w.m, w.rest = m, rest
	failed := make([]bool, len(lanes))
	var g errgroup.Group
	at := rand.Uint64() // one choice of holders: they log and answer frames that come together at once
	for i := range lanes {
		g.Go(func() error {
			failed[i] = !w.stageLane(ctx, &lanes[i], at)
			return nil
		})
	}
	_ = g.Wait()
	for i, l := range lanes {
		n := len(l.batch.IDs) + len(l.batch.Hists)
		if failed[i] {
			rest.IDs, rest.Times, rest.Values = append(rest.IDs, l.batch.IDs...), append(rest.Times, l.batch.Times...), append(rest.Values, l.batch.Values...)
			rest.Hists = append(rest.Hists, l.batch.Hists...)
			met.direct.WithLabelValues(directFull).Add(float64(n))
			w.t.smearing.full.Store(now + fullFor)
		} else {
			met.rows.Add(float64(n))
			met.delay.Observe(time.Duration(l.due - now).Seconds())
		}
		l.batch.Put()
	}
}

// lanes sorts the rows: a lane for each delay, and rest for rows that do not wait. far counts those of rest that do not because their time is not near now, although
// their partition is narrow. The caller puts all batches back. w.rest is not changed.
func (w *attempt) lanes(m *topology.Map, rule smear.Rule, in smear.InForce, now point.Nanos) (lanes []waiting, rest *point.Batch, far int) {
	d, b := w.g.dict, w.rest
	rest = point.GetBatch(d)
	var last *topology.Partition
	of := func(id point.SeriesID, t point.Nanos) *point.Batch {
		// The delay follows from all labels, whatever the table's ring rule is: series of one prefix would else wait equally long.
		l := d.Labels(id)
		row, at := smear.Row{Ring: l.RingPoint(), Time: t, Width: point.Nanos(m.Config.PartitionWidth), Wish: b.Smear}, m.PointOf(l)
		if last == nil || !last.Contains(at, t) {
			last, _ = m.Find(at, t)
		}
		if last != nil {
			row.Width = topology.Width(last)
		}
		due, waits := rule.Due(row, in, now)
		if !waits {
			if row.Width < rule.Threshold && (t < now-rule.Near || t > now+rule.Near) {
				far++
			}
			return rest
		}
		for i := range lanes {
			if lanes[i].due == due {
				return lanes[i].batch
			}
		}
		lanes = append(lanes, waiting{due, point.GetBatch(d)})
		return lanes[len(lanes)-1].batch
	}
	for i, id := range b.IDs {
		of(id, b.Times[i]).Append(id, b.Times[i], b.Values[i])
	}
	for _, h := range b.Hists {
		to := of(h.ID, h.Time)
		to.Hists = append(to.Hists, h)
	}
	rest.Exemplars = append(rest.Exemplars, b.Exemplars...)
	return lanes, rest, far
}

// stageLane makes the rows of one delay durable on as many servers as an ack of all needs. After a failure some of the rows may be staged: they are
// forwarded with the rank that they have here too. at chooses the servers.
func (w *attempt) stageLane(ctx context.Context, l *waiting, at uint64) bool {
	set := &w.t.f.settings
	b := l.batch
	rest := pieces{ids: b.IDs, times: b.Times, values: b.Values, hists: b.Hists}
	for rest.len() > 0 {
		in := peer.Insert{MapSeq: w.m.Seq, Level: w.level, Stamp: w.ranks.of(rest.acked), Staging: &peer.Staging{Do: peer.Stage, Nonce: rand.Uint64(), Due: l.due}}
		rest.first(&in, set.InsertRowsMax)
		shorten(&in, set.InsertBytesMax, labelsBound, w.g.dict)
		if err := w.hold(ctx, &in, at, holderTimeout, unwanted{}); err != nil {
			w.t.f.deps.Log.Debug("smeared rows could not be staged: they go to the leaders of their partitions", "table", w.t.name, "error", err)
			return false
		}
		rest.drop(&in)
	}
	return true
}
