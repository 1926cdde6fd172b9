package columns

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Form is what an evaluation of a part of a plan leaves for the evaluation that joins it with others.
type Form uint8

// The forms.
const (
	// Single is a column of each series. The plan has no aggregation.
	Single Form = iota + 1
	// States is the state of each group of the first aggregation. Several parts may have series of a group.
	States
	// Final is the columns of the first aggregation: no other part has rows for its steps.
	Final
	// Raw is no evaluation: the rows in the windows, for windows of which several servers have rows. The plan has no stages.
	Raw
	formEnd
)

// FormOf is the form of a plan's parts, of which several have rows for the same steps if shared is true; ok is false if such parts
// cannot be joined.
func (p *Plan) FormOf(shared bool) (f Form, ok bool) {
	a := p.first()
	switch {
	case a == nil:
		return Single, true
	case !shared:
		return Final, true
	}
	return States, a.planes() > 0
}

// first is the first aggregation; nil: there is none.
func (p *Plan) first() *Aggregation {
	for _, s := range p.Stages {
		if s.Aggregation != nil {
			return s.Aggregation
		}
	}
	return nil
}

// head is how many operators stand before the first aggregation.
func (p *Plan) head() int {
	if i := slices.IndexFunc(p.Stages, func(s Stage) bool { return s.Aggregation != nil }); i >= 0 {
		return i
	}
	return len(p.Stages)
}

// Distinct reports whether parts of the plan can be evaluated without knowing each other's labels: either all columns keep their
// names, or no two series differ by those alone. typed: series of one name have types or units.
func (p *Plan) Distinct(typed bool) bool {
	if p.Source.OneName && !typed {
		return true
	}
	if !p.Source.Function.KeepsName {
		return false
	}
	return !slices.ContainsFunc(p.Stages[:p.head()], func(s Stage) bool { return s.Operator.DropsName() })
}

// planes is how many values the state of a group has for each step; 0: the aggregation's states cannot be joined.
func (a *Aggregation) planes() int {
	switch a.Op {
	case Sum:
		return 2
	case Avg, Stddev, Stdvar:
		return 3
	case Min, Max, Count, Group:
		return 1
	}
	return 0
}

// planes is how many values a column of a part has for each step.
func (p *Plan) planes(f Form) int {
	switch f {
	case Raw:
		return 0
	case States:
		return p.first().planes()
	}
	return 1
}

// Part is the result of a plan's source, the operators behind it and the first aggregation, for some of the steps or some of the series.
type Part struct {
	Form  Form
	Steps int
	// Columns are in the order of an evaluation. Their Values are planes, one behind the other, of a value for each step.
	Columns []Column
	Found   []peer.Series // of form Raw, in label order, each with rows; series share their memory
	Names   []string      // as in Answer
	Typed   bool          // series of one name have types or units
	// Series and Rows were loaded. Held, Visited, Read and Peak count as an evaluation does.
	Series, Rows, Held, Visited, Read, Peak int
	// Counts are the values that the operators hold, by stage, the function first, and step; nil if there are none.
	Counts [][]int
}

// Part evaluates a part of the plan: the rows that Open finds, in that form. Errors are those of Run. env's Writer is not used.
func (p *Plan) Part(ctx context.Context, env Env, f Form) (*Part, error) {
	if (p.first() == nil) != (f == Single) || p.planes(f) == 0 {
		return nil, fault.Errorf(fault.Invalid, "a plan whose parts cannot have form %d", f)
	}
	env.Writer = nil
	part, err := p.part(ctx, env, f, p.Source.OneName)
	if errors.Is(err, errTyped) {
		if part, err = p.part(ctx, env, f, false); err == nil {
			part.Typed = true
		}
	}
	return part, err
}

// part evaluates up to the first aggregation, and leaves its groups in the form asked for.
func (p *Plan) part(ctx context.Context, env Env, f Form, sole bool) (*Part, error) {
	r := p.begin(ctx, env, sole)
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	m := &r.meter
	out := &Part{Form: f, Steps: r.steps, Held: m.held - p.heldAtStart(), Visited: m.processed, Read: m.read, Peak: m.peak, Counts: r.counts}
	for n := range r.names {
		out.Names = append(out.Names, n)
	}
	slices.Sort(out.Names)
	switch f {
	case Single:
		out.Columns = r.kept
	case States:
		if err := r.book(int64(len(r.groups.labels)) * int64(r.steps) * 8 * int64(p.planes(f))); err != nil {
			return nil, err
		}
		out.Columns = r.groups.states()
	default:
		out.Columns = r.groups.finish()
	}
	return out, nil
}

// heldAtStart is how many samples the engine holds for numbers before it reads.
func (p *Plan) heldAtStart() int {
	held := p.Source.Held
	for _, s := range p.Stages {
		held += s.Held
	}
	return held
}

