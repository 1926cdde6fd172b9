package mapstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// cluster is metadata servers in one process, each with its disk, that may be cut off and started again.
type cluster struct {
	t     *testing.T
	store coord.Store
	nodes []*node
	set   mapstore.Settings
}

type node struct {
	id   topology.ServerID
	disk *mem.Disk
	away atomic.Bool

	acted        atomic.Pointer[peer.Acted] // the transaction it acted by
	whole, steps atomic.Int64               // files that it sent, by form
	mu           sync.RWMutex
	server       *mapstore.Server
	stop         func()
}

func newCluster(t *testing.T, store coord.Store, n int, set mapstore.Settings) *cluster {
	c := &cluster{t: t, store: store, set: set}
	for i := range n {
		c.nodes = append(c.nodes, &node{id: topology.ServerID(fmt.Sprint("s", i+1)), disk: mem.New()})
	}
	for _, n := range c.nodes {
		c.start(n)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.stop()
		}
	})
	return c
}

func (c *cluster) start(n *node) {
	c.t.Helper()
	s, err := mapstore.New(mapstore.Deps{
		Store: c.store, Peers: c.peer, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(rand.Uint64(), 1)),
		Self: n.id, Disk: n.disk, Acted: func(string) peer.Acted {
			if a := n.acted.Load(); a != nil {
				return *a
			}
			return peer.Acted{}
		},
	}, c.set)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server = s
	n.stop = func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		s.Close()
	}
}

func (c *cluster) restart(n *node) {
	n.stop()
	c.start(n)
}

func (c *cluster) peer(id topology.ServerID) (peer.Metadata, bool) {
	for _, n := range c.nodes {
		if n.id == id {
			return n, true
		}
	}
	return nil, false
}

// A node is reached by others unless it is away.
func (n *node) reach() (*mapstore.Server, error) {
	if n.away.Load() {
		return nil, fault.Errorf(fault.Unavailable, "%s is away", n.id)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.server, nil
}

func (n *node) Change(ctx context.Context, c *peer.Change) (*peer.Changed, error) {
	s, err := n.reach()
	if err != nil {
		return nil, err
	}
	return s.Change(ctx, c)
}

func (n *node) Store(ctx context.Context, f *peer.File) error {
	s, err := n.reach()
	if err != nil {
		return err
	}
	return s.Store(ctx, f)
}

func (n *node) Fetch(ctx context.Context, q *peer.FileQuery) (*peer.File, error) {
	s, err := n.reach()
	if err != nil {
		return nil, err
	}
	f, err := s.Fetch(ctx, q)
	switch {
	case err != nil:
	case f.Map != nil:
		n.whole.Add(1)
	default:
		n.steps.Add(1)
	}
	return f, err
}

func (c *cluster) row(table string) mapstore.Row {
	c.t.Helper()
	row, ok, err := c.store.Get(c.t.Context(), mapstore.Key(table))
	if err != nil || !ok {
		c.t.Fatalf("row of %q: %v %v", table, ok, err)
	}
	r, err := mapstore.DecodeRow(row)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *cluster) create(table string, on ...topology.ServerID) {
	c.t.Helper()
	m, err := topology.New(table, topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.nodes[0].server.Create(c.t.Context(), m, on); err != nil {
		c.t.Fatal(err)
	}
}

// plan makes a change that covers an hour, on a map.
func plan(m *topology.Map, base peer.TxnID, hour int) *peer.Change {
	ops := []topology.Op{m.Covering([]point.Nanos{int64(hour) * int64(time.Hour)}, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	})}
	return &peer.Change{Table: m.Table, Base: base, Txn: mapstore.NewTxnID(rand.New(rand.NewPCG(rand.Uint64(), 2))), Ops: topology.EncodeOps(ops)}
}

// covers reports whether a partition covers an hour.
func covers(m *topology.Map, hour int) bool {
	_, ok := m.Find(0, int64(hour)*int64(time.Hour))
	return ok
}

// newest reads the row and finds its file anywhere.
func (c *cluster) newest(table string) (*topology.Map, mapstore.Row) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		row := c.row(table)
		for _, n := range c.nodes {
			f, err := n.Fetch(c.t.Context(), &peer.FileQuery{Table: table, Txn: row.Txn})
			if err != nil {
				continue
			}
			m, err := topology.Decode(f.Map)
			if err != nil {
				c.t.Fatal(err)
			}
			return m, row
		}
	}
	c.t.Fatalf("nobody has the newest file of %q", table)
	return nil, mapstore.Row{}
}

