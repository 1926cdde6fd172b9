package columnar

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Tree is an expression of chains, of operations between vectors, in which each series matches one of the other side at most or many
// match the same one, and of label_replace. It is constant and may be run more than once.
//
//	sum by (a) (rate(x[5m])) ─▶ columns ─┐
//	                                     ├▶ / ─▶ columns ▶ further stages ▶ columns
//	sum by (a) (rate(y[5m])) ─▶ columns ─┘
//
// Each occurrence of a chain in the expression is a chain of its own, evaluated once, whose columns its one parent may
// overwrite.
type Tree struct {
	grid   Grid
	chains []*Plan
	root   node
}

// node is a source of columns.
// The columns are the caller's to change. Labels differ from column to column, unless names are marked as dropped;
// values have one place for each step.
type node interface {
	columns(e *evaluation) ([]columns.Column, error)
}

// CompileTree makes a tree of an expression that is more than a chain, or refuses; see Compile.
func CompileTree(expr parser.Expr, g Grid, lookback time.Duration) (*Tree, bool) {
	if g.End < g.Start || g.Step <= 0 {
		return nil, false
	}
	t := &Tree{grid: g}
	n, ok := t.node(expr, lookback)
	if !ok {
		return nil, false
	}
	t.root = n
	return t, true
}

// node makes the node of an expression: a chain, or stages over the node that under returns.
func (t *Tree) node(expr parser.Expr, lookback time.Duration) (node, bool) {
	p := &Plan{chain: columns.Plan{Grid: t.grid}}
	p.under = func(e parser.Expr) (node, bool) {
		switch e := e.(type) {
		case *parser.BinaryExpr:
			return t.between(e, lookback)
		case *parser.Call:
			return t.replace(e, lookback)
		}
		return nil, false
	}
	if !p.vector(expr, lookback) {
		return nil, false
	}
	if p.base != nil {
		return &staged{p.base, p}, true
	}
	if !p.chain.Representable() {
		return nil, false
	}
	t.chains = append(t.chains, p)
	return chain(len(t.chains) - 1), true
}

// between compiles an operation of two vectors.
func (t *Tree) between(e *parser.BinaryExpr, lookback time.Duration) (node, bool) {
	m := e.VectorMatching
	if m == nil || e.LHS.Type() != parser.ValueTypeVector || e.RHS.Type() != parser.ValueTypeVector ||
		m.FillValues.LHS != nil || m.FillValues.RHS != nil {
		return nil, false
	}
	if _, ok := ops[e.Op]; !ok && !e.Op.IsSetOperator() {
		return nil, false
	}
	l, lok := t.node(e.LHS, lookback)
	r, rok := t.node(e.RHS, lookback)
	if !lok || !rok {
		return nil, false
	}
	a := &columns.Aggregation{Without: !m.On, Names: slices.Clone(m.MatchingLabels)}
	slices.Sort(a.Names)
	switch {
	case e.Op.IsSetOperator():
		return &set{op: e.Op, match: a, l: l, r: r}, true
	case m.Card != parser.CardOneToOne:
		return manyToOne(e, a, l, r)
	}
	return &pairs{op: ops[e.Op], compute: ops[e.Op].Arithmetic(), asBool: e.ReturnBool, match: a, l: l, r: r}, true
}

// replace compiles label_replace with plain strings.
func (t *Tree) replace(e *parser.Call, lookback time.Duration) (node, bool) {
	if e.Func.Name != "label_replace" || len(e.Args) != 5 {
		return nil, false
	}
	var texts [4]string
	for i := range texts {
		s, ok := text(e.Args[i+1])
		if !ok {
			return nil, false
		}
		texts[i] = s
	}
	re, err := regexp.Compile("^(?s:" + texts[3] + ")$")
	if err != nil || texts[0] == "" || !utf8.ValidString(texts[0]) {
		return nil, false // an error that the engine words
	}
	in, ok := t.node(e.Args[0], lookback)
	return &relabel{to: texts[0], with: texts[1], from: texts[2], references: strings.Count(texts[1], "$"), match: re, in: in}, ok
}

