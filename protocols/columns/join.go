package columns

import (
	"context"
	"errors"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Pieces of one form, by steps and by servers:
//
//	Single, Final    piece 0: steps 0…9 │ piece 1: steps 10…19         a column's values lie side by side, no step twice
//	States           server A: steps 0…19 ─┐
//	                 server B: steps 0…19 ─┴▶ states of a group are joined, then finished

// Piece is a part of a plan and its place: the steps from First on. Each step's rows of a series are in one piece.
type Piece struct {
	First, Steps int
	// Part was evaluated elsewhere. If it is nil, Open finds the rows to evaluate.
	Part *Part
	Open func(ctx context.Context, lo, hi int64) (Rows, error)
}

// ErrUndivided means that the parts of an evaluation show that they cannot be joined: evaluate the whole plan at one place.
var ErrUndivided = errors.New("the parts of the evaluation cannot be joined")

// Join evaluates the plan from pieces, all of one form, in order of time. Errors are those of Run, and ErrUndivided.
func (p *Plan) Join(ctx context.Context, env Env, f Form, pieces []Piece) (*Answer, error) {
	j := joiner{run: p.begin(ctx, env, true), form: f}
	if len(pieces) > 1 {
		j.at = map[point.Labels]int{}
	}
	r := j.run
	if err := r.start(); err != nil {
		return nil, err
	}
	for i := range pieces {
		part, err := p.pieceOf(ctx, env, f, &pieces[i])
		if err != nil {
			return nil, err
		}
		if part.Typed && len(pieces) > 1 && !p.Distinct(true) {
			return nil, ErrUndivided
		}
		if err := j.add(part, pieces[i].First); err != nil {
			return nil, err
		}
	}
	next, end := env.turn()
	defer end()
	if err := next(ctx); err != nil {
		return nil, err
	}
	if f == States {
		j.columns = r.groups.finish()
	}
	if len(pieces) > 1 { // parts have their own orders; a ranking above them picks among equal values by this one
		slices.SortFunc(j.columns, func(a, b Column) int { return a.Labels.Compare(b.Labels) })
	}
	return r.answer(j.columns, true)
}

// pieceOf returns a piece's part, which it evaluates if it is not there.
func (p *Plan) pieceOf(ctx context.Context, env Env, f Form, piece *Piece) (*Part, error) {
	if piece.Part == nil {
		sub := *p
		sub.Grid, env.Open = p.Grid.Cut(piece.First, piece.Steps), piece.Open
		return sub.Part(ctx, env, f)
	}
	if part := piece.Part; part.Form != f || part.Steps != piece.Steps || part.Counts != nil && len(part.Counts) != p.head()+1 {
		return nil, fault.Errorf(fault.Corrupt, "a part of form %d with %d steps where one of form %d with %d was asked for", part.Form, part.Steps, f, piece.Steps)
	}
	return piece.Part, nil
}

// joiner joins parts. For one goroutine.
type joiner struct {
	run     *run
	form    Form
	columns []Column
	at      map[point.Labels]int // in columns; nil: there is one part, in which all labels differ
}

// add joins a part at its first step. Visited and Read add up, and the largest Peak counts.
func (j *joiner) add(part *Part, first int) error {
	r := j.run
	for _, n := range part.Names {
		r.names[n] = struct{}{}
	}
	for stage, of := range part.Counts {
		for i, n := range of {
			r.counts[stage][first+i] += n
		}
	}
	m := &r.meter
	m.processed, m.read, m.peak = m.processed+part.Visited, m.read+part.Read, max(m.peak, part.Peak)
	if err := m.keep(part.Held); err != nil {
		return err
	}
	for i := range part.Columns {
		c := &part.Columns[i]
		if j.form == States {
			if err := r.groups.join(c, first); err != nil {
				return err
			}
			continue
		}
		if err := j.place(c, first, part.Steps); err != nil {
			return err
		}
	}
	return nil
}

// place puts a column's values at their steps. A part that has all steps is used unchanged.
func (j *joiner) place(c *Column, first, steps int) error {
	r := j.run
	at, ok := j.at[c.Labels]
	if !ok {
		if err := r.book(int64(r.steps)*8 + columnBytes + int64(len(c.Labels))); err != nil {
			return err
		}
		at = len(j.columns)
		if j.at != nil {
			j.at[c.Labels] = at
		}
		whole := c.Values
		if steps < r.steps {
			whole = make([]float64, r.steps)
			for i := range whole {
				whole[i] = Absent
			}
			copy(whole[first:], c.Values)
		}
		j.columns = append(j.columns, Column{Labels: c.Labels, Dropped: c.Dropped, Values: whole})
		return nil
	}
	into := j.columns[at].Values[first : first+steps]
	for i, v := range c.Values {
		switch {
		case IsAbsent(v):
		case !IsAbsent(into[i]):
			return fault.Errorf(fault.Corrupt, "two servers evaluated %v at one time", c.Labels)
		default:
			into[i] = v
		}
	}
	return nil
}
