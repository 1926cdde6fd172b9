package forward

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

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
	if isDue(now, s.next.Load(), delaysPeriod) && s.mu.TryLock() {
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

// isDue reports whether it is at or later, where at was set no more than within ahead. A clock that was ahead then, and was set right since, makes nothing wait until it is there again.
func isDue(now, at, within point.Nanos) bool { return now >= at || at-now > within }

// waiting are the rows of one delay.
type waiting struct {
	due   point.Nanos
	batch *point.Batch
}

// smear stages the rows that wait, and leaves the others in w.rest. It never fails: rows that cannot be staged are left too.
func (w *attempt) smear(ctx context.Context, m *topology.Map) {
	set, met := &m.Config.Smear, &w.t.f.metrics.smear
	if set.Mode == smear.Off || w.whole != nil || w.rest.Smear == point.SmearWaited {
		return
	}
	rule, now := set.WithDefaults(), w.t.f.deps.Clock.now()
	in := w.t.smearing.of(now, rule, m, w.t.f.deps.Staging.Takers)
	rows := len(w.rest.IDs) + len(w.rest.Hists)
	switch {
	case in.Zero() || rows == 0:
		return
	case w.rest.Smear == point.SmearOff:
		met.direct.WithLabelValues(directOptedOut).Add(float64(rows))
		return
	case !isDue(now, w.t.smearing.full.Load(), fullFor):
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
	staged := w.stageLanes(ctx, lanes)
	for i, l := range lanes {
		n := len(l.batch.IDs) + len(l.batch.Hists)
		if i < staged {
			met.rows.Add(float64(n))
			met.delay.Observe(time.Duration(l.due - now).Seconds())
		} else {
			rest.IDs, rest.Times, rest.Values = append(rest.IDs, l.batch.IDs...), append(rest.Times, l.batch.Times...), append(rest.Values, l.batch.Values...)
			rest.Hists = append(rest.Hists, l.batch.Hists...)
			met.direct.WithLabelValues(directFull).Add(float64(n))
			w.t.smearing.full.Store(now + fullFor)
		}
		l.batch.Put()
	}
}

// lanes sorts the rows: a lane for each delay, and rest for rows that do not wait. far counts those of rest that do not because their time is not near now, although
// their partition is narrow. The caller puts all batches back. w.rest is not changed.
func (w *attempt) lanes(m *topology.Map, rule smear.Rule, in smear.InForce, now point.Nanos) (lanes []waiting, rest *point.Batch, far int) {
	d, b := w.g.dict, w.rest
	rest = point.GetBatch(d)
	finder := widths{m: m, dict: d}
	of := func(id point.SeriesID, t point.Nanos) *point.Batch {
		// The delay follows from all labels, whatever the table's ring rule is: series of one prefix would else wait equally long.
		row := smear.Row{Ring: w.g.rings.of(d, id), Time: t, Width: finder.of(id, t), Wish: b.Smear}
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

// widths finds how wide the partitions of rows are.
type widths struct {
	m    *topology.Map
	dict *point.Dict
	last *topology.Partition
}

func (w *widths) of(id point.SeriesID, t point.Nanos) point.Nanos {
	if w.last == nil || w.last.PointLo != 0 || w.last.PointHi != 0 || !w.last.Contains(0, t) { // of columns, or of another time
		if at := w.m.PointOf(w.dict.Labels(id)); w.last == nil || !w.last.Contains(at, t) {
			w.last, _ = w.m.Find(at, t)
		}
	}
	if w.last != nil {
		return topology.Width(w.last)
	}
	return point.Nanos(w.m.Config.PartitionWidth)
}

// Delays returns how long each row of b waits in its Kafka topic, where the table is set so (smear.KafkaWait): the float rows, then the histograms. smear.Jumps: it does
// not wait, though others of its series do. They are appended to delays. false: no row of the table waits there. A later row of a series,
// by a later from, is never due before an earlier one.
func (t *Table) Delays(from time.Time, b *point.Batch, delays []point.Nanos) ([]point.Nanos, bool) {
	m, ok := t.f.deps.Tables.Get(t.name)
	if !ok || !t.f.settings.Smear || t.f.deps.Staging == nil || m.Config.Smear.Mode == smear.Off || m.Config.Smear.Kafka != smear.KafkaWait {
		return delays, false
	}
	rule, now := m.Config.Smear.WithDefaults(), point.Nanos(from.UnixNano())
	in := t.smearing.of(now, rule, m, t.f.deps.Staging.Takers).At(now)
	if in.Zero() {
		return delays, false
	}
	ring := func(id point.SeriesID) uint64 { return b.Dict.Labels(id).RingPoint() }
	if g := t.generationOf(b.Dict); g != nil {
		defer t.leave(g)
		ring = func(id point.SeriesID) uint64 { return g.rings.of(b.Dict, id) }
	}
	finder := widths{m: m, dict: b.Dict}
	of := func(id point.SeriesID, at point.Nanos) point.Nanos {
		return rule.Delay(smear.Row{Ring: ring(id), Time: at, Width: finder.of(id, at), Wish: b.Smear}, in, now)
	}
	for i, id := range b.IDs {
		delays = append(delays, of(id, b.Times[i]))
	}
	for i := range b.Hists {
		delays = append(delays, of(b.Hists[i].ID, b.Hists[i].Time))
	}
	return delays, true
}

// stageLanes makes the rows of each delay durable on as many servers as an ack of all needs, and returns how many of the delays, from the first on, it did so for. Of one that it did
// not, some rows may be staged: they are forwarded with the rank that they have here too.
//
// The frames of a request go to the same holders together, as far as an insert has room for them: one message, one wait for the disk and one ack.
func (w *attempt) stageLanes(ctx context.Context, lanes []waiting) (staged int) {
	at := rand.Uint64() // chooses the holders
	var group frames
	whole := 0 // lanes of which all rows are in group, or staged
	for i := range lanes {
		b := lanes[i].batch
		rest := pieces{ids: b.IDs, times: b.Times, values: b.Values, hists: b.Hists}
		for rest.len() > 0 {
			in := w.laneFrame(&lanes[i], &rest)
			if !group.fits(in, &w.t.f.settings) {
				if !w.stageGroup(ctx, &group, at) {
					return staged
				}
				staged = whole
			}
			group.add(in)
			rest.drop(in)
		}
		whole = i + 1
	}
	if !w.stageGroup(ctx, &group, at) {
		return staged
	}
	return whole
}

// laneFrame makes a frame of the first rows that are left of a delay.
func (w *attempt) laneFrame(l *waiting, rest *pieces) *peer.Insert {
	set := &w.t.f.settings
	in := &peer.Insert{MapSeq: w.m.Seq, Level: w.level, Stamp: w.ranks.of(rest.acked), Staging: &peer.Staging{Do: peer.Stage, Nonce: rand.Uint64(), Due: l.due}}
	rest.first(in, set.InsertRowsMax)
	shorten(in, set.InsertBytesMax, labelsBound, w.g.dict)
	return in
}

func (w *attempt) stageGroup(ctx context.Context, g *frames, at uint64) bool {
	if len(g.all) == 0 {
		return true
	}
	err := w.hold(ctx, g.all, at, holderTimeout, unwanted{})
	if err != nil {
		w.t.f.deps.Log.Debug("smeared rows could not be staged: they go to the leaders of their partitions", "table", w.t.name, "error", err)
	}
	*g = frames{}
	return err == nil
}

// frames go to their holders together.
type frames struct {
	all         []*peer.Insert
	rows, bytes int
}

// fits reports whether one more frame may go with them: together they are no larger than an insert may be.
func (g *frames) fits(in *peer.Insert, set *Settings) bool {
	rows, bytes := sizeOf(in)
	return len(g.all) == 0 || len(g.all) < peer.TogetherMax && g.rows+rows <= set.InsertRowsMax && g.bytes+bytes <= set.InsertBytesMax
}

func (g *frames) add(in *peer.Insert) {
	rows, bytes := sizeOf(in)
	g.all, g.rows, g.bytes = append(g.all, in), g.rows+rows, g.bytes+bytes
}

// sizeOf returns the rows of an insert, and more than the bytes that they have on their way. Its series were defined before.
func sizeOf(in *peer.Insert) (rows, bytes int) {
	rows = len(in.IDs) + len(in.Hists)
	bytes = itemBytes * rows
	for i := range in.Hists {
		bytes += len(in.Hists[i].H)
	}
	return rows, bytes
}
