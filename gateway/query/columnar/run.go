package columnar

import (
	"context"
	"errors"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/protocols/columns"
)

// Env is the environment of an evaluation: that of package columns, and the selectors and the form of answers.
type Env struct {
	columns.Env // Open and Writer are set by Run
	// Find finds the series of a selector with their rows in [lo, hi], milliseconds; newest: only the newest row of each is looked at.
	Find func(ctx context.Context, lo, hi int64, newest bool, ms []*labels.Matcher) (columns.Rows, error)
	// Divide cuts a chain over a selector into pieces that are joined; no pieces: it is evaluated whole. undo subtracts the counts
	// for pieces that turn out not to be joined. Nil: no chain is divided.
	Divide func(ctx context.Context, chain *columns.Plan, ms []*labels.Matcher) (f columns.Form, pieces []columns.Piece, undo func(), err error)
	// Together returns a context under which so many chains are divided beside each other. Set if Divide is.
	Together func(ctx context.Context, chains int) context.Context
	// Beside runs a job beside the caller, which does not wait for it. Nil: on a goroutine of its own, the stack of which grows in each query.
	Beside func(job func())
	// Markers asks for a value at each step, a stale marker where there is none.
	Markers bool

	columns bool // the answer is to have columns, and no series
}

// where is the engine's name for the place where the limit is exceeded.
const where = "query execution"

// worded returns errors as the engine words them.
func worded(err error) error {
	if errors.Is(err, columns.ErrTooManySamples) {
		return promql.ErrTooManySamples(where)
	}
	return err
}

// take books bytes and checks whether the evaluation is still wanted.
// It is for the operations of a tree; chains book by themselves (package columns).
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

// Run evaluates. Errors: columns.ErrAbandoned, those of Find and Rows unchanged, promql.ErrTooManySamples, ctx's.
func (p *Plan) Run(ctx context.Context, env Env) (*Answer, error) {
	d, err := p.divide(ctx, env)
	if err != nil {
		return nil, worded(err)
	}
	return p.run(ctx, env, d)
}

// division is what Divide returned; without pieces the chain is evaluated whole.
type division struct {
	form   columns.Form
	pieces []columns.Piece
	undo   func()
}

func (p *Plan) divide(ctx context.Context, env Env) (d division, err error) {
	if env.Divide != nil {
		d.form, d.pieces, d.undo, err = env.Divide(ctx, &p.chain, p.matchers)
	}
	return d, err
}

// run evaluates the chain as it was divided.
func (p *Plan) run(ctx context.Context, env Env, d division) (*Answer, error) {
	series := promql.Matrix{}
	in := env.Env
	in.Open = func(ctx context.Context, lo, hi int64) (columns.Rows, error) {
		return env.Find(ctx, lo, hi, p.chain.LooksAtNewest(), p.matchers)
	}
	if !env.columns {
		in.Writer = func() columns.Writer { return &writer{grid: p.chain.Grid, markers: env.Markers, out: &series} }
		// Called before a chain is evaluated again from its beginning: what writers flushed so far would be doubled.
		in.Restart = func() { series = promql.Matrix{} }
	}
	a, err := p.evaluate(ctx, in, d)
	if err != nil {
		return nil, worded(err)
	}
	return &Answer{
		Series: series, Notes: p.notes(a), Visited: a.Visited, Read: a.Read, Peak: a.Peak, columns: a.Columns,
	}, nil
}

// evaluate joins the pieces of the chain, or evaluates it whole.
func (p *Plan) evaluate(ctx context.Context, in columns.Env, d division) (*columns.Answer, error) {
	switch {
	case len(d.pieces) == 0:
		return p.chain.Run(ctx, in)
	// All rows came: joined, each series would have a column of all steps, however few rows it has.
	case len(d.pieces) == 1 && d.pieces[0].Part == nil && d.pieces[0].Steps == p.chain.Grid.Len():
		in.Open = d.pieces[0].Open
		return p.chain.Run(ctx, in)
	}
	a, err := p.chain.Join(ctx, in, d.form, d.pieces)
	// The parts that servers sent show that they cannot be joined: the rows are read and the chain evaluated here.
	if errors.Is(err, columns.ErrUndivided) {
		d.undo()
		return p.chain.Run(ctx, in)
	}
	return a, err
}

// notes are the annotations of an evaluation.
func (p *Plan) notes(a *columns.Answer) (notes annotations.Annotations) {
	for _, n := range a.Names {
		notes.Add(annotations.NewPossibleNonCounterInfo(n, p.position))
	}
	if src := &p.chain.Source; src.Function.Quantile && a.Visited > 0 && outside(src.Argument) {
		notes.Add(annotations.NewInvalidQuantileWarning(src.Argument, p.position))
	}
	p.noteStages(&notes)
	return notes
}

// noteStages warns of invalid parameters of aggregations.
func (p *Plan) noteStages(notes *annotations.Annotations) {
	for i, s := range p.chain.Stages {
		if a := s.Aggregation; a != nil && a.Op == columns.Quantile && outside(a.Parameter) {
			notes.Add(annotations.NewInvalidQuantileWarning(a.Parameter, p.parameters[i]))
		}
	}
}

// outside reports whether a number is none of a quantile.
func outside(q float64) bool { return !(q >= 0 && q <= 1) }
