package columns

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
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

// page reads the next page in the turn in which it is evaluated. The time it waits for others does not count as work.
func (w *worker) page(ctx context.Context, in peer.Pager) (page peer.Page, ok bool, err error) {
	if _, waits := in.(Waiter); !waits {
		if err := w.next(ctx); err != nil {
			return page, false, err
		}
		return w.run.page(ctx, in)
	}
	if page, ok, err = w.run.page(ctx, in); err == nil && ok {
		err = w.next(ctx)
	}
	return page, ok && err == nil, err
}

// Each page's results must be merged in the order of pages, since sums depend on it, and the meter's bound is met where the engine meets it:
//
//	worker A   page 0 ▶ evaluate ▶ merge 0 ▶ page 2 ▶ evaluate ▶ (waits for 1) ▶ merge 2 ▶ …
//	worker B   page 1 ▶ evaluate ▶ (waits for 0) ▶ merge 1 ▶ page 3 ▶ …
//
// A worker holds at most one page that is evaluated and not merged, so memory is bounded by the workers. It gives up its processor (end) before it
// waits: a worker that the others wait for may be waiting for a processor itself.

// turns lets the workers go on in the order of their pages.
type turns struct {
	mu struct {
		sync.Mutex
		next  int
		ended bool
	}
	changed *sync.Cond
}

func newTurns() *turns {
	t := &turns{}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// wait waits for the turn of page n; false when there will be none.
func (t *turns) wait(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.mu.next != n && !t.mu.ended {
		t.changed.Wait()
	}
	return !t.mu.ended
}

// All are woken, as each waits for a number of its own; there are as many as processors.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.next++
	t.changed.Broadcast()
}

// end ends all turns after an error.
func (t *turns) end(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ended = true
	t.changed.Broadcast()
}

// worker evaluates batches up to the part that must run in turn. For one goroutine.
// Fields of the batch are written by evaluate, without a lock, and read by merge of the same worker in its turn.
type worker struct {
	run    *run
	reader reader
	writer Writer // nil if columns are kept or aggregated
	arena  *[]float64

	// Of the batch evaluated last.
	columns []evaluated
	keys    []byte
	kept    []Column // when nothing is aggregated, unless they are written
	hashes  []uint64 // of labels that lost the reserved ones
	typed   bool     // some have a type or a unit
	names   []string
	counts  [][]int
	scratch []byte
	bytes   int64 // that the run keeps of the batch

	next func(context.Context) error // see Env.Turn
	end  func()
}

// evaluated is a column on its way to an aggregation, and the counts for the meter.
type evaluated struct {
	Column
	key        []byte
	points     int // that the function made
	most, last int // rows of the largest window and of the last
	rows       int // of all windows
	fresh      int // each counted once
}

// hashBytes is the memory of a column's labels in a set.
const hashBytes = 48

// arenas keeps workers' memory between evaluations.
var arenas = sync.Pool{New: func() any { return new([]float64) }}

// worker makes one. Close it.
func (r *run) worker() *worker {
	w := &worker{
		run:    r,
		reader: newReader(&r.plan.Source, r.plan.Grid, r.done),
		arena:  arenas.Get().(*[]float64),
	}
	if r.groups == nil && r.env.Writer != nil {
		w.writer = r.env.Writer()
	}
	w.next, w.end = r.env.turn()
	if r.counts != nil {
		w.counts = newCounts(len(r.counts), r.steps)
	}
	return w
}

// close gives up the processor and the arena.
func (w *worker) close() {
	w.end()
	arenas.Put(w.arena)
}

