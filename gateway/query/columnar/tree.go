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
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Tree is an expression of chains, of operations between vectors of which each series meets one at most, and of
// label_replace. It is constant and may be run more than once.
//
//	sum by (a) (rate(x[5m])) ─▶ columns ─┐
//	                                     ├▶ / ─▶ columns ▶ further stages ▶ columns
//	sum by (a) (rate(y[5m])) ─▶ columns ─┘
type Tree struct {
	grid   Grid
	chains []*Plan
	root   node
}

// node is a source of columns.
type node interface {
	columns(e *evaluation) ([]result, error)
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
	p := &Plan{grid: t.grid}
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
		return &staged{p.base, p.stages}, true
	}
	if !p.representable() {
		return nil, false
	}
	t.chains = append(t.chains, p)
	return chain(len(t.chains) - 1), true
}

// between takes an operation of two vectors.
func (t *Tree) between(e *parser.BinaryExpr, lookback time.Duration) (node, bool) {
	m := e.VectorMatching
	if m == nil || e.LHS.Type() != parser.ValueTypeVector || e.RHS.Type() != parser.ValueTypeVector ||
		m.FillValues.LHS != nil || m.FillValues.RHS != nil {
		return nil, false
	}
	l, lok := t.node(e.LHS, lookback)
	r, rok := t.node(e.RHS, lookback)
	if !lok || !rok {
		return nil, false
	}
	a := &aggregation{without: !m.On, names: slices.Clone(m.MatchingLabels)}
	slices.Sort(a.names)
	switch {
	case e.Op.IsSetOperator():
		return &set{op: e.Op, match: a, l: l, r: r}, true
	case m.Card != parser.CardOneToOne:
		return nil, false
	}
	return &pairs{op: e.Op, compute: arithmetic[e.Op], asBool: e.ReturnBool, match: a, l: l, r: r}, true
}

