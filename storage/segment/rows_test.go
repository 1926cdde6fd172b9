package segment

import (
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// Read calls f with the rows in [lo, hi] of those of the series that have any, in new memory.
func (r *Reader) Read(ids []point.DenseID, lo, hi point.Nanos, f func(id point.DenseID, run rows.Run) error) error {
	return r.ReadNew(ids, lo, hi, 0, func(i int, run rows.Run) error { return f(ids[i], run) })
}

// Scan calls f with all rows, series by series in group order. The run is valid during the call.
func (r *Reader) Scan(f func(id point.DenseID, run rows.Run) error) error {
	c, err := r.Cursor()
	if err != nil {
		return err
	}
	return c.each(f)
}
