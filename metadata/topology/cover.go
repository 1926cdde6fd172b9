package topology

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Covering plans the partitions that are missing for the whole ring to be covered at each of the times. They are aligned
// to the width, cut where columns and others lie, and placed by place, which is called once for each. No half-open range
// holds the last value of int64, so that time is left out: admission refuses it long before.
func (m *Map) Covering(times []point.Nanos, place func(point.PartitionID) []Placement) Create {
	t := &txn{m: *m}
	var out Create
	for _, at := range times {
		lo, hi := m.Config.Aligned(at)
		out.Partitions = append(out.Partitions, t.fill(at, lo, hi, 0, 0, place)...)
	}
	return out
}

// fill makes partitions around a time, within [lo, hi) and the ring range, wherever nothing lies, and gives them.
func (t *txn) fill(at, lo, hi point.Nanos, pointLo, pointHi uint64, place func(point.PartitionID) []Placement) []Partition {
	if at == math.MaxInt64 {
		return nil
	}
	free := t.free(at, pointLo, pointHi)
	if len(free) == 0 {
		return nil
	}
	layout, from, until := t.m.layout(at)
	lo, hi = max(lo, from), min(hi, until)
	var out []Partition
	for _, f := range free {
		for i, r := range layout.Ranges {
			b, ok := f.ringCut(r.Lo, layout.end(i))
			if !ok {
				continue
			}
			b.timeLo, b.timeHi = lo, hi
			// At the time itself nothing holds this range of the ring, so whatever overlaps the box lies before that time or after it, and cuts it there.
			t.m.overlapping(lo, hi-1, func(o *box, _ *Partition) bool {
				if o.overlaps(&b) {
					if o.timeHi <= at {
						b.timeLo = o.timeHi
					} else {
						b.timeHi = o.timeLo
					}
				}
				return true
			})
			p := &Partition{ID: t.m.NextID, PointLo: b.pointLo, PointHi: b.pointHi, TimeLo: b.timeLo, TimeHi: b.timeHi, Placements: place(t.m.NextID)}
			t.m.NextID++
			t.put(p)
			out = append(out, *p)
		}
	}
	return out
}

// free gives the parts of a ring range that no partition holds at a time. A partition that unloads holds its part too, beside those that replace it: ranges of held may
// overlap.
func (t *txn) free(at point.Nanos, pointLo, pointHi uint64) []box {
	var held []box
	t.m.overlapping(at, at, func(b *box, _ *Partition) bool {
		held = append(held, *b)
		return true
	})
	slices.SortFunc(held, func(a, b box) int { return cmp.Compare(a.pointLo, b.pointLo) })
	var out []box
	lo := pointLo
	for _, h := range held {
		if pointHi != 0 && h.pointLo >= pointHi {
			break
		}
		if h.pointLo > lo {
			out = append(out, box{pointLo: lo, pointHi: h.pointLo})
		}
		if h.pointHi == 0 {
			return out
		}
		lo = max(lo, h.pointHi)
	}
	if pointHi == 0 || lo < pointHi {
		out = append(out, box{pointLo: lo, pointHi: pointHi})
	}
	return out
}

// ringCut returns the intersection of two ring ranges.
func (b box) ringCut(lo, hi uint64) (box, bool) {
	b.pointLo = max(b.pointLo, lo)
	switch {
	case b.pointHi == 0:
		b.pointHi = hi
	case hi != 0:
		b.pointHi = min(b.pointHi, hi)
	}
	return b, b.pointHi == 0 || b.pointLo < b.pointHi
}