// evaluate fills the batch. Columns lie in the arena, which the next batch overwrites: kept columns are cloned here, and not in turn.
func (w *worker) evaluate(series []peer.Series) {
	r := w.run
	// At most batchValues, 512 KiB, or one series of more steps.
	if n := len(series) * r.steps; cap(*w.arena) < n {
		*w.arena = make([]float64, n)
	}
	arena := (*w.arena)[:cap(*w.arena)]
	w.reader.turnPage()
	w.columns, w.keys, w.hashes, w.names = w.columns[:0], w.keys[:0], w.hashes[:0], w.names[:0]
	w.kept, w.bytes = w.kept[:0], 0
	for _, c := range w.counts {
		clear(c)
	}
	for i := range series {
		c := w.column(&series[i], arena[i*r.steps:(i+1)*r.steps:(i+1)*r.steps])
		switch {
		case r.groups == nil && w.writer == nil:
			if Present(c.Values) > 0 {
				w.bytes += int64(r.steps)*8 + columnBytes + int64(len(c.Labels))
				w.kept = append(w.kept, Column{point.Labels(strings.Clone(string(c.Labels))), c.Dropped, slices.Clone(c.Values)})
			}
		case r.groups == nil:
			if n := Present(c.Values); n > 0 {
				w.bytes += w.writer.Bytes(&c.Column, n)
				w.writer.Append(&c.Column, n)
			}
		default:
			from := len(w.keys)
			w.keys = r.groups.of.Key(w.keys, c.Labels, c.Dropped)
			c.key = w.keys[from:len(w.keys):len(w.keys)]
		}
		w.columns = append(w.columns, c)
	}
}

// column evaluates the head over one series.
func (w *worker) column(s *peer.Series, values []float64) evaluated {
	r, src := w.run, &w.run.plan.Source
	col := w.reader.column(s)
	src.Function.each(&col, src, r.plan.Grid, values)
	c := evaluated{Column: Column{Labels: s.Labels, Values: values}, points: Present(values)}
	c.most, c.last, c.rows, c.fresh = col.most, col.windows.last, col.total, col.fresh
	w.count(0, values)
	if src.Function.Counter && c.points > 0 {
		w.name(s.Labels)
	}
	w.drop(&c.Column, 0, c.points)
	for i, st := range r.head {
		st.Operator.Apply(values)
		w.count(i+1, values)
		if r.drops == i+1 {
			w.drop(&c.Column, i+1, Present(values))
		}
	}
	return c
}

// count adds to the values of each step after a stage.
func (w *worker) count(stage int, values []float64) {
	if w.counts == nil {
		return
	}
	of := w.counts[stage]
	for i, v := range values {
		if !IsAbsent(v) {
			of[i]++
		}
	}
}

// name records a metric with a name unlike a counter's.
func (w *worker) name(l point.Labels) {
	name := l.Get(point.MetricName)
	if name == "" || len(w.names) > 0 && w.names[len(w.names)-1] == name {
		return
	}
	for _, suffix := range []string{"_total", "_sum", "_count", "_bucket"} {
		if strings.HasSuffix(name, suffix) {
			return
		}
	}
	w.names = append(w.names, name)
}

// drop marks the reserved labels as dropped, if this stage drops them, and records the remaining labels if two series may
// share them.
func (w *worker) drop(c *Column, stage, points int) {
	if w.run.drops != stage {
		return
	}
	c.Dropped = true
	switch {
	case points == 0:
	case !w.run.sole:
		w.hashes = append(w.hashes, w.hash(c.Labels))
		w.bytes += hashBytes
	case hasType(c.Labels):
		w.typed = true
	}
}

// hasType reports whether there is a type or a unit among the labels.
func hasType(l point.Labels) bool {
	for {
		name, _, rest, ok := l.Next()
		// Labels are sorted: behind __unit__ neither can come.
		if !ok || name > labelUnit {
			return false
		}
		if name == labelType || name == labelUnit {
			return true
		}
		l = rest
	}
}

