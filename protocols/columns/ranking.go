package columns

import (
	"container/heap"
	"sort"
)

// ranking keeps the k largest or least values of each group and step, and their columns.
type ranking struct {
	k     int
	least bool
	steps int

	// A column stays here when it is replaced everywhere: finding out costs more than its labels. finish leaves it out.
	columns []Column // those that were among the first at some time; values are not kept
	heaps   [][]rank // by group and step
}

// rank is a heap ordered as the engine's, so that equal values are picked and ordered as there: the value to be replaced
// next lies on top, NaN before all.
type rank struct {
	of    []ranked
	least bool
}

type ranked struct {
	value  float64
	column int32
}

// Len implements heap.Interface.
func (r *rank) Len() int { return len(r.of) }

// Less implements heap.Interface.
func (r *rank) Less(i, j int) bool {
	a, b := r.of[i].value, r.of[j].value
	return a != a || !r.least && a < b || r.least && a > b
}

// Swap implements heap.Interface.
func (r *rank) Swap(i, j int) { r.of[i], r.of[j] = r.of[j], r.of[i] }

// Push implements heap.Interface.
func (r *rank) Push(x any) { r.of = append(r.of, x.(ranked)) }

// Pop implements heap.Interface.
func (r *rank) Pop() any {
	last := r.of[len(r.of)-1]
	r.of = r.of[:len(r.of)-1]
	return last
}

// replaces reports whether v replaces the value on top.
// An equal value replaces none: the series that came first stays.
func (r *rank) replaces(v float64) bool {
	top := r.of[0].value
	return !r.least && top < v || r.least && top > v || top != top && v == v
}

func (r *ranking) open() {
	heaps := make([]rank, r.steps)
	for i := range heaps {
		heaps[i].least = r.least
	}
	r.heaps = append(r.heaps, heaps)
}

// add returns how many more bytes it holds.
func (r *ranking) add(group int, c *Column) (bytes int64) {
	at := int32(-1)
	for i, v := range c.Values {
		if IsAbsent(v) {
			continue
		}
		h := &r.heaps[group][i]
		full := len(h.of) >= r.k
		if full && !h.replaces(v) {
			continue
		}
		if at < 0 {
			at = int32(len(r.columns))
			r.columns = append(r.columns, Column{Labels: c.Labels, Dropped: c.Dropped})
			bytes += columnBytes + int64(len(c.Labels)) + int64(r.steps)*8
		}
		if !full {
			heap.Push(h, ranked{v, at})
			bytes += rankBytes
			continue
		}
		h.of[0] = ranked{v, at}
		heap.Fix(h, 0)
	}
	return bytes
}

// finish returns the columns that are among the first somewhere. Those of a single step come in their order.
func (r *ranking) finish() []Column {
	var out []Column
	place := make([]int32, len(r.columns)) // in out, from 1
	for _, steps := range r.heaps {
		for i := range steps {
			h := &steps[i]
			if len(h.of) > 1 {
				sort.Sort(sort.Reverse(h))
			}
			for _, e := range h.of {
				if place[e.column] == 0 {
					out = append(out, r.empty(e.column))
					place[e.column] = int32(len(out))
				}
				out[place[e.column]-1].Values[i] = e.value
			}
		}
	}
	return out
}

func (r *ranking) empty(column int32) Column {
	c := r.columns[column]
	c.Values = make([]float64, r.steps)
	for i := range c.Values {
		c.Values[i] = Absent
	}
	return c
}
