package columns

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/util/kahansum"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Aggregation makes one column of each group of columns, or picks some.
type Aggregation struct {
	Op        Op
	Without   bool
	Names     []string // sorted, each once
	Parameter float64
}

// Ranks reports whether columns are picked and keep their labels.
func (a *Aggregation) Ranks() bool { return a.Op == TopK || a.Op == BottomK }

// An example, {__name__="up", dc="a", host="h1", job="node"}: by (dc) gives the bytes of dc="a"; without (host) gives those of dc="a" and
// job="node". Labels and names are both sorted, so one walk over both is enough, and the key is a set of labels in its canonical form.

// Key appends the labels of the group that a column belongs to. They identify the group.
func (a *Aggregation) Key(dst []byte, l point.Labels, dropped bool) []byte {
	names := a.Names
	for {
		name, _, rest, ok := l.Next()
		if !ok || !a.Without && len(names) == 0 {
			return dst
		}
		for len(names) > 0 && names[0] < name {
			names = names[1:]
		}
		named := len(names) > 0 && names[0] == name
		switch {
		case (dropped || a.Without) && Reserved(name), named == a.Without:
		default:
			dst = append(dst, l[:len(l)-len(rest)]...)
		}
		l = rest
	}
}

// groups folds columns into one a group. For one goroutine at a time.
//
//	column ─ Key ─▶ at: number of the group ─▶ fold.add(group, values)    state of step 0, 1, 2 … of that group
//	                                       └▶ ranked.add(group, column)   topk, bottomk: a heap for each step
//
// Groups are numbered as they come, which is the order of the result. Only keys are compared: a group's labels are its key.
type groups struct {
	of     *Aggregation
	steps  int
	at     map[string]int
	labels []point.Labels // of groups, in the order of arrival
	fold   folder
	ranked *ranking                // instead of fold
	cell   int64                   // bytes of a group for each step
	take   func(bytes int64) error // books them
}

// folder holds an aggregation's state for each group and step.
// The order of add is that of series, on which the last bits of a sum depend.
type folder interface {
	open()                           // adds a group
	add(group int, values []float64) // a column's values
	// finish writes a group's values over out.
	finish(group int, out []float64)
}

// The memory of an aggregation besides cells: of a group, of a column, of a value that is ranked.
const (
	// Estimates, in bytes: entry of the map, two headers of slices, and the key twice; a column's header and labels' header; an entry of a heap.
	groupBytes  = 200
	columnBytes = 100
	rankBytes   = 32
)

func newGroups(a *Aggregation, steps int, take func(int64) error) *groups {
	g := &groups{of: a, steps: steps, at: map[string]int{}, take: take}
	if a.Ranks() {
		g.cell = 32
		g.ranked = &ranking{k: int(min(a.Parameter, math.MaxInt32)), least: a.Op == BottomK, steps: steps}
		return g
	}
	switch a.Op {
	case Sum:
		g.cell = 24
		g.fold = &sums{cells[total]{steps: steps}}
	case Avg:
		g.cell = 40
		g.fold = &means{cells[mean]{steps: steps}}
	case Stddev, Stdvar:
		g.cell = 24
		g.fold = &spreads{cells[spread]{steps: steps}, a.Op == Stddev}
	case Quantile:
		g.fold = &samples{q: a.Parameter}
	default:
		g.cell = 8
		g.fold = &picks{cells[float64]{steps: steps}, a.Op}
	}
	return g
}

// open finds a group, or adds it. The error is from take.
func (g *groups) open(key []byte) (group int, err error) {
	if group, ok := g.at[string(key)]; ok {
		return group, nil
	}
	// Its state, and its column in the end.
	if err := g.take(int64(g.steps)*(g.cell+8) + groupBytes + int64(len(key))); err != nil {
		return 0, err
	}
	group = len(g.labels)
	g.labels = append(g.labels, point.Labels(key))
	g.at[string(g.labels[group])] = group
	if g.ranked != nil {
		g.ranked.open()
	} else {
		g.fold.open()
	}
	return group, nil
}

// add adds a column to its group. The error is from take.
func (g *groups) add(key []byte, c *Column) error {
	group, err := g.open(key)
	if err != nil {
		return err
	}
	if g.ranked != nil {
		return g.take(g.ranked.add(group, c))
	}
	if g.of.Op == Quantile { // which keeps every column
		if err := g.take(int64(g.steps)*8 + columnBytes); err != nil {
			return err
		}
	}
	g.fold.add(group, c.Values)
	return nil
}

// finish returns the columns, by groups in the order of their arrival.
func (g *groups) finish() []Column {
	if g.ranked != nil {
		return g.ranked.finish()
	}
	out := make([]Column, len(g.labels))
	values := make([]float64, len(out)*g.steps)
	for i := range out {
		out[i] = Column{Labels: g.labels[i], Values: values[:g.steps:g.steps]}
		values = values[g.steps:]
		g.fold.finish(i, out[i].Values)
	}
	return out
}

