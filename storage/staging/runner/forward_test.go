package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/staging"
)

// leads are ways to a server that leads all partitions, and notes the rows that it gets.
type leads struct {
	leaderless
	rows map[sent]bool
}

// sent is a row as its leader gets it.
type sent struct {
	partition point.PartitionID
	labels    point.Labels
	at        point.Nanos
	value     float64
	rank      point.Stamp
}

// Server implements Ways.
func (l *leads) Server(topology.ServerID) (peer.Storage, bool) { return leadStorage{l: l}, true }

type leadStorage struct {
	peer.Storage
	l *leads
}

func (s leadStorage) OpenStream(context.Context, string) (peer.Stream, error) {
	return &leadStream{l: s.l, labels: map[point.SeriesID]point.Labels{}}, nil
}

type leadStream struct {
	l *leads

	mu     sync.Mutex
	labels map[point.SeriesID]point.Labels
}

// Define implements peer.Stream, as do the others.
func (s *leadStream) Define(_ context.Context, defs []peer.Def) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range defs {
		s.labels[d.ID] = d.Labels
	}
	return nil
}

// Close ends nothing.
func (s *leadStream) Close() error { return nil }

// Insert notes the rows.
func (s *leadStream) Insert(_ context.Context, in *peer.Insert) error {
	if in.Staging.Do == peer.Forget {
		return nil
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range in.IDs {
		if s.l.rows != nil {
			s.l.rows[sent{in.Partition, s.labels[id], in.Times[i], in.Values[i], in.Stamp}] = true
		}
	}
	return nil
}

func seriesOf(n int) point.Labels {
	return point.MakeLabels("__name__", "load", "host", fmt.Sprintf("h%d", n))
}

// manyRows is a frame of rows of some series, in some of the partitions that are an hour wide.
func manyRows(random *rand.Rand, stamp point.Stamp, rows, series, hours int) *frame.Frame {
	f := &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: stamp}
	numbers := map[int]point.DenseID{}
	for range rows {
		n := random.IntN(series)
		id, ok := numbers[n]
		if !ok {
			id = point.DenseID(len(f.Defs))
			numbers[n] = id
			f.Defs = append(f.Defs, seriesOf(n))
		}
		f.IDs = append(f.IDs, id)
		f.Times = append(f.Times, point.Nanos(random.IntN(hours))*point.Nanos(time.Hour)+point.Nanos(random.IntN(1000)))
		f.Values = append(f.Values, random.Float64())
	}
	return f
}

// hours is a map of partitions an hour wide.
func hours(tb testing.TB, n int) *topology.Map {
	tb.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		tb.Fatal(err)
	}
	var times []point.Nanos
	for i := range n {
		times = append(times, point.Nanos(i)*point.Nanos(time.Hour))
	}
	return m.Cover(times, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "b"}} })
}

