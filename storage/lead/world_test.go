package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	"github.com/spillwaydb/spillway/storage/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a coordination store, the maps, and servers.
type world struct {
	t     testing.TB
	store coord.Store
	maps  *atlas
	lease lease.Settings
	nodes map[topology.ServerID]*node
	stamp point.Stamp
	heads int64 // HeadBytesMax
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, store: mem.New(), nodes: map[topology.ServerID]*node{}, stamp: 1 << 20,
		lease: lease.Settings{RenewEvery: 100 * time.Millisecond, ValidFor: 800 * time.Millisecond, TakeAfter: 1100 * time.Millisecond, TurnStep: 20 * time.Millisecond,
			OverWait: 100 * time.Millisecond, CoolDown: 500 * time.Millisecond, LowerEvery: time.Hour, ScanEvery: time.Second, RetryAfter: 20 * time.Millisecond}}
	w.maps = newAtlas(t, w.store)
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.kill()
		}
	})
	return w
}

// atlas is the maps, shared by all servers, with rows in the store as the lease table needs them.
type atlas struct {
	t     testing.TB
	store coord.Store

	mu      sync.Mutex
	m       *topology.Map
	row     coord.Revision
	changed chan struct{}
	gone    bool                    // the table was dropped
	refuse  func(topology.Op) error // nil: nothing
	refused int
	away    bool // nothing is ruled out

	unguarded bool // maps are changed by a build from before guards
}

// isOld has maps changed from now on as by a build from before guards, which may remove the placement that alone has rows.
func (a *atlas) isOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unguarded = true
}

func newAtlas(t testing.TB, store coord.Store) *atlas {
	m, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	a := &atlas{t: t, store: store, changed: make(chan struct{})}
	a.put(m)
	return a
}

func (a *atlas) put(m *topology.Map) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rev := a.commitLocked(m)
	a.m, a.row, a.gone = m, rev, false
	close(a.changed)
	a.changed = make(chan struct{})
}

// commitLocked writes the table's row, and the guards of a change of the map into lease rows, as package files does.
func (a *atlas) commitLocked(m *topology.Map) coord.Revision {
	for {
		var conditions []coord.Condition
		writes := []coord.Write{{Key: "tables/t", Value: m.Encode()}}
		var guards []lease.Guard
		if a.m != nil && !a.unguarded {
			guards = lease.Guards(a.m, m, nil)
		}
		for _, g := range guards {
			rows := map[string]coord.Row{}
			for _, key := range g.Keys() {
				if row, ok, _ := a.store.Get(context.Background(), key); ok {
					rows[key] = row
				}
			}
			c, w, err := g.Write(m.Seq, rows, 0)
			if err != nil {
				a.t.Error(err)
				continue
			}
			conditions, writes = append(conditions, c...), append(writes, w...)
		}
		rev, ok, err := a.store.Commit(context.Background(), conditions, writes)
		if err != nil {
			a.t.Error(err)
		}
		if ok || err != nil {
			return rev
		}
	}
}

func (a *atlas) At(name string) (*topology.Map, coord.Revision, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name != "t" || a.m == nil || a.gone {
		return nil, 0, false
	}
	return a.m, a.row, true
}

func (a *atlas) Newest(name string) (peer.MapAt, bool) {
	m, ok := a.Get(name)
	if !ok {
		return peer.MapAt{}, false
	}
	return peer.MapAt{Txn: peer.TxnID{byte(m.Seq)}, Seq: m.Seq}, true
}

func (a *atlas) Get(name string) (*topology.Map, bool) { m, _, ok := a.At(name); return m, ok }

func (a *atlas) Names() []string {
	if _, ok := a.Get("t"); !ok {
		return nil
	}
	return []string{"t"}
}

// drop removes the table; put makes one with its name.
func (a *atlas) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *atlas) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

