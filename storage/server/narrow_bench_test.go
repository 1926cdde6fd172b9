//go:build linux

package server_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// BenchmarkNarrow writes SPILLWAY_SCRAPES rows (default 12) of each of SPILLWAY_SERIES series (default 10,000), 10 s apart, into one
// partition a day wide, and into partitions 10 s wide: one row a series and partition. A scrape lasts SPILLWAY_PERIOD (default 0: as fast
// as it goes) from its first to its last row. Flushes and compactions run as in a server, and everything is flushed at the end. It reports
// the cost of a row in bytes of log, total processor time and bytes on disk at the end, and the peak of resident memory.
func BenchmarkNarrow(b *testing.B) {
	for _, width := range []time.Duration{24 * time.Hour, 10 * time.Second} {
		b.Run(width.String(), func(b *testing.B) {
			n := narrowLoad{series: number("SPILLWAY_SERIES", 10_000), scrapes: number("SPILLWAY_SCRAPES", 12), width: width}
			n.period, _ = time.ParseDuration(os.Getenv("SPILLWAY_PERIOD"))
			for b.Loop() {
				n.run(b)
			}
		})
	}
}

// narrowLoad is one run of BenchmarkNarrow.
type narrowLoad struct {
	series, scrapes int
	width, period   time.Duration
}

const narrowStep = 10 * time.Second // between scrapes

func (n narrowLoad) run(b *testing.B) {
	dir := b.TempDir()
	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	br, err := brick.Open(brick.Deps{FS: vfs.Default, Log: log, Registerer: reg}, brick.Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	if err != nil {
		b.Fatal(err)
	}
	s, err := server.Open(b.Context(), server.Deps{Brick: br, Maps: n.maps(b), Log: log, Registerer: reg}, server.Settings{Server: "s1", Epoch: 1, NoScrub: true})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	st := n.define(b, s)
	resetPeak()
	before, from := cputime.Used(), time.Now()
	n.write(b, st)
	if err := s.FlushAll(b.Context(), false); err != nil {
		b.Fatal(err)
	}
	cpu, took := cputime.Used()-before, time.Since(from)
	rows := float64(n.series * n.scrapes)
	b.ReportMetric(counter(b, reg, "spillway_brick_appended_bytes_total")/rows, "log-B/row")
	b.ReportMetric(float64(cpu)/rows, "cpu-ns/row")
	b.ReportMetric(float64(folderBytes(filepath.Join(dir, "data", "segments")))/rows, "disk-B/row")
	b.ReportMetric(float64(peakBytes(b))/1e6, "peak-MB")
	b.ReportMetric(took.Seconds(), "s")
	stop()
	<-ended
	if err := st.Close(); err != nil {
		b.Fatal(err)
	}
	(process{br, s}).stop(b)
}

func (n narrowLoad) maps(b *testing.B) oneMap {
	m, err := topology.New("t", topology.Config{PartitionWidth: n.width})
	if err != nil {
		b.Fatal(err)
	}
	var times []point.Nanos
	for i := range n.scrapes {
		times = append(times, int64(i)*int64(narrowStep))
	}
	return oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}
}

// define opens a stream and defines all series.
func (n narrowLoad) define(b *testing.B, s *server.Server) peer.Stream {
	st, err := s.OpenStream(b.Context(), "t")
	if err != nil {
		b.Fatal(err)
	}
	for i := range n.series {
		if err := st.Define(b.Context(), []peer.Def{{ID: point.SeriesID(i), Labels: hostSeries(i)}}); err != nil {
			b.Fatal(err)
		}
	}
	return st
}

const narrowInsert = 2020 // rows: 20 hosts

func (n narrowLoad) write(b *testing.B, st peer.Stream) {
	partitions := map[int64]point.PartitionID{}
	for p := range n.maps(b).m.All() {
		partitions[p.TimeLo] = p.ID
	}
	stamp := point.Stamp(time.Now().UnixNano())
	in := peer.Insert{Level: point.One}
	began := time.Now()
	for scrape := range n.scrapes {
		start := int64(scrape) * int64(narrowStep)
		in.Partition = partitions[start-start%int64(n.width)]
		for first := 0; first < n.series; first += narrowInsert {
			if n.period > 0 {
				due := n.period*time.Duration(scrape) + n.period*time.Duration(first)/time.Duration(n.series)
				time.Sleep(time.Until(began.Add(due)))
			}
			in.IDs, in.Times, in.Values = in.IDs[:0], in.Times[:0], in.Values[:0]
			for i := first; i < min(first+narrowInsert, n.series); i++ {
				in.IDs = append(in.IDs, point.SeriesID(i))
				in.Times = append(in.Times, start+int64(i/101%9973)*1e6)
				in.Values = append(in.Values, float64(scrape*(i%7)+i))
			}
			stamp += 1024
			in.Stamp = stamp
			for st.Insert(b.Context(), &in) != nil { // full: the flush has to catch up
				time.Sleep(time.Millisecond)
				stamp += 1024
				in.Stamp = stamp
			}
		}
	}
}

// resetPeak makes peakBytes count from here on.
func resetPeak() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// peakBytes is the most memory that was resident.
func peakBytes(b *testing.B) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	n, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		b.Fatal(err)
	}
	return n << 10
}

func folderBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

func counter(b *testing.B, reg *prometheus.Registry, name string) float64 {
	all, err := reg.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	b.Fatalf("no metric %s", name)
	return 0
}
