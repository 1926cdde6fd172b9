package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peertest"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// onlyMap is the map of one table.
type onlyMap struct {
	table string
	m     *topology.Map
}

// Get implements server.Maps.
func (o onlyMap) Get(table string) (*topology.Map, bool) { return o.m, table == o.table }

// newTarget makes a real storage server on a disk in memory, with an empty table of one partition, and returns it as
// wrapped by over.
func newTarget[T testing.TB](t T, over func(testing.TB, peer.Storage) peer.Storage) peertest.Target {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := topology.New("metrics", topology.Config{PartitionWidth: time.Hour})
	must(err)
	m = m.Cover([]point.Nanos{time.Now().UnixNano()}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: settings.LocalServer}}
	})
	log := slog.New(slog.DiscardHandler)
	bricks, err := brick.Open(brick.Deps{FS: vfs.NewMem(), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	must(err)
	srv, err := server.Open(t.Context(), server.Deps{Brick: bricks, Maps: onlyMap{"metrics", m}, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: settings.LocalServer, Epoch: 1})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, srv.Close(), bricks.Close()); err != nil {
			t.Error(err)
		}
	})
	part := m.Overlapping(math.MinInt64, math.MaxInt64)[0]
	return peertest.Target{Storage: over(t, srv), Table: "metrics", Partition: part.ID, MapSeq: m.Seq, Lo: part.TimeLo, Hi: part.TimeHi}
}

// overLoopback is a storage as another process sees it, with certificates.
func overLoopback(t testing.TB, s peer.Storage) peer.Storage {
	dir := t.TempDir()
	if _, err := (&credentials.Certs{OutDir: dir, Storage: []string{"127.0.0.1"}, Gateways: []string{"gw"}, Days: 1}).Make(); err != nil {
		t.Fatal(err)
	}
	srv, err := rpc.NewServer(rpc.Deps{Storage: s}, rpc.Settings{TLS: filesOf(dir, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	p, err := rpc.Dial(l.Addr().String(), rpc.DialSettings{TLS: filesOf(dir, "gw")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestStorageInProcess and TestStorageOverLoopback: users of a peer.Storage see no difference.
func TestStorageInProcess(t *testing.T) {
	peertest.Run(t, func(t *testing.T) peertest.Target {
		return newTarget(t, func(_ testing.TB, s peer.Storage) peer.Storage { return s })
	})
}

func TestStorageOverLoopback(t *testing.T) {
	peertest.Run(t, func(t *testing.T) peertest.Target { return newTarget(t, overLoopback) })
}

// BenchmarkStorage inserts batches of 2,020 rows, one after the other, into a real server on a disk in memory. Parallel
// inserts would arrive out of the order of their times and stamps, and measure the cost of that for head rows.
func BenchmarkStorage(b *testing.B) {
	for name, over := range map[string]func(testing.TB, peer.Storage) peer.Storage{
		"in process":    func(_ testing.TB, s peer.Storage) peer.Storage { return s },
		"loopback, TLS": overLoopback,
	} {
		b.Run(name, func(b *testing.B) {
			to := newTarget(b, over)
			st, err := to.Storage.OpenStream(b.Context(), to.Table)
			if err != nil {
				b.Fatal(err)
			}
			defer st.Close()
			defs := make([]peer.Def, 2020)
			for i := range defs {
				defs[i] = peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", fmt.Sprint("cpu_", i%101), "host", fmt.Sprint("h", i/101))}
			}
			if err := st.Define(b.Context(), defs); err != nil {
				b.Fatal(err)
			}
			before := cputime.Used()
			in := peer.Insert{Partition: to.Partition, MapSeq: to.MapSeq}
			for i := range defs {
				in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, 0), append(in.Values, float64(i%997))
			}
			for i := range b.N {
				for k := range in.Times {
					in.Times[k] = to.Lo + int64(i)*1e6
				}
				in.Stamp = point.Stamp(time.Now().UnixNano()) &^ 1023
				if err := st.Insert(context.Background(), &in); err != nil {
					b.Fatal(err)
				}
			}
			rows := float64(b.N) * 2020
			b.ReportMetric(float64((cputime.Used()-before).Nanoseconds())/rows, "cpu-ns/row")
		})
	}
}
