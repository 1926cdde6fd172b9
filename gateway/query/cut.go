package query

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/spillwaydb/spillway/gateway/query/columnar"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// cutter evaluates the parts of a query that it can over columns, and passes the results to the engine as if they had been stored.
//
//	expression ──Compile──▶ whole: no engine
//	                      ▶ parts ──Run──▶ answers ──▶ stand-in selectors ──▶ engine
//
// A stand-in is recognised by the pointer of its matcher, which no client can send.
type cutter struct {
	table  *Table
	engine *Engine

	usage    *usage // of the whole query
	standins map[*labels.Matcher]*columnar.Answer
	notes    annotations.Annotations
	visited  int
	read     int

	// Results of parts of the expression, in the order of the tree: the engine may be asked more than once.
	parted []parted
	next   int
}

// parted is the result of a part of an expression.
type parted struct {
	answer *columnar.Answer
	err    error
}

// columns lets a Table be found inside a type that embeds it.
func (t *Table) columns() *Table { return t }

// cutter is nil if the engine must evaluate everything: sources that are not ours, and statistics by step.
func (e *Engine) cutter(q storage.Queryable, opts promql.QueryOpts) *cutter {
	t, ok := q.(interface{ columns() *Table })
	if !ok || !e.columnar || opts != nil && opts.EnablePerStepStats() {
		return nil
	}
	return &cutter{table: t.columns(), engine: e, usage: t.columns().reader.usage(nil)}
}

// queryable is the storage that the engine reads.
func (c *cutter) queryable(q storage.Queryable) storage.Queryable {
	if c == nil {
		return q
	}
	return storage.QueryableFunc(func(mint, maxt int64) (storage.Querier, error) {
		in := c.table.querier(mint, maxt)
		in.usage = c.usage
		return &cutQuerier{in, c.standins}, nil
	})
}

// cutQuerier answers stand-ins from memory.
type cutQuerier struct {
	*querier
	standins map[*labels.Matcher]*columnar.Answer
}

func (q *cutQuerier) Select(ctx context.Context, ordered bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	if len(ms) == 1 {
		if a, ok := q.standins[ms[0]]; ok {
			return q.usage.roomed(q.usage.roomOf(ms), a)
		}
	}
	return q.querier.Select(ctx, ordered, hints, ms...)
}

// evaluate executes a query.
func (c *cutter) evaluate(ctx context.Context, q *query) *promql.Result {
	stmt := q.Statement().(*parser.EvalStmt)
	grid := gridOf(stmt)
	plan := compile(stmt.Expr, grid, stmt.LookbackDelta)
	extent := extentWhole
	if plan != nil {
		timer, ctx := q.Stats().Timers.GetSpanTimer(ctx, stats.ExecTotalTime)
		a, err := c.run(ctx, plan, false)
		timer.Finish()
		if !errors.Is(err, columns.ErrAbandoned) {
			explainColumns(ctx, extentWhole)
			return c.whole(q, stmt, a, err)
		}
		extent = extentAbandoned
	}
	_, chain := plan.(*columnar.Plan)
	res := q.exec(ctx, func(stmt *parser.EvalStmt) error {
		if chain {
			return nil
		}
		c.next = 0
		clear(c.standins)
		expr, err := c.below(ctx, stmt, grid, stmt.Expr)
		stmt.Expr = expr
		return err
	})
	if !chain && (extent != extentAbandoned || len(c.standins) > 0) {
		extent = c.extent()
	}
	c.engine.metrics.cuts.WithLabelValues(extent).Inc()
	explainColumns(ctx, extent)
	c.count(q, 0)
	if len(c.notes) > 0 {
		res.Warnings.Merge(c.notes)
	}
	return res
}

// plan is a plan of package columnar: a chain or a tree.
type plan interface {
	Run(ctx context.Context, env columnar.Env) (*columnar.Answer, error)
}

