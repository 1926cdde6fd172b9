package query

import (
	"context"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Table is one table as readers see it: Prometheus' Queryable, ChunkQueryable and ExemplarQueryable, and the look-ups
// that need no samples. Times are milliseconds, both ends included. Safe for concurrent use and cheap to make.
//
// A table without any writes is NotFound, except the default one, which always exists and may be empty.
type Table struct {
	name   string
	reader *Reader
}

var (
	_ storage.SampleAndChunkQueryable = (*Table)(nil)
	_ storage.ExemplarQueryable       = (*Table)(nil)
)

// Name is the table's name.
func (t *Table) Name() string { return t.name }

// Querier reads samples in [mint, maxt].
func (t *Table) Querier(mint, maxt int64) (storage.Querier, error) { return t.querier(mint, maxt), nil }

// ChunkQuerier reads the same rows, encoded into chunks of Prometheus' form.
func (t *Table) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	return &chunkQuerier{t.querier(mint, maxt)}, nil
}

// ExemplarQuerier reads exemplars under ctx.
func (t *Table) ExemplarQuerier(ctx context.Context) (storage.ExemplarQuerier, error) {
	return &exemplarQuerier{ctx: ctx, table: t}, nil
}

// ask makes the select that covers whole milliseconds.
func (t *Table) ask(mint, maxt int64, ms []*labels.Matcher) *peer.Select {
	return &peer.Select{
		Table: t.name, Lo: point.NanosOf(mint), Hi: point.LastNanosOf(maxt), Matchers: peerMatchers(ms),
		SeriesMax: t.reader.settings.SeriesMax, SamplesMax: t.reader.settings.RowsMax,
	}
}

// open asks the source; a nil set without an error is an empty one.
func (t *Table) open(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	in, err := t.reader.source.Select(ctx, q)
	if err != nil {
		return nil, t.absent(err)
	}
	return in, nil
}

