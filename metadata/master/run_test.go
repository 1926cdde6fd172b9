package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// shelf is the maps of a test, changed as package tables does: an op on the newest map, one after the other.
type shelf struct {
	maps atomic.Pointer[map[string]*topology.Map]
	// before is called in the middle of a change.
	before func()
}

func newShelf(maps ...*topology.Map) *shelf {
	s, all := &shelf{}, map[string]*topology.Map{}
	for _, m := range maps {
		all[m.Table] = m
	}
	s.maps.Store(&all)
	return s
}

func (s *shelf) Names() []string { return sortedKeys(*s.maps.Load()) }

func (s *shelf) Get(name string) (*topology.Map, bool) {
	m, ok := (*s.maps.Load())[name]
	return m, ok
}

func (s *shelf) Change(_ context.Context, name string, f func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error) {
	for {
		old := s.maps.Load()
		ops, err := f((*old)[name])
		if err != nil {
			return nil, err
		}
		if s.before != nil {
			s.before()
		}
		m, err := (*old)[name].Apply(ops...)
		if err != nil {
			return nil, err
		}
		next := map[string]*topology.Map{}
		for k, v := range *old {
			next[k] = v
		}
		next[name] = m
		if s.maps.CompareAndSwap(old, &next) {
			return m, nil
		}
	}
}

// EndDrop implements Tables.
func (s *shelf) EndDrop(_ context.Context, name string) error {
	next := map[string]*topology.Map{}
	for k, v := range *s.maps.Load() {
		if k != name {
			next[k] = v
		}
	}
	s.maps.Store(&next)
	return nil
}

func (s *shelf) server(t *testing.T, id point.PartitionID) topology.ServerID {
	t.Helper()
	m, _ := s.Get("cpu")
	p, ok := m.ByID(id)
	if !ok {
		t.Fatalf("no p%d", id)
	}
	return p.Placements[0].Server
}

// beats renews heartbeat rows of servers that run, until ctx ends.
type beats struct {
	store coord.Store
	down  [4]atomic.Bool
}

func (b *beats) run(ctx context.Context) error {
	for n := uint64(1); ctx.Err() == nil; n++ {
		for i := range b.down {
			if id := topology.ServerID("s" + string(rune('0'+i))); i > 0 && !b.down[i].Load() {
				row := lease.Beat{Server: id, Boot: "b", Store: "d", N: n}
				if _, _, err := b.store.Commit(ctx, nil, []coord.Write{{Key: lease.BeatKey(id), Value: row.Encode()}}); err != nil {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Millisecond):
		}
	}
	return nil
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func servers() []registry.Server {
	var out []registry.Server
	for _, id := range []topology.ServerID{"s1", "s2", "s3"} {
		out = append(out, registry.Server{ID: id, Host: string(id), Addr: "x:1"})
	}
	return out
}

// tomorrow has a table with n partitions of a day on one server, from tomorrow on.
func tomorrow(t *testing.T, n int, on topology.ServerID) *topology.Map {
	t.Helper()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m = m.Cover([]point.Nanos{time.Now().Add(time.Duration(i+1) * 24 * time.Hour).UnixNano()}, func(id point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: point.PlacementID(id), Server: on}}
		})
	}
	return m
}

var fast = Settings{Every: 40 * time.Millisecond, ActFor: 300 * time.Millisecond, TakeAfter: 500 * time.Millisecond,
	EmptyAfter: 700 * time.Millisecond, DeadAfter: time.Hour, SettleAfter: time.Hour}