func (c *cluster) cover(via *node, table string, hour int) error {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		m, row := c.newest(table)
		_, err := via.Change(c.t.Context(), plan(m, row.Txn, hour))
		if !fault.Is(err, fault.Stale) || time.Now().After(deadline) {
			return err
		}
	}
}

// converged waits until every metadata server of the table has the committed file.
func (c *cluster) converged(table string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		row := c.row(table)
		missing := slices.DeleteFunc(slices.Clone(row.Servers), func(s topology.ServerID) bool {
			p, _ := c.peer(s)
			_, err := p.Fetch(c.t.Context(), &peer.FileQuery{Table: table, Txn: row.Txn})
			return err == nil
		})
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%v do not have transaction %d", missing, row.Seq)
		}
	}
}

func quick() mapstore.Settings {
	return mapstore.Settings{CatchUpGrace: time.Millisecond, SweepEvery: 20 * time.Millisecond, PeerTimeout: time.Second, KeepFiles: 2}
}

// TestManyProposersMakeOneSequence: twelve goroutines at three servers cover hours; each hour is covered once, each
// transaction stands on the one before, and the old files go.
func TestManyProposersMakeOneSequence(t *testing.T) {
	set := quick()
	set.KeepFiles = 16 // as many as may wait for their turn, and more
	c := newCluster(t, coordmem.New(), 3, set)
	c.create("cpu", "s1", "s2", "s3")
	var wg sync.WaitGroup
	for w := range 12 {
		wg.Go(func() {
			for i := range 5 {
				err := c.cover(c.nodes[w%3], "cpu", w*5+i)
				for fault.Is(err, fault.Unavailable) { // so many were faster that only the map shows whether it is committed
					if m, _ := c.newest("cpu"); covers(m, w*5+i) {
						err = nil
						break
					}
					err = c.cover(c.nodes[w%3], "cpu", w*5+i)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	m, row := c.newest("cpu")
	if m.Len() != 60 || row.Seq != 61 || m.Seq != 61 {
		t.Fatalf("%d partitions after transaction %d", m.Len(), row.Seq)
	}
	c.converged("cpu")
	for _, n := range c.nodes {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			list, err := n.disk.List()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(list, func(i mapstore.Info) bool { return i.Seq+16 <= row.Seq }) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s keeps %v", n.id, list)
			}
		}
	}
}

// TestOneOfThreeMayBeAway, and fetches the missed changes when it is back; two may not.
func TestOneOfThreeMayBeAway(t *testing.T) {
	c := newCluster(t, coordmem.New(), 3, quick())
	c.create("cpu", "s1", "s2", "s3")
	c.nodes[2].away.Store(true)
	for hour := range 5 {
		if err := c.cover(c.nodes[hour%2], "cpu", hour); err != nil {
			t.Fatal(err)
		}
	}
	c.nodes[1].away.Store(true)
	if err := c.cover(c.nodes[0], "cpu", 9); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("with two of three away: %v", err)
	}
	c.nodes[1].away.Store(false)
	c.nodes[2].away.Store(false)
	c.converged("cpu")
	for _, n := range c.nodes {
		c.restart(n)
	}
	if err := c.cover(c.nodes[2], "cpu", 10); err != nil {
		t.Fatal(err)
	}
	if m, _ := c.newest("cpu"); m.Len() != 6 {
		t.Fatalf("%v", m)
	}
}

// TestAWipedDiskIsFilledAgain from the others, and a damaged file is not served.
func TestAWipedDiskIsFilledAgain(t *testing.T) {
	c := newCluster(t, coordmem.New(), 3, quick())
	c.create("cpu", "s1", "s2", "s3")
	if err := c.cover(c.nodes[0], "cpu", 1); err != nil {
		t.Fatal(err)
	}
	c.converged("cpu")
	n := c.nodes[1]
	n.stop()
	n.disk = mem.New()
	c.start(n)
	c.converged("cpu")
	row := c.row("cpu")
	f, m, err := n.disk.Get("cpu", row.Txn)
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	f.Map[len(f.Map)/2] ^= 1
	if err := n.disk.Put(f, m); err != nil {
		t.Fatal(err)
	}
	c.start(n)
	if got, err := n.Fetch(t.Context(), &peer.FileQuery{Table: "cpu", Txn: row.Txn}); err == nil {
		if _, err := topology.Decode(got.Map); err != nil {
			t.Fatal("a damaged map was served")
		}
	}
	c.converged("cpu")
}

func TestServersJoinAndLeave(t *testing.T) {
	c := newCluster(t, coordmem.New(), 4, quick())
	c.create("cpu", "s1")
	s := c.nodes[0].server
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), "cpu", "s1"); !fault.Is(err, fault.Invalid) {
		t.Fatalf("the only one may leave: %v", err)
	}
	must(s.Join(t.Context(), "cpu", "s2"))
	must(s.Join(t.Context(), "cpu", "s3"))
	must(s.Join(t.Context(), "cpu", "s3"))
	must(c.cover(c.nodes[3], "cpu", 1)) // s4 keeps no file, and may coordinate
	must(s.Join(t.Context(), "cpu", "s4"))
	must(c.nodes[3].server.Remove(t.Context(), "cpu", "s1"))
	if row := c.row("cpu"); !slices.Equal(row.Servers, []topology.ServerID{"s2", "s3", "s4"}) {
		t.Fatalf("%v", row.Servers)
	}
	c.nodes[1].away.Store(true)
	c.nodes[2].away.Store(true)
	if err := s.Remove(t.Context(), "cpu", "s4"); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("the only one that answers may leave: %v", err)
	}
	c.nodes[1].away.Store(false)
	c.nodes[2].away.Store(false)
	must(c.cover(c.nodes[3], "cpu", 2))
	c.converged("cpu")
	if err := s.Join(t.Context(), "mem", "s4"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("no such table: %v", err)
	}
}

