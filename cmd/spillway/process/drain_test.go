package process

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/registry"
)

// TestADrainedServerSaysWhyItEnds: where leases were kept no more, as the coordination store was set back, the process could end without an error before the reason was known, and systemd did not start
// it again.
func TestADrainedServerSaysWhyItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, store, rng := slog.New(slog.DiscardHandler), mem.New(), rand.New(rand.NewPCG(1, 2))
		row := registry.Server{ID: "s1", Host: "h1", Addr: "s1:1", Drain: &lease.Note{Who: "ann"}}
		if _, _, err := store.Commit(t.Context(), nil, []coord.Write{{Key: registry.Key("s1"), Value: row.Encode()}}); err != nil {
			t.Fatal(err)
		}
		p := &storage{log: log, id: "s1"}
		var err error
		if p.view.Registry, err = registry.Open(t.Context(), store, log, rng); err != nil {
			t.Fatal(err)
		}
		leases, err := keeper.New(keeper.Deps{Store: store, Log: log, Metrics: prometheus.NewRegistry(), Rand: rng}, lease.Self{Server: "s1", Boot: "b", Store: "d"}, keeper.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		over, end := context.WithCancel(t.Context())
		end()
		if err := leases.Run(over); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- p.drain(ctx, func(ctx context.Context, on bool) error { return leases.Send(ctx, lease.Drain{On: on}) })
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("it ended before the actor that knows why: %v", err)
		default:
		}
		stop()
	})
}