// TestAServerDiesThenTheMaster: s2 dies and its unwritten partitions move; the master stops and the other goes on.
func TestAServerDiesThenTheMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		defer store.Close()
		maps := newShelf(tomorrow(t, 3, "s2"))
		b := &beats{store: store}
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		clock := func() time.Duration { return time.Since(began) }
		var g errgroup.Group
		g.Go(func() error { return b.run(ctx) })
		var runners []*Runner
		var stops []context.CancelFunc
		for _, name := range []topology.ServerID{"m1", "m2"} {
			r, err := New(Deps{Store: store, Tables: maps, Servers: servers, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, uint64(name[1]))), Server: name, Boot: "b", Clock: clock}, fast)
			if err != nil {
				t.Fatal(err)
			}
			one, cancel := context.WithCancel(ctx)
			g.Go(func() error { return r.Run(one) })
			runners, stops = append(runners, r), append(stops, cancel)
		}
		is := func(i int) bool { yes, _ := runners[i].Master(); return yes }
		until(t, "one is master", func() bool { return is(0) != is(1) })
		first := 0
		if is(1) {
			first = 1
		}
		time.Sleep(time.Second) // s2 is alive for a while: nothing is planned
		if _, steps := runners[first].Master(); len(steps) > 0 {
			t.Errorf("planned for a cluster that is well: %s", Format(steps))
		}
		b.down[2].Store(true)
		until(t, "all partitions leave s2", func() bool {
			return maps.server(t, 1) != "s2" && maps.server(t, 2) != "s2" && maps.server(t, 3) != "s2"
		})
		fences := func() int {
			rows, _, err := store.List(ctx, lease.Prefix+"no/")
			if err != nil {
				t.Fatal(err)
			}
			return len(rows)
		}
		until(t, "no fence is left", func() bool { return fences() == 0 })
		stops[first]()
		until(t, "the other is master", func() bool { return is(1 - first) })
		b.down[2].Store(false)
		b.down[1].Store(true)
		b.down[3].Store(true)
		until(t, "all partitions are on s2", func() bool {
			return maps.server(t, 1) == "s2" && maps.server(t, 2) == "s2" && maps.server(t, 3) == "s2"
		})
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// lost is a store; while it is away every request fails.
type lost struct {
	coord.Store
	away atomic.Bool
}

var errAway = fault.Errorf(fault.Unavailable, "away")

func (l *lost) Get(ctx context.Context, key string) (coord.Row, bool, error) {
	if l.away.Load() {
		return coord.Row{}, false, errAway
	}
	return l.Store.Get(ctx, key)
}

func (l *lost) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if l.away.Load() {
		return nil, 0, errAway
	}
	return l.Store.List(ctx, prefix)
}

func (l *lost) Commit(ctx context.Context, c []coord.Condition, w []coord.Write) (coord.Revision, bool, error) {
	if l.away.Load() {
		return 0, false, errAway
	}
	return l.Store.Commit(ctx, c, w)
}