// TestCreatorsEndWithOneTable, and a table made after a drop goes on counting.
func TestCreatorsEndWithOneTable(t *testing.T) {
	c := newCluster(t, coordmem.New(), 3, quick())
	made := atomic.Int64{}
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 9 {
		wg.Go(func() {
			_, err := c.nodes[i%3].server.Create(t.Context(), m, []topology.ServerID{"s1", "s2", "s3"})
			if err == nil {
				made.Add(1)
			} else if !fault.Is(err, fault.Stale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Fatalf("%d made it", made.Load())
	}
	if err := c.cover(c.nodes[0], "cpu", 1); err != nil {
		t.Fatal(err)
	}
	next := func(want uint64, dropped bool) mapstore.Row {
		t.Helper()
		row := c.row("cpu")
		if row.Seq != want || row.Dropped != dropped {
			t.Fatalf("%+v", row)
		}
		return row
	}
	s := c.nodes[1].server
	if _, err := s.Drop(t.Context(), "cpu", peer.TxnID{1}); !fault.Is(err, fault.Stale) {
		t.Fatalf("dropped by an old map: %v", err)
	}
	if _, err := s.Drop(t.Context(), "cpu", next(2, false).Txn); err != nil {
		t.Fatal(err)
	}
	row := next(2, true)
	if _, err := s.Change(t.Context(), plan(m, row.Txn, 1)); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a dropped table changes: %v", err)
	}
	if _, err := s.Create(t.Context(), m, []topology.ServerID{"s2"}); err != nil {
		t.Fatal(err)
	}
	next(3, false)
	if m, _ := c.newest("cpu"); m.NextID < 2 {
		t.Fatalf("partition ids begin again: %v", m)
	}
}

// TestADroppedTablesNameCanBeUsedAgain although every server that kept its METADATA file is gone: by the row of this build, and by one
// of a build that did not keep the next partition id.
func TestADroppedTablesNameCanBeUsedAgain(t *testing.T) {
	for _, known := range []bool{true, false} {
		c := newCluster(t, coordmem.New(), 3, quick())
		c.create("cpu", "s1")
		if err := c.cover(c.nodes[0], "cpu", 5); err != nil {
			t.Fatal(err)
		}
		before, row := c.newest("cpu")
		if _, err := c.nodes[1].server.Drop(t.Context(), "cpu", row.Txn); err != nil {
			t.Fatal(err)
		}
		dropped := c.row("cpu")
		if !dropped.Dropped || dropped.NextID != before.NextID {
			t.Fatalf("%+v", dropped)
		}
		if !known {
			dropped.NextID = 0
			if _, _, err := c.store.Commit(t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: dropped.Encode()}}); err != nil {
				t.Fatal(err)
			}
		}
		c.nodes[0].away.Store(true) // and never comes back
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		d, err := c.nodes[1].server.Create(t.Context(), m, []topology.ServerID{"s2", "s3"})
		if err != nil {
			t.Fatalf("known %v: the name cannot be used: %v", known, err)
		}
		again, row := c.newest("cpu")
		if row.Seq != before.Seq+1 || row.Dropped || again.NextID < before.NextID || again.Config.PartitionWidth != time.Minute || d.Row.Txn != row.Txn {
			t.Errorf("known %v: %+v, next id %d after %d", known, row, again.NextID, before.NextID)
		}
		if err := c.cover(c.nodes[2], "cpu", 7); err != nil {
			t.Error(err)
		}
	}
}

