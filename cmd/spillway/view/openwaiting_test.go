package view

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// slowStore does not answer its first lists in time.
type slowStore struct {
	coord.Store
	late int
}

func (s *slowStore) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if s.late--; s.late >= 0 {
		return nil, 0, fault.Wrap(context.DeadlineExceeded, fault.Unavailable, "list %s", prefix)
	}
	return s.Store.List(ctx, prefix)
}

// TestAStartWaitsForACoordinationStoreThatIsSlow: a storage server ended with exit code 1 because the store, which answered before, needed more than its time for the leaders.
func TestAStartWaitsForACoordinationStoreThatIsSlow(t *testing.T) {
	store, log := &slowStore{mem.New(), 2}, slog.New(slog.DiscardHandler)
	v, err := openWaiting(t.Context(), store, func(context.Context) error { return nil }, log, func() (*leaders.View, error) {
		return leaders.Open(t.Context(), leaders.Deps{Store: store, Log: log, Rand: newRand(), Registerer: prometheus.NewRegistry()}, leaders.Settings{})
	})
	if err != nil || v == nil {
		t.Errorf("%v, %v", v, err)
	}
}
