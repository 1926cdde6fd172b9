package query

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// query is a parsed query that passes the gate before it runs.
//
//	Exec ─gate─▶ loan ─▶ evaluation in a goroutine ─▶ columns ─▶ engine, with more samples at each request
//	  └── answers within a moment of its context's end, whether the evaluation notices or not; place and memory go back
//	      when it has
type query struct {
	promql.Query // the newest try

	// Constant after newQuery.
	engine  *Engine
	kind    string
	table   string // for people; "": not one of our tables
	expr    string
	prepare func() (promql.Query, error) // parses, and makes what an evaluation needs
	steps   int64                        // steps of subqueries
	text    int64                        // bytes booked for the tree
	stop    stopper

	// Made by prepare; constant during an evaluation.
	parse func(level int) (promql.Query, error)
	cut   *cutter // nil: the engine evaluates the whole query
	usage *usage

	shown *recent.Running // owned by Exec

	// Owned by the evaluation until it is over.
	loan *budget.Loan
	over chan struct{} // nil: not begun
}

// tableOf is the name of the table that a query reads; "": it reads no table.
func tableOf(in storage.Queryable) string {
	if t, ok := in.(interface{ columns() *Table }); ok {
		return t.columns().name
	}
	return ""
}

// queryable is the storage that the engine reads.
func (q *query) queryable(in storage.Queryable) storage.Queryable {
	if q.cut != nil {
		q.usage = q.cut.usage
		return q.cut.queryable(in)
	}
	t, ok := in.(interface{ columns() *Table })
	if !ok {
		q.usage = &usage{}
		return in
	}
	q.usage = t.columns().reader.usage(nil)
	return storage.QueryableFunc(func(mint, maxt int64) (storage.Querier, error) {
		own := t.columns().querier(mint, maxt)
		own.usage = q.usage
		return own, nil
	})
}

// Exec waits its turn and evaluates, once more where a server fell silent (again.go). The time-out counts from here on, waiting included, for all of it.
func (q *query) Exec(ctx context.Context) *promql.Result {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, q.engine.timeout)
	defer cancel()
	q.stop.arm(cancel)
	q.shown = q.engine.recent.Begin(q.table, q.kind, q.expr, start)
	ctx, slow := q.engine.slow.begin(ctx, q)
	res := q.answer(ctx, start)
	slow(time.Since(start), res.Err)
	q.shown.End(time.Now(), res.Err, errors.Is(res.Err, context.Canceled) || fault.Is(res.Err, fault.Canceled))
	q.engine.metrics.observe(q.kind, start, res.Err)
	return res
}

// enter reserves the first memory, and evaluates. It gives the place at the gate back.
func (q *query) enter(ctx context.Context) *promql.Result {
	loan, err := q.engine.borrow(ctx)
	if err != nil {
		q.engine.gate.Leave()
		return &promql.Result{Err: err}
	}
	q.shown.Runs(loan.Held)
	of := limits.QueryOf(ctx) // q.usage is the evaluation's, which may outlive the answer
	q.loan, q.usage.loan, q.usage.of = loan, loan, of
	ctx, watched := q.engine.guard.watch(budget.WithLoan(ctx, loan), loan)
	res := q.await(ctx, watched)
	res.Err = of.Took(loan.Held(), q.engine.bytesMax, isShortage(res.Err), res.Err)
	return res
}

// graceTime is how long an answer waits for an evaluation after its context has ended.
const graceTime = 200 * time.Millisecond

// visitedMax bounds what one query adds to the counter of samples: none visits more in minutes. The engine counts a sample once for each window of each
// subquery, and some sums of that would leave a counter, a 64-bit float, that small queries do not change.
const visitedMax = 1_000_000_000_000

