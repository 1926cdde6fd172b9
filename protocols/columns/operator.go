package columns

import "math"

// Operator changes the values of a column one by one: the sign, or a number on the other side of an operation.
type Operator struct {
	Negate bool

	Op      Op
	Number  float64
	Swapped bool // the number is on the left
	AsBool  bool
}

// DropsName reports whether the result is no longer the metric.
func (o *Operator) DropsName() bool { return o.Negate || !o.Op.Compares() || o.AsBool }

// Apply changes a column in place.
// Absent values stay absent.
func (o *Operator) Apply(values []float64) {
	switch {
	case o.Negate:
		for i, v := range values {
			if !IsAbsent(v) {
				values[i] = negated(v)
			}
		}
	case !o.Op.Compares():
		o.arithmetic(values)
	default:
		o.compare(values)
	}
}

// negated is -v. The marker of absence with the sign set is a value, a NaN, and stays one. It is the only operation that can
// make the marker of a value: sums and products of such a NaN have another bit set.
func negated(v float64) float64 {
	if v = -v; IsAbsent(v) {
		return math.NaN()
	}
	return v
}

// The function is looked up once a column. Arithmetic on numbers makes no marker of absence (negated).
func (o *Operator) arithmetic(values []float64) {
	compute := arithmetic[o.Op]
	for i, v := range values {
		if IsAbsent(v) {
			continue
		}
		if o.Swapped {
			values[i] = compute(o.Number, v)
		} else {
			values[i] = compute(v, o.Number)
		}
	}
}

// A comparison that fails makes the value absent; with bool it is 0.
func (o *Operator) compare(values []float64) {
	holds := o.Op.Comparison()
	for i, v := range values {
		if IsAbsent(v) {
			continue
		}
		l, r := v, o.Number
		if o.Swapped {
			l, r = r, l
		}
		switch ok := holds(l, r); {
		case o.AsBool && ok:
			values[i] = 1
		case o.AsBool:
			values[i] = 0
		case !ok:
			values[i] = Absent
		}
	}
}
