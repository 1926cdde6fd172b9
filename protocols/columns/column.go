package columns

import (
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Column is the values of a series by step, with its labels. Dropped: the reserved labels no longer count.
type Column struct {
	Labels  point.Labels
	Dropped bool
	Values  []float64 // Absent where there is none
}

// Absent stands in a column where there is no value.
var Absent = math.Float64frombits(point.StaleNaN)

// IsAbsent reports whether there is no value.
func IsAbsent(v float64) bool { return point.IsStale(v) }

// Present counts the values of a column.
// v == v is true for nearly all values, and spares them the comparison of bits.
func Present(values []float64) int {
	n := 0
	for _, v := range values {
		if v == v || !IsAbsent(v) {
			n++
		}
	}
	return n
}

// Reserved are the labels that identify a metric: computed values lose them.
// All three names have eight bytes, so most labels are settled by their length.
func Reserved(name string) bool {
	return len(name) == len(point.MetricName) && (name == point.MetricName || name == labelType || name == labelUnit)
}

const (
	labelType = "__type__"
	labelUnit = "__unit__"
)

// Plain returns the labels that count.
func (c *Column) Plain() point.Labels {
	if !c.Dropped {
		return c.Labels
	}
	var out []byte
	for l := c.Labels; ; {
		name, _, rest, ok := l.Next()
		if !ok {
			return point.Labels(out)
		}
		if !Reserved(name) {
			out = append(out, l[:len(l)-len(rest)]...)
		}
		l = rest
	}
}

// ByLabels finds columns by the labels that count; of equal ones the last.
func ByLabels(columns []Column) map[point.Labels]int {
	at := make(map[point.Labels]int, len(columns))
	for i := range columns {
		at[columns[i].Plain()] = i
	}
	return at
}

// DropAll drops the reserved labels of columns; if some become equal, the engine must evaluate.
func DropAll(columns []Column) error {
	for i := range columns {
		columns[i].Dropped = true
	}
	if len(ByLabels(columns)) < len(columns) {
		return ErrAbandoned
	}
	return nil
}

// ColumnBytes is the memory of a column besides its values and labels.
const ColumnBytes = columnBytes
