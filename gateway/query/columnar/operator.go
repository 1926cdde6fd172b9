package columnar

import (
	"math"

	"github.com/prometheus/prometheus/promql/parser"
)

// operator changes the values of a column one by one: the sign, or a number on the other side of an operation.
type operator struct {
	negate bool

	op      parser.ItemType
	compute func(l, r float64) float64 // of arithmetic; nil for comparisons
	number  float64
	swapped bool // the number is on the left
	asBool  bool
}

// arithmetic are the operations with a number; comparisons are the others.
var arithmetic = map[parser.ItemType]func(l, r float64) float64{
	parser.ADD:   func(l, r float64) float64 { return l + r },
	parser.SUB:   func(l, r float64) float64 { return l - r },
	parser.MUL:   func(l, r float64) float64 { return l * r },
	parser.DIV:   func(l, r float64) float64 { return l / r },
	parser.POW:   math.Pow,
	parser.MOD:   math.Mod,
	parser.ATAN2: math.Atan2,
}

// dropsName reports whether the result is no longer the metric.
func (o *operator) dropsName() bool { return o.negate || o.compute != nil || o.asBool }

// apply changes a column in place.
func (o *operator) apply(values []float64) {
	switch {
	case o.negate:
		for i, v := range values {
			if !isAbsent(v) {
				values[i] = negated(v)
			}
		}
	case o.compute != nil:
		o.arithmetic(values)
	default:
		o.compare(values)
	}
}

// negated is -v. The marker of absence with the sign set is a value, a NaN, and stays one. It is the only operation that can
// make the marker of a value: sums and products of such a NaN have another bit set.
func negated(v float64) float64 {
	if v = -v; isAbsent(v) {
		return math.NaN()
	}
	return v
}

func (o *operator) arithmetic(values []float64) {
	for i, v := range values {
		if isAbsent(v) {
			continue
		}
		if o.swapped {
			values[i] = o.compute(o.number, v)
		} else {
			values[i] = o.compute(v, o.number)
		}
	}
}

func (o *operator) compare(values []float64) {
	holds := comparison(o.op)
	for i, v := range values {
		if isAbsent(v) {
			continue
		}
		l, r := v, o.number
		if o.swapped {
			l, r = r, l
		}
		switch ok := holds(l, r); {
		case o.asBool && ok:
			values[i] = 1
		case o.asBool:
			values[i] = 0
		case !ok:
			values[i] = absent
		}
	}
}

func comparison(op parser.ItemType) func(l, r float64) bool {
	switch op {
	case parser.EQLC:
		return func(l, r float64) bool { return l == r }
	case parser.NEQ:
		return func(l, r float64) bool { return l != r }
	case parser.GTR:
		return func(l, r float64) bool { return l > r }
	case parser.LSS:
		return func(l, r float64) bool { return l < r }
	case parser.GTE:
		return func(l, r float64) bool { return l >= r }
	}
	return func(l, r float64) bool { return l <= r }
}
