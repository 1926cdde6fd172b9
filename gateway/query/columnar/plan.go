package columnar

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Grid is the steps of an evaluation.
type Grid = columns.Grid

// Plan is a chain that can be evaluated over columns. It is constant and may be run more than once.
//
// A chain, from the inside: sum by (a) (2 * rate(x[5m])) is
//
//	Source{rate, Window: 5m} ─▶ Stage{Operator: 2 *} ─▶ Stage{Aggregation: sum by (a)}
type Plan struct {
	chain    columns.Plan
	matchers []*labels.Matcher
	position posrange.PositionRange // of the source

	// Of a tree: the input of the stages, if it is not the source.
	under func(parser.Expr) (node, bool)
	base  node

	parameters []posrange.PositionRange // of the stages
}

// ops are the operations that are evaluated over columns.
var ops = map[parser.ItemType]columns.Op{
	parser.ADD: columns.Add, parser.SUB: columns.Sub, parser.MUL: columns.Mul, parser.DIV: columns.Div, parser.POW: columns.Pow,
	parser.MOD: columns.Mod, parser.ATAN2: columns.Atan2,
	parser.EQLC: columns.Equal, parser.NEQ: columns.NotEqual, parser.GTR: columns.Greater, parser.LSS: columns.Less,
	parser.GTE: columns.GreaterEqual, parser.LTE: columns.LessEqual,
	parser.SUM: columns.Sum, parser.AVG: columns.Avg, parser.MIN: columns.Min, parser.MAX: columns.Max, parser.COUNT: columns.Count,
	parser.GROUP: columns.Group, parser.STDDEV: columns.Stddev, parser.STDVAR: columns.Stdvar, parser.QUANTILE: columns.Quantile,
	parser.TOPK: columns.TopK, parser.BOTTOMK: columns.BottomK,
}

// Compile makes a plan of an expression, or refuses. The expression was preprocessed by the engine and is
// not changed.
func Compile(expr parser.Expr, g Grid, lookback time.Duration) (*Plan, bool) {
	if g.End < g.Start || g.Step <= 0 {
		return nil, false
	}
	p := &Plan{chain: columns.Plan{Grid: g}}
	if !p.vector(expr, lookback) || !p.chain.Representable() {
		return nil, false
	}
	return p, true
}

// Selector reports whether the plan is only a selector: the engine evaluates that as fast.
func (p *Plan) Selector() bool { return p.chain.Source.Instant && len(p.chain.Stages) == 0 }

// add appends a stage. The position is that of its parameter.
func (p *Plan) add(s columns.Stage, at posrange.PositionRange) {
	p.chain.Stages, p.parameters = append(p.chain.Stages, s), append(p.parameters, at)
}

// vector appends the stages of expr to the plan, inside first.
// false refuses the whole expression; stages appended by then are thrown away with the plan. lookback is the window of
// a selector without a range.
func (p *Plan) vector(expr parser.Expr, lookback time.Duration) bool {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return p.vector(e.Expr, lookback)
	case *parser.VectorSelector:
		p.chain.Source = columns.Source{Window: lookback, Instant: true, Function: columns.LastValue}
		p.position = e.PosRange
		return p.selector(e)
	case *parser.Call:
		return p.call(e) || p.onto(e)
	case *parser.UnaryExpr:
		return p.vector(e.Expr, lookback) && p.unary(e)
	case *parser.BinaryExpr:
		return p.binary(e, lookback)
	case *parser.AggregateExpr:
		return p.aggregate(e, lookback)
	}
	return false
}

// onto makes the stages begin with a node that a tree can evaluate.
// Of a plan that is no part of a tree under is nil: then there is nothing below, and the expression is refused.
func (p *Plan) onto(expr parser.Expr) (ok bool) {
	if p.under == nil {
		return false
	}
	p.base, ok = p.under(expr)
	return ok
}

// Refused are @ and the modifiers whose windows are not those of the grid. OneName is set if all series have the same
// name: dropping it cannot make two of them equal.
func (p *Plan) selector(e *parser.VectorSelector) bool {
	if e.Timestamp != nil || e.StartOrEnd != 0 || e.Anchored || e.Smoothed || e.OriginalOffsetExpr != nil {
		return false
	}
	p.matchers, p.chain.Source.Offset = e.LabelMatchers, e.OriginalOffset
	p.chain.Source.OneName = slices.ContainsFunc(e.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Name == point.MetricName && m.Type == labels.MatchEqual && m.Value != ""
	})
	return true
}

