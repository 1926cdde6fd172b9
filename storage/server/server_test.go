package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// fataler is the common interface of tests and rapid's checks.
type fataler interface{ Fatal(...any) }

// oneMap is a table with partitions 100 s wide.
type oneMap struct{ m *topology.Map }

func (o oneMap) Get(string) (*topology.Map, bool) { return o.m, true }

func newMap(t fataler) oneMap {
	m, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var times []point.Nanos
	for i := range 3 {
		times = append(times, int64(i)*100e9)
	}
	return oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}
}

// process is a server and its dependencies.
type process struct {
	brick  *brick.Brick
	server *server.Server
}

func start(t fataler, fs vfs.FS, maps server.Maps, epoch point.Epoch, changes ...func(*server.Deps)) process {
	return startWith(t, fs, maps, server.Settings{Server: "s1", Epoch: epoch}, changes...)
}

func startWith(t fataler, fs vfs.FS, maps server.Maps, set server.Settings, changes ...func(*server.Deps)) process {
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1, FileBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	d := server.Deps{Brick: b, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()}
	for _, change := range changes {
		change(&d)
	}
	s, err := server.Open(context.Background(), d, set)
	if err != nil {
		t.Fatal(err)
	}
	return process{b, s}
}

func (p process) stop(t fataler) {
	if err := p.server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.brick.Close(); err != nil {
		t.Fatal(err)
	}
}

// model is the naive truth: the value of each series at each time.
type model map[string]map[int64]float64

func (m model) put(l point.Labels, at int64, v float64) {
	if m[string(l)] == nil {
		m[string(l)] = map[int64]float64{}
	}
	if old, ok := m[string(l)][at]; ok && point.IsStale(v) && !point.IsStale(old) {
		return
	}
	m[string(l)][at] = v
}