func (a *atlas) Change(_ context.Context, name string, plan func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error) {
	m, _ := a.Get(name)
	ops, err := plan(m)
	a.mu.Lock()
	refuse := a.refuse
	if len(ops) == 0 || refuse == nil || refuse(ops[0]) == nil {
		refuse = nil
	} else {
		a.refused++
	}
	a.mu.Unlock()
	if refuse != nil {
		return nil, refuse(ops[0])
	}
	if err != nil {
		return nil, err
	}
	next, err := m.Apply(ops...)
	if err != nil || next == m {
		return m, err
	}
	a.put(next)
	return next, nil
}

// Ready implements Maps: the maps here have no metadata servers that could be away.
func (a *atlas) Ready(context.Context, string) error { return nil }

// RuleOut implements Maps: nothing is ever under way here, except while it is away.
func (a *atlas) RuleOut(context.Context, string) (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return 0, errAway
	}
	return a.m.Seq, nil
}

func (a *atlas) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

func (w *world) change(ops ...topology.Op) {
	w.t.Helper()
	if _, err := w.maps.Change(context.Background(), "t", func(*topology.Map) ([]topology.Op, error) { return ops, nil }); err != nil {
		w.t.Fatal(err)
	}
}

// create makes the next partition, 100 s after those before.
func (w *world) create(servers ...topology.ServerID) point.PartitionID {
	w.t.Helper()
	m, _ := w.maps.Get("t")
	id := m.NextID
	p := topology.Partition{ID: id, TimeLo: int64(id) * 100e9, TimeHi: int64(id+1) * 100e9}
	for i, s := range servers {
		p.Placements = append(p.Placements, topology.Placement{ID: point.PlacementID(10*int(id) + i + 1), Server: s})
	}
	w.change(topology.Create{Partitions: []topology.Partition{p}})
	return id
}

// node is one process.
type node struct {
	*Lead
	w      *world
	id     topology.ServerID
	fs     vfs.FS
	store  *fickle
	skew   atomic.Int64 // what the clock runs ahead: time the process was stopped
	brick  *brick.Brick
	server *server.Server
	stream peer.Stream
	end    context.CancelFunc
	ended  chan error
	dead   bool
}

// fickle is a store that is away now and then, for one process.
type fickle struct {
	coord.Store
	away atomic.Bool
}

var errAway = fault.Errorf(fault.Unavailable, "away")

func (f *fickle) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if f.away.Load() {
		return nil, 0, errAway
	}
	return f.Store.List(ctx, prefix)
}

func (f *fickle) Commit(ctx context.Context, c []coord.Condition, ws []coord.Write) (coord.Revision, bool, error) {
	if f.away.Load() {
		return 0, false, errAway
	}
	return f.Store.Commit(ctx, c, ws)
}

func (w *world) start(id topology.ServerID, fs vfs.FS) *node {
	w.t.Helper()
	n := &node{w: w, id: id, fs: fs, store: &fickle{Store: w.store}, ended: make(chan error, 1)}
	log, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	var err error
	if n.brick, err = brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1, FileBytesMax: 1 << 20}); err != nil {
		w.t.Fatal(err)
	}
	n.Lead, err = New(Deps{Store: n.store, Maps: w.maps, Brick: n.brick, Log: log, Registerer: registry, Rand: rand.New(rand.NewPCG(rand.Uint64(), 1)),
		Clock: func() lease.Time { return keeper.Boottime() + time.Duration(n.skew.Load()) }},
		Settings{Server: id, Keeper: keeper.Settings{Lease: w.lease}, ReconcileEvery: 200 * time.Millisecond, BatchFor: 5 * time.Millisecond,
			Rules: rules.Settings{OverloadFor: 50 * time.Millisecond, BackoffMin: 20 * time.Millisecond}})
	if err != nil {
		w.t.Fatal(err)
	}
	if n.server, err = server.Open(context.Background(), server.Deps{Brick: n.brick, Maps: w.maps, Leadership: n.Lead, Log: log, Registerer: registry}, server.Settings{Server: id, HeadBytesMax: w.heads}); err != nil {
		w.t.Fatal(err)
	}
	if n.stream, err = n.server.OpenStream(context.Background(), "t"); err != nil {
		w.t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	n.end = end
	go func() { n.ended <- n.Run(ctx, n.server) }()
	w.nodes[id] = n
	return n
}

