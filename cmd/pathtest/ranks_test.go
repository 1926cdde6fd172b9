package pathtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/server"
)

// clocked is a gateway with its own clock, before the servers of a spread.
type clocked struct {
	s       *spread
	fast    atomic.Int64 // how far its clock is ahead, in nanoseconds
	clock   *forward.Clock
	tables  *tables.Tables
	forward *forward.Forwarder
	reg     *prometheus.Registry
}

func (s *spread) gateway(number uint64, fast time.Duration) *clocked {
	return s.gatewayBy(s.tables, number, fast)
}

// gatewayBy is a gateway that uses other tables.
func (s *spread) gatewayBy(ts *tables.Tables, number uint64, fast time.Duration) *clocked {
	g := &clocked{s: s, tables: ts, reg: prometheus.NewRegistry()}
	g.fast.Store(int64(fast))
	g.clock = forward.NewClock(number, func() point.Nanos { return time.Now().UnixNano() + g.fast.Load() })
	log := slog.New(slog.DiscardHandler)
	lead, err := leaders.Open(s.tb.Context(), leaders.Deps{Store: s.store, Log: log, Rand: rand.New(rand.NewPCG(number, 6))}, leaders.Settings{})
	s.must(err)
	g.forward = forward.New(forward.Deps{Tables: g.tables, Servers: s.peers, Leaders: lead, Clock: g.clock, Log: log, Registerer: g.reg}, forward.Settings{})
	s.tb.Cleanup(func() { s.must(g.forward.Close()) })
	return g
}

// put writes one value and returns when it is acked.
func (g *clocked) put(at point.Nanos, v float64) error {
	t, err := g.forward.Table(context.Background(), promqlsuite.Table)
	if err != nil {
		return err
	}
	b := point.GetBatch(t.Dict())
	defer b.Put()
	b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m")), at, v)
	return t.Write(context.Background(), b, point.All)
}

// value returns the value read at a time.
func (s *spread) value(at point.Nanos) string {
	s.tb.Helper()
	q := &peer.Select{Table: promqlsuite.Table, Lo: at, Hi: at}
	set, err := s.source.Select(s.tb.Context(), q)
	for end := time.Now().Add(time.Minute); fault.Is(err, fault.Unavailable) && time.Now().Before(end); { // a server that was restarted has another address
		set, err = s.source.Select(s.tb.Context(), q)
	}
	s.must(err)
	text := ""
	for set.Next() {
		text += fmt.Sprint(set.At().Values)
	}
	s.must(errors.Join(set.Err(), set.Close()))
	return text
}

// restart ends a server, without its memory as after a crash, and starts it on its disk.
func (s *spread) restart(id topology.ServerID) {
	p := s.parts[id]
	s.must(errors.Join(p.hangUp(), p.server.Close(), p.staged.Close(), p.brick.Close()))
	s.open(p)
	s.serve(p)
}

// TestTheWriteAckedLaterWinsBehindGatewaysWithWrongClocks: two people correct one value in turns, through two gateways.
func TestTheWriteAckedLaterWinsBehindGatewaysWithWrongClocks(t *testing.T) {
	const years = 3 * 365 * 24 * time.Hour
	for name, fast := range map[string][2]time.Duration{
		"an hour apart": {time.Hour, 0}, "0.9 s apart": {900 * time.Millisecond, 0}, "both wrong": {time.Hour, -time.Hour}, "years ahead": {years, 0}, "years behind": {-years, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSpread(t, 1, true, time.Hour, 1)
			defer func() { s.must(s.close()) }()
			gs := []*clocked{s.gateway(1, fast[0]), s.gateway(2, fast[1])}
			for i := range 12 {
				s.must(gs[i%2].put(5e9, float64(i)))
				if got, want := s.value(5e9), fmt.Sprint([]float64{float64(i)}); got != want {
					t.Fatalf("after write %d read %s, want %s", i, got, want)
				}
				switch i % 4 {
				case 1:
					s.must(s.parts["n1"].server.FlushAll(t.Context(), i > 6))
				case 3:
					s.restart("n1")
				}
			}
		})
	}
}

