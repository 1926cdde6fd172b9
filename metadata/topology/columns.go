package topology

import (
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// ColumnsMax bounds the ring ranges of a layout, and so the partitions of one step of time.
	ColumnsMax = 4096
	// WeightsMax bounds the columns that have a weight.
	WeightsMax = 1024
	// LayoutsMax bounds how many layouts a map remembers. The oldest goes first: times before it that nothing covers yet
	// are then covered by the whole ring.
	LayoutsMax = 64
)

// Range is a piece of the ring, from Lo to the next range's Lo, and the column it belongs to. A column may have several.
type Range struct {
	Lo     uint64 `json:"lo"`
	Column uint32 `json:"column"`
}

// Layout is how new partitions cut the ring from a time on, until the next layout.
type Layout struct {
	From    point.Nanos `json:"from"`
	Weights []uint32    `json:"weights"` // by column; 0: a column that is no more
	Ranges  []Range     `json:"ranges"`  // the first Lo is 0, and they rise
}

func (l *Layout) equal(o *Layout) bool {
	return l.From == o.From && slices.Equal(l.Weights, o.Weights) && slices.Equal(l.Ranges, o.Ranges)
}

func (l *Layout) clone() Layout {
	return Layout{From: l.From, Weights: slices.Clone(l.Weights), Ranges: slices.Clone(l.Ranges)}
}

func (l *Layout) valid() error {
	if len(l.Ranges) == 0 || len(l.Ranges) > ColumnsMax || l.Ranges[0].Lo != 0 {
		return fault.Errorf(fault.Invalid, "columns are 1 to %d ranges of the ring, the first from 0: let Spread make them", ColumnsMax)
	}
	if len(l.Weights) > WeightsMax {
		return fault.Errorf(fault.Invalid, "%d columns have weights, at most %d may", len(l.Weights), WeightsMax)
	}
	for i, r := range l.Ranges {
		if i > 0 && r.Lo <= l.Ranges[i-1].Lo {
			return fault.Errorf(fault.Invalid, "column ranges do not rise at %#x: let Spread make them", r.Lo)
		}
		if int(r.Column) >= len(l.Weights) || l.Weights[r.Column] == 0 {
			return fault.Errorf(fault.Invalid, "ring range %#x belongs to column %d, which has no weight", r.Lo, r.Column)
		}
	}
	return nil
}

// end gives the exclusive end of range i; 0: 2^64.
func (l *Layout) end(i int) uint64 {
	if i+1 < len(l.Ranges) {
		return l.Ranges[i+1].Lo
	}
	return 0
}

// Spread cuts the ring by weights: column i gets weights[i]/sum of 2^64, to the integer (C97). Of the old layout it moves
// as little as possible: only the excess of columns that have too much goes to those that have too little, each piece to one column. With no
// old layout columns lie in order. Should that leave more than ColumnsMax pieces, all are laid anew, in order.
// Errors are Invalid.
func Spread(old []Range, weights []uint32) ([]Range, error) {
	if len(weights) == 0 || len(weights) > WeightsMax {
		return nil, fault.Errorf(fault.Invalid, "%d columns: choose 1 to %d", len(weights), WeightsMax)
	}
	var sum, before uint64
	for _, w := range weights {
		sum += uint64(w)
	}
	if sum == 0 {
		return nil, fault.Errorf(fault.Invalid, "all columns have weight 0: give one of them more")
	}
	var fresh []Range
	want := make([]uint64, len(weights)) // ring points each column should have
	for i, w := range weights {
		if uint64(w) == sum {
			return []Range{{Lo: 0, Column: uint32(i)}}, nil // the share 2^64 has no uint64
		}
		if w > 0 {
			lo, _ := bits.Div64(before, 0, sum)
			before += uint64(w)
			hi := uint64(0)
			if before < sum {
				hi, _ = bits.Div64(before, 0, sum)
			}
			fresh = append(fresh, Range{lo, uint32(i)})
			want[i] = hi - lo
		}
	}
	if len(old) == 0 {
		return fresh, nil
	}
	if moved := rearrange(old, want); len(moved) <= ColumnsMax {
		return moved, nil
	}
	return fresh, nil
}

// rearrange gives each column as many ring points as it wants. Every column first keeps, in ring order, its old points up to
// that number; the rest is handed out after it.
func rearrange(old []Range, want []uint64) []Range {
	type piece struct {
		lo, last uint64 // both included
		column   uint32
	}
	take := func(column uint32, lo, last uint64) uint64 { // how many it still wants
		if int(column) >= len(want) {
			return 0
		}
		n := want[column]
		if n != 0 && n-1 > last-lo {
			n = last - lo + 1 // no overflow: n is more
		}
		want[column] -= n
		return n
	}
	var kept, free []piece
	for i, r := range old {
		last := uint64(math.MaxUint64)
		if i+1 < len(old) {
			last = old[i+1].Lo - 1
		}
		n := take(r.Column, r.Lo, last)
		if n > 0 {
			kept = append(kept, piece{r.Lo, r.Lo + n - 1, r.Column})
		}
		if n == 0 || r.Lo+n-1 != last {
			free = append(free, piece{lo: r.Lo + n, last: last})
		}
	}
	for _, f := range free {
		// The neighbour above may grow downwards without a new piece; else the next column with room.
		first := uint32(0)
		if i := slices.IndexFunc(kept, func(k piece) bool { return k.lo == f.last+1 }); i >= 0 && f.last != math.MaxUint64 {
			first = kept[i].column
		}
		for k := uint32(0); ; k++ {
			c := (first + k) % uint32(len(want))
			if n := take(c, f.lo, f.last); n > 0 {
				kept = append(kept, piece{f.lo, f.lo + n - 1, c})
				if f.lo+n-1 == f.last {
					break
				}
				f.lo += n
			}
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].lo < kept[j].lo })
	var out []Range
	for _, k := range kept {
		if len(out) == 0 || out[len(out)-1].Column != k.column {
			out = append(out, Range{k.lo, k.column})
		}
	}
	return out
}

// layout returns the cut of the ring at t, and the times between which it holds. Without a layout the ring is whole.
func (m *Map) layout(t point.Nanos) (l *Layout, lo, hi point.Nanos) {
	i := sort.Search(len(m.Layouts), func(i int) bool { return m.Layouts[i].From > t })
	lo, hi = math.MinInt64, math.MaxInt64
	if i < len(m.Layouts) {
		hi = m.Layouts[i].From
	}
	if i == 0 {
		return &Layout{Ranges: []Range{{}}}, lo, hi
	}
	return &m.Layouts[i-1], m.Layouts[i-1].From, hi
}

// RangesAt returns the cut of the ring for new partitions at a time. The result is part of the map: do not change it.
func (m *Map) RangesAt(t point.Nanos) []Range {
	l, _, _ := m.layout(t)
	return l.Ranges
}
