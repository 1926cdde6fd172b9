package columnar

import (
	"slices"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/point"
)

// many is an operation in which many series of one side match the same one of the other: group_left and group_right.
//
//	of   {a="1",b="x"} {a="1",b="y"} {a="2",b="x"}        match: the labels that both sides are matched by, here a
//	one  {a="1"}                                          out: the two of a="1", each with its own labels and those in include
type many struct {
	op      columns.Op
	compute func(l, r float64) float64 // nil for comparisons
	asBool  bool
	match   *columns.Aggregation
	include []string // labels that the many copy from the one
	swapped bool     // the one is on the left
	of, one node
}

// manyToOne compiles an operation with group_left or group_right. Type, unit and name are left to the engine where they are copied.
func manyToOne(e *parser.BinaryExpr, match *columns.Aggregation, l, r node) (node, bool) {
	m := e.VectorMatching
	if slices.ContainsFunc(m.Include, columns.Reserved) {
		return nil, false
	}
	op := ops[e.Op]
	out := &many{op: op, compute: op.Arithmetic(), asBool: e.ReturnBool, match: match, include: m.Include, of: l, one: r}
	if m.Card == parser.CardOneToMany {
		out.of, out.one, out.swapped = r, l, true
	}
	return out, true
}

// The columns of both sides belong to this node once they are returned: values are computed in place, and out is built
// in the memory of of, behind the column that is read.
func (m *many) columns(e *evaluation) ([]columns.Column, error) {
	of, err := m.of.columns(e)
	if err != nil {
		return nil, err
	}
	one, err := m.one.columns(e)
	if err != nil {
		return nil, err
	}
	if err := e.hold(of, one); err != nil {
		return nil, err
	}
	at, err := m.byKey(e, one)
	if err != nil {
		return nil, err
	}
	var key []byte
	out := of[:0]
	for i := range of {
		c := of[i]
		key = m.match.Key(key[:0], c.Labels, c.Dropped)
		other, ok := at[string(key)]
		if !ok || !m.meet(c.Values, other.Values) {
			continue
		}
		if c, err = m.named(e, c, other); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	// Two results with the same labels. Whether the engine fails depends on the steps at which they have values; it
	// decides that itself.
	if len(columns.ByLabels(out)) < len(out) {
		return nil, columns.ErrAbandoned // an error, unless they are never there at one step
	}
	return slices.DeleteFunc(out, func(c columns.Column) bool { return columns.Present(c.Values) == 0 }), nil
}

// byKey finds the columns of the one side by the key that series match by.
// The map points into one, which must not grow meanwhile. Errors are columns.ErrAbandoned, and those of a budget that
// has no more memory.
func (m *many) byKey(e *evaluation, one []columns.Column) (map[string]*columns.Column, error) {
	at := make(map[string]*columns.Column, len(one))
	var key []byte
	for i := range one {
		key = m.match.Key(key[:0], one[i].Labels, one[i].Dropped)
		if at[string(key)] != nil {
			return nil, columns.ErrAbandoned // two match the same series, perhaps at one step
		}
		if err := e.take(columns.ColumnBytes + int64(len(key))); err != nil {
			return nil, err
		}
		at[string(key)] = &one[i]
	}
	return at, nil
}

// meet computes into of, and reports whether both were there at any step.
// A comparison keeps the left value or none, as filters do; with bool it is 0 or 1 wherever both are there.
func (m *many) meet(of, one []float64) (met bool) {
	var holds func(l, r float64) bool
	if m.compute == nil {
		holds = m.op.Comparison()
	}
	for i, l := range of {
		r := one[i]
		if columns.IsAbsent(l) || columns.IsAbsent(r) {
			of[i] = columns.Absent
			continue
		}
		met = true
		if m.swapped {
			l, r = r, l
		}
		switch {
		case m.compute != nil:
			of[i] = m.compute(l, r)
		case m.asBool && holds(l, r):
			of[i] = 1
		case m.asBool:
			of[i] = 0
		case holds(l, r):
			of[i] = l
		default:
			of[i] = columns.Absent
		}
	}
	return met
}

// named gives a column the labels of the result: its own, and those that it copies.
func (m *many) named(e *evaluation, c columns.Column, one *columns.Column) (columns.Column, error) {
	c.Dropped = c.Dropped || m.compute != nil || m.asBool
	if len(m.include) == 0 {
		return c, nil
	}
	// Plain has no dropped names; the copied labels are put in the place of those of the same name, and an empty one
	// removes it, as the engine does.
	l := c.Plain()
	if err := e.take(columns.ColumnBytes + int64(len(l)+len(one.Labels))); err != nil {
		return c, err
	}
	var b point.LabelsBuilder
	l.Range(func(name, value string) bool {
		if !slices.Contains(m.include, name) {
			b.Add([]byte(name), []byte(value))
		}
		return true
	})
	for i, name := range m.include {
		if value := one.Labels.Get(name); value != "" && !slices.Contains(m.include[:i], name) {
			b.Add([]byte(name), []byte(value))
		}
	}
	l, err := b.Unnamed()
	if err != nil {
		return c, columns.ErrAbandoned
	}
	return columns.Column{Labels: l, Values: c.Values}, nil
}
