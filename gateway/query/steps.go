package query

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// stepBytes is the memory that the engine holds for each step of a subquery before it evaluates the first: its statistics.
const stepBytes = 32

// windowsMax bounds in how many windows of subqueries within each other a sample may lie. The engine adds up the samples below each window, in 64
// bits: 60 times [5m:1m] are more, and it ends in a panic. Three of a day by a minute are 3e9.
const windowsMax = 1_000_000_000_000

// stepper finds how many steps the parts of an expression are evaluated at, before any is. The engine allocates by
// these numbers, and max_over_time(vector(1)[1y:1ms]) has 31 billion.
type stepper struct {
	text string        // of the query
	max  int           // steps of one subquery
	def  time.Duration // step of a subquery that names none
	sum  int64         // steps of all subqueries
}

// boundSteps returns the steps of all subqueries of a statement. The error is TooLarge and names the subquery that has too
// many.
func boundSteps(text string, s *parser.EvalStmt, def time.Duration, most int) (int64, error) {
	b := &stepper{text: text, max: most, def: def}
	err := b.walk(s.Expr, s.End.Sub(s.Start), 1)
	return b.sum, err
}

// walk goes down from an expression that is evaluated over a time of this length, and whose samples lie in so many windows of subqueries. Nested
// subqueries add their ranges up.
func (b *stepper) walk(expr parser.Expr, over time.Duration, windows int64) error {
	switch e := expr.(type) {
	case *parser.StepInvariantExpr:
		return b.walk(e.Expr, 0, windows) // evaluated once
	case *parser.SubqueryExpr:
		if e.Timestamp != nil {
			over = 0
		}
		step := e.Step
		if step <= 0 {
			step = b.def
		}
		if over += e.Range; over < 0 {
			over = math.MaxInt64
		}
		// The engine counts milliseconds.
		each := max(1, int64(step/time.Millisecond))
		steps := int64(over/time.Millisecond)/each + 1
		if steps > int64(b.max) {
			return fault.Errorf(fault.TooLarge, "the subquery %s has %d steps of %s, more than %d: choose a longer step or a shorter range, or raise query.subquery_steps_max",
				excerpt(b.text, e), steps, step, b.max)
		}
		if b.sum += steps; b.sum > 4*int64(b.max) {
			return fault.Errorf(fault.TooLarge, "the subqueries up to %s have %d steps together, more than four times %d: ask in several queries, or raise query.subquery_steps_max",
				excerpt(b.text, e), b.sum, b.max)
		}
		// Windows are open at their left.
		own := max(1, (int64(e.Range/time.Millisecond)-1)/each+1)
		if own > windowsMax/windows {
			return fault.Errorf(fault.TooLarge, "subqueries within each other, down to %s, read the same samples in more than %d windows: nest fewer, or choose longer steps",
				excerpt(b.text, e), int64(windowsMax))
		}
		return b.walk(e.Expr, over, windows*own)
	}
	for child := range parser.ChildrenIter(expr) {
		if e, ok := child.(parser.Expr); ok {
			if err := b.walk(e, over, windows); err != nil {
				return err
			}
		}
	}
	return nil
}

// excerptMax is how much of an expression an error shows.
const excerptMax = 120

// excerpt is an expression's part of the query's text, cut if it is long.
func excerpt(text string, e parser.Expr) string {
	at := e.PositionRange()
	if at.Start < 0 || at.End <= at.Start || int(at.End) > len(text) {
		return "of the query"
	}
	text = text[at.Start:at.End]
	if len(text) > excerptMax {
		return "“" + text[:excerptMax/2] + " … " + text[len(text)-excerptMax/2:] + "”"
	}
	return "“" + text + "”"
}
