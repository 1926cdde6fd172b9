package columnar

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Grid is the steps of an evaluation, in milliseconds: Start, Start+Step, … up to End. Step is positive.
type Grid struct{ Start, End, Step int64 }

// Len is the number of steps.
func (g Grid) Len() int { return int((g.End-g.Start)/g.Step) + 1 }

// Plan is a chain that can be evaluated over columns. It is constant and may be run more than once.
type Plan struct {
	grid   Grid
	source source
	stages []stage

	// Of a tree: the input of the stages, if it is not the source.
	under func(parser.Expr) (node, bool)
	base  node
}

// source is a selector and the function over each of its windows.
type source struct {
	matchers []*labels.Matcher
	window   time.Duration // range, or lookback
	offset   time.Duration
	function *function
	argument float64 // of functions that take a number
	held     int     // samples that the engine makes of that number
	instant  bool    // no range: a marker ends the series
	position posrange.PositionRange
	oneName  bool // all series have the same metric name
}

// stage is one step of a chain: an operator or an aggregation.
type stage struct {
	operator    *operator
	aggregation *aggregation
	// held is how many samples the engine has in memory for the stage's number while it evaluates the inner expression.
	held int
}

// Compile makes a plan of an expression, or refuses. The expression was preprocessed by the engine and is
// not changed.
func Compile(expr parser.Expr, g Grid, lookback time.Duration) (*Plan, bool) {
	if g.End < g.Start || g.Step <= 0 {
		return nil, false
	}
	p := &Plan{grid: g}
	if !p.vector(expr, lookback) || !p.representable() {
		return nil, false
	}
	return p, true
}

// Selector reports whether the plan is only a selector: the engine evaluates that as fast.
func (p *Plan) Selector() bool { return p.source.instant && len(p.stages) == 0 }

// timeMax keeps milliseconds far from where nanoseconds overflow.
const timeMax = math.MaxInt64 / 1_000_000 / 2

func (p *Plan) representable() bool {
	reach := p.source.window.Milliseconds() + max(p.source.offset, -p.source.offset).Milliseconds()
	return p.grid.Start > -timeMax+reach && p.grid.End < timeMax-reach && p.grid.Len() < 1<<24
}

// vector appends the stages of expr to the plan, inside first.
func (p *Plan) vector(expr parser.Expr, lookback time.Duration) bool {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return p.vector(e.Expr, lookback)
	case *parser.VectorSelector:
		p.source = source{window: lookback, instant: true, function: lastValue, position: e.PosRange}
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
func (p *Plan) onto(expr parser.Expr) (ok bool) {
	if p.under == nil {
		return false
	}
	p.base, ok = p.under(expr)
	return ok
}

func (p *Plan) selector(e *parser.VectorSelector) bool {
	if e.Timestamp != nil || e.StartOrEnd != 0 || e.Anchored || e.Smoothed || e.OriginalOffsetExpr != nil {
		return false
	}
	p.source.matchers, p.source.offset = e.LabelMatchers, e.OriginalOffset
	p.source.oneName = slices.ContainsFunc(e.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Name == point.MetricName && m.Type == labels.MatchEqual && m.Value != ""
	})
	return true
}

// call takes a range function over a plain range selector.
func (p *Plan) call(e *parser.Call) bool {
	f, ok := functions[e.Func.Name]
	if !ok || len(e.Args) != f.arguments+1 {
		return false
	}
	ms, ok := e.Args[f.arguments].(*parser.MatrixSelector)
	if !ok || ms.RangeExpr != nil || ms.Range <= 0 {
		return false
	}
	p.source = source{window: ms.Range, function: f, position: e.Args[0].PositionRange()}
	if f.arguments == 1 {
		n, ok := e.Args[0].(*parser.NumberLiteral)
		if !ok {
			return false
		}
		p.source.argument, p.source.held = n.Val, p.grid.Len()
	}
	return p.selector(ms.VectorSelector.(*parser.VectorSelector))
}

func (p *Plan) unary(e *parser.UnaryExpr) bool {
	if e.Op == parser.SUB {
		p.stages = append(p.stages, stage{operator: &operator{negate: true}})
	}
	return true
}

func (p *Plan) binary(e *parser.BinaryExpr, lookback time.Duration) bool {
	compute, ok := arithmetic[e.Op]
	if !ok && !e.Op.IsComparisonOperator() {
		return p.onto(e)
	}
	op := &operator{op: e.Op, compute: compute, asBool: e.ReturnBool}
	vector, held := e.LHS, 0
	if n, ok := number(e.RHS); ok {
		op.number = n
	} else if n, ok := number(e.LHS); ok {
		// The engine evaluates the left side first and holds it meanwhile.
		op.number, op.swapped, vector, held = n, true, e.RHS, p.grid.Len()
	} else {
		return p.onto(e)
	}
	if vector.Type() != parser.ValueTypeVector || !p.vector(vector, lookback) {
		return false
	}
	p.stages = append(p.stages, stage{operator: op, held: held})
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
		if compute := arithmetic[e.Op]; okl && okr && compute != nil {
			return compute(l, r), true
		}
	}
	return 0, false
}

func (p *Plan) aggregate(e *parser.AggregateExpr, lookback time.Duration) bool {
	a := &aggregation{op: e.Op, without: e.Without, names: slices.Clone(e.Grouping)}
	slices.Sort(a.names)
	a.names = slices.Compact(a.names)
	if !aggregations[e.Op] {
		return false
	}
	held := 0
	if e.Param != nil {
		n, ok := e.Param.(*parser.NumberLiteral)
		if !ok {
			return false
		}
		a.parameter, a.position, held = n.Val, e.Param.PositionRange(), p.grid.Len()
	}
	if a.ranks() && !(a.parameter >= 1 && a.parameter < 1<<53) {
		return false // nothing to show, or an error that the engine words
	}
	if !p.vector(e.Expr, lookback) {
		return false
	}
	p.stages = append(p.stages, stage{aggregation: a, held: held})
	return true
}
