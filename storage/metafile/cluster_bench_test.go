package metafile

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord/local"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

// BenchmarkTransaction is one METADATA transaction, a partition more on a table of many, with three metadata servers that
// stand on bricks on a real disk (fsynced) and a coordination store on the same disk (fsynced). Calls are in process; a
// network adds its round trips.
func BenchmarkTransaction(b *testing.B) {
	for _, partitions := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			benchTransaction(b, partitions)
		})
	}
}

func benchTransaction(b *testing.B, partitions int) {
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	store, err := local.Open(vfs.Default, b.TempDir(), log)
	must(err)
	defer store.Close()
	servers := map[topology.ServerID]*mapstore.Server{}
	var ids []topology.ServerID
	var closers []func() // users of others' disks first
	defer func() {
		for _, f := range closers {
			f()
		}
	}()
	peers := func(id topology.ServerID) (peer.Metadata, bool) { s, ok := servers[id]; return s, ok }
	for i := range 3 {
		br, err := brick.Open(brick.Deps{FS: vfs.Default, Log: log}, brick.Settings{DataDir: b.TempDir(), FreeBytesMin: 1})
		must(err)
		closers = append(closers, func() { must(br.Close()) })
		id := topology.ServerID(fmt.Sprint("s", i+1))
		s, err := mapstore.New(mapstore.Deps{Store: store, Peers: peers, Log: log, Rand: rand.New(rand.NewPCG(1, uint64(i))), Self: id, Disk: New(br)}, mapstore.Settings{})
		must(err)
		closers = append([]func(){s.Close}, closers...)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		closers = append([]func(){func() { stop(); must(<-done) }}, closers...)
		servers[id] = s
		ids = append(ids, id)
	}
	s := servers["s1"]
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	must(err)
	d, err := s.Create(b.Context(), m, ids)
	must(err)
	rng := rand.New(rand.NewPCG(7, 7))
	place := func(point.PartitionID) []topology.Placement {
		var p []topology.Placement
		for _, id := range ids {
			p = append(p, topology.Placement{ID: point.PlacementID(rng.Uint64()), Server: id})
		}
		return p
	}
	base := d.Changed.Txn
	hour := 0
	add := func(n int) {
		var times []point.Nanos
		for range n {
			times = append(times, int64(hour)*int64(time.Hour))
			hour++
		}
		op := m.Covering(times, place)
		c := &peer.Change{Table: "cpu", Base: base, Txn: mapstore.NewTxnID(rng), Ops: topology.EncodeOps([]topology.Op{op})}
		got, err := s.Change(b.Context(), c)
		must(err)
		base = got.Txn
		m, err = m.Apply(op)
		must(err)
	}
	add(partitions)
	b.ReportAllocs()
	var took []time.Duration
	cpu := cputime.Used()
	for b.Loop() {
		began := time.Now()
		add(1)
		took = append(took, time.Since(began))
	}
	b.ReportMetric(float64((cputime.Used()-cpu).Microseconds())/1000/float64(len(took)), "cpu-ms/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(len(m.Encode()))/1024, "map-KiB")
}
