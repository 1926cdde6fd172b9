package view

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rules "github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/coord"
	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	mapmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// behind is a store that hangs on watches and lists of tables while it is cut, like an etcd client that has not
// resumed them yet. All else is answered.
type behind struct {
	coord.Store
	cut atomic.Bool
}

func (b *behind) hangs(ctx context.Context, key string) error {
	for strings.HasPrefix(key, mapstore.Prefix) && b.cut.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (b *behind) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if err := b.hangs(ctx, prefix); err != nil {
		return nil, 0, err
	}
	return b.Store.List(ctx, prefix)
}

func (b *behind) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	return b.Store.Watch(ctx, prefix, after, func(events []coord.Event) error {
		if err := b.hangs(ctx, prefix); err != nil {
			return err
		}
		return f(events)
	})
}

// TestASelectPastTheLastKnownPartitionIsNotShortInSilence: after a cut the gateway receives leases and heartbeats again,
// but no tables yet. Meanwhile another gateway made a partition. The gateway must count its map as old, and as new again
// once it receives the tables' rows.
func TestASelectPastTheLastKnownPartitionIsNotShortInSilence(t *testing.T) {
	t.Parallel()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	store := coordmem.New()
	files, err := mapstore.New(mapstore.Deps{Store: store, Peers: func(topology.ServerID) (peer.Metadata, bool) { return nil, false },
		Log: log, Rand: newRand(), Self: "s1", Disk: mapmem.New()}, mapstore.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	deps := func(s coord.Store) tables.Deps {
		return tables.Deps{Store: s, Log: log, Rand: newRand(), Metadata: func(topology.ServerID) (peer.Metadata, bool) { return files, true },
			Place:   func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{"s1"} },
			Servers: func() []topology.ServerID { return []topology.ServerID{"s1"} }}
	}
	settings := tables.Settings{New: topology.Config{PartitionWidth: time.Hour}, CreateOnWrite: true, Prove: true}
	writer, err := tables.Open(ctx, deps(store), settings)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.Ensure(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Cover(ctx, "t", []point.Nanos{0}); err != nil {
		t.Fatal(err)
	}

	slow := &behind{Store: store}
	view := &Cluster{}
	if view.Tables, err = tables.Open(ctx, deps(slow), settings); err != nil {
		t.Fatal(err)
	}
	if view.Leaders, err = leaders.Open(ctx, leaders.Deps{Store: slow, Log: log, Rand: newRand()}, leaders.Settings{}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- view.Tables.Run(running) }()
	go func() { ended <- view.Leaders.Run(running) }()
	defer func() {
		stop()
		<-ended
		<-ended
		view.Tables.Close()
	}()
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s; the map is %v old, leases were heard %v ago", what, view.Age("t"), view.Leaders.Age())
			}
		}
	}
	until("the map is the newest", func() bool { return view.Age("t") < rules.DoubtAge })

	slow.cut.Store(true)
	made, err := writer.Cover(ctx, "t", []point.Nanos{point.Nanos(10 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	until("the map is doubted though leases are heard", func() bool { return view.Leaders.Age() < 3*time.Second && view.Age("t") >= rules.DoubtAge })
	m, _ := view.Tables.Get("t")
	if m.Len() != 1 {
		t.Fatalf("%d partitions are known", m.Len())
	}
	if _, _, doubt := rules.Doubt(m, 10*point.Nanos(time.Hour), 11*point.Nanos(time.Hour), point.Nanos(time.Now().UnixNano()), view.Age("t")); !doubt {
		t.Error("a select of the partition that another made is not doubted")
	}

	slow.cut.Store(false)
	until("the newest map is known, and in no doubt", func() bool {
		m, _ := view.Tables.Get("t")
		return m.Seq == made.Seq && view.Age("t") < rules.DoubtAge
	})
}