// hash is of the labels without the reserved ones.
func (w *worker) hash(l point.Labels) uint64 {
	w.scratch = w.scratch[:0]
	for {
		name, _, rest, ok := l.Next()
		if !ok {
			return maphash.Bytes(w.run.seed, w.scratch)
		}
		if !Reserved(name) {
			w.scratch = append(w.scratch, l[:len(l)-len(rest)]...)
		}
		l = rest
	}
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

// finish evaluates the stages from the first aggregation on, over the few columns that are left.
func (r *run) finish() (*Answer, error) {
	if r.groups == nil {
		return r.answer(r.kept, false)
	}
	return r.answer(r.groups.finish(), true)
}

// answer evaluates the stages after the first aggregation, to its columns if the plan has one, and writes them unless the
// workers did.
func (r *run) answer(columns []Column, write bool) (*Answer, error) {
	base, err := r.headMeter()
	if err != nil {
		return nil, err
	}
	a := &Answer{Columns: columns}
	if write {
		if columns, err = r.upper(base, columns); err != nil {
			return nil, err
		}
		if a.Columns, err = r.write(columns); err != nil {
			return nil, err
		}
	}
	for n := range r.names {
		a.Names = append(a.Names, n)
	}
	a.Visited, a.Read, a.Peak = r.meter.processed, r.meter.read, r.meter.peak
	return a, nil
}

// write writes the columns that have values, or returns them.
func (r *run) write(columns []Column) ([]Column, error) {
	columns = slices.DeleteFunc(columns, func(c Column) bool { return Present(c.Values) == 0 })
	if r.env.Writer == nil {
		return columns, nil
	}
	w := r.env.Writer()
	for i := range columns {
		n := Present(columns[i].Values)
		if err := r.book(w.Bytes(&columns[i], n)); err != nil {
			return nil, err
		}
		w.Append(&columns[i], n)
	}
	w.Flush()
	return nil, nil
}

// headMeter counts the samples that the operators of the head hold, and returns the samples held for the numbers of later stages.
func (r *run) headMeter() (int, error) {
	base := 0
	for _, s := range r.plan.Stages {
		base += s.Held
	}
	for i, s := range r.head {
		base -= s.Held
		if err := r.operatorMeter(s, r.counts[i], r.counts[i+1], base); err != nil {
			return 0, err
		}
	}
	return base, nil
}

// operatorMeter counts one operator; base is the count held elsewhere.
func (r *run) operatorMeter(s Stage, in, out []int, base int) error {
	if s.Operator.Negate {
		return nil
	}
	if !s.Operator.Swapped {
		if err := r.meter.keep(r.steps); err != nil {
			return err
		}
	}
	if err := r.meter.operator(in, out); err != nil {
		return err
	}
	r.meter.held = base + sumOf(out)
	return nil
}

// upper applies the stages behind the first aggregation to its columns.
func (r *run) upper(base int, columns []Column) ([]Column, error) {
	var in []int
	for i, s := range r.tail {
		base -= s.Held
		if s.Operator != nil {
			if err := r.apply(s, columns, in, base); err != nil {
				return nil, err
			}
			in = countAll(columns, r.steps)
			continue
		}
		if i > 0 {
			var err error
			if columns, err = Aggregate(s.Aggregation, columns, r.steps, r.book); err != nil {
				return nil, err
			}
		}
		in = countAll(columns, r.steps)
		r.meter.held = base + sumOf(in)
		r.meter.peak = max(r.meter.peak, r.meter.held)
	}
	return columns, nil
}

func (r *run) apply(s Stage, columns []Column, in []int, base int) error {
	for i := range columns {
		s.Operator.Apply(columns[i].Values)
	}
	if s.Operator.DropsName() {
		if err := DropAll(columns); err != nil {
			return err
		}
	}
	return r.operatorMeter(s, in, countAll(columns, r.steps), base)
}

// Aggregate makes the columns of an aggregation. take books memory.
func Aggregate(a *Aggregation, columns []Column, steps int, take func(int64) error) ([]Column, error) {
	g := newGroups(a, steps, take)
	var key []byte
	for i := range columns {
		if c := &columns[i]; Present(c.Values) > 0 {
			key = a.Key(key[:0], c.Labels, c.Dropped)
			if err := g.add(key, c); err != nil {
				return nil, err
			}
		}
	}
	return g.finish(), nil
}

func countAll(columns []Column, steps int) []int {
	n := make([]int, steps)
	for i := range columns {
		for step, v := range columns[i].Values {
			if !IsAbsent(v) {
				n[step]++
			}
		}
	}
	return n
}

func sumOf(counts []int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}
