package head

import (
	"maps"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Exemplar is one exemplar of a series. Labels are its own, not the series'.
type Exemplar struct {
	Time   point.Nanos
	Value  float64
	Labels point.Labels
}

const exemplarBytes = 68 // with its place in the ring, its share of the slice and the map around it, without its labels

// AppendExemplar adds an exemplar. If the head is full, it evicts the exemplar that came first, as Prometheus' ring
// does; then evicted is true. Like Append it is for one caller at a time.
func (h *Head) AppendExemplar(id point.DenseID, e Exemplar) (evicted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.exemplars == nil {
		h.exemplars = make(map[point.DenseID][]Exemplar)
	}
	if evicted = len(h.exemplarRing) == h.set.ExemplarsMax; evicted {
		h.evictLocked(h.exemplarRing[h.exemplarNext])
		h.exemplarRing[h.exemplarNext] = id
		h.exemplarNext = (h.exemplarNext + 1) % len(h.exemplarRing)
	} else {
		h.exemplarRing = append(h.exemplarRing, id)
	}
	h.exemplars[id] = append(h.exemplars[id], e)
	h.heapBytes += exemplarBytes + len(e.Labels)
	return evicted
}

// evictLocked removes a series' exemplar that came first.
func (h *Head) evictLocked(id point.DenseID) {
	of := h.exemplars[id]
	h.heapBytes -= exemplarBytes + len(of[0].Labels)
	if len(of) == 1 {
		delete(h.exemplars, id)
		return
	}
	of[0] = Exemplar{} // so that the rest of the slice does not hold its labels
	h.exemplars[id] = of[1:]
}

// Exemplars appends a series' exemplars with times in [lo, hi] to dst, by time, the same one never twice.
func (h *Head) Exemplars(id point.DenseID, lo, hi point.Nanos, dst []Exemplar) []Exemplar {
	h.mu.RLock()
	defer h.mu.RUnlock()
	from := len(dst)
	for _, e := range h.exemplars[id] {
		if e.Time >= lo && e.Time <= hi {
			dst = append(dst, e)
		}
	}
	slices.SortFunc(dst[from:], compareExemplars)
	rest := slices.CompactFunc(dst[from:], func(a, b Exemplar) bool { return compareExemplars(a, b) == 0 })
	return dst[:from+len(rest)]
}

func compareExemplars(a, b Exemplar) int { return a.row().Compare(b.row()) }

func (e Exemplar) row() point.ExemplarRow {
	return point.ExemplarRow{Time: e.Time, Value: e.Value, Labels: e.Labels}
}

// EachExemplar calls f for every exemplar, by series and then by time, until f returns an error, which it returns.
// Series may have exemplars and no rows.
func (h *Head) EachExemplar(f func(id point.DenseID, e Exemplar) error) error {
	h.mu.RLock()
	ids := slices.Sorted(maps.Keys(h.exemplars))
	h.mu.RUnlock()
	var buf []Exemplar
	for _, id := range ids {
		buf = h.Exemplars(id, math.MinInt64, math.MaxInt64, buf[:0])
		for _, e := range buf {
			if err := f(id, e); err != nil {
				return err
			}
		}
	}
	return nil
}
