package lead

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestEmptyPartitionIsTakenByAnotherPlacement(t *testing.T) {
	w := newWorld(t)
	w.start("s1", vfs.NewMem())
	w.start("s2", vfs.NewMem())
	p := w.create("s1", "s2")
	first := w.led(p)
	w.until("both are in sync", func() bool { l, _ := w.row(p); return len(l.InSync) == 2 })
	first.kill()
	second := w.led(p)
	if second == first {
		t.Fatal("a dead server leads")
	}
	w.must(second.put(p, 1, point.All))
	second.wantRows("7: 101", p)
	if l, _ := w.row(p); len(l.InSync) != 1 || l.InSync[0].Server != second.id {
		t.Errorf("in sync after the first row: %v", l.InSync)
	}
}

// TestPartitionWithRowsWaitsForItsServer: no other server may lead a partition that only one server has, however long it is away.
func TestPartitionWithRowsWaitsForItsServer(t *testing.T) {
	w := newWorld(t)
	fs := vfs.NewMem()
	s1 := w.start("s1", fs)
	full := w.create("s1", "s2")
	w.led(full)
	w.must(s1.put(full, 1, point.One))
	s2 := w.start("s2", vfs.NewMem())
	empty := w.create("s1", "s2")
	w.until("both are in sync of the empty one", func() bool {
		w.led(empty)
		l, _ := w.row(empty)
		return len(l.InSync) == 2
	})
	if w.led(empty) == s2 { // bring it to s1
		w.edit(empty, func(l lease.Lease) lease.Lease { l.Holder, l.Boot, l.State = "", "", lease.Free; return l })
	}
	before, _ := w.row(full)
	s1.kill()
	w.until("s2 leads the empty one", func() bool { return s2.leads(empty) }) // so it has waited long enough for both
	if s2.leads(full) {
		t.Fatal("s2 leads a partition whose rows it does not have")
	}
	w.stale(s2.put(full, 2, point.One))
	if _, err := s2.read(full); !fault.Is(err, fault.Stale) {
		t.Errorf("s2 answers a query for a partition that it does not lead: %v", err)
	}
	s2.wantRows("") // its partition has no rows

	s1 = w.start("s1", fs)
	w.until("s1 leads its partition again", func() bool { return s1.leads(full) })
	s1.wantRows("7: 101", full)
	w.must(s1.put(full, 2, point.One))
	s1.wantRows("7: 101 102", full)
	after, _ := w.row(full)
	if after.Epoch <= before.Epoch || after.Boot == before.Boot {
		t.Errorf("led by boot %s at epoch %d, before by %s at %d", after.Boot, after.Epoch, before.Boot, before.Epoch)
	}
	ends, err := s1.server.Quiesce(t.Context(), "t", full)
	if err != nil || len(ends) != 2 || ends[0] != (point.EpochEnd{Epoch: before.Epoch, Seq: 1}) || ends[1] != (point.EpochEnd{Epoch: after.Epoch, Seq: 2}) {
		t.Errorf("ends %v, %v", ends, err)
	}
}

// TestRestartOnTheSameDirectoryWaitsForNobody: with leases of an hour only the lock of the directory can prove its
// earlier boot dead.
func TestRestartOnTheSameDirectoryWaitsForNobody(t *testing.T) {
	w := newWorld(t)
	w.lease.ValidFor, w.lease.TakeAfter = time.Hour, 2*time.Hour
	fs := vfs.NewMem()
	s1 := w.start("s1", fs)
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	s1.kill()
	s1 = w.start("s1", fs)
	w.led(p)
	w.must(s1.put(p, 2, point.All))
	s1.wantRows("7: 101 102", p)
}

func TestWipedStoreLeadsNothingItHadRowsOf(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	s1.kill()
	s1 = w.start("s1", vfs.NewMem())
	fresh := w.create("s1")
	w.until("the wiped server leads a new partition", func() bool { return s1.leads(fresh) })
	if s1.leads(p) {
		t.Error("a wiped server leads a partition whose rows are gone, as if there had been none")
	}
	w.stale(s1.put(p, 2, point.All))
}

