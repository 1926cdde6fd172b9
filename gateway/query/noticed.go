package query

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Noticed adds a warning to every answer of a source that contains rows, series, labels or descriptions.
func Noticed(s Source, text string) Source { return noticed{s, text} }

type noticed struct {
	Source
	text string
}

func (n noticed) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	Warn(ctx, n.text)
	return n.Source.Select(ctx, q)
}

func (n noticed) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	Warn(ctx, n.text)
	return n.Source.LabelNames(ctx, q, limit)
}

func (n noticed) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	Warn(ctx, n.text)
	return n.Source.LabelValues(ctx, q, name, limit)
}

func (n noticed) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	Warn(ctx, n.text)
	return n.Source.Exemplars(ctx, q, sets)
}

func (n noticed) GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error) {
	Warn(ctx, n.text)
	return n.Source.GetMetadata(ctx, table, metric)
}
