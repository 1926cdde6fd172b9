package otlp

import (
	"cmp"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/share"
)

const (
	// deltasMax bounds the series that a Deltas remembers.
	deltasMax = 1 << 20
	// deltaBytes is the memory of a series beside its names: its state, and its place in a map that has just grown.
	deltaBytes = 350
	// deltaReckoned is the memory that a series is reckoned with: of longer ones fewer are remembered.
	deltaReckoned = deltaBytes + 250
	// deltaTableBytes is the memory of a table beside its name.
	deltaTableBytes = 350
)

const (
	// deltaIdleMin is how long a series must have had no sample before another one may replace it. Longer than senders wait between two exports, which is a minute in every
	// SDK's defaults: the sum of one that goes on would begin again at zero.
	deltaIdleMin = 10 * time.Minute
	// deltaDeadMin is how long a series must have had no sample before one of a table that holds more may replace it, too.
	deltaDeadMin = 24 * time.Hour
	// deltaSearchPause is how long a table that found nothing to replace does not look again: its refusals would cost a look at every table each.
	deltaSearchPause = time.Second
)

// deltaTimes is how many of the newest times of a series are remembered. More: an export may come again after more newer ones; 16 bytes each.
const deltaTimes = 4

// Deltas adds up samples of delta temporality, for all tables of a process. The zero Deltas is ready and safe for
// concurrent use.
//
// An export that comes again must not count twice, also after newer ones of its series: its answer was lost, or was 503 and others passed it. A delta at a time that is
// remembered gives the sum of then once more. One at a new time before the newest counts from the next sum on: its row has the sum of the row before it, because sums that
// are stored already would be lower than its own, which looks like a reset. One before all remembered times may have been counted, and is refused.
//
// A delta that is not finite, as the sum of a histogram that had one such observation, is the row of its time alone: later sums go on without it.
//
//	times   10   20   40   50      at 20: the sum of then     at 30: the sum at 20, and the sums after 50 have it     at 5: refused
//
// Tables share the room as package share has it: sums are held for long, so its last quarter is for tables that hold little. Where a table has no more room, a
// new series of it replaces one whose last sample is older than deltaIdleMin: the oldest one of this table, or else of a table that holds as much. Otherwise the new
// series is refused, and its sender gets the reason: the sum of a replaced series in use would begin again at zero, as if its program had been restarted.
type Deltas struct {
	// Max bounds the series that are remembered, where it is less than 1,048,576; 0: so many. Their memory is bounded by 600 bytes for each. Constant.
	Max int

	late atomic.Int64
	held budget.Held

	mu struct {
		sync.Mutex
		pool   *share.Pool // nil before the first sample
		tables map[string]*deltaTable
		series map[deltaKey]*deltaState
		began  time.Time     // the first sample came
		found  []*deltaState // scratch memory of add
	}
}

// deltaTable holds the sums of a table. A table without sums is not kept.
type deltaTable struct {
	name           string
	share          *share.Member
	series         int
	newest, oldest *deltaState   // by their last samples
	searchAfter    time.Duration // from Deltas' began on
}

// bytes is the memory of a table without series.
func (t *deltaTable) bytes() int64 { return deltaTableBytes + int64(len(t.name)) }

// deltaKey names a series.
type deltaKey struct {
	table *deltaTable
	deltaSeries
}

// deltaSeries names a series of a table by its labels, because its number ends with its Dict.
type deltaSeries struct {
	replica string // of an HA pair: each sender's deltas have a sum of their own
	labels  point.Labels
}

// bytes is the memory of a series. Allocations are up to an eighth larger than their contents.
func (s *deltaSeries) bytes() int64 {
	names := int64(len(s.replica) + len(s.labels))
	return deltaBytes + names + names/8
}

// reckoned is the part of the room that a series has. Short ones have as much as others, so that the room also bounds their number.
func (s *deltaSeries) reckoned() int64 { return max(s.bytes(), deltaReckoned) }