func text(expr parser.Expr) (string, bool) {
	switch e := expr.(type) {
	case *parser.StringLiteral:
		return e.Val, true
	case *parser.ParenExpr:
		return text(e.Expr)
	case *parser.StepInvariantExpr:
		return text(e.Expr)
	}
	return "", false
}

// Run evaluates. Chains are evaluated beside each other. Errors are those of Plan.Run.
// First all chains, side by side, since these read rows; then the operations between them in this goroutine, inside
// first, which only compute.
func (t *Tree) Run(ctx context.Context, env Env) (*Answer, error) {
	e := &evaluation{tree: t, env: env, steps: t.grid.Len(), chains: make([]*Answer, len(t.chains)), take: env.take(ctx)}
	if err := e.runChains(ctx); err != nil {
		return nil, err
	}
	all, err := t.root.columns(e)
	if err != nil {
		return nil, err
	}
	a := &Answer{Series: promql.Matrix{}, Notes: e.notes, Peak: e.peak}
	w := writer{grid: t.grid, markers: env.Markers, out: &a.Series}
	for i := range all {
		n := columns.Present(all[i].Values)
		if err := e.take(w.Bytes(&all[i], n)); err != nil {
			return nil, err
		}
		if n > 0 {
			w.Append(&all[i], n)
		}
	}
	w.Flush()
	for _, c := range e.chains {
		a.Visited, a.Read, a.Peak = a.Visited+c.Visited, a.Read+c.Read, max(a.Peak, c.Peak)
		a.Notes.Merge(c.Notes)
	}
	return a, nil
}

// evaluation is one run of a tree.
type evaluation struct {
	tree   *Tree
	env    Env
	steps  int
	chains []*Answer
	take   func(bytes int64) error
	notes  annotations.Annotations
	peak   int
}

// chainsTogether bounds the chains that are divided beside each other.
const chainsTogether = 64