// TestTheNewestMapIsFoundAfterAnOlderBackup: the coordination store goes back by three transactions. No transaction builds on its rows,
// and the newest file of a majority is found, not one that a single server has, also while a server is away.
func TestTheNewestMapIsFoundAfterAnOlderBackup(t *testing.T) {
	set := quick()
	set.KeepFiles, set.SweepEvery = 16, time.Hour // the files of the backup and of the race stay, however long the test lasts
	c := newCluster(t, coordmem.New(), 3, set)
	c.create("cpu", "s1", "s2", "s3")
	for hour := range 3 {
		if err := c.cover(c.nodes[hour], "cpu", hour); err != nil {
			t.Fatal(err)
		}
	}
	backup := c.row("cpu")
	for hour := range 3 {
		if err := c.cover(c.nodes[hour], "cpu", 10+hour); err != nil {
			t.Fatal(err)
		}
	}
	newest, row := c.newest("cpu")
	c.converged("cpu")
	next, err := newest.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	b := next.Encode() // a coordinator died when one server had it
	lone := &peer.File{Table: "cpu", Txn: peer.TxnID{9}, Base: row.Txn, Seq: next.Seq, Map: b, Sum: xxhash.Sum64(b), Digest: next.Digest()}
	if err := c.nodes[0].Store(t.Context(), lone); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.store.Commit(t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: backup.Encode()}}); err != nil {
		t.Fatal(err)
	}
	if err := c.cover(c.nodes[1], "cpu", 20); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a change on the old map: %v", err)
	}
	c.nodes[2].away.Store(true)
	ids := []topology.ServerID{"s1", "s2", "s3"}
	n, err := mapstore.FindNewest(t.Context(), "cpu", ids, 2, c.peer)
	if err != nil || n.File.Txn != row.Txn || n.Map.Digest() != newest.Digest() || !slices.Equal(n.Holders, ids[:2]) || !slices.Equal(n.Silent, ids[2:]) {
		t.Fatalf("%+v %v", n, err)
	}
	if follows, known := n.Follows(backup); !follows || !known {
		t.Errorf("it follows from the backup: %v, known %v", follows, known)
	}
	if follows, known := n.Follows(mapstore.Row{Txn: peer.TxnID{7}, Seq: backup.Seq}); follows || !known {
		t.Errorf("it does not follow from another history: %v, known %v", follows, known)
	}
	c.nodes[1].away.Store(true)
	if _, err := mapstore.FindNewest(t.Context(), "cpu", ids, 2, c.peer); !fault.Is(err, fault.Unavailable) {
		t.Errorf("by one server of three: %v", err)
	}
	c.nodes[1].away.Store(false)
	if _, _, err := c.store.Commit(t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: n.Row(backup).Encode()}}); err != nil {
		t.Fatal(err)
	}
	if err := c.cover(c.nodes[1], "cpu", 20); err != nil {
		t.Errorf("a change on the newest map: %v", err)
	}
}

