package head

import (
	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// sincePages is how many pages are looked at under one lock: appends wait for half a millisecond at most.
const sincePages = 32

// SeriesSince gives the series that may have rows at lo or later. Left out are those whose last row is their newest and lies
// before lo. The bitmap is the caller's. Rows that are appended meanwhile may be missed.
func (h *Head) SeriesSince(lo point.Nanos) *roaring.Bitmap {
	out := h.SeriesIDs()
	if from, _, ok := h.TimeBounds(); !ok || lo <= from {
		return out
	}
	var over []uint32
	for first := 0; ; first += sincePages {
		var more bool
		if over, more = h.overBefore(lo, first, over[:0]); len(over) > 0 {
			gone := roaring.New()
			gone.AddMany(over)
			out.AndNot(gone)
		}
		if !more {
			return out
		}
	}
}

// overBefore appends the series of some pages whose last row lies before lo; more: pages follow.
func (h *Head) overBefore(lo point.Nanos, first int, over []uint32) (_ []uint32, more bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if first == 0 {
		for i := range h.few.series {
			if h.few.series[i].endsBefore(lo) {
				over = append(over, uint32(i))
			}
		}
	}
	for n := first; n < min(first+sincePages, len(h.pages)); n++ {
		if h.pages[n] == nil {
			continue
		}
		for i := range h.pages[n].series {
			if h.pages[n].series[i].endsBefore(lo) {
				over = append(over, uint32(n<<pageShift|i))
			}
		}
	}
	return over, first+sincePages < len(h.pages)
}

// endsBefore reports whether a series has rows, all before lo.
func (s *series) endsBefore(lo point.Nanos) bool {
	return s.rows > 0 && s.flags&(hasHists|isPassed) == 0 && s.lastTime < lo
}
