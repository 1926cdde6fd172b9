package forward_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// sink is a cluster of servers that accept everything at once and keep nothing.
type sink struct {
	peer.Storage
	peer.Stream
}

func (s sink) Server(topology.ServerID) (peer.Storage, bool)           { return s, true }
func (s sink) IDs() []topology.ServerID                                { return []topology.ServerID{"n1"} }
func (s sink) OpenStream(context.Context, string) (peer.Stream, error) { return s, nil }
func (s sink) Define(context.Context, []peer.Def) error                { return nil }
func (s sink) Insert(context.Context, *peer.Insert) error              { return nil }
func (s sink) Close() error                                            { return nil }
func (s sink) Changed() <-chan struct{}                                { return nil }
func (s sink) Find(_ string, p *topology.Partition, _ int) (leaders.Lead, error) {
	return leaders.Lead{Server: p.Placements[0].Server, Epoch: 1}, nil
}

// BenchmarkWrite measures the cost of following leaders for a write of 100 rows, by its number of partitions. 2026-11-22, per write:
//
//	partitions 1   15 allocations   17 before the rule was a machine
//	partitions 4   45 allocations   53
func BenchmarkWrite(b *testing.B) {
	for _, partitions := range []int{1, 4} {
		b.Run(fmt.Sprint("partitions=", partitions), func(b *testing.B) {
			store := mem.New()
			meta := filesmem.NewServer(store, "n1")
			log := slog.New(slog.DiscardHandler)
			known, err := tables.Open(b.Context(), tables.Deps{
				Store: store, Metadata: meta.Alone, Servers: meta.Only, Log: log, Rand: rand.New(rand.NewPCG(1, 2)),
				Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{"n1"} },
			}, tables.Settings{New: topology.Config{PartitionWidth: time.Hour}, CreateOnWrite: true})
			if err != nil {
				b.Fatal(err)
			}
			defer known.Close()
			f := forward.New(forward.Deps{Tables: known, Servers: sink{}, Leaders: sink{}, Clock: forward.NewClock(0, nil), Log: log}, forward.Settings{})
			table, err := f.Table(b.Context(), "t")
			if err != nil {
				b.Fatal(err)
			}
			rows := point.GetBatch(table.Dict())
			for i := range 100 {
				id := querytest.Intern(rows.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i)))
				rows.Append(id, point.Nanos(i%partitions)*point.Nanos(time.Hour), 1)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := table.Write(b.Context(), rows, point.All); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
