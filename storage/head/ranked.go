package head

import (
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// chainRanks finds the ranks of rows in chains, for one series after the other. Neighbours mostly came with the same frames: then all of them have the ranks of the
// first.
type chainRanks struct {
	groups map[*group][]point.Stamp // of groups looked at before; nil: the head may grow meanwhile
	kept   int                      // stamps in groups

	of     *group        // of the series before
	stamps []point.Stamp // of the frames of that group
	seen   []uint32      // of the series before
	ranks  []point.Stamp // of seen
	cols   columns       // memory
	frames []uint32
	spare  []point.Stamp

	floats, hists []point.Stamp // memory for those of other series
}

// readWhole is ReadRanked of all rows of a series.
func (h *Head) readWhole(id point.DenseID, ranks *chainRanks, dst *rows.Run) bool {
	dst.Reset()
	dst.Ranks, dst.HistRanks = ranks.floats[:0], ranks.hists[:0]
	h.mu.RLock()
	defer h.mu.RUnlock()
	const all = math.MaxInt64
	if th := h.thinLocked(id); th != nil {
		ok := h.readThinLocked(th, id, -all-1, all, anyStamp, true, dst)
		ranks.floats = dst.Ranks
		return ok
	}
	s, g := h.findLocked(id)
	if s == nil {
		return false
	}
	h.readRankedLocked(id, s, g, -all-1, all, ranks, dst)
	if dst.Len() == 0 {
		return false
	}
	dst.StampLo, dst.StampHi = h.stampsLocked(id, s)
	return true
}

// readRankedLocked fills dst with the rows of a series and their ranks. The ranks are those of ranks, until its next use, and read only.
func (h *Head) readRankedLocked(id point.DenseID, s *series, g *group, lo, hi point.Nanos, ranks *chainRanks, dst *rows.Run) {
	if s.flags&(hasAside|hasHists) != 0 {
		h.settleLocked(id, s, g, lo, hi, anyStamp, true, dst)
		ranks.floats, ranks.hists = dst.Ranks, dst.HistRanks
		return
	}
	var seen []uint32
	if s.flags != 0 {
		w := scratches.Get().(*scratch)
		defer w.put()
		h.settleChainLocked(s, lo, hi, w, true, dst)
		seen = w.cols.seen[:len(dst.Times)]
	} else {
		c := &ranks.cols
		*c = columns{times: dst.Times, values: dst.Values, seen: c.seen[:0], withSeen: true}
		c.grow(h.expectLocked(s, lo, hi))
		s.walk(&h.arena, lo, hi, c)
		dst.Times, dst.Values, seen = c.times, c.values, c.seen
	}
	if len(seen) > 0 {
		dst.Ranks = ranks.find(h, g, seen)
	}
}

// find returns the ranks of rows of a series of group g, which came with these of its frames.
func (r *chainRanks) find(h *Head, g *group, seen []uint32) []point.Stamp {
	if r.of != g {
		r.of, r.stamps, r.seen = g, r.stampsOf(h, g), r.seen[:0]
	}
	if slices.Equal(seen, r.seen) {
		return r.ranks
	}
	r.seen = append(r.seen[:0], seen...)
	r.ranks = slices.Grow(r.ranks[:0], len(seen))[:len(seen)]
	for i, n := range seen {
		r.ranks[i] = r.stamps[n-1]
	}
	return r.ranks
}

// groupsKept bounds the stamps of groups that a drain keeps, 8 bytes each. It comes by the groups of all hosts for each metric.
const groupsKept = 1 << 18

// stampsOf returns the stamps of the frames of a group.
func (r *chainRanks) stampsOf(h *Head, g *group) []point.Stamp {
	if stamps, ok := r.groups[g]; ok {
		return stamps
	}
	r.frames = g.frames(&h.arena, r.frames[:0])
	into := r.spare[:0]
	keep := r.groups != nil && r.kept+len(r.frames) <= groupsKept
	if keep {
		into = nil
	}
	into = slices.Grow(into, len(r.frames))
	for _, f := range r.frames {
		into = append(into, h.stamps[f-1])
	}
	if keep {
		r.groups[g], r.kept = into, r.kept+len(into)
	} else {
		r.spare = into
	}
	return into
}
