package columns

import (
	"context"
	"errors"
	"hash/maphash"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// ErrAbandoned means that columns cannot evaluate the data: the engine must.
var ErrAbandoned = errors.New("the data cannot be evaluated over columns")

// Rows returns series in label order, by pages.
type Rows interface {
	// Pager is that of peer.PagedSet, but after Last a pager may be asked again.
	Pager(seriesMax int) peer.Pager
	Close() error
}

// Waiter is a Pager with pages that come from other processes: a worker that reads one needs no turn.
type Waiter interface {
	peer.Pager
	Waits()
}

// Env is the environment of an evaluation.
type Env struct {
	// Open finds the series of the plan's selector with their rows in [lo, hi], milliseconds.
	Open func(ctx context.Context, lo, hi int64) (Rows, error)
	// SamplesMax is the engine's bound on the samples it holds.
	SamplesMax int
	// Workers is how many goroutines evaluate; at least 1.
	Workers int
	// Take books bytes that the evaluation will hold until its answer is dropped; nil: they are not counted.
	Take func(n int64) error
	// Spare is Take for memory that is optional; not nil if Take is not.
	Spare func(n int64) error
	// Give releases bytes; not nil if Take is not.
	Give func(n int64)
	// Turn, if it is not nil, makes the turn of a worker: next before each page, which may wait, and end before the worker
	// waits for others.
	Turn func() (next func(context.Context) error, end func())
	// Writer makes the writer of a worker, which receives the columns of the result; nil: the answer has them.
	Writer func() Writer
	// Restart drops all that was written: the evaluation starts again. Not nil if Writer is not.
	Restart func()
}

// Writer writes the columns of a result and keeps no reference to their memory. For one goroutine.
type Writer interface {
	// Bytes is the memory that a column with so many values will need.
	Bytes(c *Column, points int) int64
	Append(c *Column, points int)
	// Flush passes on the columns appended since it was called last. Writers are flushed one after another, in the order of columns.
	Flush()
}

// Answer is the result of a plan.
type Answer struct {
	Columns []Column // unless they were written
	// Names are metrics with names unlike those of counters, in no order.
	Names []string
	// Visited counts samples as the engine does: each as often as a window held it. Read counts each once. Peak is the
	// most that the engine would have held at a time.
	Visited, Read, Peak int
}

// Run evaluates. Errors: ErrAbandoned, ErrTooManySamples, those of Open and Rows unchanged, ctx's.
func (p *Plan) Run(ctx context.Context, env Env) (*Answer, error) {
	a, err := p.run(ctx, env, p.Source.OneName)
	if errors.Is(err, errTyped) {
		if env.Writer != nil {
			env.Restart()
		}
		return p.run(ctx, env, false)
	}
	return a, err
}

// errTyped means that series of one name have types or units, so that they may be equal without them.
var errTyped = errors.New("series have types or units")

// turn is Turn, or one that never waits if it is nil.
func (e *Env) turn() (next func(context.Context) error, end func()) {
	if e.Turn == nil {
		return func(context.Context) error { return nil }, func() {}
	}
	return e.Turn()
}

// take books bytes and checks whether the evaluation is still wanted.
func (e *Env) take(ctx context.Context) func(int64) error {
	return func(n int64) error {
		if e.Take != nil {
			if err := e.Take(n); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

func (p *Plan) run(ctx context.Context, env Env, sole bool) (*Answer, error) {
	r := p.begin(ctx, env, sole)
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	next, end := env.turn()
	defer end()
	if err := next(ctx); err != nil {
		return nil, err
	}
	return r.finish()
}

// read evaluates the plan up to the first aggregation.
func (r *run) read(ctx context.Context) error {
	lo, hi := r.plan.Reach()
	rows, err := r.env.Open(ctx, lo, hi)
	if err != nil {
		return err
	}
	defer rows.Close()
	return r.drive(ctx, rows)
}

// run is one evaluation. The fields that are not constant belong to the worker that has the turn.
type run struct {
	// Constant after begin.
	plan  *Plan
	env   Env
	steps int
	head  []Stage // operators before the first aggregation
	tail  []Stage // from the first aggregation on
	seed  maphash.Seed
	drops int                     // how many stages of the head, the function counted as one, until reserved labels drop; -1: they do not
	sole  bool                    // labels are unique without their name
	book  func(bytes int64) error // memory that is held from now on
	done  func() bool             // the caller no longer wants the Column

	meter  meter
	groups *groups
	kept   []Column            // of a plan without aggregations, unless they are written
	seen   map[uint64]struct{} // labels without the reserved ones
	names  map[string]struct{} // metrics with names unlike counters'
	counts [][]int             // by stage of the head, the function first, and step
}

// begin makes a run. The reserved labels drop at the first stage that makes new values: sooner or later makes no difference to the values, only to
// when two series become equal.
func (p *Plan) begin(ctx context.Context, env Env, sole bool) *run {
	r := &run{
		book: env.take(ctx), done: func() bool { return ctx.Err() != nil },
		plan: p, env: env, steps: p.Grid.Len(), head: p.Stages, seed: maphash.MakeSeed(), drops: -1, sole: sole,
		meter: meter{max: env.SamplesMax}, seen: map[uint64]struct{}{}, names: map[string]struct{}{},
	}
	for i, s := range p.Stages {
		if s.Aggregation != nil {
			r.head, r.tail = p.Stages[:i], p.Stages[i:]
			r.groups = newGroups(s.Aggregation, r.steps, r.book)
			break
		}
	}
	for i := len(r.head); i > 0; i-- {
		if r.head[i-1].Operator.DropsName() {
			r.drops = i
		}
	}
	if !p.Source.Function.KeepsName {
		r.drops = 0
	}
	if len(r.head) > 0 {
		r.counts = newCounts(len(r.head)+1, r.steps)
	}
	return r
}

func newCounts(stages, steps int) [][]int {
	c := make([][]int, stages)
	for i := range c {
		c[i] = make([]int, steps)
	}
	return c
}

const (
	// A batch of many short series, or few long ones: 256 series of an hour at 10 s have 1.4 MiB of rows.
	batchSeries = 256
	batchValues = 1 << 16 // bounds a worker's memory, for any number of steps
)

func (r *run) batchLen() int { return max(1, min(batchSeries, batchValues/r.steps)) }

// drive reads and evaluates. A single page is evaluated in place.
func (r *run) drive(ctx context.Context, rows Rows) error {
	if err := r.start(); err != nil {
		return err
	}
	in := rows.Pager(r.batchLen())
	page, ok, err := r.page(ctx, in)
	if err != nil || !ok || page.Last {
		defer in.Close()
		if err != nil || !ok {
			return err
		}
		w := r.worker()
		defer w.close()
		if err := w.next(ctx); err != nil {
			return err
		}
		defer w.end()
		w.evaluate(page.Series)
		return r.merge(w)
	}
	if err := r.book(workerBytes); err != nil {
		in.Close()
		return err
	}
	defer r.give(workerBytes)
	// The first page is evaluated by the first of the workers; the others ask their own pagers, which number pages across all of them.
	g, ctx := errgroup.WithContext(ctx)
	t := newTurns()
	g.Go(func() error { return r.work(ctx, t, in, page) })
	for range r.env.Workers - 1 {
		if r.env.Take != nil && r.env.Spare(workerBytes) != nil {
			break // fewer workers must suffice
		}
		defer r.give(workerBytes)
		g.Go(func() error {
			in := rows.Pager(r.batchLen())
			page, ok, err := r.page(ctx, in)
			if err != nil || !ok {
				in.Close()
				t.end(err)
				return err
			}
			return r.work(ctx, t, in, page)
		})
	}
	return g.Wait()
}

// workerBytes is the memory of a worker: a page of rows and its columns.
const workerBytes = 2 << 20

func (r *run) give(n int64) {
	if r.env.Give != nil {
		r.env.Give(n)
	}
}

// start counts the numbers that the engine holds before it reads.
func (r *run) start() error {
	return r.meter.keep(r.plan.heldAtStart())
}

// page reads a page.
// page fails with ErrAbandoned at the first histogram: nothing was returned yet, and the engine starts from the beginning.
func (r *run) page(ctx context.Context, in peer.Pager) (page peer.Page, ok bool, err error) {
	defer fault.Caught(&err)
	if page, ok, err = in.Next(); err == nil {
		err = ctx.Err()
	}
	if err != nil || !ok {
		return page, false, err
	}
	for i := range page.Series {
		if len(page.Series[i].Hists) > 0 {
			return page, false, ErrAbandoned
		}
	}
	return page, true, nil
}

// work evaluates pages, this one first, until there are no more.
func (r *run) work(ctx context.Context, t *turns, in peer.Pager, page peer.Page) (err error) {
	w := r.worker()
	defer func() {
		w.close()
		in.Close()
		t.end(err)
	}()
	defer fault.Caught(&err)
	if err := w.next(ctx); err != nil {
		return err
	}
	for ok := true; ok; {
		w.evaluate(page.Series)
		w.end()
		if !t.wait(page.Number) {
			return nil // the worker that ended it returns the error
		}
		if err := r.merge(w); err != nil {
			return err
		}
		t.pass()
		if page, ok, err = w.page(ctx, in); err != nil {
			return err
		}
	}
	return nil
}

// merge adds a worker's results of a batch to the whole, in turn.
// Nothing of the batch was added before this: an error leaves the whole evaluation to be given up, never a part of a page.
func (r *run) merge(w *worker) error {
	// Booked in turn and before the columns are kept; the worker's own memory was booked when it began.
	if err := r.book(w.bytes); err != nil {
		return err
	}
	if w.typed {
		return errTyped
	}
	// Two labels with one hash are counted as equal: the engine evaluates then, which is right and slower. The seed is random.
	for _, h := range w.hashes {
		if _, twice := r.seen[h]; twice {
			return ErrAbandoned
		}
		r.seen[h] = struct{}{}
	}
	for _, n := range w.names {
		r.names[n] = struct{}{}
	}
	for i, c := range w.counts {
		for step, n := range c {
			r.counts[i][step] += n
		}
	}
	for i := range w.columns {
		if err := r.take(&w.columns[i]); err != nil {
			return err
		}
	}
	r.kept = append(r.kept, w.kept...)
	if w.writer != nil {
		w.writer.Flush()
	}
	return nil
}

// take counts a column as the engine would hold it, and adds it to its group. The meter's error ends the evaluation where the engine's would.
func (r *run) take(c *evaluated) error {
	m := &r.meter
	if r.plan.Source.Instant {
		m.processed, m.read = m.processed+c.points, m.read+c.points
		if err := m.keep(c.points); err != nil {
			return err
		}
	} else {
		m.processed, m.read = m.processed+c.rows, m.read+c.fresh
		if err := m.reach(max(c.most, c.last+c.points)); err != nil {
			return err
		}
		m.held += c.points
	}
	if r.groups != nil && c.points > 0 {
		if some := len(r.head) == 0 || Present(c.Values) > 0; some {
			return r.groups.add(c.key, &c.Column)
		}
	}
	return nil
}
