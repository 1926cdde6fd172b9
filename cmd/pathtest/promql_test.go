package pathtest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// node is a forwarder and the storage server it writes to, on a file system in memory.
type node struct {
	brick  *brick.Brick
	server *server.Server
	write  *forward.Forwarder
}

func openNode(tb testing.TB, width time.Duration) *node {
	ctx, log := tb.Context(), slog.New(slog.DiscardHandler)
	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	store := mem.New()
	meta := filesmem.NewServer(store, settings.LocalServer)
	maps, err := tables.Open(ctx, tables.Deps{
		Store: store, Metadata: meta.Alone, Servers: meta.Only, Log: log,
		Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{settings.LocalServer} },
	}, tables.Settings{New: topology.Config{PartitionWidth: width}, CreateOnWrite: true})
	must(err)
	b, err := brick.Open(brick.Deps{FS: vfs.NewMem(), Log: log, Registerer: prometheus.NewRegistry()}, brick.Settings{DataDir: "data", FreeBytesMin: 1, FileBytesMax: 1 << 20})
	must(err)
	n := &node{brick: b}
	n.server, err = server.Open(ctx, server.Deps{Brick: b, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()}, server.Settings{Server: settings.LocalServer, Epoch: 1})
	must(err)
	n.write = forward.New(forward.Deps{Tables: maps, Servers: n, Clock: forward.NewClock(0, nil), Log: log}, forward.Settings{
		PartitionsMax: 1 << 20, NewPartitionsPerWrite: 1 << 20, NewPartitionsPerSecond: 1 << 20,
	})
	return n
}

// Server implements forward.Servers.
func (n *node) Server(topology.ServerID) (peer.Storage, bool) { return n.server, true }

// IDs implements forward.Servers.
func (n *node) IDs() []topology.ServerID { return []topology.ServerID{settings.LocalServer} }

func (n *node) close() error {
	return errors.Join(n.write.Close(), n.server.Close(), n.brick.Close())
}

func (n *node) insert(ctx context.Context, b *point.Batch) error {
	t, err := n.write.Table(ctx, promqlsuite.Table)
	if err != nil {
		return err
	}
	return t.Write(ctx, b, point.All)
}

// insertInThirds leaves one third of a batch in the head, another in a new segment, the rest in a compacted one.
func (n *node) insertInThirds(ctx context.Context, b *point.Batch) error {
	for third := range 3 {
		part := point.GetBatch(b.Dict)
		for i := third; i < len(b.IDs); i += 3 {
			part.Append(b.IDs[i], b.Times[i], b.Values[i])
		}
		for i := third; i < len(b.Hists); i += 3 {
			part.Hists = append(part.Hists, b.Hists[i])
		}
		err := n.insert(ctx, part)
		part.Put()
		if err == nil && third < 2 {
			err = n.server.FlushAll(ctx, third == 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