// absent makes a missing default table an empty one.
func (t *Table) absent(err error) error {
	if t.name == tablename.Default && fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// Series lists the series that match any of the sets and may have rows in the range, in label order, at most limit
// (0: all the settings allow); truncated reports that there were more.
func (t *Table) Series(ctx context.Context, mint, maxt int64, sets [][]*labels.Matcher, limit int) (found []point.Labels, truncated bool, err error) {
	u := t.reader.usage(budget.LoanOf(ctx))
	u.of = limits.QueryOf(ctx)
	for _, ms := range sets {
		some, err := t.seriesOf(ctx, mint, maxt, ms, limit, u)
		if err != nil {
			return nil, false, err
		}
		found = append(found, some...)
	}
	if len(sets) > 1 {
		slices.SortFunc(found, point.Labels.Compare)
		found = slices.Compact(found)
	}
	found, truncated = cut(found, limit)
	return found, truncated, nil
}

// seriesOf lists one more than limit, so that the caller can see that there are more.
func (t *Table) seriesOf(ctx context.Context, mint, maxt int64, ms []*labels.Matcher, limit int, u *usage) (found []point.Labels, err error) {
	q := t.ask(mint, maxt, ms)
	q.LabelsOnly = true
	if limit < math.MaxInt {
		q.Limit = limit + min(limit, 1)
	}
	if q.Limit-1 == q.SeriesMax { // it shows that there are more, and is not kept
		q.SeriesMax++
	}
	turn := lane.Of(ctx)
	if err := t.reader.turnFor(ctx, turn); err != nil {
		return nil, err
	}
	in, err := t.open(ctx, q)
	if err != nil || in == nil {
		return nil, err
	}
	defer in.Close()
	if t.reader.remote {
		if err := turn.Next(ctx); err != nil {
			return nil, err
		}
	}
	for (limit == 0 || len(found) <= limit) && in.Next() {
		if len(found)%turnLabels == turnLabels-1 {
			if err := turn.Next(ctx); err != nil {
				return nil, err
			}
		}
		if limit == 0 || len(found) < limit {
			if _, err := u.keep(in.At(), 0); err != nil {
				return nil, err
			}
		}
		found = append(found, in.At().Labels)
	}
	return found, in.Err()
}

// turnLabels is how many series are listed in one turn.
const turnLabels = 4096

// LabelNames lists the names of labels, sorted, of the series that match any of the sets (none: all series).
func (t *Table) LabelNames(ctx context.Context, mint, maxt int64, sets [][]*labels.Matcher, limit int) (names []string, truncated bool, err error) {
	return t.union(ctx, mint, maxt, sets, limit, func(q *peer.Select) ([]string, bool, error) {
		return t.reader.source.LabelNames(ctx, q, limit)
	})
}

// LabelValues lists the values of one label, sorted, of the series that match any of the sets (none: all series).
func (t *Table) LabelValues(ctx context.Context, mint, maxt int64, name string, sets [][]*labels.Matcher, limit int) (values []string, truncated bool, err error) {
	return t.union(ctx, mint, maxt, sets, limit, func(q *peer.Select) ([]string, bool, error) {
		return t.reader.source.LabelValues(ctx, q, name, limit)
	})
}

func (t *Table) union(ctx context.Context, mint, maxt int64, sets [][]*labels.Matcher, limit int, list func(*peer.Select) ([]string, bool, error)) (all []string, truncated bool, err error) {
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	single := 0
	for _, ms := range sets {
		if err := t.reader.turnFor(ctx, lane.Of(ctx)); err != nil {
			return nil, false, err
		}
		some, more, err := list(t.ask(mint, maxt, ms))
		if err = t.absent(err); err != nil {
			return nil, false, err
		}
		if err := budget.LoanOf(ctx).Take(int64(len(some)) * 2 * nameBytes); err != nil {
			return nil, false, needed(err)
		}
		all, truncated = append(all, some...), truncated || more
		if len(all) > 2*(single+len(some)) { // names that many sets share are kept once
			all = compact(all)
			single = len(all)
		}
	}
	if len(sets) > 1 {
		all = compact(all)
	}
	all, more := cut(all, limit)
	return all, truncated || more, nil
}

// nameBytes is the memory of a string in a list, without its text, which belongs to storage or was booked as it came.
const nameBytes = 16

func compact(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

func cut[T any](list []T, limit int) ([]T, bool) {
	if limit > 0 && len(list) > limit {
		return list[:limit], true
	}
	return list, false
}

// Exemplars returns the exemplars in the range of series that match any of the sets, by series in label order.
func (t *Table) Exemplars(ctx context.Context, mint, maxt int64, sets [][]*labels.Matcher) ([]exemplar.QueryResult, error) {
	if err := limits.QueryOf(ctx).Reads(mint, maxt); err != nil {
		return nil, err
	}
	if err := t.reader.turnFor(ctx, lane.Of(ctx)); err != nil {
		return nil, err
	}
	asked := make([][]peer.Matcher, len(sets))
	for i, ms := range sets {
		asked[i] = peerMatchers(ms)
	}
	found, err := t.reader.source.Exemplars(ctx, &peer.Select{Table: t.name, Lo: point.NanosOf(mint), Hi: point.LastNanosOf(maxt)}, asked)
	if err = t.absent(err); err != nil {
		return nil, err
	}
	var b labels.ScratchBuilder
	out := make([]exemplar.QueryResult, len(found))
	for i, s := range found {
		out[i].SeriesLabels = promLabels(&b, s.Labels)
		for _, e := range s.Exemplars {
			out[i].Exemplars = append(out[i].Exemplars, exemplar.Exemplar{
				Labels: promLabels(&b, e.Labels), Value: e.Value, Ts: point.MillisOf(e.Time), HasTs: true,
			})
		}
	}
	return out, nil
}

// Metadata returns the descriptions of one metric, or of all ("").
func (t *Table) Metadata(ctx context.Context, metric string) ([]point.MetadataRow, error) {
	if err := t.reader.turnFor(ctx, lane.Of(ctx)); err != nil {
		return nil, err
	}
	rows, err := t.reader.source.GetMetadata(ctx, t.name, metric)
	return rows, t.absent(err)
}

// Delete removes the rows of matching series in the range, durably.
func (t *Table) Delete(ctx context.Context, mint, maxt int64, ms []*labels.Matcher) error {
	q := t.ask(mint, maxt, ms)
	q.SeriesMax, q.SamplesMax = 0, 0 // a delete loads nothing
	return t.absent(t.reader.source.DeleteSeries(ctx, q))
}

// CleanTombstones has the table's partitions rewritten without rows that were deleted, soon.
func (t *Table) CleanTombstones(ctx context.Context) error {
	return t.absent(t.reader.source.CleanTombstones(ctx, &peer.Select{Table: t.name, Lo: math.MinInt64, Hi: math.MaxInt64}))
}

// Stats describes the rows held of the table, with top lists of at most topN lines.
func (t *Table) Stats(ctx context.Context, topN int) (*peer.Stats, error) {
	if err := t.reader.turnFor(ctx, lane.Of(ctx)); err != nil {
		return nil, err
	}
	st, err := t.reader.source.Stats(ctx, t.name, topN)
	if err = t.absent(err); err != nil {
		return nil, err
	}
	if st == nil {
		st = new(peer.Stats)
	}
	return st, nil
}
