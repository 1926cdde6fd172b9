package presplit

import "slices"

// Weight says how large a partition is at rest: each has some bytes for every row, and those of the definitions of its series, which it repeats
// however few rows it gets. Rows are counted by a partition's sizes, series are not: PerPartition is the sum over the series that write at a time.
type Weight struct {
	PerRow, PerPartition float64
}

// Weighed is a partition that closed.
type Weighed struct{ Rows, Bytes float64 }

const (
	// weighedFew is how many of the newest partitions give the size of a partition: rows change over weeks. weighedMax is how many are used to tell the
	// bytes of each row from those of each partition.
	weighedFew, weighedMax = 8, 24
	// apart is how many times the rows of a partition another must have, at least, to show by the difference the bytes of a row; apartMin is
	// how many pairs must be so: one partition that was compacted, or got other rows, is no evidence.
	apart, apartMin = 1.25, 8
	// repeatedMax is the share of the target that is kept at most for what each partition repeats: if that were all of it, no width would do.
	repeatedMax = 0.5
)

// WeightOf learns the weight from partitions that closed, newest first; false: there are none. Where all have about as many rows as each other, all
// bytes count as those of rows: partitions of just that many rows get the right size, and partitions of another size correct it later.
func WeightOf(closed []Weighed) (Weight, bool) {
	closed = slices.DeleteFunc(slices.Clone(closed[:min(len(closed), weighedMax)]), func(p Weighed) bool { return p.Rows <= 0 || p.Bytes <= 0 })
	if len(closed) == 0 {
		return Weight{}, false
	}
	newest := closed[:min(len(closed), weighedFew)]
	slope, ok := slopeOf(closed)
	if !ok {
		var sum Weighed
		for _, p := range newest {
			sum.Rows, sum.Bytes = sum.Rows+p.Rows, sum.Bytes+p.Bytes
		}
		return Weight{PerRow: sum.Bytes / sum.Rows}, true
	}
	rest, ratios := make([]float64, len(closed)), make([]float64, len(newest))
	for i, p := range closed {
		rest[i] = p.Bytes - slope*p.Rows
	}
	w := Weight{slope, max(middle(rest), 0)}
	for i, p := range newest {
		ratios[i] = p.Bytes / w.Bytes(p.Rows)
	}
	by := middle(ratios)
	return Weight{w.PerRow * by, w.PerPartition * by}, true
}

// slopeOf is the median of the bytes of more rows, of all pairs that are far enough apart (Theil and Sen): a few odd ones do not count.
func slopeOf(closed []Weighed) (float64, bool) {
	var slopes []float64
	for i, p := range closed {
		for _, q := range closed[i+1:] {
			if max(p.Rows, q.Rows) >= apart*min(p.Rows, q.Rows) {
				slopes = append(slopes, (p.Bytes-q.Bytes)/(p.Rows-q.Rows))
			}
		}
	}
	if len(slopes) < apartMin {
		return 0, false
	}
	slope := middle(slopes)
	return slope, slope > 0
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// Bytes is the size of a partition of so many rows.
func (w Weight) Bytes(rows float64) float64 { return rows*w.PerRow + w.PerPartition }

// Rows is how many rows a partition of a size has.
func (w Weight) Rows(bytes float64) float64 {
	return (bytes - min(w.PerPartition, bytes*repeatedMax)) / w.PerRow
}
