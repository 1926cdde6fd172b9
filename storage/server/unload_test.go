package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/unload"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

// oneServer are ways in a cluster of one server, which leads all.
type oneServer struct {
	maps *someMap
	at   process
}

// Map implements runner.Ways, as the others do.
func (o oneServer) Map(string) (*topology.Map, uint64) { return o.maps.m, 0 }

// Cover makes nothing: all times have partitions.
func (o oneServer) Cover(context.Context, string, []point.Nanos) error { return nil }

// Leader is always the one.
func (o oneServer) Leader(string, *topology.Partition) (topology.ServerID, error) { return "s1", nil }

// Server returns it.
func (o oneServer) Server(topology.ServerID) (peer.Storage, bool) { return o.at.server, true }

// TestAllRowsOfACutPartitionAreInItsHalves: floats, histograms and exemplars of many requests, in segments and in the head, in slices of some rows each; rows that were
// written again in a half stay.
func TestAllRowsOfACutPartitionAreInItsHalves(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1)
	defer p.stop(t)
	st, err := p.server.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const series = 40
	var defs []peer.Def
	for i := range series {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", "m", "i", fmt.Sprint(i))})
	}
	if err := st.Define(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	h := point.AppendHistogram(nil, &histogram.Histogram{Count: 3, Sum: 4, ZeroCount: 3})
	stamp := point.Stamp(1 << 40)
	put := func(id point.PartitionID, second int64, value float64) {
		t.Helper()
		stamp += 1 << 12
		in := &peer.Insert{Partition: id, Stamp: stamp, Level: point.All}
		for i := range series / 2 {
			in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, second*1e9), append(in.Values, value)
		}
		for i := series / 2; i < series; i++ {
			in.Hists = append(in.Hists, point.HistRow{ID: point.SeriesID(i), Time: second * 1e9, H: h})
		}
		in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: 3, Time: second * 1e9, Value: value, Labels: point.MakeLabels("__name__", "trace", "id", fmt.Sprint(second))})
		if err := st.Insert(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		t.Helper()
		if err := p.server.FlushAll(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	for second := range int64(100) {
		put(1, second, float64(second))
		if second == 70 {
			flush()
		}
	}
	if maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6}); err != nil {
		t.Fatal(err)
	}
	p.server.Seal("t", 1)
	put(6, 30, -30)
	put(7, 60, -60)
	flush()

	finished := make(chan point.Epoch, 1)
	u := runner.New(runner.Deps{Ways: oneServer{maps, p}, Partitions: p.server, Finished: func(_ lease.Partition, epoch point.Epoch) { finished <- epoch },
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) { return ctx, nil, nil }, Log: slog.New(slog.DiscardHandler)},
		runner.Settings{Machine: unload.Settings{After: time.Millisecond, SliceBytes: 8 << 10}, BytesPerSecond: 1 << 30})
	defer u.Close()
	u.Set(lease.Partition{Table: "t", ID: 1}, 1, true, true)
	select {
	case <-finished:
	case <-time.After(time.Minute):
		t.Fatalf("not finished: %+v", u.Progress())
	}
	if rows := u.Progress()[0].Rows; rows < series*100 {
		t.Errorf("%d rows were moved, want %d", rows, series*100)
	}
	if at, ok := u.Of(lease.Partition{Table: "t", ID: 1}); !ok || at.Rows < series*100 || at.PerSecond <= 0 {
		t.Errorf("the progress of the partition: %v %+v", ok, at)
	}
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{6, 7}, Lo: math.MinInt64, Hi: math.MaxInt64}
	set, err := p.server.Select(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	found := 0
	for set.Next() {
		found++
		s := set.At()
		if i := s.Labels.Get("i"); len(s.Times)+len(s.Hists) != 100 {
			t.Errorf("series %s has %d rows and %d histograms", i, len(s.Times), len(s.Hists))
		}
		for n, at := range s.Times {
			want := float64(at / 1e9)
			if want == 30 || want == 60 {
				want = -want
			}
			if s.Values[n] != want {
				t.Errorf("series %s at %d is %v", s.Labels.Get("i"), at, s.Values[n])
			}
		}
	}
	if found != series || set.Err() != nil {
		t.Errorf("%d series: %v", found, set.Err())
	}
	all, err := p.server.Exemplars(t.Context(), q, [][]peer.Matcher{{{Name: "i", Value: "3"}}})
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	var seconds []int64
	for _, e := range all[0].Exemplars {
		if n := e.Time / 1e9; len(seconds) == 0 || seconds[len(seconds)-1] != n {
			seconds = append(seconds, n)
		}
	}
	slices.Sort(seconds)
	var want []int64
	for n := range int64(100) {
		want = append(want, n)
	}
	if !reflect.DeepEqual(seconds, want) {
		t.Errorf("exemplars of %v", seconds)
	}
}

