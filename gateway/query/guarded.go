package query

import (
	"context"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Guarded checks every call of a source against the identity in its context. It lies below engine, look-ups and remote
// read: whatever a handler omits or an expression asks for, no table is read that the request may not read. A context
// without an identity may read nothing. The error is an *access.Refusal.
func Guarded(s Source) Source { return guarded{s} }

type guarded struct{ source Source }

// unguarded is the source that Guarded got, or s.
func unguarded(s Source) Source {
	if g, ok := s.(guarded); ok {
		return g.source
	}
	return s
}

func may(ctx context.Context, v access.Verb, table string) error {
	return access.From(ctx).Check(v, table)
}

func (g guarded) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if err := may(ctx, access.Read, q.Table); err != nil {
		return nil, err
	}
	return g.source.Select(ctx, q)
}

func (g guarded) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	if err := may(ctx, access.Read, q.Table); err != nil {
		return nil, false, err
	}
	return g.source.LabelNames(ctx, q, limit)
}

func (g guarded) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	if err := may(ctx, access.Read, q.Table); err != nil {
		return nil, false, err
	}
	return g.source.LabelValues(ctx, q, name, limit)
}

func (g guarded) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	if err := may(ctx, access.Read, q.Table); err != nil {
		return nil, err
	}
	return g.source.Exemplars(ctx, q, sets)
}

func (g guarded) GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error) {
	if err := may(ctx, access.Read, table); err != nil {
		return nil, err
	}
	return g.source.GetMetadata(ctx, table, metric)
}

func (g guarded) DeleteSeries(ctx context.Context, q *peer.Select) error {
	if err := may(ctx, access.Admin, q.Table); err != nil {
		return err
	}
	return g.source.DeleteSeries(ctx, q)
}

func (g guarded) CleanTombstones(ctx context.Context, q *peer.Select) error {
	if err := may(ctx, access.Admin, q.Table); err != nil {
		return err
	}
	return g.source.CleanTombstones(ctx, q)
}

func (g guarded) Stats(ctx context.Context, table string, topN int) (*peer.Stats, error) {
	if err := may(ctx, access.Read, table); err != nil {
		return nil, err
	}
	return g.source.Stats(ctx, table, topN)
}