// TestEveryStagedRowComesToItsPartitionAsItsSeries although frames of all sizes share memory on their way.
func TestEveryStagedRowComesToItsPartitionAsItsSeries(t *testing.T) {
	h := newHouse(t)
	const partitions = 12 // more than a scratch keeps
	l := &leads{leaderless: leaderless{m: hours(t, partitions)}, rows: map[sent]bool{}}
	s := h.open(staging.Settings{})
	s.deps.Ways, s.out = l, deliver.New(l)
	random := rand.New(rand.NewPCG(1, 2))
	want := map[sent]bool{}
	var running sync.WaitGroup
	for n := range 60 {
		f := manyRows(random, point.Stamp(n+1)<<10, 1+random.IntN(400), 1+random.IntN(300), 1+random.IntN(partitions))
		for i, id := range f.IDs {
			p, _ := l.m.Find(f.Defs[id].RingPoint(), f.Times[i])
			want[sent{p.ID, f.Defs[id], f.Times[i], f.Values[i], f.Stamp}] = true
		}
		of := &peer.Staging{Do: peer.Stage, Nonce: uint64(n), Holders: []string{"a"}}
		running.Go(func() { h.must(s.Stage(t.Context(), "t", 1, of, f)) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	running.Wait()
	h.await("all are forwarded", func() bool { return len(h.values(s, "t")) == 0 })
	cancel()
	h.must(<-ended)
	h.must(s.Close())
	for r := range want {
		if !l.rows[r] {
			t.Fatalf("lost: %+v", r)
		}
		delete(l.rows, r)
	}
	for r := range l.rows {
		t.Fatalf("nobody wrote %+v", r)
	}
}

// BenchmarkStagedRow is a row's way through a server on which it waits, in frames as a busy sender makes them.
func BenchmarkStagedRow(b *testing.B) {
	h := newHouse(&testing.T{})
	l := &leads{leaderless: leaderless{m: hours(b, 1)}}
	s := h.open(staging.Settings{})
	s.deps.Ways, s.out = l, deliver.New(l)
	f := &frame.Frame{Kind: frame.Rows, Foreign: true}
	for i := range 667 {
		f.Defs, f.IDs = append(f.Defs, seriesOf(i)), append(f.IDs, point.DenseID(i))
		f.Times, f.Values = append(f.Times, 1000), append(f.Values, 7)
	}
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		f.Stamp = point.Stamp(n << 10)
		of := &peer.Staging{Do: peer.Stage, Nonce: n, Holders: []string{"a"}}
		if err := s.Stage(b.Context(), "t", 1, of, f); err != nil {
			b.Fatal(err)
		}
		s.forward(b.Context(), &staging.Frame{ID: staging.ID{Stamp: f.Stamp, Nonce: n}, Table: "t"})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/float64(len(f.IDs)), "ns/row")
}

// TestAStagedFrameNeedsNothingOfTheFramesBefore: the first frame defines a series, and is forgotten once its leader has it. Both holders of the second one, of the same series, restart: its row comes to a
// leader that never had the series.
func TestAStagedFrameNeedsNothingOfTheFramesBefore(t *testing.T) {
	for _, by := range []string{"the first holder", "the second holder"} {
		t.Run(by, func(t *testing.T) {
			h := newHouse(t)
			holders := map[string][]string{"the first holder": {"a", "b"}, "the second holder": {"gone", "a"}}[by]
			frameOf := func(n int) (*peer.Staging, *frame.Frame) {
				return &peer.Staging{Do: peer.Stage, Nonce: uint64(n), Holders: holders},
					&frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(n << 10), Defs: []point.Labels{seriesOf(7)}, IDs: []point.DenseID{0}, Times: []point.Nanos{point.Nanos(n)}, Values: []float64{float64(n)}}
			}
			s := h.open(staging.Settings{})
			for n := 1; n <= 2; n++ {
				of, f := frameOf(n)
				h.must(s.Stage(t.Context(), "t", 1, of, f))
			}
			h.must(s.Forget(idOf(1)))
			h.want(s, "t", 2)
			h.must(s.Close())
			l := &leads{leaderless: leaderless{m: hours(t, 1)}, rows: map[sent]bool{}}
			s = h.open(staging.Settings{TurnDelay: time.Millisecond})
			s.deps.Ways, s.out = l, deliver.New(l)
			h.forwardsAll(s)
			if want := (sent{1, seriesOf(7), 2, 2, 2 << 10}); len(l.rows) != 1 || !l.rows[want] {
				t.Errorf("the leader has %v, want %v", l.rows, want)
			}
		})
	}
}

// TestBackfillThatWaitsGoesWhereItsTimeLiesThen: rows of old hours are staged, whose partitions are merged into one before a leader is there. They go to the merged one, with the ranks that they had when they
// were staged: rows written or moved there since are compared with these.
func TestBackfillThatWaitsGoesWhereItsTimeLiesThen(t *testing.T) {
	h := newHouse(t)
	l := &leads{leaderless: leaderless{m: hours(t, 4)}, rows: map[sent]bool{}}
	s := h.open(staging.Settings{})
	s.deps.Ways, s.out = l, deliver.New(l)
	f := &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: 9 << 10, Defs: []point.Labels{seriesOf(1)}}
	for i := range 4 {
		f.IDs, f.Times, f.Values = append(f.IDs, 0), append(f.Times, point.Nanos(i)*point.Nanos(time.Hour)), append(f.Values, float64(i))
	}
	h.must(s.Stage(t.Context(), "t", l.m.Seq, &peer.Staging{Do: peer.Stage, Nonce: 1, Holders: []string{"a"}}, f))
	merged, err := l.m.Apply(topology.Merge{Partitions: []point.PartitionID{1, 2, 3}, ClosedBefore: point.Nanos(9 * time.Hour),
		Into: topology.Child{ID: l.m.NextID, Placements: []topology.Placement{{ID: 77, Server: "b"}}}})
	h.must(err)
	l.mu.Lock()
	into := l.m.NextID
	l.m = merged
	l.mu.Unlock()
	h.forwardsAll(s)
	for i := range 4 {
		to := into
		if i == 3 {
			to = 4
		}
		if want := (sent{to, seriesOf(1), f.Times[i], f.Values[i], 9 << 10}); !l.rows[want] {
			t.Errorf("%v is not among %v", want, l.rows)
		}
	}
}

// forwardsAll runs a store until nothing is staged, and closes it.
func (h *house) forwardsAll(s *Store) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	h.await("all are forwarded", func() bool { return len(h.values(s, "t")) == 0 })
	cancel()
	h.must(<-ended)
	h.must(s.Close())
}
