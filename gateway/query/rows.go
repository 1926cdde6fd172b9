package query

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// RowSet is the series of a select with their rows as they are stored: in nanoseconds, with every bit, rows of one
// millisecond apart. One goroutine at a time; to be closed.
type RowSet struct {
	querier *querier
	set     *set
}

// Rows reads the rows in [mint, maxt] of matching series, of all without matchers, in label order. They count against the
// bounds and memory of one query, of which a series keeps its share only until the next one.
func (t *Table) Rows(ctx context.Context, mint, maxt int64, ms []*labels.Matcher) *RowSet {
	q := t.querier(mint, maxt)
	s := q.open(ctx, nil, ms)
	s.passing = true
	return &RowSet{q, s}
}

// Next moves to the next series.
func (r *RowSet) Next() bool { return r.set.Next() }

// At is the series stood on; it is good until Next is called.
func (r *RowSet) At() *peer.Series { return r.set.at.rows }

// Err is the error that ended the set.
func (r *RowSet) Err() error { return r.set.Err() }

// Close frees its memory.
func (r *RowSet) Close() { _ = r.querier.Close() } // a querier's Close returns nothing else than nil