// Planes of a state, for three steps of avg: sums, compensations and counts, one after the other.
//
//	sum0 sum1 sum2 │ c0 c1 c2 │ n0 n1 n2           a count below 0: the first plane has running means; 0: nothing there

// stateful is a folder with states that can be joined.
type stateful interface {
	// save writes a group's states as planes.
	save(group int, planes []float64)
	// join adds states, of steps from first on.
	join(group, first int, planes []float64)
}

// states returns the states of all groups.
func (g *groups) states() []Column {
	n := g.of.planes() * g.steps
	out, values := make([]Column, len(g.labels)), make([]float64, n*len(g.labels))
	for i := range out {
		out[i] = Column{Labels: g.labels[i], Values: values[:n:n]}
		values = values[n:]
		g.fold.(stateful).save(i, out[i].Values)
	}
	return out
}

// join adds the states of a group for steps from first on. The error is from take.
func (g *groups) join(c *Column, first int) error {
	group, err := g.open([]byte(c.Labels))
	if err == nil {
		g.fold.(stateful).join(group, first, c.Values)
	}
	return err
}

func (s *sums) save(group int, planes []float64) {
	for i, t := range s.of[group] {
		planes[i], planes[s.steps+i] = t.sum, t.c
		if !t.seen {
			planes[i] = Absent
		}
	}
}

// The sums are added with the compensation of their own addition; what rounding cut off in the other part is added to c.
func (s *sums) join(group, first int, planes []float64) {
	n := len(planes) / 2
	of := s.of[group][first : first+n]
	for i, v := range planes[:n] {
		switch t := &of[i]; {
		case IsAbsent(v):
		case t.seen:
			t.sum, t.c = increase(v, t.sum, t.c)
			t.c += planes[n+i]
		default:
			*t = total{sum: v, c: planes[n+i], seen: true}
		}
	}
}

// save writes the sum or mean, its compensation, and the count, negative for a running mean.
func (m *means) save(group int, planes []float64) {
	for i, t := range m.of[group] {
		v, n := t.sum, t.count
		if t.running {
			v, n = t.mean, -t.count
		}
		planes[i], planes[m.steps+i], planes[2*m.steps+i] = v, t.c, n
	}
}

// A group without rows in a step has count 0 there.
func (m *means) join(group, first int, planes []float64) {
	n := len(planes) / 3
	of := m.of[group][first : first+n]
	for i := range of {
		o := mean{sum: planes[i], mean: planes[i], c: planes[n+i], count: planes[2*n+i]}
		if o.count < 0 {
			o.count, o.running = -o.count, true
		}
		switch t := &of[i]; {
		case o.count == 0:
		case t.count == 0:
			*t = o
		default:
			t.join(o)
		}
	}
}

// join adds another mean. Where the sum overflows both become running means.
func (m *mean) join(o mean) {
	if !m.running && !o.running {
		if s, c := increase(o.sum, m.sum, m.c); !math.IsInf(s, 0) {
			m.sum, m.c, m.count = s, c+o.c, m.count+o.count
			return
		}
	}
	m.run()
	o.run()
	n := m.count + o.count
	m.mean, m.c = m.mean*(m.count/n)+o.mean*(o.count/n), m.c*(m.count/n)+o.c*(o.count/n)
	m.count = n
}

// run makes it a running mean.
func (m *mean) run() {
	if !m.running {
		m.mean, m.c, m.running = m.sum/m.count, m.c/m.count, true
	}
}

func (s *spreads) save(group int, planes []float64) {
	for i, t := range s.of[group] {
		planes[i], planes[s.steps+i], planes[2*s.steps+i] = t.n, t.mean, t.squares
	}
}

// Chan's formula: the squares of both, and the distance of the means weighted with n·m/(n+m).
func (s *spreads) join(group, first int, planes []float64) {
	n := len(planes) / 3
	of := s.of[group][first : first+n]
	for i := range of {
		o := spread{n: planes[i], mean: planes[n+i], squares: planes[2*n+i]}
		switch t := &of[i]; {
		case o.n == 0:
		case t.n == 0:
			*t = o
		default:
			sum, delta := t.n+o.n, o.mean-t.mean
			t.squares += o.squares + delta*delta*(t.n*o.n/sum)
			t.mean += delta * (o.n / sum)
			t.n = sum
		}
	}
}

func (p *picks) save(group int, planes []float64) { copy(planes, p.of[group]) }

// Counts add up; the others choose as add does.
func (p *picks) join(group, first int, planes []float64) {
	of := p.of[group][first : first+len(planes)]
	for i, v := range planes {
		switch m := of[i]; {
		case IsAbsent(v):
		case IsAbsent(m):
			of[i] = v
		case p.op == Count:
			of[i] += v
		case p.op == Max && v > m, p.op == Min && v < m, m != m && p.op != Group:
			of[i] = v
		}
	}
}