// TestPausedProcessAcksNothing: its clock shows that it was stopped longer than its leases last.
func TestPausedProcessAcksNothing(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	full, empty := w.create("s1", "s2"), w.create("s1", "s2")
	w.led(full)
	w.led(empty)
	w.must(s1.put(full, 1, point.One))
	s1.store.away.Store(true) // a process that wakes from a stop has not renewed yet
	s1.skew.Add(int64(time.Minute))
	if s1.leads(full) || s1.leads(empty) {
		t.Fatal("a process that slept for a minute still leads")
	}
	w.stale(s1.put(full, 2, point.One))
	w.stale(s1.put(full, 2, point.Received))
	w.stale(s1.put(empty, 1, point.All)) // another server may lead it by now
	// No other server may lead a partition when it alone has the rows: level all is fenced by the in-sync list.
	w.until("it has seen that its leases lapsed", func() bool { return s1.put(full, 3, point.All) == nil })
	s1.wantRows("7: 101 103", full)
	s1.store.away.Store(false)
	w.until("it leads again", func() bool { return s1.leads(full) && s1.leads(empty) })
	w.must(s1.put(full, 4, point.One))
	s1.wantRows("7: 101 103 104", full)
}

// TestOfflinePartitionIsNotWrittenAfterTheStoreAnswered: going on without the store ends when the store answers.
func TestOfflinePartitionIsNotWrittenAfterTheStoreAnswered(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	s1.store.away.Store(true)
	s1.skew.Add(int64(time.Minute))
	w.until("it goes on alone", func() bool { return s1.put(p, 2, point.All) == nil })
	w.edit(p, func(l lease.Lease) lease.Lease { return l.TakenOffline(lease.Note{Who: "ann", Reason: "disk"}) })
	s1.store.away.Store(false)
	w.until("it heard", func() bool { _, ok := s1.Alone("t", p); return s1.Status().Good && !ok })
	w.until("the row is free", func() bool { l, _ := w.row(p); return l.State == lease.Free })
	w.until("nothing is taken any more", func() bool { return s1.put(p, 3, point.All) != nil })
	w.until("that it went on alone is forgotten", func() bool {
		s1.mu.Lock()
		defer s1.mu.Unlock()
		_, goesOn := s1.mu.machine.Led(lease.Partition{Table: "t", ID: p})
		return !goesOn
	})
	s1.store.away.Store(true)
	s1.skew.Add(int64(time.Minute))
	w.stale(s1.put(p, 4, point.All))
}

// blocking is a file system on which fsyncs of the log wait while it is shut.
type blocking struct {
	shut    atomic.Bool
	waiting atomic.Int32
	open    chan struct{}
}

func (b *blocking) MaybeError(op errorfs.Op) error {
	if b.shut.Load() && op.Kind == errorfs.OpFileSyncData {
		b.waiting.Add(1)
		<-b.open
	}
	return nil
}

func (b *blocking) String() string { return "blocking" }

// TestLeaseThatEndsDuringTheFsyncAcksNothing: asking before the fsync alone would ack rows that another leader never sees.
func TestLeaseThatEndsDuringTheFsyncAcksNothing(t *testing.T) {
	w := newWorld(t)
	gate := &blocking{open: make(chan struct{})}
	s1 := w.start("s1", errorfs.Wrap(vfs.NewMem(), gate))
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.One))
	gate.shut.Store(true)
	done := make(chan error)
	go func() { done <- s1.put(p, 2, point.One) }()
	w.until("the insert waits for its fsync", func() bool { return gate.waiting.Load() > 0 })
	s1.store.away.Store(true)
	s1.skew.Add(int64(time.Minute))
	gate.shut.Store(false)
	close(gate.open)
	w.stale(<-done)
	s1.store.away.Store(false)
	w.until("it leads again", func() bool { return s1.leads(p) })
	w.must(s1.put(p, 2, point.One))
	s1.wantRows("7: 101 102", p)
}

