package server_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestNobodyReadsWithoutThoseWhoMayHaveTakenOver: partition 1 is handed over to 4 and 5, and its leader does not have
// the outcome of the transaction yet. A reader with a map of partition 1 alone may miss rows acked by the halves.
func TestNobodyReadsWithoutThoseWhoMayHaveTakenOver(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := start(t, vfs.NewMem(), maps, 1)
	defer p.stop(t)
	at := maps.m.Seq
	f := func(what string, seq uint64, next, id point.PartitionID, stale bool) {
		t.Helper()
		q := &peer.Select{Table: "t", Partitions: []point.PartitionID{id}, Lo: 0, Hi: 99e9, MapSeq: seq, MapNext: next}
		set, err := p.server.Select(t.Context(), q)
		if err == nil {
			err = set.Close()
		}
		_, _, names := p.server.LabelNames(t.Context(), q, 0)
		_, exemplars := p.server.Exemplars(t.Context(), q, [][]peer.Matcher{{{Name: "i", Value: "1"}}})
		q.Matchers = []peer.Matcher{{Name: "i", Value: "1"}}
		for call, err := range map[string]error{"select": err, "names": names, "exemplars": exemplars, "delete": p.server.DeleteSeries(t.Context(), q)} {
			if fault.Is(err, fault.Stale) != stale || err != nil && !stale {
				t.Errorf("%s, %s: %v; stale: %t", what, call, err, stale)
			}
		}
	}
	change := func(ops ...topology.Op) {
		t.Helper()
		m, err := maps.m.Apply(ops...)
		if err != nil {
			t.Fatal(err)
		}
		maps.m = m
	}
	f("as ever", at, 4, 1, false)
	p.server.HandOver("t", 1)
	f("handing over", at, 4, 1, true)
	f("handing over, by who knows that it unloads", 0, 0, 1, false)
	f("handing over another", at, 4, 2, false)
	p.server.TakeBack("t", 1)
	f("nothing was proposed", at, 4, 1, false)
	p.server.HandOver("t", 1)
	p.server.Doubt("t", 1, at)
	f("the proposal got no answer", at, 4, 1, true)
	p.server.Settle("t", 1, at)
	f("it is ruled out", at, 4, 1, false)
	p.server.Doubt("t", 1, at)
	p.server.HandOver("t", 1)
	p.server.TakeBack("t", 1)
	f("another round that came to nothing", at, 4, 1, true)
	change(topology.SplitBegin{Partition: 2, Split: halves(4)})
	f("another transaction was committed instead", at, 4, 1, false)
	change(topology.SplitFinalize{Partition: 2, Low: 4})
	f("partitions 4 and 5 are elsewhere", at, 4, 1, false)
	change(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6})
	f("partitions 6 and 7 are there", at, 4, 3, true)
	f("and the asker knows", maps.m.Seq, 8, 3, false)
	f("but not that 1 unloads", at, 8, 1, true)
}

// TestStaleAnswersNameTheNewestMap: a gateway that cannot reach the coordination store finds it.
func TestStaleAnswersNameTheNewestMap(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	newest := peer.MapAt{Txn: peer.TxnID{1}, Seq: maps.m.Seq, Servers: []string{"n1"}}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) {
		d.Newest = func(table string) (peer.MapAt, bool) { return newest, table == "t" }
	})
	defer p.stop(t)
	f := func(what string, err error) {
		t.Helper()
		if at, ok := peer.MapOf(err); !ok || at.Seq != newest.Seq || !fault.Is(err, fault.Stale) {
			t.Errorf("%s: %v names %+v", what, err, at)
		}
	}
	// The reader has only partitions below 3 and names none: is there anything newer?
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{}, Lo: math.MinInt64, Hi: math.MaxInt64, MapNext: 3}
	_, err := p.server.Select(t.Context(), q)
	f("select", err)
	_, _, err = p.server.LabelNames(t.Context(), q, 1)
	f("names", err)
	r := &columns.Request{Form: columns.Single, SamplesMax: 100, Plan: columns.Plan{ // of a time without partitions
		Grid: columns.Grid{Start: -1e12, End: -1e12, Step: 1}, Source: columns.Source{Window: time.Minute, Function: columns.FunctionOf("rate")},
	}}
	f("an evaluation of other steps", p.server.Evaluate(t.Context(), q, r.Append(nil), (&columns.Receiver{Of: r}).Add))
	q.MapNext = maps.m.NextID
	if names, _, err := p.server.LabelNames(t.Context(), q, 1); err != nil || len(names) > 0 {
		t.Errorf("nothing is newer: %v %v", names, err)
	}
	st, err := p.server.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	f("insert", st.Insert(t.Context(), &peer.Insert{Partition: 99, Level: point.All}))
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

type someMap struct{ m *topology.Map }

// Get implements server.Maps.
func (s *someMap) Get(string) (*topology.Map, bool) { return s.m, true }