// compile returns nil if columns cannot evaluate the expression.
func compile(expr parser.Expr, g columnar.Grid, lookback time.Duration) plan {
	if p, ok := columnar.Compile(expr, g, lookback); ok {
		return p
	}
	if t, ok := columnar.CompileTree(expr, g, lookback); ok {
		return t
	}
	return nil
}

func (c *cutter) extent() string {
	if len(c.standins) > 0 {
		return extentPart
	}
	return extentNone
}

// gridOf adds a step to an evaluation at one time, as the engine does.
func gridOf(s *parser.EvalStmt) columnar.Grid {
	g := columnar.Grid{Start: s.Start.UnixNano() / 1e6, End: s.End.UnixNano() / 1e6, Step: s.Interval.Milliseconds()}
	if once(s) {
		g.Step = 1
	}
	return g
}

func once(s *parser.EvalStmt) bool { return s.Start.Equal(s.End) && s.Interval == 0 }

// whole is the result of an expression that was evaluated over columns as a whole.
func (c *cutter) whole(q *query, s *parser.EvalStmt, a *columnar.Answer, err error) *promql.Result {
	c.engine.metrics.cuts.WithLabelValues(extentWhole).Inc()
	c.engine.metrics.loaded(c.usage)
	if err != nil {
		return &promql.Result{Err: err}
	}
	c.count(q, a.Peak)
	if once(s) {
		return &promql.Result{Value: a.Vector(), Warnings: c.notes}
	}
	sort.Sort(a.Series)
	return &promql.Result{Value: a.Series, Warnings: c.notes}
}

// count adds the samples evaluated here to a query's statistics.
func (c *cutter) count(q *query, peak int) {
	if s := q.Stats().Samples; s != nil {
		s.IncrementSamplesAtStep(0, int64(c.visited))
		s.IncrementSamplesReadAtStep(0, int64(c.read))
		s.TotalSeries = int64(c.usage.state().series) // the engine counted results that stand in for selectors
		s.UpdatePeak(peak)
	}
}

// run evaluates a plan. An abandoned one is not counted.
func (c *cutter) run(ctx context.Context, p plan, markers bool) (*columnar.Answer, error) {
	c.usage.turn.End() // workers enter on their own
	before, used := c.usage.state(), c.usage.loan.Used()
	a, err := p.Run(ctx, columnar.Env{
		Env: columns.Env{
			SamplesMax: c.engine.samples, Workers: c.engine.processors,
			Turn: c.turn, Take: c.take, Spare: c.usage.loan.TakeSpare, Give: c.usage.loan.Give,
		},
		Find: c.open, Divide: c.divider(), Together: c.together(), Beside: c.engine.workers.run, Markers: markers,
	})
	switch {
	case errors.Is(err, columns.ErrAbandoned):
		c.usage.restore(before)
		c.usage.loan.Give(c.usage.loan.Used() - used)
		return nil, err
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil:
		return nil, err
	}
	c.notes.Merge(a.Notes)
	c.visited, c.read = c.visited+a.Visited, c.read+a.Read
	return a, nil
}

// part evaluates a part of the expression, or returns its earlier result.
func (c *cutter) part(ctx context.Context, p plan) (*columnar.Answer, error) {
	if c.next == len(c.parted) {
		a, err := c.run(ctx, p, true)
		c.parted = append(c.parted, parted{a, err})
	}
	at := c.parted[c.next]
	c.next++
	return at.answer, at.err
}

// ended words the end of a context as the engine does.
func ended(ctx context.Context) error {
	const where = "expression evaluation"
	if errors.Is(ctx.Err(), context.Canceled) {
		return promql.ErrQueryCanceled(where)
	}
	return promql.ErrQueryTimeout(where)
}

// parts replaces the largest subtrees that can be evaluated over columns by stand-ins.
func (c *cutter) parts(ctx context.Context, s *parser.EvalStmt, g columnar.Grid, expr parser.Expr) (parser.Expr, error) {
	p := compile(expr, g, s.LookbackDelta)
	if p == nil {
		return c.below(ctx, s, g, expr)
	}
	chain, ok := p.(*columnar.Plan)
	if ok && chain.Selector() {
		return expr, nil // nothing is gained
	}
	a, err := c.part(ctx, p)
	switch {
	case errors.Is(err, columns.ErrAbandoned) && ok:
		return expr, nil
	case errors.Is(err, columns.ErrAbandoned):
		return c.below(ctx, s, g, expr)
	case err != nil:
		return nil, err
	}
	return c.standin(expr, a), nil
}