// TestLeaseIsReleasedWhenNothingIsUnderWay: others see a lease as free only when no change can come any more.
func TestLeaseIsReleasedWhenNothingIsUnderWay(t *testing.T) {
	w := newWorld(t)
	gate := &blocking{open: make(chan struct{})}
	s1 := w.start("s1", errorfs.Wrap(vfs.NewMem(), gate))
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.One))
	gate.shut.Store(true)
	done := make(chan error)
	go func() { done <- s1.put(p, 2, point.One) }()
	w.until("the insert waits for its fsync", func() bool { return gate.waiting.Load() > 0 })
	w.edit(p, func(l lease.Lease) lease.Lease { return l.TakenOffline(lease.Note{Who: "ann"}) })
	w.until("it stops", func() bool { return !s1.leads(p) })
	w.stale(s1.put(p, 3, point.One))
	if l, _ := w.row(p); l.State == lease.Free {
		t.Error("the row is free while an insert is under way")
	}
	gate.shut.Store(false)
	close(gate.open)
	w.stale(<-done) // its lease ended meanwhile
	w.until("the row is free", func() bool { l, _ := w.row(p); return l.State == lease.Free })
	if l, _ := w.row(p); len(l.Ends) != 1 || l.Ends[0] != (point.EpochEnd{Epoch: l.Epoch, Seq: 2}) {
		t.Errorf("the row says the epoch ended at %v", l.Ends)
	}
}

func TestWhatPeopleWriteIntoRowsIsHonoured(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.One))
	epoch, _ := s1.MayAct("t", p)

	w.edit(p, func(l lease.Lease) lease.Lease { return l.Bumped(lease.Note{Who: "ann", Reason: "try"}) })
	w.until("a bumped lease is taken anew", func() bool { e, ok := s1.MayAct("t", p); return ok && e > epoch })
	w.must(s1.put(p, 2, point.One))

	w.edit(p, func(l lease.Lease) lease.Lease { return l.TakenOffline(lease.Note{Who: "ann", Reason: "disk"}) })
	w.until("an offline partition is let go", func() bool { l, _ := w.row(p); return l.State == lease.Free && !s1.leads(p) })
	w.stale(s1.put(p, 3, point.One))
	w.edit(p, lease.Lease.TakenOnline)
	w.led(p)
	w.must(s1.put(p, 3, point.One))

	part := lease.Partition{Table: "t", ID: p}
	commit := func(write coord.Write) {
		if _, _, err := w.store.Commit(t.Context(), nil, []coord.Write{write}); err != nil {
			t.Fatal(err)
		}
	}
	commit(lease.Prohibit(part, "s1", lease.Note{Who: "ann"}))
	w.until("a prohibited server stops", func() bool { return !s1.leads(p) })
	w.stale(s1.put(p, 4, point.One))
	commit(lease.Allow(part, "s1"))
	w.led(p)
	w.must(s1.put(p, 4, point.One))
	s1.wantRows("7: 101 102 103 104", p)
}

func TestManyFirstInsertsChangeTheListOnce(t *testing.T) {
	w := newWorld(t)
	w.start("s1", vfs.NewMem())
	w.start("s2", vfs.NewMem())
	p := w.create("s1", "s2")
	leader := w.led(p)
	epoch, _ := leader.MayAct("t", p)
	_, before := w.row(p)
	errs := make(chan error)
	for range 20 {
		go func() { errs <- leader.Hold(context.Background(), "t", p, epoch) }()
	}
	for range 20 {
		w.must(<-errs)
	}
	l, after := w.row(p)
	if len(l.InSync) != 1 || before == after {
		t.Errorf("in sync %v", l.InSync)
	}
	w.must(leader.Hold(t.Context(), "t", p, epoch))
	if _, again := w.row(p); again != after {
		t.Error("the list was changed again")
	}
	w.stale(leader.Hold(t.Context(), "t", p, epoch-1))
}

func TestDroppedPartitionsAreRemovedAndForgotten(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p, kept := w.create("s1"), w.create("s1")
	w.led(p)
	w.led(kept)
	w.must(s1.put(p, 1, point.All))
	w.must(s1.put(kept, 1, point.All))
	w.change(topology.Drop{IDs: []point.PartitionID{p}})
	w.until("its rows are gone", func() bool { return len(s1.server.Held()) == 1 })
	w.stale(s1.put(p, 2, point.All))
	w.until("its lease row is nobody's, for the master to sweep", func() bool { l, _ := w.row(p); return l.State != lease.Held })
	s1.wantRows("7: 201", kept)
}