// restamped is how often a gateway's inserts were sent back for a new stamp.
func (g *clocked) restamped() float64 {
	return counted(g.s.tb, g.reg, "spillway_forward_restamped_inserts_total")
}

// TestAClockYearsAheadForAMinuteLeavesNothingBehind: its rows are kept, no writer gets an error, and no rank is from the
// future.
func TestAClockYearsAheadForAMinuteLeavesNothingBehind(t *testing.T) {
	s := openSpread(t, 1, true, time.Hour, 1)
	defer func() { s.must(s.close()) }()
	a, b := s.gateway(1, 0), s.gateway(2, 0)
	s.must(a.put(5e9, 1))
	a.fast.Store(int64(3 * 365 * 24 * time.Hour))
	for i := range 20 {
		s.must(a.put(5e9, float64(2+i)))
	}
	if n := a.restamped(); n != 1 {
		t.Errorf("%v inserts were sent back, want the first alone", n)
	}
	a.fast.Store(0)
	s.must(b.put(5e9, 100))
	if got := s.value(5e9); got != "[100]" {
		t.Errorf("read %s", got)
	}
	s.must(a.put(5e9, 101))
	if got := s.value(5e9); got != "[101]" {
		t.Errorf("read %s", got)
	}
	if ahead := rank.Time(a.clock.Reserve(1)) - time.Now().UnixNano(); ahead > int64(time.Second) {
		t.Errorf("the gateway's stamps are still %v ahead", time.Duration(ahead))
	}
	s.must(s.parts["n1"].server.FlushAll(t.Context(), false))
	for _, g := range segmentsOf(t, s.parts["n1"]) {
		if ahead := rank.Time(g.StampHi) - time.Now().UnixNano(); ahead > int64(rank.AheadMax) {
			t.Errorf("rows are kept with ranks that are %v ahead", time.Duration(ahead))
		}
	}
}

// TestAMedianThatLagsSendsNoInsertBack: all heartbeats come seconds late, so that the servers' clocks seem slow. A gateway that was refused for it stamped rows seconds
// early, and staged ones lost to those that another gateway had staged before.
func TestAMedianThatLagsSendsNoInsertBack(t *testing.T) {
	s := openSpread(t, 1, true, time.Hour, 1)
	defer func() { s.must(s.close()) }()
	s.fast.Store(int64(-3 * time.Second))
	s.latest = func() point.Nanos { return time.Now().UnixNano() }
	s.restart("n1")
	g := s.gateway(1, 0)
	for i := range 3 {
		s.must(g.put(5e9, float64(i)))
	}
	if n := g.restamped(); n != 0 {
		t.Errorf("%v inserts were sent back", n)
	}
	fast := s.gateway(2, 2*time.Second)
	s.must(fast.put(5e9, 7))
	if n := fast.restamped(); n != 1 {
		t.Errorf("of a gateway whose clock is 2 s ahead %v inserts were sent back, want 1", n)
	}
}

// TestALeaderWhoseClockIsSetBackGoesOn: gateways use its time, and its partitions count on from where they were.
func TestALeaderWhoseClockIsSetBackGoesOn(t *testing.T) {
	s := openSpread(t, 1, true, time.Hour, 1)
	defer func() { s.must(s.close()) }()
	gs := []*clocked{s.gateway(1, 0), s.gateway(2, 100*time.Millisecond)}
	v := 0.0
	write := func(n int) {
		t.Helper()
		for range n {
			v++
			s.must(gs[int(v)%2].put(5e9, v))
			if n > 100 {
				continue
			}
			if got, want := s.value(5e9), fmt.Sprint([]float64{v}); got != want {
				t.Fatalf("read %s, want %s", got, want)
			}
		}
	}
	write(1200) // more than partitions remember stamps of
	s.fast.Store(-int64(time.Hour))
	write(10)
	if a, b := gs[0].restamped(), gs[1].restamped(); a != 1 || b != 1 {
		t.Errorf("%v and %v inserts were sent back, want one of each gateway", a, b)
	}
	s.restart("n1")
	write(10)
	s.fast.Store(0)
	write(10)
}