// TestRowsOfOneTimeThatAreMoreThanASliceMove: senders that round their times write the rows of all series at one nanosecond, and then none for seconds. Where these rows were more than a slice the
// partition was read for ever, and a split or merge never ended.
func TestRowsOfOneTimeThatAreMoreThanASliceMove(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1)
	defer p.stop(t)
	st, err := p.server.OpenStream(t.Context(), "t")
	must(t, err)
	defer st.Close()
	const series = 200
	in := &peer.Insert{Partition: 1, Level: point.All}
	var defs []peer.Def
	for i := range series {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: point.MakeLabels("__name__", "m", "i", fmt.Sprint(i))})
		in.IDs, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Values, 1)
	}
	must(t, st.Define(t.Context(), defs))
	times := []point.Nanos{10e9, 20e9, 20e9 + 1, 30e9, 80e9}
	for n, at := range times {
		in.Stamp, in.Times = point.Stamp(1<<40+n<<12), slices.Repeat([]point.Nanos{at}, series)
		must(t, st.Insert(t.Context(), in))
	}
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	must(t, err)
	p.server.Seal("t", 1)

	finished, reads := make(chan point.Epoch, 1), &countedReads{Server: p.server}
	u := runner.New(runner.Deps{Ways: oneServer{maps, p}, Partitions: reads, Finished: func(_ lease.Partition, epoch point.Epoch) { finished <- epoch },
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) { return ctx, nil, nil }, Log: slog.New(slog.DiscardHandler)},
		runner.Settings{Machine: unload.Settings{After: time.Millisecond, SliceBytes: 8 << 10}, BytesPerSecond: 1 << 30})
	defer u.Close()
	u.Set(lease.Partition{Table: "t", ID: 1}, 1, true, true)
	select {
	case <-finished:
	case <-reads.tooMany():
		t.Fatalf("not finished after %d reads: %+v", readsMost, u.Progress())
	}
	if rows := u.Progress()[0].Rows; rows != int64(series*len(times)) {
		t.Errorf("%d rows were moved, want %d", rows, series*len(times))
	}
}

// countedReads are the partitions of a server, whose reads of slices are counted.
type countedReads struct {
	*server.Server
	reads atomic.Int64
	over  chan struct{}
	once  sync.Once
}

// readsMost is far more than are needed.
const readsMost = 500

// tooMany is closed after readsMost.
func (c *countedReads) tooMany() <-chan struct{} {
	c.once.Do(func() { c.over = make(chan struct{}) })
	return c.over
}

// Rows implements runner.Partitions.
func (c *countedReads) Rows(ctx context.Context, key lease.Partition, epoch point.Epoch, lo, hi point.Nanos, f runner.Take) error {
	if c.tooMany(); c.reads.Add(1) == readsMost {
		close(c.over)
	}
	return c.Server.Rows(ctx, key, epoch, lo, hi, f)
}

// TestADeletionWaitsForRowsThatMove, and is refused before they begin to: it would not be known which are on their way.
func TestADeletionWaitsForRowsThatMove(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	if err := st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1 << 40, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}, Level: point.All}); err != nil {
		t.Fatal(err)
	}
	var err error
	if maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6}); err != nil {
		t.Fatal(err)
	}
	u := runner.New(runner.Deps{Ways: oneServer{maps, p}, Partitions: p.server, Finished: func(lease.Partition, point.Epoch) {},
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) { return ctx, nil, nil }, Log: slog.New(slog.DiscardHandler)},
		runner.Settings{Machine: unload.Settings{After: time.Hour, SendWithin: 50 * time.Millisecond}})
	defer u.Close()
	one := lease.Partition{Table: "t", ID: 1}
	if err := u.Delete(t.Context(), one, func() error { t.Error("it is not ready"); return nil }); err == nil {
		t.Error("a deletion before the rows begin to move is not refused")
	}
	u.Set(one, 1, true, true)
	deleted := false
	if err := u.Delete(t.Context(), one, func() error { deleted = true; return nil }); err != nil || !deleted {
		t.Errorf("deleted %t, %v", deleted, err)
	}
	u.Set(one, 1, false, false)
	if err := u.Delete(t.Context(), one, func() error { return nil }); err == nil {
		t.Error("a deletion after the lease is not refused")
	}
}
