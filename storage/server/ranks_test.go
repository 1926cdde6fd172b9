package server_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/server"
)

// exceptOne leads all partitions but those of a set, and knows what their leaders say.
type exceptOne struct {
	copied
	others map[point.PartitionID]bool
	// rank is the leader's answer; 0: no server leads.
	rank   point.Stamp
	inSync bool
	asked  int
	later  point.Epoch // than the first, by the lease
}

func (e *exceptOne) MayAct(_ string, id point.PartitionID) (point.Epoch, bool) {
	return 1 + e.later, !e.others[id]
}

// HighestRank implements server.Parents.
func (e *exceptOne) HighestRank(context.Context, string, *topology.Partition) (point.Stamp, error) {
	e.asked++
	if e.rank == 0 {
		return 0, fault.Errorf(fault.Unavailable, "no server leads")
	}
	return e.rank, nil
}

// InSync implements server.Parents.
func (e *exceptOne) InSync(context.Context, string, *topology.Partition, point.PlacementID) bool {
	return e.inSync
}

// TestAStagedOverwriteWinsInAHalfWhoseParentIsLedElsewhere: rows of a half ranked a second ahead of the clocks, because the highest rank of the parent was not known to the server that
// began to lead the half. A row that was staged within that second, and replaced one of the half, was acked and never read.
func TestAStagedOverwriteWinsInAHalfWhoseParentIsLedElsewhere(t *testing.T) {
	const now, early = point.Nanos(1_790_000_000e9), point.Nanos(900e6)
	for name, c := range map[string]struct {
		parent, staged string // the value that is read after a direct row, and after a staged one
		others         exceptOne
	}{
		"its leader answers":                       {parent: "[2]", staged: "[3]", others: exceptOne{rank: rank.At(now + early/2)}},
		"no server leads, and the copy has all":    {parent: "[2]", staged: "[3]", others: exceptOne{inSync: true}},
		"no server leads, and the copy may not":    {parent: "[2]", staged: "[2]"}, // ranks run ahead, as rows of the parent may
		"its leader has a higher rank than staged": {parent: "[2]", staged: "[2]", others: exceptOne{rank: rank.At(now + 2*early)}},
	} {
		t.Run(name, func(t *testing.T) {
			maps, others := &someMap{m: newMap(t).m}, &c.others
			others.others = map[point.PartitionID]bool{}
			p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) {
				d.Leadership, d.Parents, d.Now = others, others, func() point.Nanos { return now }
			})
			defer p.stop(t)
			st := openStream(t, p.server)
			defer st.Close()
			put := func(id point.PartitionID, stamp point.Stamp, value float64, of *peer.Staging) {
				t.Helper()
				must(t, st.Insert(t.Context(), &peer.Insert{Partition: id, Stamp: stamp, Level: point.All, Staging: of, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{value}}))
			}
			value := func() string {
				t.Helper()
				set, err := p.server.Select(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{7}, Lo: 60e9, Hi: 60e9})
				must(t, err)
				defer set.Close()
				if !set.Next() {
					t.Fatal("no rows")
				}
				return fmt.Sprint(set.At().Values)
			}
			put(1, rank.At(now+early/2), 1, nil) // a gateway whose clock is fast
			var err error
			maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
			must(t, err)
			p.server.Seal("t", 1)
			others.others[1] = true

			put(7, rank.At(now), 2, nil)
			if got := value(); got != c.parent {
				t.Errorf("after a direct row %s is read, want %s", got, c.parent)
			}
			put(7, rank.At(now+early), 3, &peer.Staging{Do: peer.Forward})
			if got := value(); got != c.staged {
				t.Errorf("after a staged row %s is read, want %s", got, c.staged)
			}
			if others.asked != 1 {
				t.Errorf("the leader was asked %d times, want once in the epoch", others.asked)
			}
		})
	}
}

// TestAServerThatStartsWithAClockBehindSetsNoGatewayBack: it knew its own clock alone, and said to gateways that it is an hour ago.
// They stamped the rows that they staged by that, and overwrites of the last hour were acked and never read.
func TestAServerThatStartsWithAClockBehindSetsNoGatewayBack(t *testing.T) {
	const now, hour = point.Nanos(1_790_000_000e9), point.Nanos(time.Hour)
	known := false
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) {
		d.Now, d.ClocksKnown = func() point.Nanos { return now - hour }, func() bool { return known }
	})
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	insert := func(at point.Nanos) error {
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: rank.At(at), Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{1}})
	}
	err := insert(now)
	if clock, anew := peer.NeedsStamp(err); anew || !fault.Is(err, fault.Stale) {
		t.Errorf("a gateway with the right clock is answered that it is %v: %v", time.Unix(0, clock).UTC(), err)
	}
	must(t, insert(now-hour))
	known = true
	if clock, anew := peer.NeedsStamp(insert(now)); !anew || clock != now-hour {
		t.Errorf("by the clocks of all servers it is %v", time.Unix(0, clock).UTC())
	}
}

