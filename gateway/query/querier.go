package query

import (
	"context"
	"errors"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/lane"
)

// querier is a storage.Querier for one query. One goroutine at a time, as the engine uses it.
type querier struct {
	table      *Table
	mint, maxt int64
	usage      *usage
	sets       []*set // to be closed
}

func (t *Table) querier(mint, maxt int64) *querier {
	return &querier{table: t, mint: mint, maxt: maxt, usage: t.reader.usage(nil)}
}

// seriesLookup is the hint of a reader that wants labels alone.
const seriesLookup = "series"

// Select returns the series in label order, whether asked to or not. The set is closed with the querier at the latest.
func (q *querier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	return q.open(ctx, hints, ms)
}

func (q *querier) open(ctx context.Context, hints *storage.SelectHints, ms []*labels.Matcher) *set {
	mint, maxt, limit, lookup := q.mint, q.maxt, 0, false
	if hints != nil {
		mint, maxt, limit, lookup = hints.Start, hints.End, hints.Limit, hints.Func == seriesLookup
	}
	if q.usage.loan == nil {
		q.usage.loan = budget.LoanOf(ctx)
	}
	if q.usage.of == nil {
		q.usage.of = limits.QueryOf(ctx)
	}
	if q.usage.turn == nil {
		q.usage.lookup = lane.Of(ctx)
	}
	ask := q.table.ask(mint, maxt, ms)
	if ask.LabelsOnly = lookup; lookup {
		ask.Limit = max(limit, 0)
	}
	s := &set{ctx: ctx, table: q.table, ask: ask, limit: limit, usage: q.usage, room: roomCounter{room: q.usage.roomOf(ms)}}
	if !lookup {
		s.err = q.usage.of.Reads(mint, maxt)
		s.ended = s.err != nil
	}
	q.sets = append(q.sets, s)
	return s
}

// Close frees the memory of unfinished sets. Returned series stay valid.
func (q *querier) Close() error {
	q.table.reader.metrics.loaded(q.usage)
	for _, s := range q.sets {
		s.close()
	}
	q.sets, q.usage = nil, q.table.reader.usage(q.usage.loan)
	return nil
}

var errTruncated = errors.New("results truncated due to limit")

func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	names, truncated, err := q.table.LabelNames(ctx, q.mint, q.maxt, [][]*labels.Matcher{ms}, limitOf(hints))
	return names, truncation(truncated), err
}

func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	values, truncated, err := q.table.LabelValues(ctx, q.mint, q.maxt, name, [][]*labels.Matcher{ms}, limitOf(hints))
	return values, truncation(truncated), err
}

func limitOf(hints *storage.LabelHints) int {
	if hints == nil {
		return 0
	}
	return hints.Limit
}

func truncation(truncated bool) annotations.Annotations {
	if !truncated {
		return nil
	}
	return annotations.New().Add(errTruncated)
}

// chunkQuerier is a querier that returns series as chunks.
type chunkQuerier struct{ *querier }

func (q *chunkQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.ChunkSeriesSet {
	s := q.open(ctx, hints, ms)
	s.passing = true
	return storage.NewSeriesSetToChunkSet(s)
}

type exemplarQuerier struct {
	ctx   context.Context // Select has no such parameter
	table *Table
}

func (q *exemplarQuerier) Select(mint, maxt int64, sets ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	return q.table.Exemplars(q.ctx, mint, maxt, sets)
}