// TestOldMapDeletesNothing: a server that restarts and gets a map older than its rows keeps them.
func TestOldMapDeletesNothing(t *testing.T) {
	w := newWorld(t)
	fs := vfs.NewMem()
	s1 := w.start("s1", fs)
	gone := w.create("s1")
	w.change(topology.Drop{IDs: []point.PartitionID{gone}})
	old, _ := w.maps.Get("t") // here partition 1 is dropped, and 2 was never given out
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	s1.kill()
	w.maps.put(old)
	s1 = w.start("s1", fs)
	w.until("it raises an alarm", func() bool { return gauge(t, s1) == 1 })
	if len(s1.server.Held()) != 1 {
		t.Fatal("an old map deleted a partition")
	}
	next, err := old.Apply(topology.Create{Partitions: []topology.Partition{{ID: p, TimeLo: 200e9, TimeHi: 300e9, Placements: []topology.Placement{{ID: 21, Server: "s1"}}}}})
	w.must(err)
	w.maps.put(next)
	w.led(p)
	s1.wantRows("7: 201", p)
	w.until("the alarm is over", func() bool { return gauge(t, s1) == 0 })
}

// TestDroppedTable: with its rows here it is an alarm, and they stay; without, it is forgotten and may be made again.
func TestDroppedTable(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	first, _ := w.maps.Get("t")
	w.maps.drop()
	w.until("it raises an alarm", func() bool { return gauge(t, s1) == 1 })
	s1.wantRows("7: 101", p)
	w.maps.put(first)
	w.until("the alarm is over", func() bool { return gauge(t, s1) == 0 })
	w.change(topology.Drop{IDs: []point.PartitionID{p}})
	w.until("its rows are gone", func() bool { return len(s1.server.Held()) == 0 })
	w.until("its lease is nobody's", func() bool { l, _ := w.row(p); return l.State != lease.Held })
	w.maps.drop()
	w.until("the highest seq is forgotten", func() bool {
		_, ok, err := s1.brick.Get([]byte(seenPrefix + "t"))
		return err == nil && !ok
	})
	gone := lease.Partition{Table: "t", ID: p} // the master sweeps
	_, _, err := w.store.Commit(t.Context(), nil, []coord.Write{{Key: lease.RowKey(gone), Delete: true}, {Key: lease.BornKey(gone), Delete: true}})
	w.must(err)
	again, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	w.must(err)
	w.maps.put(again)
	if p = w.create("s1"); p != 1 {
		t.Fatalf("the new table begins with partition %d", p)
	}
	w.led(p)
	w.must(s1.put(p, 5, point.All))
	s1.wantRows("7: 105", p)
}

// TestOnlyCopyIsNotRemovedByAMap: a partition with rows on one server alone was given to another by mistake.
func TestOnlyCopyIsNotRemovedByAMap(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	pl := topology.Placement{ID: 99, Server: "s2"}
	w.maps.isOld()
	w.change(topology.Join{Partition: p, Placement: pl}, topology.JoinFinalize{Partition: p, Placement: pl.ID}, topology.Remove{Partition: p, Placement: 11})
	w.until("it raises an alarm", func() bool { return gauge(t, s1) == 1 })
	s1.wantRows("7: 101", p)
	w.stale(s1.put(p, 2, point.All))

	// A replica that the lease row lists instead has every acked row: then this one is removed, once no leader with an older map than ours can
	// list it again. Here the build that made the transaction did not write that into the row.
	w.edit(p, func(l lease.Lease) lease.Lease {
		l.InSync = []lease.Member{{Placement: 99, Server: "s2", Store: "elsewhere"}}
		l.State, l.Holder, l.Boot, l.Seq = lease.Held, "s2", "b2", 0
		return l
	})
	w.until("its copy is removed", func() bool { return len(s1.server.Held()) == 0 })
	m, _ := w.maps.Get("t")
	if l, _ := w.row(p); l.Seq != m.Seq || len(l.InSync) != 1 || l.Holder != "s2" {
		t.Errorf("the copy is removed at map %d by a row of map %d: %+v", m.Seq, l.Seq, l)
	}
}