// kill ends a process without notice. The memory of its file system stays.
func (n *node) kill() {
	if n.dead {
		return
	}
	n.dead = true
	n.end()
	<-n.ended
	if err := errors.Join(n.stream.Close(), n.server.Close()); err != nil {
		n.w.t.Error(err)
	}
	_ = n.brick.Close() // a fenced one returns an error
}

// until waits for a condition to become true.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("never happened: %s", what)
		}
	}
}

func (n *node) leads(id point.PartitionID) bool { _, ok := n.MayAct("t", id); return ok }

// led waits until a server leads, and returns it.
func (w *world) led(id point.PartitionID) (n *node) {
	w.t.Helper()
	w.until(fmt.Sprintf("partition %d is led", id), func() bool {
		for _, n = range w.nodes {
			if !n.dead && n.leads(id) {
				return true
			}
		}
		return false
	})
	return n
}

// put inserts one row, second s of the partition.
func (n *node) put(id point.PartitionID, s int, level point.Level) error {
	return n.putAs(id, 7, int64(id)*100e9+int64(s)*1e9, level)
}

func labelsOf(series int) point.Labels {
	return point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(series))
}

func (n *node) putAs(id point.PartitionID, series int, at int64, level point.Level) error {
	n.w.stamp += 1024
	if err := n.stream.Define(context.Background(), []peer.Def{{ID: point.SeriesID(series), Labels: labelsOf(series)}}); err != nil {
		return err
	}
	return n.stream.Insert(context.Background(), &peer.Insert{Partition: id, Stamp: n.w.stamp, Level: level,
		IDs: []point.SeriesID{point.SeriesID(series)}, Times: []int64{at}, Values: []float64{float64(at / 1e9)}})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stale(err error) {
	w.t.Helper()
	if !fault.Is(err, fault.Stale) {
		w.t.Fatalf("%v, want stale", err)
	}
}

// read returns the rows of partitions as "7: 100 101; 8: 205".
func (n *node) read(ids ...point.PartitionID) (string, error) {
	set, err := n.server.Select(context.Background(), &peer.Select{Table: "t", Partitions: ids, Lo: 0, Hi: 1 << 62})
	if err != nil {
		return "", err
	}
	defer set.Close()
	var lines []string
	for set.Next() {
		line := set.At().Labels.Get("i") + ":"
		for _, v := range set.At().Values {
			line += fmt.Sprint(" ", v)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; "), set.Err()
}

func (n *node) wantRows(want string, ids ...point.PartitionID) {
	n.w.t.Helper()
	if got, err := n.read(ids...); err != nil || got != want {
		n.w.t.Errorf("%s reads %q, %v, want %q", n.id, got, err, want)
	}
}

// row is a partition's lease row, and its revision.
func (w *world) row(id point.PartitionID) (lease.Lease, coord.Revision) {
	w.t.Helper()
	row, ok, err := w.store.Get(context.Background(), lease.RowKey(lease.Partition{Table: "t", ID: id}))
	if err != nil || !ok {
		w.t.Fatalf("lease row of %d: %v %v", id, ok, err)
	}
	l, err := lease.DecodeLease(row.Value)
	w.must(err)
	return l, row.Revision
}

// edit changes a lease row as a person does.
func (w *world) edit(id point.PartitionID, f func(lease.Lease) lease.Lease) {
	w.t.Helper()
	w.until("the row is edited", func() bool {
		l, rev := w.row(id)
		key := lease.RowKey(lease.Partition{Table: "t", ID: id})
		_, ok, err := w.store.Commit(context.Background(), []coord.Condition{{Key: key, Revision: rev}}, []coord.Write{{Key: key, Value: f(l).Encode()}})
		return err == nil && ok
	})
}

func value(t *testing.T, g prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}
