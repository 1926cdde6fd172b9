package pathtest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/gateway/staged"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
	stagings "github.com/spillwaydb/spillway/storage/staging/runner"
)

// BenchmarkSmearedRows compares the processor time of rows that wait on two servers with that of rows that do not, in turns: a gateway and three storage servers with
// disks, in one process, over the network. A partition has one copy, since copies cost both the same. 10,000 series in requests of 2,000 rows for five seconds, into partitions of 2 s
// with a window of 6 s, until all rows are in segments. On a busy machine fewer rows come in a second; -cpuprofile shows where the time goes.
func BenchmarkSmearedRows(b *testing.B) {
	for _, rate := range []int{80_000, 240_000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			w := openWaitingRoom(b)
			defer w.close()
			var each [2][]time.Duration // a row
			for b.Loop() {
				for i, table := range []string{"direct", "smeared"} {
					before := cputime.Used()
					rows := w.pour(table, rate)
					each[i] = append(each[i], (cputime.Used()-before)/time.Duration(rows))
				}
			}
			b.ReportMetric(0, "ns/op")
			direct, smeared := processtest.Median(each[0]), processtest.Median(each[1])
			b.ReportMetric(float64(direct), "direct-cpu-ns/row")
			b.ReportMetric(float64(smeared), "smeared-cpu-ns/row")
			b.ReportMetric(float64(smeared)/float64(direct), "ratio")
			b.Log("CPU a row, each time: direct ", each[0], ", smeared ", each[1])
		})
	}
}

// waitingRoom is a gateway that smears rows, and storage servers that stage and forward them.
type waitingRoom struct {
	*spread
	forward *forward.Forwarder
	end     context.CancelFunc
	running sync.WaitGroup
}

func openWaitingRoom(b *testing.B) *waitingRoom {
	w := &waitingRoom{spread: &spread{tb: b, copies: 1, disk: b.TempDir()}}
	w.ways = func(id topology.ServerID) stagings.Ways { return ways{w.spread, id} }
	w.start(3, true, 2*time.Second, 1)
	view := staged.New(w.view, func(topology.ServerID) bool { return true }, true)
	w.forward = forward.New(forward.Deps{Tables: w.tables, Servers: w.peers, Leaders: w.leaders, Clock: forward.NewClock(0, nil), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Staging: view},
		forward.Settings{Smear: true})
	for table, mode := range map[string]smear.Mode{"direct": smear.Off, "smeared": smear.Auto} {
		_, err := w.tables.Create(b.Context(), table, topology.Config{PartitionWidth: 2 * time.Second, Replicas: 3, Smear: smear.Rule{Mode: mode}}) // of three replicas two hold a row
		w.must(err)
	}
	ctx, end := context.WithCancel(context.Background())
	w.end = end
	for _, p := range w.parts {
		w.running.Go(func() { _ = p.staged.Run(ctx) })
	}
	return w
}

func (w *waitingRoom) close() {
	w.end()
	w.running.Wait()
	w.must(w.forward.Close())
	w.must(w.spread.close())
}

// pour writes rows of now for five seconds, and returns how many were acked once all of them are in segments.
func (w *waitingRoom) pour(table string, rate int) int {
	const series, request = 10_000, 2_000
	t, err := w.forward.Table(w.tb.Context(), table)
	w.must(err)
	dict := t.Dict()
	var ids []point.SeriesID
	for i := range series {
		ids = append(ids, querytest.Intern(dict, point.MakeLabels(point.MetricName, "load_v", "host", fmt.Sprint("h", i))))
	}
	began, pace := time.Now(), time.Second*request/time.Duration(rate)
	var rows atomic.Int64
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			for i := worker; time.Duration(i)*pace < 5*time.Second; i += 4 {
				time.Sleep(time.Until(began.Add(time.Duration(i) * pace)))
				batch := point.GetBatch(dict)
				at := began.Add(time.Duration(i) * pace).Truncate(time.Millisecond).UnixNano() // not the clock's: as many partitions on a busy machine
				from := i * request % series
				for _, id := range ids[from : from+request] {
					batch.Append(id, at, float64(i))
				}
				if err := t.Write(context.Background(), batch, point.All); err == nil { // else the machine is too busy: nothing is counted
					rows.Add(request)
				}
				batch.Put()
			}
		})
	}
	wait.Wait()
	for w.waits(table) {
		time.Sleep(20 * time.Millisecond)
	}
	for _, p := range w.parts {
		w.must(p.server.FlushAll(w.tb.Context(), true))
	}
	return int(rows.Load())
}

// waits reports whether a row of a table waits.
func (w *waitingRoom) waits(table string) bool {
	for _, p := range w.parts {
		if _, any := p.staged.Load(table); any {
			return true
		}
	}
	return false
}

// ways are what a server of a spread knows when it forwards: the first placement of a partition leads it, and all servers live.
type ways struct {
	of *spread
	id topology.ServerID
}

// Map implements stagings.Ways, as do the others.
func (x ways) Map(table string) (*topology.Map, uint64) {
	m, _ := x.of.tables.Get(table)
	return m, 0
}

func (x ways) Cover(ctx context.Context, table string, times []point.Nanos) error {
	_, err := x.of.tables.Cover(ctx, table, times)
	return err
}

func (x ways) Leader(_ string, p *topology.Partition) (topology.ServerID, error) {
	return p.Placements[0].Server, nil
}

func (x ways) Server(id topology.ServerID) (peer.Storage, bool) {
	if id == x.id {
		return x.of.parts[id].server, true
	}
	return x.of.peers.Server(id)
}

func (x ways) Live(topology.ServerID) bool { return true }

func (x ways) Began(topology.ServerID) time.Time { return time.Time{} }

func (x ways) Leaving() bool { return false }

func (x ways) Others() []topology.ServerID { return nil }
