package pathtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// path is the way of a write from the forwarder to the disk, all real.
type path struct {
	t       *testing.T
	tables  *tables.Tables
	brick   *brick.Brick
	server  *server.Server
	forward *forward.Forwarder
}

// openPath makes a path. maps are the server's maps; nil: the gateway's own tables.
func openPath(t *testing.T, store coord.Store, create bool, set forward.Settings, maps server.Maps) *path {
	log := slog.New(slog.DiscardHandler)
	p := &path{t: t}
	var err error
	meta := filesmem.NewServer(store, settings.LocalServer)
	p.tables, err = tables.Open(t.Context(), tables.Deps{Store: store, Metadata: meta.Alone, Servers: meta.Only, Log: log,
		Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{settings.LocalServer} }},
		tables.Settings{New: topology.Config{PartitionWidth: time.Hour}, CreateOnWrite: create})
	p.must(err)
	p.brick, err = brick.Open(brick.Deps{FS: vfs.NewMem(), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	p.must(err)
	if maps == nil {
		maps = p.tables
	}
	p.server, err = server.Open(t.Context(), server.Deps{Brick: p.brick, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: settings.LocalServer, Epoch: 1})
	p.must(err)
	p.forward = forward.New(forward.Deps{Tables: p.tables, Servers: p, Clock: forward.NewClock(0, nil), Log: log}, set)
	t.Cleanup(func() {
		for _, err := range []error{p.forward.Close(), p.server.Close(), p.brick.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func (p *path) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// Server implements forward.Servers.
func (p *path) Server(topology.ServerID) (peer.Storage, bool) { return p.server, true }

// IDs implements forward.Servers.
func (p *path) IDs() []topology.ServerID { return []topology.ServerID{settings.LocalServer} }

func (p *path) table() *forward.Table {
	p.t.Helper()
	t, err := p.forward.Table(p.t.Context(), "t")
	p.must(err)
	return t
}

// intern numbers a series.
func intern(b *point.Batch, name string) (point.SeriesID, error) {
	l := point.MakeLabels(point.MetricName, "m", "i", name)
	return b.Dict.InternLabels(l, b.Dict.Hash([]byte(l)))
}

// rows reads everything: "a 1 2; b 3" are the values by series.
func (p *path) rows() string {
	p.t.Helper()
	set, err := p.server.Select(p.t.Context(), &peer.Select{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64})
	p.must(err)
	defer set.Close()
	var lines []string
	for set.Next() {
		lines = append(lines, strings.Trim(fmt.Sprint(set.At().Labels.Get("i"), " ", set.At().Values), " ")+strings.Repeat(" h", len(set.At().Hists)))
	}
	p.must(set.Err())
	return strings.Join(lines, "; ")
}

// TestNewGenerationsLoseNothing renews the dictionary all the time while batches numbered by old ones are under way, some
// so old that their streams are closed.
func TestNewGenerationsLoseNothing(t *testing.T) {
	p := openPath(t, mem.New(), true, forward.Settings{GenerationAge: time.Nanosecond}, nil)
	table := p.table()
	var mu sync.Mutex
	want := map[string]float64{}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				b := point.GetBatch(table.Dict())
				name, v := fmt.Sprintf("%d_%02d", w, i%20), float64(i)
				id, err := intern(b, name)
				if err != nil {
					t.Error(err)
					return
				}
				b.Append(id, int64(w+1), v)
				if i%3 == 0 {
					for range 3 {
						table.Dict() // others begin generations in the meantime
					}
				}
				if err := table.Write(context.Background(), b, point.All); err != nil {
					t.Error(err)
					return
				}
				b.Put()
				mu.Lock()
				want[name] = v
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		lines = append(lines, fmt.Sprint(name, " [", want[name], "]"))
	}
	if got, want := p.rows(), strings.Join(lines, "; "); got != want {
		t.Errorf("read\n%s\nwant\n%s", got, want)
	}
}

// lagging has maps that fall behind: its partitions appear only after a table was asked for a few times.
type lagging struct {
	*tables.Tables
	mu    sync.Mutex
	asked int
	lag   int
}

func (l *lagging) Get(name string) (*topology.Map, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, ok := l.Tables.Get(name)
	l.asked++
	if ok && l.asked <= l.lag {
		old, err := topology.New(name, m.Config)
		return old, err == nil
	}
	return m, ok
}

// TestStaleServersAreAskedAgain: the storage server receives a new partition a moment later than the gateway.
func TestStaleServersAreAskedAgain(t *testing.T) {
	t.Parallel()
	f := func(lag int, want fault.Kind, rows string) {
		t.Helper()
		l := &lagging{lag: lag}
		p := openPath(t, mem.New(), true, forward.Settings{}, l)
		l.Tables = p.tables
		table := p.table()
		b := point.GetBatch(table.Dict())
		id, err := intern(b, "a")
		p.must(err)
		b.Append(id, 5, 7)
		err = table.Write(t.Context(), b, point.All)
		if want == fault.Internal && err != nil || want != fault.Internal && !fault.Is(err, want) {
			t.Errorf("%d answers late: %v", lag, err)
		}
		if got := p.rows(); got != rows {
			t.Errorf("%d answers late: read %q, want %q", lag, got, rows)
		}
	}
	f(0, fault.Internal, "a [7]")
	f(4, fault.Internal, "a [7]")
	f(1000, fault.Stale, "")
}

// TestOneWrongClockStopsNobody: at the bound of partitions the newest times are served first, and rows without a place wait alone: they are
// never refused for good, and accepted once there is room.
func TestOneWrongClockStopsNobody(t *testing.T) {
	p := openPath(t, mem.New(), true, forward.Settings{PartitionsMax: 3}, nil)
	table := p.table()
	f := func(waits int, rows string, hours ...int64) {
		t.Helper()
		b := point.GetBatch(table.Dict())
		defer b.Put()
		for _, h := range hours {
			id, err := intern(b, "a")
			p.must(err)
			b.Append(id, h*int64(time.Hour), float64(h))
		}
		err := table.Write(t.Context(), b, point.All)
		if waits == 0 {
			p.must(err)
		} else if !fault.Is(err, fault.Unavailable) || !strings.HasPrefix(err.Error(), fmt.Sprint(waits, " rows ")) || !strings.Contains(err.Error(), "3 partitions, the most") {
			t.Errorf("%v: %v, want %d rows to wait", hours, err, waits)
		}
		if b.RefusedRows > 0 {
			t.Errorf("%v: %d rows are refused for good: %v", hours, b.RefusedRows, b.Refused)
		}
		if got := p.rows(); got != rows {
			t.Errorf("%v: read %q, want %q", hours, got, rows)
		}
	}
	f(0, "a [100]", 100)
	f(2, "a [100 101 102]", -5, 101, 7, 102)
	f(1, "a [100 101 102]", 103)
	f(1, "a [100 101 102]", 102, 104, 100)
	m, _ := p.tables.Get("t")
	oldest := m.Overlapping(100*int64(time.Hour), 100*int64(time.Hour))[0]
	_, err := p.tables.Drop(t.Context(), "t", oldest.ID)
	p.must(err)
	f(0, "a [100 101 102 103]", 103) // the server here is not notified of drops, and still has 100
}

// TestTablesAreMadeOnlyWhereAllowed checks the error for others, too.
func TestTablesAreMadeOnlyWhereAllowed(t *testing.T) {
	p := openPath(t, mem.New(), false, forward.Settings{}, nil)
	if _, err := p.forward.Table(t.Context(), "t"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "not created on write") {
		t.Errorf("%v, want not found", err)
	}
	if names := p.tables.Names(); len(names) != 0 {
		t.Errorf("tables %v", names)
	}
	_, err := p.tables.Create(t.Context(), "t", topology.Config{PartitionWidth: time.Hour})
	p.must(err)
	p.table()
}

// TestMetadataAloneAndBesideRows: descriptions without rows are kept; descriptions that are refused refuse no rows.
func TestMetadataAloneAndBesideRows(t *testing.T) {
	p := openPath(t, mem.New(), true, forward.Settings{}, nil)
	table := p.table()
	good := point.MetadataRow{Metric: "m", Type: "gauge", Help: "A thing."}
	b := point.GetBatch(table.Dict())
	b.Metadata = append(b.Metadata, good)
	p.must(table.Write(t.Context(), b, point.All))
	b.Reset()
	b.Dict = table.Dict()
	id, err := intern(b, "a")
	p.must(err)
	b.Append(id, 1, 7)
	b.Metadata = append(b.Metadata, point.MetadataRow{Metric: "x", Help: strings.Repeat("long ", 10_000)})
	p.must(table.Write(t.Context(), b, point.All))
	if got := p.rows(); got != "a [7]" {
		t.Errorf("read %q", got)
	}
	kept, err := p.server.GetMetadata(t.Context(), "t", "")
	if err != nil || len(kept) != 1 || kept[0] != good {
		t.Errorf("kept %v %v", kept, err)
	}
}

// TestLargeBatchesArriveWhole cuts inserts everywhere: in floats, histograms and exemplars, by rows and by bytes.
func TestLargeBatchesArriveWhole(t *testing.T) {
	for _, set := range []forward.Settings{{InsertRowsMax: 1}, {InsertRowsMax: 7}, {InsertBytesMax: 1}, {InsertBytesMax: 3000}} {
		p := openPath(t, mem.New(), true, set, nil)
		table := p.table()
		b := point.GetBatch(table.Dict())
		h := point.AppendHistogram(nil, &histogram.Histogram{Schema: 1, Count: 3, Sum: 4, ZeroThreshold: 1e-128, ZeroCount: 3})
		var want []string
		for i := range 30 {
			name := fmt.Sprintf("%02d", i)
			id, err := intern(b, name)
			p.must(err)
			b.Append(id, 1, float64(i))
			b.Hists = append(b.Hists, point.HistRow{ID: id, Time: 2, H: h})
			b.Exemplars = append(b.Exemplars, point.ExemplarRow{ID: id, Time: 3, Value: 1, Labels: point.Labels("\x05trace\x64" + strings.Repeat("x", 100))})
			want = append(want, fmt.Sprintf("%s [%d] h", name, i))
		}
		p.must(table.Write(t.Context(), b, point.All))
		if got, want := p.rows(), strings.Join(want, "; "); got != want {
			t.Errorf("%+v: read\n%s\nwant\n%s", set, got, want)
		}
		ex, err := p.server.Exemplars(t.Context(), &peer.Select{Table: "t", Hi: 10}, [][]peer.Matcher{nil})
		if err != nil || len(ex) != 30 {
			t.Errorf("%+v: exemplars of %d series, want 30; %v", set, len(ex), err)
		}
	}
}

// flushing is a way to a server that writes a segment after each insert.
type flushing struct{ *path }

func (f flushing) Server(topology.ServerID) (peer.Storage, bool) {
	return flushingStorage{f.server}, true
}

type flushingStorage struct{ *server.Server }

func (s flushingStorage) OpenStream(ctx context.Context, table string) (peer.Stream, error) {
	st, err := s.Server.OpenStream(ctx, table)
	return flushingStream{st, s.Server}, err
}

type flushingStream struct {
	peer.Stream
	s *server.Server
}

func (s flushingStream) Insert(ctx context.Context, in *peer.Insert) error {
	return errors.Join(s.Stream.Insert(ctx, in), s.s.FlushAll(ctx, false))
}

// TestLaterInOneRequestWins: also where the request is cut between two rows of one series and time and a flush comes in
// between, so that only their ranks differ; and where the later row is in another request.
func TestLaterInOneRequestWins(t *testing.T) {
	for _, set := range []forward.Settings{{}, {InsertRowsMax: 1}, {InsertRowsMax: 3}, {InsertBytesMax: 1}, {InsertBytesMax: 400}} {
		p := openPath(t, mem.New(), true, set, nil)
		f := forward.New(forward.Deps{Tables: p.tables, Servers: flushing{p}, Clock: forward.NewClock(0, nil), Log: slog.New(slog.DiscardHandler)}, set)
		t.Cleanup(func() { p.must(f.Close()) })
		table, err := f.Table(t.Context(), "t")
		p.must(err)
		write := func(values ...float64) {
			b := point.GetBatch(table.Dict())
			for _, v := range values {
				for _, name := range []string{"a", "b"} {
					id, err := intern(b, name)
					p.must(err)
					b.Append(id, 1, v)
				}
			}
			p.must(table.Write(t.Context(), b, point.All))
			b.Put()
		}
		for i, last := range []float64{3, 2, 9, 1} {
			write(5, 8, 7, 6, 4, last)
			if got, want := p.rows(), fmt.Sprintf("a [%v]; b [%v]", last, last); got != want {
				t.Errorf("%+v, request %d: read %s, want %s", set, i, got, want)
			}
		}
	}
}

// TestFullDictionariesKeepWhatTheyKnow has more active series than a dictionary accepts: the first ones go on, by the same
// numbers, and the others are refused with the reason. A quarter is kept for tables to come.
func TestFullDictionariesKeepWhatTheyKnow(t *testing.T) {
	const most = 60
	p := openPath(t, mem.New(), true, forward.Settings{GenerationSeriesMax: most / 3 * 4, GenerationAgeMin: time.Hour}, nil)
	table := p.table()
	first := table.Dict()
	for round := range 3 {
		b := point.GetBatch(table.Dict())
		for i := range 2 * most {
			id, err := intern(b, fmt.Sprintf("%03d", i))
			if full := i >= most; fault.Is(err, fault.Invalid) != full || !full && err != nil {
				t.Fatalf("round %d, series %d: %v", round, i, err)
			}
			if err == nil {
				b.Append(id, int64(round), 1)
			}
		}
		p.must(table.Write(t.Context(), b, point.All))
		if b.Dict != first {
			t.Error("what is known was thrown away")
		}
		b.Put()
	}
	if n := strings.Count(p.rows(), "[1 1 1]"); n != most {
		t.Errorf("%d series have all their rows, want %d", n, most)
	}
}

// TestDictionariesThatFillSlowlyTurn covers short-lived series: those that ended make room in time.
func TestDictionariesThatFillSlowlyTurn(t *testing.T) {
	const most = 50
	p := openPath(t, mem.New(), true, forward.Settings{GenerationSeriesMax: most, GenerationAgeMin: time.Nanosecond}, nil)
	table := p.table()
	for i := range 4 * most {
		b := point.GetBatch(table.Dict())
		id, err := intern(b, fmt.Sprintf("%03d", i))
		p.must(err)
		b.Append(id, 1, 1)
		p.must(table.Write(t.Context(), b, point.All))
		b.Put()
	}
	if n := strings.Count(p.rows(), "[1]"); n != 4*most {
		t.Errorf("%d series of %d", n, 4*most)
	}
}