// TestAStagedOverwriteIsReadThoughItsLeaderCompactsAsItStarts: a server whose clock is years ahead, and which does not know the
// others' yet, left the ranks of all rows out of its first compaction. Here the machine's clock is ahead of the rows' ranks.
func TestAStagedOverwriteIsReadThoughItsLeaderCompactsAsItStarts(t *testing.T) {
	const noon, second = point.Nanos(1_500_000_000e9), point.Nanos(1e9)
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) {
		d.Now, d.ClocksKnown = func() point.Nanos { return time.Now().UnixNano() }, func() bool { return false }
	})
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	put := func(stamp point.Nanos, at point.Nanos, value float64, of *peer.Staging) {
		t.Helper()
		must(t, st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: rank.At(stamp), Level: point.All, Staging: of, IDs: []point.SeriesID{0}, Times: []point.Nanos{at}, Values: []float64{value}}))
	}
	put(noon, 60e9, 1, nil)
	put(noon+20*second, 61e9, 30, nil) // a neighbour that ranks above the staged row
	must(t, p.server.FlushAll(t.Context(), false))
	put(noon+25*second, 62e9, 40, nil)
	must(t, p.server.FlushAll(t.Context(), true))
	put(noon+10*second, 60e9, 2, &peer.Staging{Do: peer.Forward})
	set, err := p.server.Select(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{1}, Lo: 60e9, Hi: 62e9})
	must(t, err)
	defer set.Close()
	if !set.Next() {
		t.Fatal("no rows")
	}
	if got := fmt.Sprint(set.At().Values); got != "[2 30 40]" {
		t.Errorf("read are %s", got)
	}
}

// TestTheHighestRankIsThatOfASealedPartition: its leader says it once no row can come any more, and no other server does.
func TestTheHighestRankIsThatOfASealedPartition(t *testing.T) {
	const now = point.Nanos(1_790_000_000e9)
	maps, others := &someMap{m: newMap(t).m}, &exceptOne{others: map[point.PartitionID]bool{}}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Leadership, d.Now = others, func() point.Nanos { return now } })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	must(t, st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: rank.At(now), Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{1}}))
	refused := func(when string) {
		t.Helper()
		if highest, err := p.server.HighestRank(t.Context(), "t", 1); !fault.Is(err, fault.Stale) {
			t.Errorf("%s: rank %d, %v", when, highest, err)
		}
	}
	refused("the partition takes rows")
	p.server.HandOver("t", 1)
	refused("its halves may not lead yet")
	var err error
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	must(t, err)
	refused("its gate may open again")
	p.server.Doubt("t", 1, maps.m.Seq)
	refused("rows come by an older map")
	p.server.Seal("t", 1)
	if highest, err := p.server.HighestRank(t.Context(), "t", 1); err != nil || highest != rank.At(now) {
		t.Errorf("rank %d, %v", highest, err)
	}
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 2, Split: halves(8)}, topology.SplitFinalize{Partition: 2, Low: 8})
	must(t, err)
	p.server.Seal("t", 2)
	if highest, err := p.server.HighestRank(t.Context(), "t", 2); err != nil || highest != 0 {
		t.Errorf("of a partition without rows: rank %d, %v", highest, err)
	}
	others.later = 1
	refused("its epoch has not begun")
	must(t, p.server.EndWrites(t.Context(), lease.Partition{Table: "t", ID: 1}, 2))
	if highest, err := p.server.HighestRank(t.Context(), "t", 1); err != nil || highest != rank.At(now) {
		t.Errorf("in its next epoch: rank %d, %v", highest, err)
	}
	others.others[1] = true
	refused("another server leads")
	if _, err := p.server.HighestRank(t.Context(), "t", 99); !fault.Is(err, fault.Stale) {
		t.Errorf("of no partition: %v", err)
	}
}