// deltaState is the sum of all deltas of a series, and its newest times.
type deltaState struct {
	named deltaSeries // in memory of its own: a part of a Dict's would keep all of that
	sum   float64
	len   int                   // 0: no sample was added yet
	times [deltaTimes]deltaTime // the first len, rising

	seen         time.Duration // from Deltas' began to the last sample
	newer, older *deltaState   // of its table
}

// deltaTime is the sum that a series has at a time, without deltas that are not finite.
type deltaTime struct {
	at  point.Nanos
	sum float64
}

// Bytes is the memory of the sums and of the names of their series.
func (d *Deltas) Bytes() int64 { return d.held.Load() }

// OnGrowth registers f, which is called with the coming value of Bytes each time before it grows.
func (d *Deltas) OnGrowth(f func(to int64)) { d.held.OnGrowth(f) }

// Late returns how many samples came after newer ones of their series and count from the next sum on.
func (d *Deltas) Late() int64 { return d.late.Load() }

// deltaRow is a delta, and then the sum at its time.
type deltaRow struct {
	series deltaSeries
	v      float64
}

// add replaces the deltas at t by sums. If it refuses one of them, none is added: the buckets of a histogram belong together. The error is Invalid.
func (d *Deltas) add(table string, t point.Nanos, rows []deltaRow) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.pool == nil {
		d.mu.pool, d.mu.began = share.NewReserved(int64(d.most())*deltaReckoned), time.Now()
		d.mu.tables, d.mu.series = map[string]*deltaTable{}, map[deltaKey]*deltaState{}
	}
	now, of := time.Since(d.mu.began), d.openLocked(table)
	defer func() { clear(d.mu.found) }()
	d.mu.found = d.mu.found[:0]
	for i := range rows {
		state, err := d.findLocked(of, rows[i].series, now)
		if err == nil {
			d.mu.found = append(d.mu.found, state)
			err = state.tooLate(t)
		}
		if err != nil {
			for _, state := range d.mu.found {
				if state.len == 0 && d.mu.series[deltaKey{of, state.named}] == state {
					d.forgetLocked(of, state)
				}
			}
			d.closeLocked(of)
			return err
		}
	}
	for i, state := range d.mu.found {
		sum, late := state.add(t, rows[i].v)
		if late {
			d.late.Add(1)
		}
		rows[i].v = sum
	}
	return nil
}

// openLocked gives a table, to which a series is added, or which is closed.
func (d *Deltas) openLocked(name string) *deltaTable {
	of := d.mu.tables[name]
	if of == nil {
		of = &deltaTable{name: strings.Clone(name), share: d.mu.pool.Member()}
		d.held.Add(of.bytes())
		of.share.Add(of.bytes())
		d.mu.tables[of.name] = of
	}
	return of
}

// closeLocked removes a table that has no series.
func (d *Deltas) closeLocked(of *deltaTable) {
	if of.series == 0 {
		delete(d.mu.tables, of.name)
		of.share.Add(-of.bytes())
		d.held.Add(-of.bytes())
	}
}

func (d *Deltas) most() int { return min(cmp.Or(d.Max, deltasMax), deltasMax) }

// tooLate says why a delta at t cannot be added, or nil: the sum before it is unknown, as after a restart the rows before are of other sums.
func (s *deltaState) tooLate(t point.Nanos) error {
	if s.len == 0 || t >= s.times[0].at {
		return nil
	}
	return fault.Errorf(fault.Invalid, "delta at %d is older than the last %d of its series, from %d on: it was counted already, or is too late", t, s.len, s.times[0].at)
}