// below calls parts for the children of an expression.
func (c *cutter) below(ctx context.Context, s *parser.EvalStmt, g columnar.Grid, expr parser.Expr) (parser.Expr, error) {
	for _, child := range children(expr) {
		e, err := c.parts(ctx, s, g, *child)
		if err != nil {
			return nil, err
		}
		*child = e
	}
	return expr, nil
}

// standin is a selector that selects an answer. It stands where the expression stood in the text, for annotations.
func (c *cutter) standin(expr parser.Expr, a *columnar.Answer) parser.Expr {
	m := &labels.Matcher{Type: labels.MatchEqual, Name: "__columns__", Value: fmt.Sprint(len(c.standins))}
	if c.standins == nil {
		c.standins = map[*labels.Matcher]*columnar.Answer{}
	}
	c.standins[m] = a
	return &parser.VectorSelector{LabelMatchers: []*labels.Matcher{m}, PosRange: expr.PositionRange()}
}

// lookers are functions that read the expression of their argument, not only its value.
var lookers = map[string]bool{"absent": true, "absent_over_time": true, "info": true, "timestamp": true, "start_timestamp": true}

// children are the places below an expression where a stand-in may be put: those that are evaluated at the query's own
// steps.
func children(expr parser.Expr) []*parser.Expr {
	switch e := expr.(type) {
	case *parser.AggregateExpr:
		return []*parser.Expr{&e.Expr}
	case *parser.BinaryExpr:
		return []*parser.Expr{&e.LHS, &e.RHS}
	case *parser.ParenExpr:
		return []*parser.Expr{&e.Expr}
	case *parser.UnaryExpr:
		return []*parser.Expr{&e.Expr}
	case *parser.Call:
		if lookers[e.Func.Name] {
			return nil
		}
		var out []*parser.Expr
		for i := range e.Args {
			if t := e.Args[i].Type(); t == parser.ValueTypeVector || t == parser.ValueTypeScalar {
				out = append(out, &e.Args[i])
			}
		}
		return out
	}
	return nil
}

// turn is columns.Env's.
func (c *cutter) turn() (next func(context.Context) error, end func()) {
	t := c.engine.lane.Turn(&c.usage.share)
	return t.Next, t.End
}

// take is columns.Env's.
func (c *cutter) take(n int64) error {
	if err := c.usage.loan.TakeSoon(n); err != nil {
		return needed(err)
	}
	return nil
}

// open is columnar.Env's Find.
func (c *cutter) open(ctx context.Context, lo, hi int64, newest bool, ms []*labels.Matcher) (columns.Rows, error) {
	if err := c.usage.of.Reads(lo, hi); err != nil {
		return nil, loadError(err)
	}
	t := c.engine.lane.Turn(&c.usage.share) // finding series is work too
	if err := c.table.reader.turnFor(ctx, t); err != nil {
		return nil, err
	}
	defer t.End()
	begun := time.Now()
	ask := c.table.ask(lo, hi, ms)
	ask.Newest = newest
	in, err := c.table.open(ctx, ask)
	if err != nil {
		return nil, loadError(err)
	}
	return c.counted(ctx, lo, hi, in, begun), nil
}

// found is open for rows that are there.
func (c *cutter) found(ctx context.Context, lo, hi int64, open func(context.Context) peer.SeriesSet) (columns.Rows, error) {
	if err := c.usage.of.Reads(lo, hi); err != nil {
		return nil, loadError(err)
	}
	return c.counted(ctx, lo, hi, open(ctx), time.Now()), nil
}

