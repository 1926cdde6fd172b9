package master

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// library is metadata servers in one process, that die, come back, and lose their disks.
type library struct {
	t     *testing.T
	store coord.Store

	mu   sync.Mutex
	runs map[topology.ServerID]*mapstore.Server
	stop map[topology.ServerID]func()
	disk map[topology.ServerID]*filesmem.Disk
}

func newLibrary(t *testing.T, store coord.Store, ids ...topology.ServerID) *library {
	l := &library{t: t, store: store, runs: map[topology.ServerID]*mapstore.Server{}, stop: map[topology.ServerID]func(){}, disk: map[topology.ServerID]*filesmem.Disk{}}
	for _, id := range ids {
		l.start(id, filesmem.New())
	}
	t.Cleanup(func() {
		for _, id := range ids {
			l.kill(id)
		}
	})
	return l
}

func (l *library) start(id topology.ServerID, disk *filesmem.Disk) {
	l.t.Helper()
	s, err := mapstore.New(mapstore.Deps{Store: l.store, Peers: l.peer, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(rand.Uint64(), 1)), Self: id, Disk: disk}, mapstore.Settings{CatchUpGrace: time.Millisecond})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id], l.disk[id] = s, disk
	l.stop[id] = func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		s.Close()
	}
}

func (l *library) kill(id topology.ServerID) {
	l.mu.Lock()
	stop := l.stop[id]
	delete(l.runs, id)
	delete(l.stop, id)
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (l *library) peer(id topology.ServerID) (peer.Metadata, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.runs[id]
	return s, ok
}

// Join and Remove are done by any server that runs, as the master's process does it.
func (l *library) Join(ctx context.Context, table string, s topology.ServerID) error {
	return l.any().Join(ctx, table, s)
}

func (l *library) Remove(ctx context.Context, table string, s topology.ServerID) error {
	return l.any().Remove(ctx, table, s)
}

func (l *library) any() *mapstore.Server {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[sortedServers(l.runs)[0]]
}

func (l *library) row(table string) (r mapstore.Row) {
	l.t.Helper()
	row, ok, err := l.store.Get(l.t.Context(), mapstore.Key(table))
	if err == nil && ok {
		r, err = mapstore.DecodeRow(row)
	}
	if err != nil || !ok {
		l.t.Fatalf("the row of %s: %t, %v", table, ok, err)
	}
	return r
}

// kept reports whether exactly these servers keep a table, and each has its committed file on its disk.
func (l *library) kept(table string, by ...topology.ServerID) bool {
	row := l.row(table)
	if !slices.Equal(row.Servers, by) {
		return false
	}
	for _, id := range by {
		l.mu.Lock()
		disk := l.disk[id]
		l.mu.Unlock()
		if _, _, err := disk.Get(table, row.Txn); err != nil {
			return false
		}
	}
	return true
}

// change writes to the map: it needs a majority.
func (l *library) change(table string, width time.Duration) error {
	row := l.row(table)
	s := l.any()
	_, err := s.Change(l.t.Context(), &peer.Change{Table: table, Base: row.Txn, Txn: s.NewTxnID(),
		Ops: topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: width}}})})
	return err
}

// TestTablesSurviveTheirMetadataServersOneByOne: s1 made the table alone; each metadata server dies in turn for good, or loses
// its disk, and the map can be read and changed all the while.
func TestTablesSurviveTheirMetadataServersOneByOne(t *testing.T) {
	store := mem.New()
	lib := newLibrary(t, store, "s1", "s2", "s3")
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lib.any().Create(t.Context(), m, []topology.ServerID{"s1"}); err != nil {
		t.Fatal(err)
	}
	w := &beats{store: store}
	set := fast
	set.DeadAfter, set.SettleAfter = time.Second, 100*time.Millisecond
	regs := servers()
	var mu sync.Mutex
	r, err := New(Deps{Store: store, Tables: newShelf(), MapServers: lib, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 1)), Server: "m1", Boot: "b",
		Servers: func() []registry.Server {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(regs)
		}}, set)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return w.run(ctx) })
	g.Go(func() error { return r.Run(ctx) })
	changes := 0
	changed := func() {
		t.Helper()
		changes++
		until(t, "a majority takes a change", func() bool {
			err := lib.change("cpu", time.Hour+time.Duration(changes)*time.Second)
			if err != nil && !fault.Is(err, fault.Stale) && !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	until(t, "all three keep it", func() bool { return lib.kept("cpu", "s1", "s2", "s3") })
	changed()

	// A disk is lost: its server fetches its files again.
	lib.kill("s2")
	lib.start("s2", filesmem.New())
	until(t, "s2 has fetched it", func() bool { return lib.kept("cpu", "s1", "s2", "s3") })

	// s1, which made it, is gone for good; the two that are left go on.
	w.down[1].Store(true)
	lib.kill("s1")
	until(t, "s1 is off the list", func() bool { return lib.kept("cpu", "s2", "s3") })
	changed()

	// It comes back, with an old file, and joins again; then s3 is forgotten by a person.
	lib.start("s1", lib.disk["s1"])
	w.down[1].Store(false)
	until(t, "s1 keeps it again", func() bool { return lib.kept("cpu", "s1", "s2", "s3") })
	w.down[3].Store(true)
	lib.kill("s3")
	mu.Lock()
	regs = regs[:2]
	mu.Unlock()
	until(t, "s3 is off the list", func() bool { return lib.kept("cpu", "s1", "s2") })
	changed()
	if got, want := lib.row("cpu").Seq, uint64(changes)+1; got < want {
		t.Errorf("transaction %d after %d changes", got, changes)
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
