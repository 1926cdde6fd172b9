package columns

import "math"

// Op is an operation of an operator or of an aggregation. The numbers travel (FORMAT.md): a new one is added at the end.
type Op uint8

// The operations.
const (
	Add Op = iota + 1
	Sub
	Mul
	Div
	Pow
	Mod
	Atan2
	Equal
	NotEqual
	Greater
	Less
	GreaterEqual
	LessEqual
	Sum
	Avg
	Min
	Max
	Count
	Group
	Stddev
	Stdvar
	Quantile
	TopK
	BottomK
	opEnd
)

// Compares reports whether an operator is a comparison.
func (o Op) Compares() bool { return o >= Equal && o <= LessEqual }

// Aggregates reports whether the operation is that of an aggregation.
func (o Op) Aggregates() bool { return o >= Sum && o < opEnd }

// arithmetic are the operations with a number; comparisons are the others.
// The map is never changed.
var arithmetic = map[Op]func(l, r float64) float64{
	Add:   func(l, r float64) float64 { return l + r },
	Sub:   func(l, r float64) float64 { return l - r },
	Mul:   func(l, r float64) float64 { return l * r },
	Div:   func(l, r float64) float64 { return l / r },
	Pow:   math.Pow,
	Mod:   math.Mod,
	Atan2: math.Atan2,
}

// Arithmetic is the operation on two numbers; nil for comparisons and aggregations.
func (o Op) Arithmetic() func(l, r float64) float64 { return arithmetic[o] }

// Comparison reports whether a comparison holds.
func (o Op) Comparison() func(l, r float64) bool {
	switch o {
	case Equal:
		return func(l, r float64) bool { return l == r }
	case NotEqual:
		return func(l, r float64) bool { return l != r }
	case Greater:
		return func(l, r float64) bool { return l > r }
	case Less:
		return func(l, r float64) bool { return l < r }
	case GreaterEqual:
		return func(l, r float64) bool { return l >= r }
	}
	return func(l, r float64) bool { return l <= r }
}
