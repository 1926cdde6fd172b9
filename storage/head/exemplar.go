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

const exemplarBytes = 64 // with its share of the slice and the map around it, without its labels

// AppendExemplar adds an exemplar; false: the head holds as many as it may. Like Append it is for one caller at a time.
func (h *Head) AppendExemplar(id point.DenseID, e Exemplar) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.exemplarN >= h.set.ExemplarsMax {
		return false
	}
	if h.exemplars == nil {
		h.exemplars = make(map[point.DenseID][]Exemplar)
	}
	h.exemplars[id] = append(h.exemplars[id], e)
	h.exemplarN++
	h.heapBytes += exemplarBytes + len(e.Labels)
	return true
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
