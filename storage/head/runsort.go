package head

import "github.com/spillwaydb/spillway/protocols/point"

// runSorter sorts columns by time and leaves rows of one time in their order. Late rows mostly come as a few runs, each in order by itself:
// those are merged, which needs a pass for each doubling of their number instead of one for each doubling of the rows.
type runSorter struct {
	times  []point.Nanos // scratch
	values []float64
	ends   []int // of runs
}

func (r *runSorter) sort(times []point.Nanos, values []float64) {
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
	skip := 0
	for skip < n && times[skip] <= times[n] { // these stay where they are
		skip++
	}
	times, values, n = times[skip:], values[skip:], n-skip
	r.times, r.values = append(r.times[:0], times[:n]...), append(r.values[:0], values[:n]...)
	a, b, to := 0, n, 0
	for ; a < n && b < len(times); to++ {
		if r.times[a] <= times[b] {
			times[to], values[to] = r.times[a], r.values[a]
			a++
		} else {
			times[to], values[to] = times[b], values[b]
			b++
		}
	}
	copy(times[to:], r.times[a:])
	copy(values[to:], r.values[a:])
}