// runChains evaluates as many chains at a time as there are workers. Many chains have one worker each: none waits for another. They are divided
// before, since servers answer many in one request.
func (e *evaluation) runChains(ctx context.Context) error {
	env := e.env
	env.columns, env.Markers = true, false
	// A chain with one worker needs no hand-over of pages between goroutines; with that many chains all processors are
	// busy without.
	if len(e.chains) >= 2*env.Workers {
		env.Workers = 1
	}
	for first := 0; first < len(e.chains); first += chainsTogether {
		all := e.tree.chains[first:min(first+chainsTogether, len(e.chains))]
		divisions, err := divideAll(ctx, env, all)
		if err != nil {
			return err
		}
		if err := columns.Share(ctx, len(all), e.env.Workers, nil, func(ctx context.Context, i int) (err error) {
			e.chains[first+i], err = all[i].run(ctx, env, divisions[i])
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func divideAll(ctx context.Context, env Env, all []*Plan) ([]division, error) {
	out := make([]division, len(all))
	if env.Divide == nil {
		return out, nil
	}
	if len(all) > 1 {
		ctx = env.Together(ctx, len(all))
	}
	// All at the same time: each waits for the others.
	return out, columns.Share(ctx, len(all), len(all), env.Beside, func(ctx context.Context, i int) (err error) {
		out[i], err = all[i].divide(ctx, env)
		return worded(err)
	})
}

// hold counts samples that are in memory at a time.
// As the engine counts them: both sides of an operation while it is evaluated. The engine's limit applies to each node,
// not to their sum.
func (e *evaluation) hold(sides ...[]columns.Column) error {
	n := 0
	for _, all := range sides {
		for i := range all {
			n += columns.Present(all[i].Values)
		}
	}
	e.peak = max(e.peak, n)
	if n > e.env.SamplesMax {
		return promql.ErrTooManySamples(where)
	}
	return nil
}

// chain is a chain of the tree, by number.
type chain int

func (c chain) columns(e *evaluation) ([]columns.Column, error) { return e.chains[c].columns, nil }

// staged applies the stages of a plan to columns.
type staged struct {
	in   node
	plan *Plan
}

func (s *staged) columns(e *evaluation) ([]columns.Column, error) {
	all, err := s.in.columns(e)
	if err != nil {
		return nil, err
	}
	s.plan.noteStages(&e.notes)
	for _, st := range s.plan.chain.Stages {
		if st.Aggregation != nil {
			if all, err = columns.Aggregate(st.Aggregation, all, e.steps, e.take); err != nil {
				return nil, err
			}
			continue
		}
		for i := range all {
			st.Operator.Apply(all[i].Values)
		}
		if st.Operator.DropsName() {
			if err := columns.DropAll(all); err != nil {
				return nil, err
			}
		}
	}
	return all, e.hold(all)
}

// set is one of the operations and, or, unless.
type set struct {
	op    parser.ItemType
	match *columns.Aggregation // series match by its key
	l, r  node
}

// columns of a chain of or are read once, for any length of the chain.
func (s *set) columns(e *evaluation) ([]columns.Column, error) {
	l, err := s.l.columns(e)
	if err != nil {
		return nil, err
	}
	r, err := s.r.columns(e)
	if err != nil {
		return nil, err
	}
	if err := e.hold(l, r); err != nil {
		return nil, err
	}
	if s.op == parser.LOR {
		return s.or(e, l, r)
	}
	there := newMasks(s.match, e.steps, e.take)
	if err := there.add(r); err != nil {
		return nil, err
	}
	for i := range l {
		mask := there.find(&l[i])
		for step, v := range l[i].Values {
			if !columns.IsAbsent(v) && (mask != nil && mask[step]) == (s.op == parser.LUNLESS) {
				l[i].Values[step] = columns.Absent
			}
		}
	}
	return l, nil
}

func (s *set) or(e *evaluation, l, r []columns.Column) ([]columns.Column, error) {
	there := newMasks(s.match, e.steps, e.take)
	if err := there.add(l); err != nil {
		return nil, err
	}
	// A series of l without a value here would give its place in the engine's order to the same series of r.
	l = slices.DeleteFunc(l, func(c columns.Column) bool { return columns.Present(c.Values) == 0 })
	at := columns.ByLabels(l)
	for i := range r {
		c := &r[i]
		if mask := there.find(c); mask != nil {
			for step := range c.Values {
				if mask[step] {
					c.Values[step] = columns.Absent
				}
			}
		}
		if columns.Present(c.Values) == 0 {
			continue
		}
		same, ok := at[c.Plain()]
		if !ok {
			l = append(l, *c)
			continue
		}
		// Both sides have the series: each its own steps, or else there would be two at one step.
		for step, v := range c.Values {
			switch of := l[same].Values; {
			case columns.IsAbsent(v):
			case !columns.IsAbsent(of[step]):
				return nil, columns.ErrAbandoned
			default:
				of[step] = v
			}
		}
	}
	return l, nil
}

// masks hold the steps at which there is a series, by the key that series match by.
// A byte for each step and key: with on () there is one key for all series, without it one for nearly each. find leaves
// the key of its column in key, which add then uses.
type masks struct {
	match *columns.Aggregation
	steps int
	of    map[string][]bool
	key   []byte
	take  func(bytes int64) error
}

func newMasks(match *columns.Aggregation, steps int, take func(int64) error) *masks {
	return &masks{match: match, steps: steps, of: map[string][]bool{}, take: take}
}

func (m *masks) add(all []columns.Column) error {
	for i := range all {
		c := &all[i]
		mask := m.find(c)
		if mask == nil {
			if err := m.take(int64(m.steps+len(m.key)) + columns.ColumnBytes); err != nil {
				return err
			}
			mask = make([]bool, m.steps)
			m.of[string(m.key)] = mask
		}
		for step, v := range c.Values {
			if !columns.IsAbsent(v) {
				mask[step] = true
			}
		}
	}
	return nil
}

func (m *masks) find(c *columns.Column) []bool {
	m.key = m.match.Key(m.key[:0], c.Labels, c.Dropped)
	return m.of[string(m.key)]
}

// pairs is an operation in which each series matches one of the other side.
type pairs struct {
	op      columns.Op
	compute func(l, r float64) float64 // nil for comparisons
	asBool  bool
	match   *columns.Aggregation
	l, r    node
}

func (p *pairs) columns(e *evaluation) ([]columns.Column, error) {
	l, err := p.l.columns(e)
	if err != nil {
		return nil, err
	}
	r, err := p.r.columns(e)
	if err != nil {
		return nil, err
	}
	// A key that comes twice on one side is an error of the engine only if both series have a value at one step: it
	// decides.
	other := make(map[string]int, len(r)) // by key; -1: matched already
	var key []byte
	for i := range r {
		key = p.match.Key(key[:0], r[i].Labels, r[i].Dropped)
		if _, twice := other[string(key)]; twice {
			return nil, columns.ErrAbandoned
		}
		if err := e.take(columns.ColumnBytes + int64(len(key))); err != nil {
			return nil, err
		}
		other[string(key)] = i
	}
	if err := e.hold(l, r); err != nil {
		return nil, err
	}
	out := l[:0]
	for i := range l {
		key = p.match.Key(key[:0], l[i].Labels, l[i].Dropped)
		at, ok := other[string(key)]
		if !ok {
			continue
		}
		if at < 0 {
			return nil, columns.ErrAbandoned // two match the same one, perhaps at one step
		}
		other[string(key)] = -1
		p.meet(l[i].Values, r[at].Values)
		if columns.Present(l[i].Values) > 0 {
			if err := e.take(columns.ColumnBytes + int64(len(l[i].Labels))); err != nil {
				return nil, err
			}
			out = append(out, p.named(&l[i]))
		}
	}
	if len(columns.ByLabels(out)) < len(out) {
		return nil, columns.ErrAbandoned
	}
	return out, nil
}

// meet computes into l.
func (p *pairs) meet(l, r []float64) {
	var holds func(l, r float64) bool
	if p.compute == nil {
		holds = p.op.Comparison()
	}
	for i, v := range l {
		switch {
		case columns.IsAbsent(v):
		case columns.IsAbsent(r[i]):
			l[i] = columns.Absent
		case p.compute != nil:
			l[i] = p.compute(v, r[i])
		case p.asBool && holds(v, r[i]):
			l[i] = 1
		case p.asBool:
			l[i] = 0
		case !holds(v, r[i]):
			l[i] = columns.Absent
		}
	}
}

// named sets a column's labels to those of the result: those of on, or all but the ignored ones.
func (p *pairs) named(c *columns.Column) columns.Column {
	drops := c.Dropped || p.compute != nil || p.asBool
	var out []byte
	for l := c.Labels; ; {
		name, _, rest, ok := l.Next()
		if !ok {
			return columns.Column{Labels: point.Labels(out), Values: c.Values}
		}
		if (!drops || !columns.Reserved(name)) && slices.Contains(p.match.Names, name) != p.match.Without {
			out = append(out, l[:len(l)-len(rest)]...)
		}
		l = rest
	}
}

// relabel is label_replace.
type relabel struct {
	to, with, from string
	references     int // to groups, in with
	match          *regexp.Regexp
	in             node
}

func (r *relabel) columns(e *evaluation) ([]columns.Column, error) {
	all, err := r.in.columns(e)
	if err != nil {
		return nil, err
	}
	for i := range all {
		c := &all[i]
		l := c.Plain()
		value := l.Get(r.from)
		if at := r.match.FindStringSubmatchIndex(value); at != nil {
			// A reference is no longer than the value.
			if err := e.take(columns.ColumnBytes + int64(len(l)+len(r.with)+r.references*len(value))); err != nil {
				return nil, err
			}
			var ok bool
			if l, ok = with(l, r.to, string(r.match.ExpandString(nil, r.with, value, at))); !ok {
				return nil, columns.ErrAbandoned
			}
		}
		c.Labels, c.Dropped = l, false
	}
	if len(columns.ByLabels(all)) < len(all) {
		return nil, columns.ErrAbandoned // the engine merges them, or returns an error
	}
	return all, nil
}

// with sets a label; "" removes it. ok is false if the label would be invalid.
func with(l point.Labels, name, value string) (point.Labels, bool) {
	var b point.LabelsBuilder
	l.Range(func(n, v string) bool {
		if n != name {
			b.Add([]byte(n), []byte(v))
		}
		return true
	})
	if value != "" {
		b.Add([]byte(name), []byte(value))
	}
	out, err := b.Unnamed()
	return out, err == nil
}
