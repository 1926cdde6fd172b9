package follow

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// DoubtAge is the time since a map was last verified as the newest, after which it is doubted: every watch breaks for a
// moment.
const DoubtAge = 5 * time.Second

// ahead is how far after now partitions are expected to have rows: from senders with clocks that are ahead.
const ahead = point.Nanos(time.Minute)

// ledAhead is the time before its own by which a partition has a leader at the latest (storage/lead/rules).
const ledAhead = point.Nanos(30 * time.Second)

// MayBeUnled reports whether a partition may have no leader because its time has not come. A read does not ask for a
// partition that no server ever led: a leader writes its lease row before it acks the first row. A partition that should be
// led by now is asked for, and its reader waits for a leader.
func MayBeUnled(p *topology.Partition, now point.Nanos) bool {
	return now < math.MaxInt64-ledAhead && p.TimeLo > now+ledAhead
}

// Doubt returns the first part of [lo, hi], both ends included, in which there may be partitions that the map does not
// have, because it was last verified as the newest age ago; ok is false where there is none. Keys that a partition of the
// map accepts are in no doubt: the server that leads it answers Stale if the partition has changed. Times beyond the
// retention, or after now, are in no doubt either.
func Doubt(m *topology.Map, lo, hi, now point.Nanos, age time.Duration) (from, to point.Nanos, ok bool) {
	if age < DoubtAge {
		return 0, 0, false
	}
	if r := point.Nanos(m.Config.Retention); r > 0 && now > math.MinInt64+r {
		lo = max(lo, now-r)
	}
	if now < math.MaxInt64-ahead {
		hi = min(hi, now+ahead)
	}
	w := sweep{rest: slices.DeleteFunc(m.Overlapping(lo, hi), func(p *topology.Partition) bool { return !p.Accepts() })}
	for at := lo; at <= hi; {
		covered, next := w.to(at)
		if !covered {
			return at, min(hi, next-1), true
		}
		if next > hi || next == math.MaxInt64 {
			break
		}
		at = next
	}
	return 0, 0, false
}

// sweep goes through partitions in the order of their times.
type sweep struct {
	rest []*topology.Partition // that begin later
	open []*topology.Partition // that have begun
}

// to goes on to a time. It reports whether partitions cover the whole ring there, and until when (excluded) that holds.
func (w *sweep) to(at point.Nanos) (covered bool, next point.Nanos) {
	for len(w.rest) > 0 && w.rest[0].TimeLo <= at {
		w.open, w.rest = append(w.open, w.rest[0]), w.rest[1:]
	}
	w.open = slices.DeleteFunc(w.open, func(p *topology.Partition) bool { return p.TimeHi <= at })
	next = math.MaxInt64
	if len(w.rest) > 0 {
		next = w.rest[0].TimeLo
	}
	for _, p := range w.open {
		next = min(next, p.TimeHi)
	}
	slices.SortFunc(w.open, func(a, b *topology.Partition) int { return cmp.Compare(a.PointLo, b.PointLo) })
	var ring uint64
	for _, p := range w.open {
		if p.PointLo > ring {
			return false, next
		}
		if p.PointHi == 0 { // the end of the ring
			return true, next
		}
		ring = max(ring, p.PointHi)
	}
	return false, next
}