// TestRepairGoesByTheMapThatServersActedBy: two proposers raced for a number, the file of the loser is on two of three servers, and of the winner's two
// one is gone. The loser's change was refused for good; the partitions that the winner made may have rows.
func TestRepairGoesByTheMapThatServersActedBy(t *testing.T) {
	set := quick()
	set.KeepFiles, set.SweepEvery = 16, time.Hour // the files of the backup and of the race stay, however long the test lasts
	c := newCluster(t, coordmem.New(), 4, set)
	c.create("cpu", "s1", "s2", "s3")
	if err := c.cover(c.nodes[0], "cpu", 0); err != nil {
		t.Fatal(err)
	}
	c.converged("cpu")
	base, backup := c.newest("cpu")
	lost, err := base.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	b := lost.Encode()
	loser := &peer.File{Table: "cpu", Base: backup.Txn, Seq: lost.Seq, Map: b, Sum: xxhash.Sum64(b), Digest: lost.Digest()}
	for i := range loser.Txn {
		loser.Txn[i] = 0xff // s2 names it as its newest, of two
	}
	for _, n := range c.nodes[1:3] {
		if err := n.Store(t.Context(), loser); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.cover(c.nodes[0], "cpu", 1); err != nil {
		t.Fatal(err)
	}
	c.converged("cpu")
	_, winner := c.newest("cpu")
	if winner.Seq != loser.Seq {
		t.Fatalf("no race: %d and %d", winner.Seq, loser.Seq)
	}
	if _, _, err := c.store.Commit(t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: backup.Encode()}}); err != nil {
		t.Fatal(err)
	}
	c.nodes[2].stop()
	if err := c.nodes[2].disk.Delete(mapstore.Info{Table: "cpu", Txn: winner.Txn}); err != nil {
		t.Fatal(err)
	}
	c.start(c.nodes[2])
	c.nodes[0].away.Store(true)
	ids := []topology.ServerID{"s1", "s2", "s3", "s4"}
	find := func(want mapstore.Row, holders, silent []topology.ServerID, witness topology.ServerID) {
		t.Helper()
		n, err := mapstore.FindNewest(t.Context(), "cpu", ids, 2, c.peer)
		if err != nil || n.File.Txn != want.Txn || !slices.Equal(n.Holders, holders) || !slices.Equal(n.Silent, silent) || n.Witness != witness {
			t.Fatalf("%v, silent %v: %v", n, n.Silent, err)
		}
	}
	find(mapstore.Row{Txn: loser.Txn}, ids[1:3], ids[:1], "") // nothing shows that another was committed
	c.nodes[3].acted.Store(&peer.Acted{Txn: winner.Txn, Seq: winner.Seq})
	find(winner, ids[1:2], ids[:1], "s4")
	n, err := mapstore.FindNamed(t.Context(), "cpu", ids, loser.Txn, c.peer)
	if err != nil || n.File.Txn != loser.Txn || len(n.Strays) != 1 || n.Strays[0].Server != "s4" {
		t.Errorf("by a person's word: %v, strays %v: %v", n, n.Strays, err)
	}
	c.nodes[1].away.Store(true)
	if n, err := mapstore.FindNewest(t.Context(), "cpu", ids, 2, c.peer); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no server has the committed file: %v, %v", n, err)
	}
}

// TestProposingAgainGivesTheSameAnswer, at the same server and at another, also when others have gone on.
func TestProposingAgainGivesTheSameAnswer(t *testing.T) {
	set := quick()
	set.KeepFiles = 8
	c := newCluster(t, coordmem.New(), 3, set)
	c.create("cpu", "s1", "s2", "s3")
	m, row := c.newest("cpu")
	p, rival := plan(m, row.Txn, 1), plan(m, row.Txn, 1)
	f := func(n *node) {
		t.Helper()
		if got, err := n.Change(t.Context(), p); err != nil || got.Txn != p.Txn || got.Seq != 2 {
			t.Fatalf("%+v %v", got, err)
		}
	}
	f(c.nodes[0])
	f(c.nodes[0])
	f(c.nodes[1])
	for hour := 2; hour < 6; hour++ {
		if err := c.cover(c.nodes[hour%3], "cpu", hour); err != nil {
			t.Fatal(err)
		}
	}
	c.converged("cpu")
	f(c.nodes[2])
	if _, err := c.nodes[2].Change(t.Context(), rival); !fault.Is(err, fault.Stale) {
		t.Fatalf("the loser of the race got %v", err)
	}
}

// flaky is a store that loses a commit, or its answer, now and then.
type flaky struct {
	coord.Store
	mu  sync.Mutex
	rng *rand.Rand
}

func (f *flaky) draw() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(6)
}

func (f *flaky) Commit(ctx context.Context, c []coord.Condition, w []coord.Write) (coord.Revision, bool, error) {
	switch f.draw() {
	case 0:
		return 0, false, fault.Errorf(fault.Unavailable, "the request was lost")
	case 1:
		_, _, err := f.Store.Commit(ctx, c, w)
		if err == nil {
			err = fault.Errorf(fault.Unavailable, "the answer was lost")
		}
		return 0, false, err
	}
	return f.Store.Commit(ctx, c, w)
}