// counted counts the series of a set.
func (c *cutter) counted(ctx context.Context, lo, hi int64, in peer.SeriesSet, begun time.Time) *rows {
	r := &rows{in: in, usage: c.usage}
	if explained(ctx) != nil {
		r.explain = func() {
			Explain(ctx, ExplainedPart{What: "rows", From: lo, To: hi, Series: r.series, Rows: r.loaded, Seconds: time.Since(begun).Seconds()})
		}
	}
	return r
}

// loadError is worded as the engine does it.
func loadError(err error) error {
	return fmt.Errorf("expanding series: %w", promql.ErrStorage{Err: err})
}

// rows counts the series it returns. A nil set is an empty one.
type rows struct {
	in      peer.SeriesSet
	mu      sync.Mutex // guards all below, and in while it is not paged
	number  int
	usage   *usage
	series  int    // that were read
	loaded  int    // rows
	explain func() // nil: the query is not explained
}

// Pager implements columns.Rows.
func (r *rows) Pager(seriesMax int) peer.Pager {
	if in, ok := r.in.(peer.PagedSet); ok {
		return &pagedRows{r, in.Pager(seriesMax)}
	}
	return &plainRows{rows: r, most: seriesMax}
}

// Close implements columns.Rows.
func (r *rows) Close() error {
	if r.explain != nil {
		r.explain()
	}
	if r.in == nil {
		return nil
	}
	return r.in.Close()
}

func (r *rows) countLocked(s *peer.Series) error {
	r.series, r.loaded = r.series+1, r.loaded+len(s.Times)
	return r.usage.count(s)
}

// pagedRows reads pages beside other goroutines.
type pagedRows struct {
	rows *rows
	in   peer.Pager
}

// Next implements peer.Pager.
func (p *pagedRows) Next() (page peer.Page, ok bool, err error) {
	if page, ok, err = p.in.Next(); err == nil && ok {
		p.rows.mu.Lock()
		defer p.rows.mu.Unlock()
		for i := range page.Series {
			if err = p.rows.countLocked(&page.Series[i]); err != nil {
				break
			}
		}
	}
	if err != nil {
		return page, false, loadError(err)
	}
	return page, ok, nil
}

// Close implements peer.Pager.
func (p *pagedRows) Close() { p.in.Close() }

// plainPageBytes is from how many bytes of rows on a page of a plain set gets no further series, as one of a storage server: 256 series of a month are 700 MB.
const plainPageBytes = rowBytes << 16

// plainRows makes pages of a set that is read by one goroutine at a time. They stay valid. The rows of a page are booked until the next one is asked for.
type plainRows struct {
	rows   *rows
	most   int   // series of a page
	booked int64 // bytes of the page
}

// Next implements peer.Pager.
func (p *plainRows) Next() (page peer.Page, ok bool, err error) {
	p.release()
	page, bytes, err := p.read()
	if err != nil {
		return page, false, loadError(err)
	}
	if err := p.rows.usage.loan.TakeSoon(bytes); err != nil { // without the lock: others release theirs meanwhile
		return page, false, loadError(needed(err))
	}
	p.booked = bytes
	return page, len(page.Series) > 0, nil
}

// read reads a page, and returns the memory of its rows.
func (p *plainRows) read() (page peer.Page, bytes int64, err error) {
	r := p.rows
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.in == nil {
		return page, 0, nil
	}
	for len(page.Series) < p.most && bytes < plainPageBytes {
		if !r.in.Next() {
			if page.Last, err = true, r.in.Err(); err != nil {
				return page, 0, err
			}
			break
		}
		s := r.in.At()
		if err := r.countLocked(s); err != nil {
			return page, 0, err
		}
		page.Series, bytes = append(page.Series, *s), bytes+bytesOf(s)
	}
	page.Number = r.number
	r.number++
	return page, bytes, nil
}

// Waits implements columns.Waiter: the rows of a plain set come from other processes.
func (p *plainRows) Waits() {}

func (p *plainRows) release() {
	p.rows.usage.loan.Give(p.booked)
	p.booked = 0
}

// Close implements peer.Pager.
func (p *plainRows) Close() { p.release() }
