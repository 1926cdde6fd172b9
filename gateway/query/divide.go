package query

import (
	"context"
	"errors"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Divider is a Source that has plans evaluated where their rows are.
type Divider interface {
	// Divide cuts the steps of a plan over the rows of q into pieces. A piece for which one server has all rows of each series is evaluated there. Rows of the
	// other pieces, which have neither part nor Open, are read by Select. Nil: the plan is not divided, and all rows are read. Errors are those of Select,
	// columns.ErrAbandoned and columns.ErrTooManySamples.
	Divide(ctx context.Context, q *peer.Select, of *columns.Request) (*Divided, error)
	// Together returns a context for concurrent calls of Divide about one table, as many as divisions. Each waits for the others before servers are asked, so that the questions to
	// one server are sent as one request. If fewer calls are made the context must be cancelled.
	Together(ctx context.Context, divisions int) context.Context
}

// Divided is a plan in pieces, in order of time.
type Divided struct {
	Form   columns.Form
	Pieces []columns.Piece
	Found  []FoundRows // of pieces without a part; rows of the others are read by Select
}

// FoundRows are the rows of a piece that came with the parts of others. Open may be called several times, by one goroutine at a time.
type FoundRows struct {
	Piece int // in Divided.Pieces
	Open  func(ctx context.Context) peer.SeriesSet
}

var _ Divider = guarded{}

// Divide implements Divider, for sources that are none too.
func (g guarded) Divide(ctx context.Context, q *peer.Select, of *columns.Request) (*Divided, error) {
	if err := may(ctx, access.Read, q.Table); err != nil {
		return nil, err
	}
	if d, ok := g.source.(Divider); ok {
		return d.Divide(ctx, q, of)
	}
	return nil, nil
}

// Together implements Divider.
func (g guarded) Together(ctx context.Context, divisions int) context.Context {
	if d, ok := g.source.(Divider); ok {
		return d.Together(ctx, divisions)
	}
	return ctx
}

// together is columnar.Env's Together, or nil if the source divides nothing.
func (c *cutter) together() func(context.Context, int) context.Context {
	if d, ok := c.table.reader.source.(Divider); ok {
		return d.Together
	}
	return nil
}

// divider is columnar.Env's Divide, or nil if the source divides nothing.
func (c *cutter) divider() func(context.Context, *columns.Plan, []*labels.Matcher) (columns.Form, []columns.Piece, func(), error) {
	if _, ok := c.table.reader.source.(Divider); !ok {
		return nil
	}
	return c.divide
}

// divide has a plan divided, and counts the series and rows that servers read.
func (c *cutter) divide(ctx context.Context, p *columns.Plan, ms []*labels.Matcher) (f columns.Form, pieces []columns.Piece, undo func(), err error) {
	lo, hi := p.Reach()
	if err := c.usage.of.Reads(lo, hi); err != nil {
		return 0, nil, nil, loadError(err)
	}
	d, err := c.table.reader.source.(Divider).Divide(ctx, c.table.ask(lo, hi, ms), &columns.Request{Plan: *p, SamplesMax: c.engine.samples})
	switch {
	case errors.Is(err, columns.ErrAbandoned), errors.Is(err, columns.ErrTooManySamples):
		return 0, nil, nil, err
	case c.table.absent(err) != nil:
		return 0, nil, nil, loadError(err)
	case err != nil || d == nil:
		return 0, nil, nil, nil
	}
	series, rows := loadOf(d.Pieces)
	if err := c.usage.load(series, rows); err != nil {
		return 0, nil, nil, loadError(err)
	}
	undo = func() { c.usage.unload(series, rows) }
	for i := range d.Pieces {
		if at := &d.Pieces[i]; at.Part == nil {
			at.Open = func(ctx context.Context, lo, hi int64) (columns.Rows, error) {
				return c.open(ctx, lo, hi, p.LooksAtNewest(), ms)
			}
		}
	}
	for _, f := range d.Found {
		d.Pieces[f.Piece].Open = func(ctx context.Context, lo, hi int64) (columns.Rows, error) { return c.found(ctx, lo, hi, f.Open) }
	}
	return d.Form, d.Pieces, undo, nil
}

// loadOf counts the rows of parts, and the series of those of the same steps together: parts of other steps have much the same series.
func loadOf(pieces []columns.Piece) (series, rows int) {
	together, first := 0, -1
	for _, at := range pieces {
		if at.Part == nil {
			continue
		}
		if at.First != first {
			together, first = 0, at.First
		}
		together += at.Part.Series
		series, rows = max(series, together), rows+at.Part.Rows
	}
	return series, rows
}