// TestOnlyCopyThatIsGivenBackTakesRowsAgain: the mistake is corrected, and the placement that has the rows accepts rows again.
func TestOnlyCopyThatIsGivenBackTakesRowsAgain(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	ours, other := topology.Placement{ID: 11, Server: "s1"}, topology.Placement{ID: 99, Server: "s2"}
	move := func(from, to topology.Placement) {
		w.change(topology.Join{Partition: p, Placement: to}, topology.JoinFinalize{Partition: p, Placement: to.ID}, topology.Remove{Partition: p, Placement: from.ID})
	}
	w.maps.isOld()
	move(ours, other)
	w.until("it raises an alarm", func() bool { return gauge(t, s1) == 1 })
	w.until("it refuses rows", func() bool { return fault.Is(s1.put(p, 1, point.All), fault.Stale) }) // a moment later
	move(other, ours)
	w.until("it takes rows again", func() bool { return s1.put(p, 3, point.All) == nil })
	s1.wantRows("7: 101 103", p)
}

func (w *world) split(p, low point.PartitionID, server topology.ServerID) {
	child := func(id point.PartitionID) topology.Child {
		return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(10 * id), Server: server}}}
	}
	w.change(topology.SplitBegin{Partition: p, Split: topology.Split{At: topology.AtTime(int64(p)*100e9 + 50e9), Low: child(low), High: child(low + 1)}},
		topology.SplitFinalize{Partition: p, Low: low})
}

func TestSplitPartitionWithRowsStaysReadable(t *testing.T) {
	w := newWorld(t)
	fs := vfs.NewMem()
	s1 := w.start("s1", fs)
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	w.split(p, 2, "s1")
	w.led(2)
	w.led(3)
	w.until("the parent is sealed", func() bool { return fault.Is(s1.put(p, 2, point.All), fault.Stale) })
	w.must(s1.putAs(2, 7, 103e9, point.All))
	w.must(s1.putAs(3, 7, 170e9, point.All))
	check := func() {
		t.Helper()
		m, _ := w.maps.Get("t")
		var ids []point.PartitionID
		for _, at := range m.Overlapping(0, 1<<62) {
			ids = append(ids, at.ID)
			w.led(at.ID)
		}
		if len(ids) != 3 {
			t.Errorf("partitions to read: %v", ids)
		}
		got, err := s1.read(ids...)
		if err != nil || got != "7: 101 103 170" && got != "7: 101 102 103 170" { // one more row may have come before the seal
			t.Errorf("read %q, %v", got, err)
		}
	}
	check()
	s1.kill()
	s1 = w.start("s1", fs)
	check()
	w.stale(s1.put(p, 4, point.All))
}

// begin begins a split and leaves the rest to the leader.
func (w *world) begin(p, low point.PartitionID, server topology.ServerID) {
	child := func(id point.PartitionID) topology.Child {
		return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(10 * id), Server: server}}}
	}
	w.change(topology.SplitBegin{Partition: p, Split: topology.Split{At: topology.AtTime(int64(p)*100e9 + 50e9), Low: child(low), High: child(low + 1)}})
}

func (w *world) state(p point.PartitionID) topology.State {
	w.t.Helper()
	m, _ := w.maps.Get("t")
	at, ok := m.ByID(p)
	if !ok {
		w.t.Fatalf("no p%d", p)
	}
	return at.State
}

// TestSplitOfPartitionWithRowsIsFinished: its leader seals it and hands it over; before, the split never ended.
func TestSplitOfPartitionWithRowsIsFinished(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	w.start("s2", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	before, _ := w.maps.Get("t")
	w.begin(p, 2, "s2")
	w.until("it unloads", func() bool { return w.state(p) == topology.Unload })
	// A reader by the old map would miss the rows that the halves accept.
	ask := func(seq uint64) error {
		_, _, err := s1.server.LabelNames(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{p}, Hi: 1 << 62, MapSeq: seq}, 0)
		return err
	}
	w.stale(ask(before.Seq))
	after, _ := w.maps.Get("t")
	w.must(ask(after.Seq))
	w.must(ask(0))
	if w.led(2) == s1 || w.led(3) == s1 {
		t.Error("a half is led where it has no placement")
	}
	w.stale(s1.put(p, 2, point.All))
	w.must(w.led(2).putAs(2, 7, 103e9, point.All))
	w.must(w.led(3).putAs(3, 7, 170e9, point.All))
	s1.wantRows("7: 101", p)
	w.led(2).wantRows("7: 103", 2)
	w.led(3).wantRows("7: 170", 3)
}

