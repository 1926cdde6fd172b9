package api_test

import (
	"context"
	"math"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func stale() float64 { return math.Float64frombits(point.StaleNaN) }

// second lets the first select through and fails the others.
type second struct {
	broken
	calls *int
}

func (s second) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if *s.calls++; *s.calls == 1 {
		return s.Store.Select(ctx, q)
	}
	return s.broken.Select(ctx, q)
}