// String lists the rows in [lo, hi] of the series that keep selects.
func (m model) String(lo, hi int64, keep func(point.Labels) bool) string {
	var ls []point.Labels
	for l := range m {
		if keep(point.Labels(l)) {
			ls = append(ls, point.Labels(l))
		}
	}
	slices.SortFunc(ls, point.Labels.Compare)
	var b strings.Builder
	for _, l := range ls {
		var times []int64
		for at := range m[string(l)] {
			if at >= lo && at <= hi {
				times = append(times, at)
			}
		}
		if len(times) == 0 {
			continue
		}
		slices.Sort(times)
		fmt.Fprintf(&b, "%v", l)
		for _, at := range times {
			fmt.Fprintf(&b, " %d:%x", at, math.Float64bits(m[string(l)][at]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func read(t fataler, s *server.Server, q *peer.Select) string {
	set, err := s.Select(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var b strings.Builder
	for set.Next() {
		writeSeries(&b, set.At())
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return b.String()
}

func writeSeries(b *strings.Builder, x *peer.Series) {
	fmt.Fprintf(b, "%v", x.Labels)
	for i, at := range x.Times {
		fmt.Fprintf(b, " %d:%x", at, math.Float64bits(x.Values[i]))
	}
	b.WriteByte('\n')
}

// readPaged is read by pages of two series; twice: as where partitions do not follow each other in time.
func readPaged(t fataler, s *server.Server, q *peer.Select, twice bool) string {
	set, err := s.Select(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if twice {
		server.ReadTwice(set)
	}
	in := set.(peer.PagedSet).Pager(2)
	defer in.Close()
	var b strings.Builder
	for {
		page, ok, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return b.String()
		}
		for i := range page.Series {
			writeSeries(&b, &page.Series[i])
		}
	}
}

// TestRowsAreWhatWasWrittenLast runs random histories of inserts, flushes, compactions, deletions, restarts and power
// cuts against the naive model. Every insert is acked at the default level, so every one must be there.
func TestRowsAreWhatWasWrittenLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewCrashableMem()
		maps := newMap(t)
		epoch := point.Epoch(1)
		p := start(t, fs, maps, epoch)
		defer func() { p.stop(t) }()
		truth := model{}
		w := newWriter(t, p.server)
		stamp := point.Stamp(1000)
		at := rapid.OneOf(rapid.Map(rapid.Int64Range(0, 299), func(s int64) int64 { return s * 1e9 }), rapid.Int64Range(0, 300e9-1))
		value := rapid.OneOf(rapid.Float64(), rapid.Map(rapid.Float64Range(0, 10), math.Floor), rapid.Just(math.Float64frombits(point.StaleNaN)))
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				w.flush(t, rapid.Bool().Draw(t, "compact"))
			case 1:
				p.stop(t)
				epoch++
				p = start(t, fs, maps, epoch)
				w = newWriter(t, p.server)
			case 2:
				image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.SampledFrom([]int{0, 100}).Draw(t, "kept"), RNG: rand.New(rand.NewPCG(1, 1))})
				p.stop(t)
				fs = image
				epoch++
				p = start(t, fs, maps, epoch)
				w = newWriter(t, p.server)
			case 3:
				lo, hi := at.Draw(t, "from"), at.Draw(t, "to")
				i := rapid.IntRange(0, 4).Draw(t, "series")
				err := p.server.DeleteSeries(context.Background(), &peer.Select{Table: "t", Lo: lo, Hi: hi, Matchers: []peer.Matcher{{Name: "i", Value: fmt.Sprint(i)}}})
				if err != nil {
					t.Fatal(err)
				}
				for time := range truth[string(labelsOf(i))] {
					if time >= lo && time <= hi {
						delete(truth[string(labelsOf(i))], time)
					}
				}
			default:
				stamp += 1024
				w.insert(t, stamp, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) row {
					return row{rapid.IntRange(0, 4).Draw(t, "series"), at.Draw(t, "time"), value.Draw(t, "value")}
				}), 1, 12).Draw(t, "rows"), truth)
			}
			lo, hi := at.Draw(t, "lo"), at.Draw(t, "hi")
			if got, want := read(t, p.server, &peer.Select{Table: "t", Lo: lo, Hi: hi}), truth.String(lo, hi, func(point.Labels) bool { return true }); got != want {
				t.Fatalf("read\n%swant\n%s", got, want)
			} else {
				for _, twice := range []bool{false, true} {
					if got := readPaged(t, p.server, &peer.Select{Table: "t", Lo: lo, Hi: hi}, twice); got != want {
						t.Fatalf("twice %v: read by pages\n%swant\n%s", twice, got, want)
					}
				}
			}
		}
		odd := []peer.Matcher{{Type: peer.MatchRegexp, Name: "i", Value: "1|3"}}
		keep := func(l point.Labels) bool { return l.Get("i") == "1" || l.Get("i") == "3" }
		if got, want := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9, Matchers: odd}), truth.String(0, 300e9, keep); got != want {
			t.Fatalf("with a matcher read\n%swant\n%s", got, want)
		}
	})
}

// TestColumnsOfOtherSeriesBeforeTheFirstView: a set that comes back to its first view, with columns of other series at hand, read out of bounds.
func TestColumnsOfOtherSeriesBeforeTheFirstView(t *testing.T) {
	fs, maps, truth := vfs.NewMem(), newMap(t), model{}
	p := start(t, fs, maps, 1)
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{0, 100e9, 1}, {1, 200e9, 1}}, truth)
	w.flush(t, false)
	p.stop(t)
	p = start(t, fs, maps, 2)
	defer p.stop(t)
	want := truth.String(100e9, 200e9, func(point.Labels) bool { return true })
	if got := readPaged(t, p.server, &peer.Select{Table: "t", Lo: 100e9, Hi: 200e9}, true); got != want {
		t.Errorf("read by pages\n%swant\n%s", got, want)
	}
}

type row struct {
	series int
	at     int64
	value  float64
}

func labelsOf(i int) point.Labels {
	return point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))
}

// writer is a minimal gateway's stream.
type writer struct {
	s      *server.Server
	stream peer.Stream
	m      *topology.Map
	again  func() point.Stamp // for inserts that are sent back; nil: that fails the test
}