// TestDamagedPartitionIsSplitSoThatRowsAreTakenAgain: its leader cannot read a segment, and so accepts no rows of its part of the
// keyspace; its halves do.
func TestDamagedPartitionIsSplitSoThatRowsAreTakenAgain(t *testing.T) {
	w := newWorld(t)
	fs := vfs.NewMem()
	s1 := w.start("s1", fs)
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	w.must(s1.server.FlushAll(t.Context(), false))
	dir := s1.brick.SegmentDir(11)
	s1.kill()
	names, err := fs.List(dir)
	w.must(err)
	for _, name := range names {
		w.must(fs.Remove(fs.PathJoin(dir, name)))
	}
	s1 = w.start("s1", fs)
	w.led(p)
	if err := s1.put(p, 2, point.All); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an insert: %v, want unavailable", err)
	}
	w.begin(p, 2, "s1")
	w.until("it unloads", func() bool { return w.state(p) == topology.Unload })
	w.must(w.led(2).putAs(2, 7, 103e9, point.All))
	w.led(2).wantRows("7: 103", 2)
	if _, err := s1.read(p); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a select: %v, want corrupt", err)
	}
	if len(s1.server.Held()) != 2 {
		t.Error("the damaged partition was given up")
	}
}

// TestPartitionTakesRowsWhileItsSplitCannotBeFinished: no majority of metadata servers, or a person who aborts it.
func TestPartitionTakesRowsWhileItsSplitCannotBeFinished(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	refuse := func(f func(topology.Op) error) {
		w.maps.mu.Lock()
		defer w.maps.mu.Unlock()
		w.maps.refuse = f
	}
	refuse(func(op topology.Op) error {
		if _, ok := op.(topology.SplitFinalize); ok {
			return errAway
		}
		return nil
	})
	ask := func(seq uint64) error {
		_, _, err := s1.server.LabelNames(t.Context(), &peer.Select{Table: "t", Partitions: []point.PartitionID{p}, Hi: 1 << 62, MapSeq: seq}, 0)
		return err
	}
	began, _ := w.maps.Get("t")
	w.must(ask(began.Seq))
	w.maps.setAway(true)
	w.begin(p, 2, "s1")
	// A proposal of an earlier leader cannot be ruled out while the store is away: rows are accepted, and nothing is closed.
	began, _ = w.maps.Get("t")
	w.until("readers by the map wait", func() bool { return fault.Is(ask(began.Seq), fault.Stale) })
	w.must(s1.put(p, 2, point.All))
	w.maps.setAway(false)
	w.until("finishing was tried", func() bool {
		w.maps.mu.Lock()
		defer w.maps.mu.Unlock()
		w.maps.away = w.maps.refused > 0
		return w.maps.away
	})
	w.until("it takes rows", func() bool { return s1.put(p, 2, point.All) == nil })
	// The halves may lead, and a reader without them in its map may miss the rows that they acked.
	w.until("readers by the map wait", func() bool { return fault.Is(ask(began.Seq), fault.Stale) })
	for range 20 {
		w.stale(ask(began.Seq))
		w.must(ask(0)) // a reader with a map in which it unloads asks the halves too
	}
	w.maps.setAway(false)
	w.until("it is ruled out", func() bool { return ask(began.Seq) == nil })
	refuse(nil)
	w.change(topology.SplitAbort{Partition: p, Low: 2})
	w.until("it takes rows again", func() bool { return s1.put(p, 3, point.All) == nil })
	s1.wantRows("7: 101 102 103", p)
}

func TestSplitEmptyPartitionIsForgotten(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.split(p, 2, "s1")
	w.until("the parent is out of the map", func() bool { m, _ := w.maps.Get("t"); _, there := m.ByID(p); return !there })
	w.led(2)
	w.must(s1.putAs(2, 7, 103e9, point.All))
	s1.wantRows("7: 103", 2)
}