// await evaluates in another goroutine. Parts of the engine check no context for many seconds; the caller
// does not have to wait.
func (q *query) await(ctx context.Context, w *watched) *promql.Result {
	done := make(chan *promql.Result, 1)
	q.over = make(chan struct{})
	q.engine.workers.run(func() {
		var res *promql.Result
		defer func() {
			if p := recover(); p != nil { // a defect; its client gets an answer, and others go on
				q.engine.guard.log.Error("a query ended in a panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				res = &promql.Result{Err: fault.Errorf(fault.Internal, "the query ended in a panic, which the log of the process shows")}
			}
			w.leave()
			q.engine.gate.Leave()
			close(q.over)
			done <- res
		}()
		res = q.evaluate(ctx)
	})
	var res *promql.Result
	select {
	case res = <-done:
	case <-ctx.Done():
		select {
		case res = <-done:
		case <-time.After(graceTime):
			return &promql.Result{Err: w.cause(ended(ctx))}
		}
	}
	if res.Err != nil {
		res.Err = w.cause(res.Err)
	}
	if s := q.Stats().Samples; s != nil {
		n := s.TotalSamples
		if n < 0 || n > visitedMax { // beyond 64 bits it is negative
			n = visitedMax
		}
		q.engine.metrics.samples.Add(float64(n))
	}
	return res
}

// evaluate evaluates over columns where possible, and leaves the rest to the engine.
func (q *query) evaluate(ctx context.Context) *promql.Result {
	if err := q.loan.TakeSoon(q.steps * stepBytes); err != nil {
		return &promql.Result{Err: needed(err)}
	}
	t := q.engine.lane.Turn(&q.usage.share)
	defer t.End()
	q.usage.turn = t
	if q.cut == nil {
		return q.exec(ctx, func(*parser.EvalStmt) error { return nil })
	}
	return q.cut.evaluate(ctx, q)
}

// Memory of a sample that the engine holds: of a series with many, and of a series with one.
const (
	sampleBytes     = 32
	soleSampleBytes = 96
)

// exec lets the engine evaluate a statement as it is prepared, with as many samples as it needs and there is memory for.
func (q *query) exec(ctx context.Context, prepare func(*parser.EvalStmt) error) *promql.Result {
	e := q.engine
	each := int64(sampleBytes)
	if once(q.Statement().(*parser.EvalStmt)) {
		each = soleSampleBytes
	}
	booked := int64(0)
	for level, samples := range e.levels {
		if level > 0 {
			next, err := q.parse(level)
			if err != nil {
				return &promql.Result{Err: err}
			}
			q.Query.Close()
			q.Query = next
		}
		stmt := q.Statement().(*parser.EvalStmt)
		if err := prepare(stmt); err != nil {
			return &promql.Result{Err: err}
		}
		if err := q.loan.TakeSoon(int64(samples)*each - booked); err != nil {
			return &promql.Result{Err: needed(err)}
		}
		booked = int64(samples) * each
		before := q.usage.state()
		q.usage.rooms, q.usage.covered = roomsOf(stmt, e.subStep), booked/2
		res := q.Query.Exec(ctx)
		var few promql.ErrTooManySamples
		if level == len(e.levels)-1 || !errors.As(res.Err, &few) {
			return res
		}
		q.usage.restore(before)
	}
	return nil // not reached: there is a last level
}

// Cancel ends an evaluation that is running, or has yet to begin.
func (q *query) Cancel() { q.stop.pull() }

// Close releases the result's memory as soon as the evaluation is over.
func (q *query) Close() {
	release := func() {
		q.Query.Close()
		q.loan.Close()
		q.engine.releaseText(q.text)
	}
	if q.over == nil {
		release()
		return
	}
	select {
	case <-q.over:
		release()
	default:
		go func() { <-q.over; release() }()
	}
}

// borrow begins the loan of one query.
func (e *Engine) borrow(ctx context.Context) (*budget.Loan, error) {
	if e.memory == nil {
		return nil, nil
	}
	return e.memory.Borrow(ctx, limits.QueryOf(ctx).BytesMax(e.bytesMax))
}

// Memory of a query's tree: for each byte of its text, and for each that repetitions in regular expressions stand for (regexCost).
const (
	treeBytes    = 16 << 10
	textBytes    = 200
	repeatsBytes = 100
)

// reserveText books the memory for parsing a query. The error is Throttled or TooLarge.
func (e *Engine) reserveText(text string) (int64, error) {
	if e.memory == nil {
		return 0, nil
	}
	regexes, err := costOfRegexes(text)
	if err != nil {
		return 0, err
	}
	n := int64(treeBytes+textBytes*len(text)) + regexes.bytes()
	if n <= smallText {
		if e.smallTexts.Add(n) <= e.smallTextsMax {
			e.memory.Force(n)
			return n, nil
		}
		e.smallTexts.Add(-n)
		return 0, fault.Errorf(fault.Throttled, "too many queries wait to run; try again later")
	}
	if err := e.memory.Reserve(n); err != nil {
		return 0, fault.Annotate(err, "to parse the query")
	}
	return n, nil
}

// A text of smallText is parsed even where larger queries hold all memory, as it then waits for its loan. All of these together use
// at most one part of smallTextParts of the memory that is always there for queries.
const (
	smallText      = 64 << 10
	smallTextParts = 8
)

func (e *Engine) releaseText(n int64) {
	if n <= 0 {
		return
	}
	e.memory.Release(n)
	if n <= smallText {
		e.smallTexts.Add(-n)
	}
}
