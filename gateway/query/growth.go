package query

import (
	"strings"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// growth bounds the size of the labels that label_replace and label_join make. label_replace(x, "a", "$1$1", "a", "(.*)") makes a value twice as long; thirty
// of them, nested, make a gigabyte of one byte.
type growth struct {
	labels int64 // values that are made
	times  int64 // each at most so many times as long as the longest there was
	more   int64 // and so many bytes more
}

// growthMax bounds the two fields times and more.
const growthMax = 1 << 20

// of is the size that labels of so many bytes may have.
func (g growth) of(labels int) int64 {
	n := int64(labels)
	return n + g.labels*(n*g.times+g.more)
}

// boundGrowth finds the growth of labels in an expression. The error is Invalid, for one that makes them a million times
// as large.
func boundGrowth(text string, expr parser.Expr) (growth, error) {
	of := growth{times: 1}
	for child := range parser.ChildrenIter(expr) {
		e, ok := child.(parser.Expr)
		if !ok {
			continue
		}
		g, err := boundGrowth(text, e)
		if err != nil {
			return g, err
		}
		of = growth{labels: of.labels + g.labels, times: max(of.times, g.times), more: max(of.more, g.more)}
	}
	call, ok := expr.(*parser.Call)
	if !ok {
		return of, nil
	}
	times, more := int64(0), int64(0)
	switch call.Func.Name {
	case "label_replace":
		if len(call.Args) > 2 {
			with := literal(call.Args[2])
			times, more = int64(strings.Count(with, "$")), int64(len(with))
		}
	case "label_join":
		for i := 2; i < len(call.Args); i++ {
			more += int64(len(literal(call.Args[i])))
		}
		if len(call.Args) > 3 {
			times = int64(len(call.Args) - 3)
			more += times * int64(len(literal(call.Args[2])))
		}
	default:
		return of, nil
	}
	of = growth{labels: of.labels + 1, times: max(of.times, of.times*times), more: max(of.more, of.more*times+more)}
	if of.times > growthMax || of.more > growthMax {
		return of, fault.Errorf(fault.Invalid, "%s makes labels more than %d times as large; refer to fewer groups, or nest less", excerpt(text, call), growthMax)
	}
	return of, nil
}

func literal(expr parser.Expr) string {
	switch e := expr.(type) {
	case *parser.StringLiteral:
		return e.Val
	case *parser.ParenExpr:
		return literal(e.Expr)
	case *parser.StepInvariantExpr:
		return literal(e.Expr)
	}
	return ""
}