// TestRowsAckedByAnotherAreNotForgottenWithAnEmptyPartition: when the removal of an empty partition from the map is proposed,
// no other server is in sync any more that could acquire it meanwhile by an older map and ack rows.
func TestRowsAckedByAnotherAreNotForgottenWithAnEmptyPartition(t *testing.T) {
	w := newWorld(t)
	w.start("s1", vfs.NewMem())
	s2 := w.start("s2", vfs.NewMem())
	w.until("s2 is heard", func() bool { return s2.Status().Good })
	p := w.create("s1", "s2")
	w.led(p)
	w.until("both are in sync", func() bool { l, _ := w.row(p); return len(l.InSync) == 2 })
	inSync := 0
	w.maps.mu.Lock()
	w.maps.refuse = func(op topology.Op) error {
		if _, ok := op.(topology.UnloadFinal); ok && inSync == 0 {
			l, _ := w.row(p)
			inSync = len(l.InSync)
		}
		return nil
	}
	w.maps.mu.Unlock()
	w.split(p, 2, "s1")
	w.until("the parent is out of the map", func() bool { m, _ := w.maps.Get("t"); _, there := m.ByID(p); return !there })
	w.maps.mu.Lock()
	defer w.maps.mu.Unlock()
	if inSync != 1 {
		t.Errorf("%d were in sync when it was proposed", inSync)
	}
}

// TestOverloadedServerOffersWhatItHasNoRowsOf: it keeps partitions when it alone has the rows, however busy it is.
func TestOverloadedServerOffersWhatItHasNoRowsOf(t *testing.T) {
	w := newWorld(t)
	w.heads = 64 << 10
	s1 := w.start("s1", vfs.NewMem())
	full := w.create("s1")
	w.led(full)
	s2 := w.start("s2", vfs.NewMem())
	w.until("s2 is heard", func() bool { return s2.Status().Good })
	var empty point.PartitionID
	for s1.Status().Held < 2 { // by turns: each server acquires its share
		empty = w.create("s1", "s2")
		w.led(empty)
		w.until("both are in sync", func() bool { l, _ := w.row(empty); return len(l.InSync) == 2 })
	}
	w.until("s1 leads the newest one", func() bool { return s1.leads(empty) })
	for range 2 { // so that s2 is below its share, however many it acquired
		w.led(w.create("s1"))
	}
	for i := 0; s1.server.HeadLoad() < 0.95; i++ {
		w.must(s1.putAs(full, i, int64(full)*100e9, point.All))
	}
	w.until("the empty one is led by s2", func() bool { return s2.leads(empty) })
	if !s1.leads(full) {
		t.Error("the overloaded server gave up what only it has")
	}
}

func TestLeavingLetsOthersTakeAtOnce(t *testing.T) {
	w := newWorld(t)
	w.lease.ValidFor, w.lease.TakeAfter = time.Hour, 2*time.Hour // only a free row can be acquired
	w.start("s1", vfs.NewMem())
	w.start("s2", vfs.NewMem())
	p := w.create("s1", "s2")
	first := w.led(p)
	w.until("both are in sync", func() bool { l, _ := w.row(p); return len(l.InSync) == 2 })
	w.must(first.Leave(t.Context()))
	first.kill()
	if w.led(p) == first {
		t.Error("who left leads")
	}
}

func TestFencedServerStopsAndDoesNotLeave(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	w.must(s1.put(p, 1, point.All))
	s1.brick.Fence(errAway)
	if err := s1.put(p, 2, point.All); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a fenced server answers %v", err)
	}
	if err := s1.Leave(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a fenced server leaves: %v", err)
	}
	err := <-s1.ended
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("Run ended with %v", err)
	}
	s1.ended <- err
	if l, _ := w.row(p); l.State != lease.Held {
		t.Error("a fenced server gave its lease up")
	}
}

// gauge returns the number of alarms that a server shows.
func gauge(t *testing.T, n *node) int {
	t.Helper()
	return int(value(t, n.metrics.alarms))
}