// TestTheStoreIsAwayAndNobodyIsTakenForDead: silence of servers counts only while the store answers.
func TestTheStoreIsAwayAndNobodyIsTakenForDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New()
		defer inner.Close()
		store := &lost{Store: inner}
		maps := newShelf(tomorrow(t, 2, "s2"))
		b := &beats{store: inner}
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		clock := func() time.Duration { return time.Since(began) }
		var g errgroup.Group
		g.Go(func() error { return b.run(ctx) })
		set := fast
		r, err := New(Deps{Store: store, Tables: maps, Servers: servers, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 1)), Server: "m1", Boot: "b", Clock: clock}, set)
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error { return r.Run(ctx) })
		is := func() bool { yes, _ := r.Master(); return yes }
		until(t, "it is master", is)
		store.away.Store(true)
		until(t, "it is master no more", func() bool { return !is() })
		store.away.Store(false)
		until(t, "it is master again", is)
		until(t, "it planned", func() bool { _, steps := r.Master(); return len(steps) == 0 })
		if maps.server(t, 1) != "s2" || maps.server(t, 2) != "s2" {
			t.Error("partitions moved because the store was away")
		}
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestRowsAreNotMovedAwayFromUnderTheirLeader: s2 acquires the lease after the plan was made and before it is carried out;
// and while it is carried out it cannot.
func TestRowsAreNotMovedAwayFromUnderTheirLeader(t *testing.T) {
	ctx := t.Context()
	take := func(store coord.Store, p lease.Partition) bool { // as package lease does
		row := lease.Lease{State: lease.Held, Holder: "s2", Boot: "b", Epoch: 1}
		_, ok, err := store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(p)}, {Key: lease.ProhibitKey(p, "s2")}, {Key: lease.BornKey(p)}},
			[]coord.Write{{Key: lease.RowKey(p), Value: row.Encode()}, {Key: lease.BornKey(p), Value: []byte(`{"v":1}`)}})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	setup := func() (*executor, *shelf, []Step) {
		maps := newShelf(tomorrow(t, 1, "s2"))
		m, _ := maps.Get("cpu")
		s := State{Now: time.Now().UnixNano(), Tables: []*topology.Map{m}}
		for _, srv := range servers() {
			s.Servers = append(s.Servers, Server{Server: srv, Live: srv.ID != "s2", For: time.Hour})
		}
		steps := Plan(s, Settings{}, rand.New(rand.NewPCG(1, 1)))
		if len(steps) != 1 || steps[0].Kind != Repair {
			t.Fatalf("plan: %s", Format(steps))
		}
		return &executor{store: mem.New(), tables: maps, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}, maps, steps
	}
	p := lease.Partition{Table: "cpu", ID: 1}
	run := func(x *executor, maps *shelf, steps []Step) {
		m, _ := maps.Get("cpu")
		x.carryOut(ctx, []*topology.Map{m}, steps)
	}

	x, maps, steps := setup()
	if !take(x.store, p) {
		t.Fatal("s2 cannot take what is free")
	}
	run(x, maps, steps)
	if maps.server(t, 1) != "s2" {
		t.Error("rows were moved away from under their leader")
	}

	x, maps, steps = setup()
	taken := true
	maps.before = func() { taken = take(x.store, p) }
	run(x, maps, steps)
	if taken || maps.server(t, 1) == "s2" {
		t.Errorf("taken %v while it moved, and lies on %s", taken, maps.server(t, 1))
	}
	if rows, _, err := x.store.List(ctx, lease.Prefix); err != nil || len(rows) != 0 {
		t.Errorf("left behind: %v %v", rows, err)
	}

	// The answer is lost: the fence stays, until a later master finds it old.
	x, maps, steps = setup()
	x.tables = &deaf{maps}
	run(x, maps, steps)
	if take(x.store, p) {
		t.Error("taken although the change may yet be committed")
	}
	clock := time.Duration(1)
	rows := NewRows(func() time.Duration { return clock }, time.Second)
	list, rev, err := x.store.List(ctx, lease.Prefix)
	if err != nil || rows.Listed(list, rev) != nil {
		t.Fatal(err)
	}
	if old := rows.OldFences(); len(old) != 0 {
		t.Errorf("a fresh fence is old: %v", old)
	}
	for range int(fenceAge/time.Second) + 1 {
		clock += time.Second
		if err := rows.Changed(nil); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Deps{Store: x.store, Tables: maps, Servers: servers, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 1))}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	r.unfenceOld(ctx, rows)
	if !take(x.store, p) {
		t.Error("an old fence stays for ever")
	}
}

// deaf loses the answers to changes.
type deaf struct{ *shelf }

func (d *deaf) Change(context.Context, string, func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error) {
	return nil, fault.Errorf(fault.Unavailable, "no answer")
}

// TestOneRefusedStepDoesNotStopTheOthers: steps that topology refuses are left out.
func TestOneRefusedStepDoesNotStopTheOthers(t *testing.T) {
	maps := newShelf(tomorrow(t, 2, "s2"))
	m, _ := maps.Get("cpu")
	x := &executor{store: mem.New(), tables: maps, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
	x.carryOut(t.Context(), []*topology.Map{m}, []Step{
		{Kind: Retention, Table: "cpu", Ops: []topology.Op{topology.Drop{IDs: []point.PartitionID{99}}}},
		{Kind: Retention, Table: "cpu", Ops: []topology.Op{topology.Drop{IDs: []point.PartitionID{1}}}},
		{Kind: Retention, Table: "cpu", Ops: []topology.Op{topology.Drop{IDs: []point.PartitionID{2}}}},
	})
	if m, _ := maps.Get("cpu"); m.Len() != 0 {
		t.Errorf("left: %s", m)
	}
	// Steps planned on an older map are not carried out.
	x.carryOut(t.Context(), []*topology.Map{m}, []Step{{Kind: Ahead, Table: "cpu", Ops: []topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: time.Hour}}}}})
	if m, _ := maps.Get("cpu"); m.Config.PartitionWidth != 24*time.Hour {
		t.Error("carried out on a map that it was not planned on")
	}
}