// replace takes label_replace with plain strings.
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
func (t *Tree) Run(ctx context.Context, env Env) (*Answer, error) {
	e := &evaluation{tree: t, env: env, steps: t.grid.Len(), chains: make([]*Answer, len(t.chains)), take: env.take(ctx)}
	if err := e.runChains(ctx); err != nil {
		return nil, err
	}
	columns, err := t.root.columns(e)
	if err != nil {
		return nil, err
	}
	a := &Answer{Series: promql.Matrix{}, Notes: e.notes, Peak: e.peak}
	w := writer{grid: t.grid, markers: env.Markers}
	for i := range columns {
		n := present(columns[i].values)
		if err := e.take(seriesBytes(n, &columns[i])); err != nil {
			return nil, err
		}
		a.Series = w.append(a.Series, &columns[i], n)
	}
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

// runChains evaluates as many chains at a time as there are workers. Many chains have one worker each: none waits for another.
func (e *evaluation) runChains(ctx context.Context) error {
	env := e.env
	env.columns, env.Markers = true, false
	if len(e.chains) >= 2*env.Workers {
		env.Workers = 1
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(e.env.Workers)
	for i, p := range e.tree.chains {
		g.Go(func() (err error) {
			e.chains[i], err = p.Run(ctx, env)
			return err
		})
	}
	return g.Wait()
}

// hold counts samples that are in memory at a time.
func (e *evaluation) hold(sides ...[]result) error {
	n := 0
	for _, columns := range sides {
		for i := range columns {
			n += present(columns[i].values)
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

func (c chain) columns(e *evaluation) ([]result, error) { return e.chains[c].columns, nil }

// staged applies the stages of a plan to columns.
type staged struct {
	in     node
	stages []stage
}

func (s *staged) columns(e *evaluation) ([]result, error) {
	columns, err := s.in.columns(e)
	if err != nil {
		return nil, err
	}
	for _, st := range s.stages {
		if st.aggregation != nil {
			if columns, err = aggregate(st.aggregation, columns, e.steps, e.take); err != nil {
				return nil, err
			}
			st.aggregation.note(&e.notes)
			continue
		}
		for i := range columns {
			st.operator.apply(columns[i].values)
		}
		if st.operator.dropsName() {
			if err := dropAll(columns); err != nil {
				return nil, err
			}
		}
	}
	return columns, e.hold(columns)
}

// set is one of the operations and, or, unless.
type set struct {
	op    parser.ItemType
	match *aggregation // series match by its key
	l, r  node
}

// columns of a chain of or are read once, for any length of the chain.
func (s *set) columns(e *evaluation) ([]result, error) {
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
		for step, v := range l[i].values {
			if !isAbsent(v) && (mask != nil && mask[step]) == (s.op == parser.LUNLESS) {
				l[i].values[step] = absent
			}
		}
	}
	return l, nil
}

func (s *set) or(e *evaluation, l, r []result) ([]result, error) {
	there := newMasks(s.match, e.steps, e.take)
	if err := there.add(l); err != nil {
		return nil, err
	}
	at := byLabels(l)
	for i := range r {
		c := &r[i]
		if mask := there.find(c); mask != nil {
			for step := range c.values {
				if mask[step] {
					c.values[step] = absent
				}
			}
		}
		if present(c.values) == 0 {
			continue
		}
		same, ok := at[c.plain()]
		if !ok {
			l = append(l, *c)
			continue
		}
		// Both sides have the series: each its own steps, or else there would be two at one step.
		for step, v := range c.values {
			switch of := l[same].values; {
			case isAbsent(v):
			case !isAbsent(of[step]):
				return nil, ErrAbandoned
			default:
				of[step] = v
			}
		}
	}
	return l, nil
}

// masks hold the steps at which there is a series, by the key that series match by.
type masks struct {
	match *aggregation
	steps int
	of    map[string][]bool
	key   []byte
	take  func(bytes int64) error
}

func newMasks(match *aggregation, steps int, take func(int64) error) *masks {
	return &masks{match: match, steps: steps, of: map[string][]bool{}, take: take}
}

func (m *masks) add(columns []result) error {
	for i := range columns {
		c := &columns[i]
		mask := m.find(c)
		if mask == nil {
			if err := m.take(int64(m.steps+len(m.key)) + columnBytes); err != nil {
				return err
			}
			mask = make([]bool, m.steps)
			m.of[string(m.key)] = mask
		}
		for step, v := range c.values {
			if !isAbsent(v) {
				mask[step] = true
			}
		}
	}
	return nil
}

func (m *masks) find(c *result) []bool {
	m.key = m.match.key(m.key[:0], c.labels, c.dropped)
	return m.of[string(m.key)]
}

// pairs is an operation in which each series meets one of the other side.
type pairs struct {
	op      parser.ItemType
	compute func(l, r float64) float64 // nil for comparisons
	asBool  bool
	match   *aggregation
	l, r    node
}

func (p *pairs) columns(e *evaluation) ([]result, error) {
	l, err := p.l.columns(e)
	if err != nil {
		return nil, err
	}
	r, err := p.r.columns(e)
	if err != nil {
		return nil, err
	}
	other := make(map[string]int, len(r)) // by key; -1: met already
	var key []byte
	for i := range r {
		key = p.match.key(key[:0], r[i].labels, r[i].dropped)
		if _, twice := other[string(key)]; twice {
			return nil, ErrAbandoned
		}
		if err := e.take(columnBytes + int64(len(key))); err != nil {
			return nil, err
		}
		other[string(key)] = i
	}
	if err := e.hold(l, r); err != nil {
		return nil, err
	}
	out := l[:0]
	for i := range l {
		key = p.match.key(key[:0], l[i].labels, l[i].dropped)
		at, ok := other[string(key)]
		if !ok {
			continue
		}
		if at < 0 {
			return nil, ErrAbandoned // two meet the same one, perhaps at one step
		}
		other[string(key)] = -1
		p.meet(l[i].values, r[at].values)
		if present(l[i].values) > 0 {
			if err := e.take(columnBytes + int64(len(l[i].labels))); err != nil {
				return nil, err
			}
			out = append(out, p.named(&l[i]))
		}
	}
	if len(byLabels(out)) < len(out) {
		return nil, ErrAbandoned
	}
	return out, nil
}

// meet computes into l.
func (p *pairs) meet(l, r []float64) {
	var holds func(l, r float64) bool
	if p.compute == nil {
		holds = comparison(p.op)
	}
	for i, v := range l {
		switch {
		case isAbsent(v):
		case isAbsent(r[i]):
			l[i] = absent
		case p.compute != nil:
			l[i] = p.compute(v, r[i])
		case p.asBool && holds(v, r[i]):
			l[i] = 1
		case p.asBool:
			l[i] = 0
		case !holds(v, r[i]):
			l[i] = absent
		}
	}
}

// named sets a column's labels to those of the result: those of on, or all but the ignored ones.
func (p *pairs) named(c *result) result {
	drops := c.dropped || p.compute != nil || p.asBool
	var out []byte
	for l := c.labels; ; {
		name, _, rest, ok := l.Next()
		if !ok {
			return result{labels: point.Labels(out), values: c.values}
		}
		if (!drops || !reserved(name)) && slices.Contains(p.match.names, name) != p.match.without {
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

func (r *relabel) columns(e *evaluation) ([]result, error) {
	columns, err := r.in.columns(e)
	if err != nil {
		return nil, err
	}
	for i := range columns {
		c := &columns[i]
		l := c.plain()
		value := l.Get(r.from)
		if at := r.match.FindStringSubmatchIndex(value); at != nil {
			// A reference is no longer than the value.
			if err := e.take(columnBytes + int64(len(l)+len(r.with)+r.references*len(value))); err != nil {
				return nil, err
			}
			var ok bool
			if l, ok = with(l, r.to, string(r.match.ExpandString(nil, r.with, value, at))); !ok {
				return nil, ErrAbandoned
			}
		}
		c.labels, c.dropped = l, false
	}
	if len(byLabels(columns)) < len(columns) {
		return nil, ErrAbandoned // the engine merges them, or returns an error
	}
	return columns, nil
}

// with sets a label; "" takes it away. ok is false if the label would be invalid.
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

// plain returns the labels that count.
func (c *result) plain() point.Labels {
	if !c.dropped {
		return c.labels
	}
	var out []byte
	for l := c.labels; ; {
		name, _, rest, ok := l.Next()
		if !ok {
			return point.Labels(out)
		}
		if !reserved(name) {
			out = append(out, l[:len(l)-len(rest)]...)
		}
		l = rest
	}
}

// byLabels finds columns by the labels that count; of equal ones the last.
func byLabels(columns []result) map[point.Labels]int {
	at := make(map[point.Labels]int, len(columns))
	for i := range columns {
		at[columns[i].plain()] = i
	}
	return at
}