// TestNoRowIsAckedAboveTheRankThatWasReported: while the outcome of a hand-over is open the gate may open again, although the map already shows the halves. The rank of such
// a partition is not reported.
func TestNoRowIsAckedAboveTheRankThatWasReported(t *testing.T) {
	const now = point.Nanos(1_790_000_000e9)
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Now = func() point.Nanos { return now } })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	put := func(stamp point.Stamp) error {
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: stamp, Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{1}})
	}
	must(t, put(rank.At(now)))
	p.server.HandOver("t", 1)
	was := maps.m.Seq
	var err error
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	must(t, err)
	highest, reported := p.server.HighestRank(t.Context(), "t", 1)
	p.server.Doubt("t", 1, was) // the lead runner has not carried the map out, and its time is over
	later := rank.At(now + 900e6)
	if err := put(later); err == nil && reported == nil && later > highest {
		t.Errorf("a row was acked at rank %d, after %d was reported as the highest", later, highest)
	}
}

// slowParents answers once a second question is under way beside the first, or all inserts wait.
type slowParents struct {
	*exceptOne
	mu             sync.Mutex
	underWay, most int
	answer         chan struct{}
}

// HighestRank implements server.Parents.
func (s *slowParents) HighestRank(ctx context.Context, _ string, _ *topology.Partition) (point.Stamp, error) {
	s.mu.Lock()
	s.underWay++
	s.most = max(s.most, s.underWay)
	s.mu.Unlock()
	<-s.answer
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
	return s.rank, ctx.Err()
}

// TestInsertsShareTheQuestionForARank: a burst of first rows would ask the parent's leader once each.
func TestInsertsShareTheQuestionForARank(t *testing.T) {
	const now, inserts = point.Nanos(1_790_000_000e9), 16
	maps := &someMap{m: newMap(t).m}
	parents := &slowParents{exceptOne: &exceptOne{others: map[point.PartitionID]bool{1: true}, rank: rank.At(now)}, answer: make(chan struct{})}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) {
		d.Leadership, d.Parents, d.Now = parents, parents, func() point.Nanos { return now }
	})
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	var err error
	maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	must(t, err)
	waits, done := make(chan struct{}, 8*inserts), make(chan error, inserts)
	for i := range inserts {
		go func() {
			ctx := peer.WithWaiting(t.Context(), func() { waits <- struct{}{} })
			done <- st.Insert(ctx, &peer.Insert{Partition: 7, Stamp: rank.At(now) + point.Stamp(i+1)*rank.Step, Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{1}})
		}()
	}
	for range inserts {
		<-waits
	}
	close(parents.answer)
	for range inserts {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if parents.most != 1 {
		t.Errorf("%d questions were under way at once, want 1", parents.most)
	}
}

// laterParents is Stale a few times, as a leader that carries the map out.
type laterParents struct {
	*exceptOne
	stale int
}

// HighestRank implements server.Parents.
func (l *laterParents) HighestRank(context.Context, string, *topology.Partition) (point.Stamp, error) {
	if l.asked++; l.asked <= l.stale {
		return 0, fault.Errorf(fault.Stale, "it takes rows by the map here")
	}
	return l.rank, nil
}

// TestALeaderThatDoesNotKnowYetIsAskedAgain: a half gets its first rows as its parent's leader carries the map of the split out.
func TestALeaderThatDoesNotKnowYetIsAskedAgain(t *testing.T) {
	const now = point.Nanos(1_790_000_000e9)
	for stale, within := range map[int]time.Duration{0: time.Hour, 2: time.Hour, 1 << 30: time.Millisecond} {
		maps := &someMap{m: newMap(t).m}
		parents := &laterParents{&exceptOne{others: map[point.PartitionID]bool{1: true}, rank: rank.At(now)}, stale}
		p := startWith(t, vfs.NewMem(), maps, server.Settings{Server: "s1", Epoch: 1, RankWithin: within}, func(d *server.Deps) {
			d.Leadership, d.Parents, d.Now = parents, parents, func() point.Nanos { return now }
		})
		st := openStream(t, p.server)
		var err error
		maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
		must(t, err)
		must(t, st.Insert(t.Context(), &peer.Insert{Partition: 7, Stamp: rank.At(now), Level: point.All, IDs: []point.SeriesID{0}, Times: []point.Nanos{60e9}, Values: []float64{1}}))
		if stale < 1<<30 && parents.asked != stale+1 {
			t.Errorf("Stale %d times: asked %d times", stale, parents.asked)
		}
		must(t, st.Close())
		p.stop(t)
	}
}