// cells are a state for each group and step.
// Each group's cells are one allocation: steps × size, which open has booked (cell).
type cells[T any] struct {
	steps int
	of    [][]T
}

func (c *cells[T]) open() { c.of = append(c.of, make([]T, c.steps)) }

// total is a compensated sum.
type total struct {
	sum, c float64
	seen   bool
}

type sums struct{ cells[total] }

// The first value is not added to 0, but is the sum: -0 stays -0, as in the engine.
func (s *sums) add(group int, values []float64) {
	of := s.of[group]
	for i, v := range values {
		switch t := &of[i]; {
		case IsAbsent(v):
		case t.seen:
			t.sum, t.c = increase(v, t.sum, t.c)
		default:
			t.sum, t.seen = v, true
		}
	}
}

// increase is kahansum.Inc without a call while the sum is finite.
// t-t is 0 for every finite t, and NaN for the others: one subtraction for two comparisons. For those kahansum.Inc keeps c out of it.
func increase(v, sum, c float64) (float64, float64) {
	t := sum + v
	if t-t != 0 {
		return kahansum.Inc(v, sum, c)
	}
	part := t - sum
	return t, c + ((sum - (t - part)) + (v - part))
}

func (s *sums) finish(group int, out []float64) {
	for i, t := range s.of[group] {
		out[i] = Absent
		if t.seen {
			out[i] = t.sum + t.c
		}
	}
}

type means struct{ cells[mean] }

func (m *means) add(group int, values []float64) {
	of := m.of[group]
	for i, v := range values {
		switch t := &of[i]; {
		case IsAbsent(v):
		case t.count == 0:
			*t = mean{sum: v, mean: v, count: 1}
		default:
			t.add(v)
		}
	}
}

func (m *means) finish(group int, out []float64) {
	for i, t := range m.of[group] {
		out[i] = Absent
		if t.count > 0 {
			out[i] = t.value()
		}
	}
}

// spread is a running variance (Welford).
type spread struct{ n, mean, squares float64 }

func (s *spread) add(v float64) {
	s.n++
	if s.n == 1 {
		s.mean = v
		// An infinite or NaN value alone has no distance to its mean: the engine's result is NaN, too.
		if v-v != 0 {
			s.squares = math.NaN()
		}
		return
	}
	delta := v - s.mean
	s.mean += delta / s.n
	s.squares += delta * (v - s.mean)
}

type spreads struct {
	cells[spread]
	root bool
}

func (s *spreads) add(group int, values []float64) {
	of := s.of[group]
	for i, v := range values {
		if !IsAbsent(v) {
			of[i].add(v)
		}
	}
}

func (s *spreads) finish(group int, out []float64) {
	for i, t := range s.of[group] {
		switch {
		case t.n == 0:
			out[i] = Absent
		case s.root:
			out[i] = math.Sqrt(t.squares / t.n)
		default:
			out[i] = t.squares / t.n
		}
	}
}

// picks are the aggregations that have their value as state: min, max, count and group.
type picks struct {
	cells[float64]
	op Op
}

// Absent is the state before the first value: 0 would be one.
func (p *picks) open() {
	p.cells.open()
	of := p.of[len(p.of)-1]
	for i := range of {
		of[i] = Absent
	}
}

func (p *picks) add(group int, values []float64) {
	of := p.of[group]
	for i, v := range values {
		if IsAbsent(v) {
			continue
		}
		if first := IsAbsent(of[i]); first || p.op == Group || p.op == Count {
			of[i] = p.next(first, of[i], v)
			continue
		}
		// m != m: a NaN gives way to any value, as in the engine; of NaNs alone the last one stays.
		if m := of[i]; p.op == Max && v > m || p.op == Min && v < m || m != m {
			of[i] = v
		}
	}
}

// next is the state after a value that is the first, or that is only counted.
func (p *picks) next(first bool, before, v float64) float64 {
	switch {
	case p.op == Count && !first:
		return before + 1
	case p.op == Count, p.op == Group:
		return 1
	}
	return v
}

func (p *picks) finish(group int, out []float64) { copy(out, p.of[group]) }

// samples keep all columns for a quantile.
// Memory grows with the columns, so each is booked when it is added.
type samples struct {
	q      float64
	of     [][][]float64 // by group
	sorted []float64
}

func (s *samples) open() { s.of = append(s.of, nil) }

func (s *samples) add(group int, values []float64) {
	s.of[group] = append(s.of[group], slices.Clone(values))
}

func (s *samples) finish(group int, out []float64) {
	for i := range out {
		s.sorted = s.sorted[:0]
		for _, values := range s.of[group] {
			if !IsAbsent(values[i]) {
				s.sorted = append(s.sorted, values[i])
			}
		}
		out[i] = Absent
		if len(s.sorted) > 0 {
			out[i] = quantile(s.q, s.sorted)
		}
	}
}