// TestLeaseRowsOfTheDroppedAreSwept, and those of a table that came back are not.
func TestLeaseRowsOfTheDroppedAreSwept(t *testing.T) {
	ctx, store := t.Context(), mem.New()
	p := lease.Partition{Table: "old", ID: 1}
	free := lease.Lease{State: lease.Free, Epoch: 3}
	for _, w := range []coord.Write{{Key: lease.RowKey(p), Value: free.Encode()}, {Key: lease.BornKey(p), Value: []byte(`{"v":1}`)}, lease.Prohibit(p, "s1", lease.Note{Who: "ann"})} {
		if _, _, err := store.Commit(ctx, nil, []coord.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	rows := NewRows(func() time.Duration { return 0 }, time.Second)
	list, rev, err := store.List(ctx, lease.Prefix)
	if err != nil || rows.Listed(list, rev) != nil {
		t.Fatal(err)
	}
	s := State{Now: 1}
	rows.Fill(&s, nil)
	if err := s.FillDropped(ctx, store); err != nil {
		t.Fatal(err)
	}
	steps := Plan(s, Settings{}, rand.New(rand.NewPCG(1, 1)))
	x := &executor{store: store, tables: newShelf(), rows: rows, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
	if _, _, err := store.Commit(ctx, nil, []coord.Write{{Key: "tables/old", Value: mapstore.Row{Txn: peer.TxnID{1}, Seq: 1, Servers: []topology.ServerID{"s1"}}.Encode()}}); err != nil {
		t.Fatal(err)
	}
	x.carryOut(ctx, nil, steps)
	if list, _, _ := store.List(ctx, lease.Prefix); len(list) != 3 {
		t.Errorf("rows of a table that came back were swept: %v", list)
	}
	if _, _, err := store.Commit(ctx, nil, []coord.Write{{Key: "tables/old", Value: mapstore.Row{Txn: peer.TxnID{1}, Seq: 9, Servers: []topology.ServerID{"s1"}, Dropped: true}.Encode()}}); err != nil {
		t.Fatal(err)
	}
	x.carryOut(ctx, nil, steps)
	if list, _, _ := store.List(ctx, lease.Prefix); len(list) != 1 || list[0].Key != lease.SweptKey("old") {
		t.Errorf("left: %v", list)
	}
}

// sized answers Stats.
type sized struct {
	peer.Storage
	stats peer.Stats
	err   error
}

func (s sized) Stats(context.Context, string, int) (*peer.Stats, error) { return &s.stats, s.err }

func TestSizesAreThoseOfWhoHoldsTheRows(t *testing.T) {
	at := func(id point.PartitionID, rows, bytes uint64) peer.PartitionStats {
		return peer.PartitionStats{ID: id, Rows: rows, Bytes: bytes, MaxTime: 9}
	}
	storage := func(id topology.ServerID) (peer.Storage, bool) {
		switch id {
		case "s1":
			return sized{stats: peer.Stats{ByPartition: []peer.PartitionStats{at(1, 100, 5000), at(2, 0, 0)}}}, true
		case "s2":
			return sized{stats: peer.Stats{ByPartition: []peer.PartitionStats{at(1, 10, 400), at(2, 7, 70)}}}, true
		}
		return sized{err: errors.New("no answer")}, true
	}
	got := Sizes(t.Context(), []string{"cpu"}, servers(), storage, slog.New(slog.DiscardHandler))
	if a, b := got[lease.Partition{Table: "cpu", ID: 1}], got[lease.Partition{Table: "cpu", ID: 2}]; a.Bytes != 5000 || b.Bytes != 70 || b.MaxTime != 9 || len(got) != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestAPlacerSpreadsWhatIsMadeInOneGo(t *testing.T) {
	m := tomorrow(t, 0, "s1")
	m, err := m.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: time.Hour, Replicas: 2}})
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	p := NewPlacer(func() State {
		looks++
		s := State{Tables: []*topology.Map{m}}
		for _, srv := range servers() {
			s.Servers = append(s.Servers, Server{Server: srv, Live: true, For: time.Hour})
		}
		return s
	}, replicasOf(&[]*topology.Map{m}), Settings{})
	count := map[topology.ServerID]int{}
	for id := range 30 {
		placed := p.Place("cpu", point.PartitionID(id+1))
		if len(placed) != 2 || placed[0] == placed[1] {
			t.Fatalf("p%d on %v", id+1, placed)
		}
		for _, s := range placed {
			count[s]++
		}
	}
	for _, s := range servers() {
		if count[s.ID] != 20 {
			t.Errorf("placed %v", count)
		}
	}
	if looks > 2 {
		t.Errorf("looked %d times", looks)
	}
	if got := p.Place("net", 1); len(got) != 1 {
		t.Errorf("a table that is not known yet has one replica: %v", got)
	}
	if slices.Contains(p.Place("cpu", 99), "s9") {
		t.Error("placed on nobody")
	}
}

// TestATableThatIsMadeRightAfterAnotherHasAllItsCopies: the servers of its first partition were chosen by a view of a moment before, which lacked the table. It
// got one placement, and its rows were staged until the master had added the others.
func TestATableThatIsMadeRightAfterAnotherHasAllItsCopies(t *testing.T) {
	s := State{}
	for _, srv := range servers() {
		s.Servers = append(s.Servers, Server{Server: srv, Live: true, For: time.Hour})
	}
	create := func(name string) {
		m, err := topology.New(name, topology.Config{PartitionWidth: time.Hour, Replicas: 3})
		if err != nil {
			t.Fatal(err)
		}
		s.Tables = append(s.Tables, m)
	}
	create("cpu")
	p := NewPlacer(func() State { return s }, replicasOf(&s.Tables), Settings{})
	for _, table := range []string{"cpu", "net"} {
		if table == "net" {
			create(table)
		}
		if got := p.Place(table, 1); len(got) != 3 {
			t.Errorf("the first partition of %s is placed on %v", table, got)
		}
	}
}

// replicasOf looks a table up, as a process does that has the newest maps.
func replicasOf(tables *[]*topology.Map) func(string) int {
	return func(table string) int {
		for _, m := range *tables {
			if m.Table == table {
				return m.Config.Replicas
			}
		}
		return 1
	}
}

// TestATenThousandthTableCostsNoLookAtAllOthers: each creation looked at all partitions of all tables, since none of the new ones was in the view of a moment
// before. The ten thousandth needed as long as a thousand at first.
func TestATenThousandthTableCostsNoLookAtAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s State
		for _, srv := range servers() {
			s.Servers = append(s.Servers, Server{Server: srv, Live: true, For: time.Hour})
		}
		looks := 0
		p := NewPlacer(func() State { looks++; return s }, func(string) int { return 3 }, Settings{})
		count := map[topology.ServerID]int{}
		for i := range 100 {
			table := fmt.Sprintf("tenant%d", i)
			placed := p.Place(table, 1)
			if len(placed) != 3 {
				t.Fatalf("%s on %v", table, placed)
			}
			count[placed[0]]++
		}
		if looks != 1 {
			t.Errorf("100 tables within a second took %d looks at all tables", looks)
		}
		for _, srv := range servers() {
			if count[srv.ID] < 10 {
				t.Errorf("first placements: %v", count)
			}
		}
		time.Sleep(placerAge + time.Millisecond)
		if p.Place("later", 1); looks != 2 {
			t.Errorf("%d looks a second later", looks)
		}
	})
}

