package mapstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// gated is a metadata server that stores files once the gate is open.
type gated struct {
	peer.Metadata
	came chan struct{} // a value for each file
	open chan struct{} // closed: the gate is open
}

func (g gated) Store(ctx context.Context, f *peer.File) error {
	g.came <- struct{}{}
	select {
	case <-g.open:
	case <-ctx.Done():
		return fault.Annotate(ctx.Err(), "store")
	}
	return g.Metadata.Store(ctx, f)
}

// TestTwoHundredTenantsThatBeginAtOnceHaveTheirTables: files of more than 16 tables on their way to a server counted as its absence.
// Writers of all other tables got 503.
func TestTwoHundredTenantsThatBeginAtOnceHaveTheirTables(t *testing.T) {
	const tenants, places = 200, 16
	store := coordmem.New()
	c := newCluster(t, store, 3, mapstore.Settings{})
	came, open := make(chan struct{}, 3*tenants), make(chan struct{})
	gateway, err := mapstore.NewCoordinator(mapstore.Deps{Store: store, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		Peers: func(id topology.ServerID) (peer.Metadata, bool) {
			n, ok := c.peer(id)
			return gated{n, came, open}, ok
		}}, mapstore.Settings{PeerQueueMax: places, PeerTimeout: time.Minute, ChangeTimeout: time.Minute, StoreTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Close()
	made := make(chan error, tenants)
	for i := range tenants {
		go func() {
			m, err := topology.New(fmt.Sprintf("tenant%03d", i), topology.Config{PartitionWidth: time.Hour})
			if err == nil {
				_, err = gateway.Create(t.Context(), m, []topology.ServerID{"s1", "s2", "s3"})
			}
			made <- err
		}()
	}
	for range 3 * places {
		<-came
	}
	if len(came) > 0 {
		t.Errorf("%d files are on their way to servers that take %d each", 3*places+len(came), places)
	}
	close(open)
	for range tenants {
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	rows, _, err := store.List(t.Context(), mapstore.Prefix)
	if err != nil || len(rows) != tenants {
		t.Errorf("%d tables, %v", len(rows), err)
	}
}