func newWriter(t fataler, s *server.Server) *writer {
	stream, err := s.OpenStream(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	return &writer{s: s, stream: stream, m: newMap(t).m}
}

func (w *writer) insert(t fataler, stamp point.Stamp, rows []row, truth model) {
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].at/100e9 < rows[j].at/100e9 })
	for len(rows) > 0 {
		p, _ := w.m.Find(0, rows[0].at)
		in := &peer.Insert{Partition: p.ID, Stamp: stamp}
		for len(rows) > 0 && p.Contains(0, rows[0].at) {
			r := rows[0]
			rows = rows[1:]
			if err := w.stream.Define(context.Background(), []peer.Def{{ID: point.SeriesID(r.series), Labels: labelsOf(r.series)}}); err != nil {
				t.Fatal(err)
			}
			in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(r.series)), append(in.Times, r.at), append(in.Values, r.value)
			truth.put(labelsOf(r.series), r.at, r.value)
		}
		err := w.stream.Insert(context.Background(), in)
		for _, anew := peer.NeedsStamp(err); anew && w.again != nil; _, anew = peer.NeedsStamp(err) {
			in.Stamp = w.again()
			err = w.stream.Insert(context.Background(), in)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (w *writer) flush(t fataler, compact bool) {
	if err := w.s.FlushAll(context.Background(), compact); err != nil {
		t.Fatal(err)
	}
}

// TestAcceptedRowsCountByPartition: the balance of leads goes by them. Refused rows do not count.
func TestAcceptedRowsCountByPartition(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	if all := p.server.Accepted(); len(all) != 0 {
		t.Errorf("before the first row: %v", all)
	}
	w.insert(t, 1000, []row{{1, 1e9, 1}, {2, 1e9, 1}, {1, 150e9, 1}}, model{})
	w.insert(t, 2000, []row{{1, 2e9, 1}}, model{})
	if err := w.stream.Insert(t.Context(), &peer.Insert{Partition: 3, Stamp: 3000, IDs: []point.SeriesID{7}, Times: []int64{250e9}, Values: []float64{0}}); err == nil {
		t.Error("a row of an undefined series was accepted")
	}
	if got := fmt.Sprint(p.server.Accepted()); got != "map[t:map[1:3 2:1]]" {
		t.Errorf("accepted %s, want three rows of partition 1 and one of 2", got)
	}
}

func TestInsertsOfOthersPartitionsAreStale(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	err := w.stream.Insert(t.Context(), &peer.Insert{Partition: 99})
	if !fault.Is(err, fault.Stale) {
		t.Fatalf("a partition of nobody: %v, want stale", err)
	}
	err = w.stream.Insert(t.Context(), &peer.Insert{Partition: 1, IDs: []point.SeriesID{7}, Times: []int64{0}, Values: []float64{0}})
	if !fault.Is(err, fault.Internal) {
		t.Fatalf("an undefined series: %v, want internal", err)
	}
}

func TestLabelsMetadataAndExemplarsComeBackAfterRestart(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	p := start(t, fs, maps, 1)
	w := newWriter(t, p.server)
	w.insert(t, 5000, []row{{1, 10e9, 1}, {2, 150e9, 2}, {3, 250e9, 3}}, model{})
	ex := point.ExemplarRow{ID: 1, Time: 11e9, Value: 7, Labels: point.Labels("\x05trace\x03abc")}
	if err := w.stream.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 6000, Exemplars: []point.ExemplarRow{ex}}); err != nil {
		t.Fatal(err)
	}
	family := point.MetadataRow{Metric: "m", Type: "gauge", Help: "A thing."}
	if err := p.server.PutMetadata(t.Context(), "t", []point.MetadataRow{family}); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"written", "restarted", "flushed", "restarted again", "compacted"} {
		switch what {
		case "restarted", "restarted again":
			p.stop(t)
			p = start(t, fs, maps, 2)
		case "flushed", "compacted":
			if err := p.server.FlushAll(t.Context(), what == "compacted"); err != nil {
				t.Fatal(err)
			}
		}
		values, _, err := p.server.LabelValues(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 199e9}, "i", 0)
		if err != nil || !slices.Equal(values, []string{"1", "2"}) {
			t.Errorf("%s: values %v %v", what, values, err)
		}
		names, truncated, err := p.server.LabelNames(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 299e9}, 1)
		if err != nil || !truncated || !slices.Equal(names, []string{"__name__"}) {
			t.Errorf("%s: names %v %v %v", what, names, truncated, err)
		}
		got, err := p.server.Exemplars(t.Context(), &peer.Select{Table: "t", Hi: 20e9}, [][]peer.Matcher{{{Name: "i", Value: "1"}}, {{Name: "__name__", Value: "m"}}})
		if err != nil || len(got) != 1 || len(got[0].Exemplars) != 1 || got[0].Exemplars[0].Labels != ex.Labels || got[0].Exemplars[0].Value != 7 {
			t.Errorf("%s: exemplars %v %v", what, got, err)
		}
		if rows, err := p.server.GetMetadata(t.Context(), "t", ""); err != nil || len(rows) != 1 || rows[0] != family {
			t.Errorf("%s: metadata %v %v", what, rows, err)
		}
		if st, err := p.server.Stats(t.Context(), "t", 10); err != nil || st.HeadRows+st.SegmentRows != 3 || st.Partitions != 3 || st.MaxTime != 250e9 ||
			len(st.ByPartition) != 3 || st.ByPartition[2].Rows != 1 || st.ByPartition[2].MinTime != 250e9 || st.ByPartition[2].Bytes == 0 {
			t.Errorf("%s: stats %+v %v", what, st, err)
		}
	}
	p.stop(t)
}