// meddled is a store in which something happens just before the first commit.
type meddled struct {
	coord.Store
	before func()
}

func (m *meddled) Commit(ctx context.Context, c []coord.Condition, w []coord.Write) (coord.Revision, bool, error) {
	if m.before != nil {
		m.before()
		m.before = nil
	}
	return m.Store.Commit(ctx, c, w)
}

// TestAnEmptyPartitionIsTakenFromItsLeader: s2 leads a partition that its row says is empty, and is silent. It moves, unless
// s2 removed the mark before the fence; after the fence it can do so no more.
func TestAnEmptyPartitionIsTakenFromItsLeader(t *testing.T) {
	ctx := t.Context()
	p := lease.Partition{Table: "cpu", ID: 1}
	led := lease.Lease{State: lease.Held, Holder: "s2", Boot: "b", Store: "d", Epoch: 3, InSync: []lease.Member{{Placement: 1, Server: "s2", Store: "d"}}, Empty: true}
	get := func(store coord.Store) (lease.Lease, coord.Revision) {
		row, _, err := store.Get(ctx, lease.RowKey(p))
		if err != nil {
			t.Fatal(err)
		}
		l, err := lease.DecodeLease(row.Value)
		if err != nil {
			t.Fatal(err)
		}
		return l, row.Revision
	}
	// hold is a leader's write before the first ack, by the row as it last saw it.
	hold := func(store coord.Store, seen coord.Revision) bool {
		row := led
		row.Empty = false
		_, ok, err := store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(p), Revision: seen}}, []coord.Write{{Key: lease.RowKey(p), Value: row.Encode()}})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	setup := func() (x *executor, maps *shelf, carryOut func(), seen coord.Revision) {
		maps = newShelf(tomorrow(t, 1, "s2"))
		m, _ := maps.Get("cpu")
		x = &executor{store: mem.New(), tables: maps, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
		rev, _, err := x.store.Commit(ctx, nil, []coord.Write{{Key: lease.RowKey(p), Value: led.Encode()}, {Key: lease.BornKey(p), Value: []byte(`{"v":1}`)}})
		if err != nil {
			t.Fatal(err)
		}
		s := State{Now: time.Now().UnixNano(), Tables: []*topology.Map{m}, Leases: map[lease.Partition]lease.Lease{p: led}, Born: map[lease.Partition]bool{p: true}}
		for _, srv := range servers() {
			s.Servers = append(s.Servers, Server{Server: srv, Live: srv.ID != "s2", For: time.Hour})
		}
		steps := Plan(s, Settings{}, rand.New(rand.NewPCG(1, 1)))
		if len(steps) != 1 || steps[0].Kind != Repair {
			t.Fatalf("plan: %s", Format(steps))
		}
		return x, maps, func() { x.carryOut(ctx, []*topology.Map{m}, steps) }, rev
	}

	x, maps, carryOut, _ := setup()
	carryOut()
	l, _ := get(x.store)
	if !l.Vacant() || l.State != lease.Held || l.Holder != "s2" || l.Boot != "b" || l.Epoch != 3 {
		t.Errorf("the row became %+v", l) // a taker has to wait for s2 as ever
	}
	if maps.server(t, 1) == "s2" {
		t.Error("it did not move")
	}
	if rows, _, err := x.store.List(ctx, lease.Prefix+"no/"); err != nil || len(rows) != 0 {
		t.Errorf("left behind: %v %v", rows, err)
	}

	// Rows were acked after the plan was made.
	x, maps, carryOut, seen := setup()
	if !hold(x.store, seen) {
		t.Fatal("the leader cannot take rows")
	}
	carryOut()
	if l, _ := get(x.store); maps.server(t, 1) != "s2" || l.Empty || len(l.InSync) != 1 {
		t.Errorf("rows were moved away from under their leader, to %s; the row is %+v", maps.server(t, 1), l)
	}

	// The leader's first row comes while the map is being changed.
	x, maps, carryOut, seen = setup()
	held := true
	maps.before = func() { held = hold(x.store, seen) }
	carryOut()
	if held || maps.server(t, 1) == "s2" {
		t.Errorf("held %v while it moved, and lies on %s", held, maps.server(t, 1))
	}

	// It comes between the look at the row and the fence.
	x, maps, carryOut, seen = setup()
	inner := x.store
	held = false
	x.store = &meddled{Store: inner, before: func() { held = hold(inner, seen) }}
	carryOut()
	if l, _ := get(inner); !held || maps.server(t, 1) != "s2" || l.Empty || len(l.InSync) != 1 {
		t.Errorf("held %v, lies on %s, the row is %+v", held, maps.server(t, 1), l)
	}

	// A person set it offline meanwhile.
	x, maps, carryOut, seen = setup()
	if _, ok, err := x.store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(p), Revision: seen}},
		[]coord.Write{{Key: lease.RowKey(p), Value: led.TakenOffline(lease.Note{Who: "ann"}).Encode()}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	carryOut()
	if l, _ := get(x.store); maps.server(t, 1) != "s2" || l.Offline == nil || l.Vacant() {
		t.Errorf("what is offline was moved: %+v", l)
	}
}

// Master reports whether this process is master now, and returns its last plan; for pages.
func (r *Runner) Master() (is bool, last []Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.hold.MayAct(r.deps.Clock()), r.mu.last
}