// TestLostAnswersAreResolved: a proposer with an answer that its change is committed finds its partition, with a store that loses a
// third of the swaps.
func TestLostAnswersAreResolved(t *testing.T) {
	store := coordmem.New()
	c := newCluster(t, &flaky{Store: store, rng: rand.New(rand.NewPCG(3, 4))}, 3, quick())
	for i := 0; ; i++ {
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.nodes[0].server.Create(t.Context(), m, []topology.ServerID{"s1", "s2", "s3"}); err == nil || fault.Is(err, fault.Stale) {
			break
		}
		if i > 50 {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var committed atomic.Int64
	for w := range 6 {
		wg.Go(func() {
			for i := range 5 {
				switch err := c.cover(c.nodes[w%3], "cpu", w*5+i); {
				case err == nil:
					committed.Add(1)
				case !fault.Is(err, fault.Unavailable):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	m, row := c.newest("cpu")
	if int64(m.Len()) < committed.Load() || row.Seq != uint64(m.Len())+1 || committed.Load() < 10 {
		t.Fatalf("%d were notified, %d partitions, transaction %d", committed.Load(), m.Len(), row.Seq)
	}
}

// TestFilesThatNobodyDecidedAboutAreBounded: while no majority is there, files pile up to a bound; then they go, by touch
// of the row, and changes go through again.
func TestFilesThatNobodyDecidedAboutAreBounded(t *testing.T) {
	set := quick()
	set.UndecidedMax = 4
	c := newCluster(t, coordmem.New(), 3, set)
	c.create("cpu", "s1", "s2", "s3")
	c.nodes[1].away.Store(true)
	c.nodes[2].away.Store(true)
	for hour := range 20 {
		if err := c.cover(c.nodes[0], "cpu", hour); !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
		if list, _ := c.nodes[0].disk.List(); len(list) > 5 {
			t.Fatalf("%d files", len(list))
		}
	}
	c.nodes[1].away.Store(false)
	for deadline := time.Now().Add(time.Minute); ; {
		err := c.cover(c.nodes[0], "cpu", 1)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestHostileFilesAreRefused.
func TestHostileFilesAreRefused(t *testing.T) {
	c := newCluster(t, coordmem.New(), 1, quick())
	c.create("cpu", "s1")
	m, row := c.newest("cpu")
	n := c.nodes[0]
	ctx := t.Context()
	good, err := n.Fetch(ctx, &peer.FileQuery{Table: "cpu", Txn: row.Txn})
	if err != nil {
		t.Fatal(err)
	}
	f := func(want fault.Kind, change func(f *peer.File)) {
		t.Helper()
		bad := *good
		bad.Map = slices.Clone(good.Map)
		change(&bad)
		if err := n.Store(ctx, &bad); !fault.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	f(fault.Invalid, func(f *peer.File) { f.Table = "" })
	f(fault.Invalid, func(f *peer.File) { f.Txn = peer.TxnID{} })
	f(fault.Corrupt, func(f *peer.File) { f.Digest++ })
	f(fault.Corrupt, func(f *peer.File) { f.Digest = 0; f.Sum++ }) // an older build's
	f(fault.Corrupt, func(f *peer.File) { f.Txn[0]++; f.Digest++ })
	f(fault.Corrupt, func(f *peer.File) { f.Txn[0]++; f.Sum++ })
	f(fault.Corrupt, func(f *peer.File) { f.Txn[0]++; f.Table = "mem" })
	f(fault.Stale, func(f *peer.File) { f.Txn[0]++; f.Map, f.Base = nil, peer.TxnID{9} })
	f(fault.Invalid, func(f *peer.File) { f.Txn[0]++; f.Seq++; f.Map, f.Base, f.Ops = nil, row.Txn, []byte("nonsense") })
	f(fault.Corrupt, func(f *peer.File) {
		f.Txn[0]++
		f.Seq++
		f.Map, f.Base, f.Ops = nil, row.Txn, plan(m, row.Txn, 1).Ops // right ops, wrong digest
	})
	f(fault.Corrupt, func(f *peer.File) {
		f.Txn[0]++
		f.Seq++
		f.Digest, f.Map, f.Base, f.Ops = 0, nil, row.Txn, plan(m, row.Txn, 1).Ops // right ops, wrong sum
	})
	p := plan(m, row.Txn, 1)
	p.Ops = []byte("nonsense")
	if _, err := n.Change(ctx, p); !fault.Is(err, fault.Invalid) {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := n.Change(ctx, &peer.Change{Table: "cpu", Base: row.Txn}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no id: %v", err)
	}
	if _, err := n.Change(ctx, plan(&topology.Map{Table: "nobody", NextID: 1, Config: m.Config}, row.Txn, 1)); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such table: %v", err)
	}
}