// TestLaterAcksWinWhateverHappensToClocks sets the clocks of two gateways and of the server at random between writes to a
// few keys, with flushes, compactions and restarts.
func TestLaterAcksWinWhateverHappensToClocks(t *testing.T) {
	for seed := range uint64(4) {
		s := openSpread(t, 1, true, time.Hour, 1)
		rng := rand.New(rand.NewPCG(seed, 3))
		gs := []*clocked{s.gateway(1, 0), s.gateway(2, 0)}
		wrong := func() int64 {
			spans := []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 5 * 365 * 24 * time.Hour}
			span := int64(spans[rng.IntN(len(spans))])
			return rng.Int64N(2*span) - span
		}
		want := map[point.Nanos]float64{}
		for i := range 120 {
			switch rng.IntN(12) {
			case 0:
				gs[rng.IntN(2)].fast.Store(wrong())
			case 1:
				s.fast.Store(wrong() / 1000)
			case 2:
				s.must(s.parts["n1"].server.FlushAll(t.Context(), rng.IntN(2) == 0))
			case 3:
				s.restart("n1")
			default:
				at := point.Nanos(rng.IntN(3)) * 1e9
				s.must(gs[rng.IntN(2)].put(at, float64(i)))
				want[at] = float64(i)
			}
			for at, v := range want {
				if got := s.value(at); got != fmt.Sprint([]float64{v}) {
					t.Fatalf("seed %d, step %d: at %d read %s, want %v, which was acked last", seed, i, at, got, v)
				}
			}
		}
		s.must(s.close())
	}
}

// segmentsOf lists all segments of a server, by its catalogue.
func segmentsOf(t *testing.T, p *part) (all []segment.Info) {
	t.Helper()
	err := p.brick.Scan(partition.StatePrefix(), func(_, v []byte) error {
		st, err := partition.DecodeState(v)
		if err != nil {
			return err
		}
		for _, g := range st.Segments {
			all = append(all, g.Info)
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d segments, %v", len(all), err)
	}
	return all
}

// counted is the value of a counter without labels.
func counted(tb testing.TB, reg *prometheus.Registry, name string) float64 {
	tb.Helper()
	all, err := reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	tb.Fatalf("there is no metric %s", name)
	return 0
}

// split begins to cut the only partition in two by time, and leaves it to finish to hand it over. n2 leads the parent and
// the low half, n1 the high one.
func (s *spread) split() (finish func()) {
	s.tb.Helper()
	change := func(plan func(*topology.Map) []topology.Op) {
		s.tb.Helper()
		_, err := s.tables.Change(s.tb.Context(), promqlsuite.Table, func(m *topology.Map) ([]topology.Op, error) { return plan(m), nil })
		s.must(err)
	}
	var parent *topology.Partition
	var low point.PartitionID
	change(func(m *topology.Map) []topology.Op {
		for p := range m.All() {
			parent = p
		}
		low = m.NextID
		child := func(id point.PartitionID, on topology.ServerID) topology.Child {
			return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(1000 + id), Server: on}}}
		}
		return []topology.Op{topology.SplitBegin{Partition: parent.ID, Split: topology.Split{At: topology.AtTime(1800e9), Low: child(low, "n2"), High: child(low+1, "n1")}}}
	})
	return func() {
		s.tb.Helper()
		change(func(*topology.Map) []topology.Op {
			return []topology.Op{topology.SplitFinalize{Partition: parent.ID, Low: low}}
		})
	}
}

