package head

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// runSorter sorts columns by time and leaves rows of one time in their order. Late rows mostly come as a few runs, each in order by itself:
// those are merged, which needs a pass for each doubling of their number instead of one for each doubling of the rows.
type runSorter struct {
	times  []point.Nanos // scratch
	values []float64
	seen   []uint32
	ends   []int // of runs

	// Of the last merge: the rows that stayed, those of the first run, and of the merged ones which came from the second.
	skip, n, merged int
	second          []bool
}

// sort sorts the three columns; seen may be empty.
func (r *runSorter) sort(times []point.Nanos, values []float64, seen []uint32) {
	r.ends = r.ends[:0]
	for i := 1; i < len(times); i++ {
		if times[i] < times[i-1] {
			r.ends = append(r.ends, i)
		}
	}
	r.ends = append(r.ends, len(times))
	for len(r.ends) > 1 {
		from, n := 0, 0
		for i := 0; i < len(r.ends); i += 2 {
			if i+1 < len(r.ends) {
				end := r.ends[i+1]
				r.merge(times[from:end], values[from:end], r.ends[i]-from)
				if len(seen) > 0 {
					r.follow(seen[from:end])
				}
				from = end
			} else {
				from = r.ends[i]
			}
			r.ends[n] = from
			n++
		}
		r.ends = r.ends[:n]
	}
}

// merge merges the first n rows with the rest.
func (r *runSorter) merge(times []point.Nanos, values []float64, n int) {
	r.skip, r.n = 0, n
	for r.skip < n && times[r.skip] <= times[n] { // these stay where they are
		r.skip++
	}
	times, values, n = times[r.skip:], values[r.skip:], n-r.skip
	r.times, r.values = append(r.times[:0], times[:n]...), append(r.values[:0], values[:n]...)
	r.second = slices.Grow(r.second[:0], len(times))[:len(times)]
	a, b, to := 0, n, 0
	for ; a < n && b < len(times); to++ {
		if r.times[a] <= times[b] {
			times[to], values[to], r.second[to] = r.times[a], r.values[a], false
			a++
		} else {
			times[to], values[to], r.second[to] = times[b], values[b], true
			b++
		}
	}
	r.merged = to
	copy(times[to:], r.times[a:])
	copy(values[to:], r.values[a:])
}

// follow orders another column as merge ordered the two before it.
func (r *runSorter) follow(seen []uint32) {
	seen, n := seen[r.skip:], r.n-r.skip
	r.seen = append(r.seen[:0], seen[:n]...)
	a, b := 0, n
	for to, second := range r.second[:r.merged] {
		if second {
			seen[to] = seen[b]
			b++
		} else {
			seen[to] = r.seen[a]
			a++
		}
	}
	copy(seen[r.merged:], r.seen[a:])
}