// add gives the row at t, which is not too late, and reports whether newer rows lack the delta.
func (s *deltaState) add(t point.Nanos, v float64) (row float64, late bool) {
	i := s.len // of the first time that is not before t
	for i > 0 && s.times[i-1].at >= t {
		i--
	}
	if i < s.len && s.times[i].at == t {
		return rowOf(s.times[i].sum, v), false
	}
	now, next := deltaTime{at: t, sum: s.sum}, s.sum+v
	counts := isFinite(next) // otherwise no later sum would be a number
	if counts {
		s.sum = next
	}
	if i < s.len {
		late, now.sum = counts, s.times[i-1].sum
		row = rowOf(now.sum, v)
	} else {
		now.sum, row = s.sum, next
	}
	if s.len == deltaTimes { // the oldest one is forgotten
		copy(s.times[:], s.times[1:i])
		i--
	} else {
		copy(s.times[i+1:], s.times[i:s.len])
		s.len++
	}
	s.times[i] = now
	return row, late
}

// rowOf is the row at a time with a sum, which has the delta of then if that is finite.
func rowOf(sum, v float64) float64 {
	if isFinite(v) {
		return sum
	}
	return sum + v
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// findLocked gives the state of a series, as the newest of its table. The error is Invalid.
func (d *Deltas) findLocked(of *deltaTable, series deltaSeries, now time.Duration) (*deltaState, error) {
	state := d.mu.series[deltaKey{of, series}]
	if state != nil {
		of.unlink(state)
	} else {
		if err := d.makeRoomLocked(of, series.reckoned(), now); err != nil {
			return nil, err
		}
		d.held.Add(series.bytes())
		state = &deltaState{named: deltaSeries{strings.Clone(series.replica), point.Labels(strings.Clone(string(series.labels)))}}
		d.mu.series[deltaKey{of, state.named}] = state
		of.series++
	}
	state.seen = now
	of.link(state)
	return state, nil
}

// makeRoomLocked books the room of a series, for which idle ones are forgotten.
func (d *Deltas) makeRoomLocked(of *deltaTable, room int64, now time.Duration) error {
	of.share.Add(room)
	for !of.share.Admits() {
		from := d.idleLocked(of, now)
		if from == nil {
			of.share.Add(-room)
			return fault.Errorf(fault.Invalid, "no room for the sum of one more series of delta temporality: the sums of this table have %d bytes, and those of all tables %d of at most %d; "+
				"raise intake.series_max, or let senders export cumulative values", of.share.Used(), d.mu.pool.Used(), d.mu.pool.Most())
		}
		d.forgetLocked(from, from.oldest)
		if from != of {
			d.closeLocked(from)
		}
	}
	return nil
}

// idleLocked gives the table whose oldest series makes room for one of a table, or nil. Tables that hold less lose none, unless it is dead: a table with a flood of series would
// end the sums of those that export seldom.
func (d *Deltas) idleLocked(of *deltaTable, now time.Duration) (from *deltaTable) {
	if of.oldest != nil && now-of.oldest.seen >= deltaIdleMin {
		return of
	}
	if now < of.searchAfter {
		return nil
	}
	for _, t := range d.mu.tables {
		if t.oldest == nil {
			continue // the one that asks
		}
		idle := now - t.oldest.seen
		if (idle >= deltaDeadMin || idle >= deltaIdleMin && t.share.Used() >= of.share.Used()) && (from == nil || t.oldest.seen < from.oldest.seen) {
			from = t
		}
	}
	if from == nil {
		of.searchAfter = now + deltaSearchPause
	}
	return from
}

// forgetLocked removes a series and gives back its room.
func (d *Deltas) forgetLocked(of *deltaTable, s *deltaState) {
	of.unlink(s)
	delete(d.mu.series, deltaKey{of, s.named})
	of.series--
	of.share.Add(-s.named.reckoned())
	d.held.Add(-s.named.bytes())
}

// link makes a state the newest.
func (t *deltaTable) link(s *deltaState) {
	s.older, s.newer = t.newest, nil
	if s.older != nil {
		s.older.newer = s
	} else {
		t.oldest = s
	}
	t.newest = s
}

// unlink removes a state from the order.
func (t *deltaTable) unlink(s *deltaState) {
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		t.newest = s.older
	}
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		t.oldest = s.newer
	}
}
