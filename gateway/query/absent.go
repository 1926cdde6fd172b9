package query

import (
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// absentMatchersMax bounds the matchers of the selector below absent or absent_over_time. The engine makes labels of them at every step, at a cost that is
// quadratic in their number: 20,000 cost half a second a step. No series has that many labels.
const absentMatchersMax = 1000

// boundAbsent refuses an expression in which absent or absent_over_time has more. The error is Invalid and names the selector.
func boundAbsent(text string, expr parser.Expr) error {
	call, ok := expr.(*parser.Call)
	if ok && len(call.Args) == 1 && (call.Func.Name == "absent" || call.Func.Name == "absent_over_time") {
		if n := matchersOf(call.Args[0]); n > absentMatchersMax {
			return fault.Errorf(fault.Invalid, "the selector in %s has %d matchers, more than %d: select with fewer, or with one regular expression", excerpt(text, call), n, absentMatchersMax)
		}
	}
	for child := range parser.ChildrenIter(expr) {
		if e, ok := child.(parser.Expr); ok {
			if err := boundAbsent(text, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// matchersOf counts the matchers of an expression that is a selector; 0 for any other.
func matchersOf(expr parser.Expr) int {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return matchersOf(e.Expr)
	case *parser.StepInvariantExpr:
		return matchersOf(e.Expr)
	case *parser.VectorSelector:
		return len(e.LabelMatchers)
	case *parser.MatrixSelector:
		return matchersOf(e.VectorSelector)
	}
	return 0
}