// TestOthersNeedNotWaitForAFloodOfFamilies: one request with 300,000 families held the catalogue, and with it every table, for seconds. A request has a bounded part of its
// families kept, and the next one more, until the table is full.
func TestOthersNeedNotWaitForAFloodOfFamilies(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	const atOnce = 20_000
	var flood []point.MetadataRow
	for i := range atOnce + 3_000 {
		flood = append(flood, point.MetadataRow{Metric: fmt.Sprintf("m_%06d", i), Type: "gauge"})
	}
	put := func(want error, have int) {
		t.Helper()
		if err := p.server.PutMetadata(t.Context(), "t", flood); fault.KindOf(err) != fault.KindOf(want) {
			t.Errorf("%v, want %v", err, want)
		}
		if rows, err := p.server.GetMetadata(t.Context(), "t", ""); err != nil || len(rows) != have {
			t.Errorf("%d families, want %d, %v", len(rows), have, err)
		}
	}
	invalid := fault.Errorf(fault.Invalid, "too many")
	put(invalid, atOnce)
	put(nil, len(flood))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.server.PutMetadata(gone, "t", []point.MetadataRow{{Metric: "late"}}); !fault.Is(err, fault.Canceled) {
		t.Errorf("for a sender that went away: %v", err)
	}
}

func TestDroppedPartitionsAreGoneForGood(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	p := start(t, fs, maps, 1)
	w := newWriter(t, p.server)
	truth := model{}
	w.insert(t, 5000, []row{{1, 10e9, 1}, {2, 150e9, 2}}, truth)
	w.flush(t, false)
	w.insert(t, 6000, []row{{1, 20e9, 1}}, truth)
	if err := p.server.DropPartition("t", 1); err != nil {
		t.Fatal(err)
	}
	want := truth.String(100e9, 300e9, func(point.Labels) bool { return true })
	if got := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); got != want {
		t.Errorf("after the drop:\n%swant\n%s", got, want)
	}
	p.stop(t)
	p = start(t, fs, maps, 2)
	if got := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); got != want {
		t.Errorf("after a restart:\n%swant\n%s", got, want)
	}
	p.stop(t)
}
