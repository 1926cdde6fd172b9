package columns

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

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