// call compiles a range function over a plain range selector.
func (p *Plan) call(e *parser.Call) bool {
	f := columns.FunctionOf(e.Func.Name)
	if f == nil || len(e.Args) != f.Arguments+1 {
		return false
	}
	ms, ok := e.Args[f.Arguments].(*parser.MatrixSelector)
	// A RangeExpr is a duration that is computed; only the engine does that.
	if !ok || ms.RangeExpr != nil || ms.Range <= 0 {
		return false
	}
	p.chain.Source, p.position = columns.Source{Window: ms.Range, Function: f}, e.Args[0].PositionRange()
	if f.Arguments == 1 {
		n, ok := e.Args[0].(*parser.NumberLiteral)
		if !ok {
			return false
		}
		// The engine holds one sample a step for the number while it evaluates the selector, and they count against its
		// limit.
		p.chain.Source.Argument, p.chain.Source.Held = n.Val, p.chain.Grid.Len()
	}
	return p.selector(ms.VectorSelector.(*parser.VectorSelector))
}

func (p *Plan) unary(e *parser.UnaryExpr) bool {
	if e.Op == parser.SUB {
		p.add(columns.Stage{Operator: &columns.Operator{Negate: true}}, posrange.PositionRange{})
	}
	return true
}

func (p *Plan) binary(e *parser.BinaryExpr, lookback time.Duration) bool {
	of, ok := ops[e.Op]
	if !ok || of.Aggregates() {
		return p.onto(e)
	}
	op := &columns.Operator{Op: of, AsBool: e.ReturnBool}
	vector, held := e.LHS, 0
	if n, ok := number(e.RHS); ok {
		op.Number = n
	} else if n, ok := number(e.LHS); ok {
		// The engine evaluates the left side first and holds it meanwhile.
		op.Number, op.Swapped, vector, held = n, true, e.RHS, p.chain.Grid.Len()
	} else {
		return p.onto(e)
	}
	if vector.Type() != parser.ValueTypeVector || !p.vector(vector, lookback) {
		return false
	}
	p.add(columns.Stage{Operator: op, Held: held}, posrange.PositionRange{})
	return true
}

// number returns the value of a number literal or of arithmetic on numbers.
func number(expr parser.Expr) (float64, bool) {
	switch e := expr.(type) {
	case *parser.NumberLiteral:
		return e.Val, true
	case *parser.ParenExpr:
		return number(e.Expr)
	case *parser.StepInvariantExpr:
		return number(e.Expr)
	case *parser.UnaryExpr:
		v, ok := number(e.Expr)
		if e.Op == parser.SUB {
			v = -v
		}
		return v, ok
	case *parser.BinaryExpr:
		l, okl := number(e.LHS)
		r, okr := number(e.RHS)
		if compute := ops[e.Op].Arithmetic(); okl && okr && compute != nil {
			return compute(l, r), true
		}
	}
	return 0, false
}

func (p *Plan) aggregate(e *parser.AggregateExpr, lookback time.Duration) bool {
	a := &columns.Aggregation{Op: ops[e.Op], Without: e.Without, Names: slices.Clone(e.Grouping)}
	// Sorted and without repetitions: keys of groups are made by walking labels and names side by side.
	slices.Sort(a.Names)
	a.Names = slices.Compact(a.Names)
	if !a.Op.Aggregates() {
		return false
	}
	held, at := 0, posrange.PositionRange{}
	if e.Param != nil {
		n, ok := e.Param.(*parser.NumberLiteral)
		if !ok {
			return false
		}
		a.Parameter, at, held = n.Val, e.Param.PositionRange(), p.chain.Grid.Len()
	}
	// The comparison is written so that NaN fails it. From 2^53 on not each integer is a float.
	if a.Ranks() && !(a.Parameter >= 1 && a.Parameter < 1<<53) {
		return false // nothing to show, or an error that the engine words
	}
	if !p.vector(e.Expr, lookback) {
		return false
	}
	p.add(columns.Stage{Aggregation: a, Held: held}, at)
	return true
}