// halves cut the first or the second partition in the middle.
func halves(low point.PartitionID) topology.Split {
	at := topology.AtTime(150e9)
	if low == 6 {
		at = topology.AtTime(50e9)
	}
	child := func(id point.PartitionID) topology.Child {
		return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(100 + id), Server: "s1"}}}
	}
	return topology.Split{At: at, Low: child(low), High: child(low + 1)}
}

// TestPartitionThatIsGivenBackTakesRows: a partition that the map removed and restored is as before.
func TestPartitionThatIsGivenBackTakesRows(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	stamp := point.Stamp(0)
	insert := func() error {
		stamp += 1024
		return st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: stamp, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}})
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	p.server.Seal("t", 1)
	if err := insert(); !fault.Is(err, fault.Stale) {
		t.Errorf("sealed: %v", err)
	}
	p.server.Unseal("t", 1)
	if err := insert(); err != nil {
		t.Error(err)
	}
}

// TestWritersWaitForTheOutcomeOfAHandOver: an insert that meets a closed gate waits for the outcome, and is acked or refused by it; it does not come again by a clock.
func TestWritersWaitForTheOutcomeOfAHandOver(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	p := startWith(t, vfs.NewMem(), maps, server.Settings{Server: "s1", Epoch: 1, HandOverMax: time.Hour})
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	stamp := point.Stamp(0)
	f := func(what string, outcome func(), stale bool) {
		t.Helper()
		p.server.HandOver("t", 1)
		stamp += 1024
		waits := make(chan struct{}, 8)
		acked := make(chan error, 1)
		ctx := peer.WithWaiting(t.Context(), func() { waits <- struct{}{} })
		go func(stamp point.Stamp) {
			acked <- st.Insert(ctx, &peer.Insert{Partition: 1, Stamp: stamp, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}})
		}(stamp)
		select {
		case <-waits:
		case err := <-acked:
			t.Errorf("%s: answered before there was an outcome: %v", what, err)
			return
		}
		outcome()
		if err := <-acked; stale != fault.Is(err, fault.Stale) || !stale && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	f("nothing was proposed", func() { p.server.TakeBack("t", 1) }, false)
	f("the proposal got no answer", func() { p.server.Doubt("t", 1, maps.m.Seq) }, false)
	f("the halves lead", func() { p.server.Seal("t", 1) }, true)
}

// TestWriterLeavesAClosedGate: one whose request ends while the outcome is open is not held.
func TestWriterLeavesAClosedGate(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	p.server.HandOver("t", 1)
	ctx, cancel := context.WithCancel(t.Context())
	ctx = peer.WithWaiting(ctx, cancel)
	err := st.Insert(ctx, &peer.Insert{Partition: 1, Stamp: 1024, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}})
	if !fault.Is(err, fault.Canceled) {
		t.Error(err)
	}
}

// TestAHandOverLeavesRoomForInsertsOfOtherPartitions: a quarter of the inserts that a stream may have under way wait for the outcome; a further one is sent back at once, and one
// for another partition is acked meanwhile.
func TestAHandOverLeavesRoomForInsertsOfOtherPartitions(t *testing.T) {
	const most = 256
	maps := &someMap{m: newMap(t).m}
	p := startWith(t, vfs.NewMem(), maps, server.Settings{Server: "s1", Epoch: 1, HandOverMax: time.Hour})
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	insert := func(ctx context.Context, id point.PartitionID, n int) error {
		at := point.Nanos(1)
		if id == 2 {
			at = 100e9 + 1
		}
		return st.Insert(ctx, &peer.Insert{Partition: id, Stamp: point.Stamp(n+1) << 10, IDs: []point.SeriesID{0}, Times: []point.Nanos{at}, Values: []float64{1}})
	}
	p.server.HandOver("t", 1)
	waits, acked := make(chan struct{}, 4*most), make(chan error, most)
	ctx := peer.WithWaiting(t.Context(), func() { waits <- struct{}{} })
	for n := range most {
		go func() { acked <- insert(ctx, 1, n) }()
	}
	for range most {
		<-waits
	}
	if err := insert(t.Context(), 1, most); !fault.Is(err, fault.Stale) {
		t.Errorf("one more for the partition that is handed over: %v", err)
	}
	if err := insert(t.Context(), 2, most+1); err != nil {
		t.Errorf("for another partition: %v", err)
	}
	p.server.TakeBack("t", 1)
	for range most {
		if err := <-acked; err != nil {
			t.Error(err)
		}
	}
	if err := insert(t.Context(), 1, most+2); err != nil {
		t.Errorf("after the hand-over: %v", err)
	}
}

func openStream(t *testing.T, s peer.Storage) peer.Stream {
	t.Helper()
	st, err := s.OpenStream(t.Context(), "t")
	if err == nil {
		err = st.Define(t.Context(), []peer.Def{{ID: 0, Labels: point.MakeLabels("__name__", "m", "i", "1")}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return st
}