// TestLaterAcksWinAcrossASplit: the halves of a partition lie on other servers, and their rows are read beside the
// parent's.
func TestLaterAcksWinAcrossASplit(t *testing.T) {
	for name, fast := range map[string][2]time.Duration{"0.9 s apart": {900 * time.Millisecond, 0}, "an hour apart": {time.Hour, 0}, "both slow": {-time.Hour, -2 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			s := openSpread(t, 2, true, time.Hour, 1)
			defer func() { s.must(s.close()) }()
			gs := []*clocked{s.gateway(1, fast[0]), s.gateway(2, fast[1])}
			v, keys := 0.0, []point.Nanos{5e9, 6e9, 1800e9, 2000e9}
			want := map[point.Nanos]float64{}
			write := func(at point.Nanos) {
				t.Helper()
				v++
				s.must(gs[int(v)%2].put(at, v))
				want[at] = v
			}
			check := func(when string) {
				t.Helper()
				for at, v := range want {
					if got := s.value(at); got != fmt.Sprint([]float64{v}) {
						t.Fatalf("%s: at %d read %s, want %v, which was acked last", when, at, got, v)
					}
				}
			}
			flush := func(compact bool) {
				for _, p := range s.parts {
					s.must(p.server.FlushAll(t.Context(), compact))
				}
			}
			for range 3 {
				for _, at := range keys {
					write(at)
				}
			}
			check("before the split")
			finish := s.split()
			write(keys[0])
			finish()
			write(keys[1])
			write(keys[2])
			check("after the split")
			flush(false)
			write(keys[2])
			write(keys[3])
			check("after a flush")
			flush(true)
			s.restart("n1")
			s.restart("n2")
			write(keys[0])
			write(keys[3])
			check("after restarts")
			flush(true)
			check("after a compaction")
		})
	}
}

// TestTheLaterWriteWinsThoughAParentGoesOn: a gateway that has not seen a split writes to the parent, and the parent's
// leader has not seen it either, in turns with a gateway that writes to the half. Then the clocks decide: they are right
// here.
func TestTheLaterWriteWinsThoughAParentGoesOn(t *testing.T) {
	s := openSpread(t, 2, true, time.Hour, 1)
	defer func() { s.must(s.close()) }()
	s.must(s.gateway(9, 0).put(2000e9, 0))
	before, err := tables.Open(t.Context(), tables.Deps{Store: s.store, Metadata: s.meta.Alone, Servers: s.meta.Only, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(9, 9))},
		tables.Settings{New: topology.Config{PartitionWidth: time.Hour}})
	s.must(err)
	old, fresh := s.gatewayBy(before, 1, 0), s.gateway(2, 0)
	s.must(old.put(2000e9, 1))
	s.split()()
	s.must(fresh.put(2000e9, 2))                     // ranks of the half begin as far ahead as those of the parent may be
	time.Sleep(rank.AheadMax + 100*time.Millisecond) // clocks overtake the ranks of the half
	for i, g := range []*clocked{old, fresh, old, old, fresh, old} {
		v := float64(10 + i)
		s.must(g.put(2000e9, v))
		if got := s.value(2000e9); got != fmt.Sprint([]float64{v}) {
			t.Errorf("after write %d read %s, want %v", i, got, v)
		}
		s.must(g.put(2000e9+int64(i), v)) // another time: it is not in the way
		s.must(s.parts[[]topology.ServerID{"n1", "n2"}[i%2]].server.FlushAll(t.Context(), i == 4))
	}
	if m, _ := before.Get(promqlsuite.Table); m.Len() != 1 {
		t.Errorf("the gateway on the old map heard of the split")
	}
	parent := countedRows(t, s.parts["n2"], 1)
	if parent < 5 {
		t.Errorf("the parent has %d rows: it did not go on", parent)
	}
}

