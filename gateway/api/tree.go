package api

import (
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// node is an expression as JSON: the answer of parse_query, for programs that draw it.
type node map[string]any

// tree turns an expression into nodes, with Prometheus' names.
func tree(expr parser.Expr) any {
	switch n := expr.(type) {
	case *parser.AggregateExpr:
		return node{
			"type": "aggregation", "op": n.Op.String(), "expr": tree(n.Expr), "param": tree(n.Param),
			"grouping": list(n.Grouping), "without": n.Without,
		}
	case *parser.BinaryExpr:
		return node{
			"type": "binaryExpr", "op": n.Op.String(), "lhs": tree(n.LHS), "rhs": tree(n.RHS),
			"matching": matching(n.VectorMatching), "bool": n.ReturnBool,
		}
	case *parser.Call:
		return callNode(n)
	case *parser.MatrixSelector:
		vs := n.VectorSelector.(*parser.VectorSelector)
		out := selector("matrixSelector", vs)
		out["range"], out["rangeExpr"] = n.Range.Milliseconds(), durationNode(n.RangeExpr)
		return out
	case *parser.SubqueryExpr:
		return node{
			"type": "subquery", "expr": tree(n.Expr),
			"range": n.Range.Milliseconds(), "rangeExpr": durationNode(n.RangeExpr),
			"offset": n.OriginalOffset.Milliseconds(), "offsetExpr": durationNode(n.OriginalOffsetExpr),
			"step": n.Step.Milliseconds(), "stepExpr": durationNode(n.StepExpr),
			"timestamp": n.Timestamp, "startOrEnd": startOrEnd(n.StartOrEnd),
		}
	case *parser.DurationExpr:
		return durationNode(n)
	case *parser.NumberLiteral:
		return node{"type": "numberLiteral", "val": strconv.FormatFloat(n.Val, 'f', -1, 64)}
	case *parser.ParenExpr:
		return node{"type": "parenExpr", "expr": tree(n.Expr)}
	case *parser.StringLiteral:
		return node{"type": "stringLiteral", "val": n.Val}
	case *parser.UnaryExpr:
		return node{"type": "unaryExpr", "op": n.Op.String(), "expr": tree(n.Expr)}
	case *parser.VectorSelector:
		return selector("vectorSelector", n)
	}
	return nil
}

func callNode(n *parser.Call) node {
	args := make([]any, len(n.Args))
	for i, arg := range n.Args {
		args[i] = tree(arg)
	}
	return node{
		"type": "call", "args": args,
		"func": node{
			"name": n.Func.Name, "argTypes": n.Func.ArgTypes, "variadic": n.Func.Variadic, "returnType": n.Func.ReturnType,
		},
	}
}

func selector(typ string, vs *parser.VectorSelector) node {
	matchers := make([]node, len(vs.LabelMatchers))
	for i, m := range vs.LabelMatchers {
		matchers[i] = matcherNode(m)
	}
	return node{
		"type": typ, "name": vs.Name, "matchers": matchers,
		"offset": vs.OriginalOffset.Milliseconds(), "offsetExpr": durationNode(vs.OriginalOffsetExpr),
		"timestamp": vs.Timestamp, "startOrEnd": startOrEnd(vs.StartOrEnd),
		"anchored": vs.Anchored, "smoothed": vs.Smoothed,
	}
}

func matcherNode(m *labels.Matcher) node {
	return node{"name": m.Name, "value": m.Value, "type": m.Type.String()}
}

func matching(m *parser.VectorMatching) any {
	if m == nil {
		return nil
	}
	return node{
		"card": m.Card.String(), "labels": list(m.MatchingLabels), "on": m.On, "include": list(m.Include),
		"fillValues": map[string]*float64{"lhs": m.FillValues.LHS, "rhs": m.FillValues.RHS},
	}
}

// durationNode shows arithmetic within a duration. A typed nil is nil: the parser returns both.
func durationNode(expr parser.Expr) any {
	switch n := expr.(type) {
	case *parser.DurationExpr:
		if n == nil {
			return nil
		}
		return node{
			"type": "durationExpr", "op": n.Op.String(), "lhs": durationNode(n.LHS), "rhs": durationNode(n.RHS), "wrapped": n.Wrapped,
		}
	case *parser.NumberLiteral:
		if n == nil {
			return nil
		}
		return node{"type": "numberLiteral", "val": strconv.FormatFloat(n.Val, 'f', -1, 64), "duration": n.Duration}
	}
	return tree(expr)
}

func startOrEnd(t parser.ItemType) any {
	if t == 0 {
		return nil
	}
	return t.String()
}

// list is never null.
func list(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}
