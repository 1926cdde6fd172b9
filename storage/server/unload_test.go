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
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
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

// HeirLeader is the one, under the server's epoch.
func (o oneServer) HeirLeader(lease.Partition, point.Epoch, *topology.Partition) (topology.ServerID, point.Epoch, error) {
	return "s1", 1, nil
}

// Holders is the one.
func (o oneServer) Holders(context.Context, lease.Partition, point.Epoch, func(point.PartitionID) bool) ([]topology.ServerID, bool) {
	return []topology.ServerID{"s1"}, true
}

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

// TestAStagedOverwriteOfARowWrittenSinceASplitIsNotLost: the rows of a half ranked a second ahead of the clocks, to be above those that another server may have accepted for the parent, also where the
// parent is led by the same server; and so again where the parent itself ranked above its halves, as its rows began to move. An overwrite that was staged within that second has the rank of its
// gateway, and was acked and never read.
func TestAStagedOverwriteOfARowWrittenSinceASplitIsNotLost(t *testing.T) {
	maps, state := &someMap{m: newMap(t).m}, &beginning{copied: copied{leads: true, kept: true}}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Leadership, d.Chains = state, state })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	now := rank.At(time.Now().UnixNano())
	put := func(id point.PartitionID, after time.Duration, value float64, staging *peer.Staging) {
		t.Helper()
		must(t, st.Insert(t.Context(), &peer.Insert{Partition: id, Stamp: now + rank.At(int64(after)), IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{value}, Level: point.All, Staging: staging}))
	}
	put(1, 0, 1, nil)
	var err error
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	must(t, err)
	p.server.Seal("t", 1)
	must(t, p.server.EndWrites(t.Context(), lease.Partition{Table: "t", ID: 1}, 1)) // its rows begin to move
	put(6, 0, 2, nil)                                                               // of a gateway whose clock is behind: above the parent's all the same
	read := func(want float64) {
		t.Helper()
		set, err := p.server.Select(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{1, 6}, Lo: math.MinInt64, Hi: math.MaxInt64})
		must(t, err)
		defer set.Close()
		if !set.Next() || !slices.Equal(set.At().Values, []float64{want}) {
			t.Errorf("%v is read, %v was acked last", set.At().Values, want)
		}
	}
	read(2)
	put(6, 300*time.Millisecond, 3, &peer.Staging{Do: peer.Forward})
	read(3)
}

// TestSlicesOfEarlierLeadersAreRefused once a later leader has ended them, and those that were sent by another lease of the heir.
func TestSlicesOfEarlierLeadersAreRefused(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1)
	defer p.stop(t)
	var err error
	if maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6}); err != nil {
		t.Fatal(err)
	}
	st := openStream(t, p.server)
	defer st.Close()
	stamp := point.Stamp(1 << 40)
	send := func(what string, s peer.Staging, want fault.Kind) {
		t.Helper()
		for _, together := range []bool{false, true} {
			s.Do = peer.Inherit
			stamp += 1 << 12
			in := &peer.Insert{Partition: 6, Stamp: stamp, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}, Level: point.All, Staging: &s}
			all := []*peer.Insert{in}
			if together {
				other := *in
				other.Stamp++
				all = append(all, &other)
			}
			if err := peer.InsertTogether(t.Context(), st, all); (err != nil) != (want != 0) || err != nil && fault.KindOf(err) != want {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	from := func(epoch, under point.Epoch) peer.Staging {
		return peer.Staging{From: &peer.Slice{Partition: 1, Epoch: epoch, Under: under}}
	}
	end := func(below point.Epoch) {
		t.Helper()
		if err := p.server.EndSlices(t.Context(), "t", 1, below); err != nil {
			t.Error(err)
		}
	}
	send("under its lease", from(3, 1), 0)
	send("under another lease", from(3, 2), fault.Stale)
	send("under a guess", from(3, 0), fault.Stale)
	send("of an older build", peer.Staging{Unnamed: true}, 0)
	send("of a backup", peer.Staging{}, 0)
	end(4)
	send("of an earlier leader", from(3, 1), fault.Stale)
	send("of the leader", from(4, 1), 0)
	send("of an older build, after it", peer.Staging{Unnamed: true}, 0)
	end(2) // late
	send("of an earlier leader, after a late request", from(3, 1), fault.Stale)
}

// heldUp is a leadership whose Hold does something first.
type heldUp struct {
	copied
	hold func()
}

func (h *heldUp) Hold(context.Context, string, point.PartitionID, point.Epoch) error {
	h.hold()
	return nil
}

// TestASliceOfAnOlderBuildThatIsHeldUpIsNotInsertedAfterADeletion: slices that name no sender are not refused, and one waited here for the lease row while a deletion of its rows was let begin: they came back.
func TestASliceOfAnOlderBuildThatIsHeldUpIsNotInsertedAfterADeletion(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	state := &heldUp{copied: copied{leads: true}}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Leadership = state })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	noTime, stop := context.WithCancel(t.Context())
	stop()
	for i, together := range []bool{false, true} {
		held := false
		state.hold = func() {
			held = true
			if p.server.EndSlices(noTime, "t", 9, 2) == nil {
				t.Errorf("together %t: slices count as ended while one is held up", together)
			}
		}
		all := make([]*peer.Insert, 1+i)
		for j := range all {
			all[j] = &peer.Insert{Partition: point.PartitionID(1 + i), Stamp: point.Stamp(1<<40 + i<<12 + j), IDs: []point.SeriesID{0}, Times: []point.Nanos{int64(i) * 100e9}, Values: []float64{1}, Level: point.All,
				Staging: &peer.Staging{Do: peer.Inherit, Unnamed: true}}
		}
		must(t, peer.InsertTogether(t.Context(), st, all))
		if !held {
			t.Errorf("together %t: nothing held it up", together)
		}
		must(t, p.server.EndSlices(noTime, "t", 9, 2))
	}
}

// TestADeletionAfterATakeoverWaitsForNoTime where the heirs' leaders have ended the slices of earlier leaders.
func TestADeletionAfterATakeoverWaitsForNoTime(t *testing.T) {
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
		runner.Settings{Machine: unload.Settings{After: 100 * time.Hour, SendWithin: 100 * time.Hour}})
	defer u.Close()
	one := lease.Partition{Table: "t", ID: 1}
	u.Set(one, 1, true, false)
	deleted := false
	if err := u.Delete(t.Context(), one, func() error { deleted = true; return nil }); err != nil || !deleted {
		t.Errorf("deleted %t, %v", deleted, err)
	}
}

// TestADeletionAfterALapseWaits: the server leads again under the epoch under which it sent slices, which the heirs' leaders accept.
func TestADeletionAfterALapseWaits(t *testing.T) {
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
	within := time.Second
	u := runner.New(runner.Deps{Ways: oneServer{maps, p}, Partitions: p.server, Finished: func(lease.Partition, point.Epoch) {},
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) { return ctx, nil, nil }, Log: slog.New(slog.DiscardHandler)},
		runner.Settings{Machine: unload.Settings{After: 100 * time.Hour, SendWithin: within}})
	defer u.Close()
	one := lease.Partition{Table: "t", ID: 1}
	u.Set(one, 1, true, false)
	u.Set(one, 1, false, false)
	began := time.Now()
	u.Set(one, 1, true, false)
	if err := u.Delete(t.Context(), one, func() error { return nil }); err != nil || time.Since(began) < within {
		t.Errorf("deleted after %v, slices may arrive for %v: %v", time.Since(began), within, err)
	}
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