// countedRows returns how many rows a server has of a partition.
func countedRows(t *testing.T, p *part, id point.PartitionID) uint64 {
	t.Helper()
	st, err := p.server.Stats(t.Context(), promqlsuite.Table, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range st.ByPartition {
		if x.ID == id {
			return x.Rows
		}
	}
	return 0
}

// TestOneProcessKeepsTheValueWrittenLast, with its clock set back while it runs, and across a restart.
func TestOneProcessKeepsTheValueWrittenLast(t *testing.T) {
	store, fs, log := mem.New(), vfs.NewMem(), slog.New(slog.DiscardHandler)
	var fast atomic.Int64
	now := func() point.Nanos { return time.Now().UnixNano() + fast.Load() }
	meta := filesmem.NewServer(store, settings.LocalServer)
	v := 0.0
	for epoch, set := range []time.Duration{0, -time.Hour, -48 * time.Hour, time.Minute} {
		fast.Store(int64(set))
		p := &path{t: t}
		var err error
		p.tables, err = tables.Open(t.Context(), tables.Deps{Store: store, Metadata: meta.Alone, Servers: meta.Only, Log: log,
			Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{settings.LocalServer} }},
			tables.Settings{New: topology.Config{PartitionWidth: time.Hour}, CreateOnWrite: epoch == 0})
		p.must(err)
		p.brick, err = brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
		p.must(err)
		p.server, err = server.Open(t.Context(), server.Deps{Brick: p.brick, Maps: p.tables, Now: now, Log: log, Registerer: prometheus.NewRegistry()},
			server.Settings{Server: settings.LocalServer, Epoch: point.Epoch(epoch + 1)})
		p.must(err)
		p.forward = forward.New(forward.Deps{Tables: p.tables, Servers: p, Clock: forward.NewClock(uint64(epoch), now), Log: log}, forward.Settings{})
		for _, back := range []time.Duration{0, 0, time.Hour, 0, -time.Second} {
			fast.Add(-int64(back))
			v++
			b := point.GetBatch(p.table().Dict())
			b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m")), 5e9, v)
			p.must(p.table().Write(t.Context(), b, point.All))
			if got, want := selected(t, p.server, &peer.Select{Table: "t", Hi: math.MaxInt64}), fmt.Sprintf("%x", math.Float64bits(v)); !strings.Contains(got, want) {
				t.Errorf("clock set to %v and back by %v: read %s, want %v", set, back, got, v)
			}
		}
		p.must(p.server.FlushAll(t.Context(), epoch == 1))
		p.must(errors.Join(p.forward.Close(), p.server.Close(), p.brick.Close()))
	}
}

// TestAStagedOverwriteWinsInAHalfOfAnotherServer: the server that leads the half asks the parent's leader over the network how high that ranked, and a row that is staged right after a
// direct one replaces it. Where the parent's leader is gone, rows are accepted all the same.
func TestAStagedOverwriteWinsInAHalfOfAnotherServer(t *testing.T) {
	const at = point.Nanos(2000e9)
	for name, gone := range map[string]bool{"the parent is led": false, "its leader is gone": true} {
		t.Run(name, func(t *testing.T) {
			s := &spread{tb: t, copies: 1}
			if !gone {
				s.rankWithin = time.Minute // the machine may be busy
			}
			s.start(2, true, time.Hour, 1)
			defer func() { s.must(s.close()) }()
			g := s.gateway(1, 0)
			s.must(g.put(at, 1))
			s.split()()
			s.parts["n2"].server.Seal(promqlsuite.Table, 1)
			if gone {
				s.must(s.parts["n2"].hangUp())
			}
			s.must(g.put(at, 2))
			if gone {
				return
			}
			st, err := s.parts["n1"].server.OpenStream(t.Context(), promqlsuite.Table)
			s.must(err)
			defer st.Close()
			s.must(st.Define(t.Context(), []peer.Def{{ID: 0, Labels: point.MakeLabels(point.MetricName, "m")}}))
			m, _ := s.tables.Get(promqlsuite.Table)
			half := m.Overlapping(at, at)
			s.must(st.Insert(t.Context(), &peer.Insert{Partition: half[len(half)-1].ID, MapSeq: m.Seq, Stamp: g.clock.Reserve(1), Level: point.All, Staging: &peer.Staging{Do: peer.Forward},
				IDs: []point.SeriesID{0}, Times: []point.Nanos{at}, Values: []float64{3}}))
			if got := s.value(at); got != "[3]" {
				t.Errorf("read %s, want the row that was staged last", got)
			}
		})
	}
}
