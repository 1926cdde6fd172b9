package metafile

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// door leads to a metadata server that may be stopped: calls under way end first, as those over a network do.
type door struct {
	mu     sync.RWMutex
	server *mapstore.Server // nil: stopped
}

var errStopped = fault.Errorf(fault.Unavailable, "the server is stopped")

func (d *door) set(s *mapstore.Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server = s
}

// Change implements peer.Metadata.
func (d *door) Change(ctx context.Context, c *peer.Change) (*peer.Changed, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.server == nil {
		return nil, errStopped
	}
	return d.server.Change(ctx, c)
}

// Store implements peer.Metadata.
func (d *door) Store(ctx context.Context, f *peer.File) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.server == nil {
		return errStopped
	}
	return d.server.Store(ctx, f)
}

// Fetch implements peer.Metadata.
func (d *door) Fetch(ctx context.Context, q *peer.FileQuery) (*peer.File, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.server == nil {
		return nil, errStopped
	}
	return d.server.Fetch(ctx, q)
}

// TestDamagedLinkIsFetchedFromAnotherServer: a link below the committed file rots on the disk of one of three metadata servers. After its restart
// the server notices, has the map again from another one, and keeps it in a form that is read after one more restart.
func TestDamagedLinkIsFetchedFromAnotherServer(t *testing.T) {
	store, log := mem.New(), slog.New(slog.DiscardHandler)
	servers, files := map[topology.ServerID]*mapstore.Server{}, map[topology.ServerID]vfs.FS{}
	doors := map[topology.ServerID]*door{"s1": {}, "s2": {}, "s3": {}}
	peers := func(id topology.ServerID) (peer.Metadata, bool) { d, ok := doors[id]; return d, ok }
	stops := map[topology.ServerID]func(){}
	start := func(id topology.ServerID) *Disk {
		t.Helper()
		br, d := open(t, files[id])
		s, err := mapstore.New(mapstore.Deps{Store: store, Peers: peers, Log: log, Rand: rand.New(rand.NewPCG(1, uint64(len(id)))), Self: id, Disk: d},
			mapstore.Settings{CatchUpGrace: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		servers[id] = s
		doors[id].set(s)
		stops[id] = sync.OnceFunc(func() {
			doors[id].set(nil)
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
			s.Close()
			if err := br.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}
	ids := []topology.ServerID{"s1", "s2", "s3"}
	for _, id := range ids {
		files[id] = vfs.NewMem()
		start(id)
	}
	defer func() {
		for _, id := range ids {
			stops[id]()
		}
	}()
	rng := rand.New(rand.NewPCG(7, 7))
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	first, err := servers["s1"].Create(t.Context(), m, ids)
	if err != nil {
		t.Fatal(err)
	}
	bases := []peer.TxnID{first.Changed.Txn}
	change := func(hour int) {
		t.Helper()
		times := []point.Nanos{int64(hour) * int64(time.Hour)}
		for i := range 300 * max(1-hour, 0) { // the first makes the map large, so that those after it are links
			times = append(times, -int64(i+1)*int64(time.Hour))
		}
		op := m.Covering(times, func(p point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: point.PlacementID(rng.Uint64()), Server: "s1"}}
		})
		c := &peer.Change{Table: "cpu", Base: bases[len(bases)-1], Txn: mapstore.NewTxnID(rng), Ops: topology.EncodeOps([]topology.Op{op})}
		got, err := servers["s1"].Change(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, got.Txn)
		if m, err = m.Apply(op); err != nil {
			t.Fatal(err)
		}
	}
	for hour := range 8 {
		change(hour)
	}
	newest := bases[len(bases)-1]
	has := func(id topology.ServerID) bool {
		got, err := servers[id].Map("cpu", newest)
		return err == nil && got.Digest() == m.Digest()
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	// s3 gets changes as ops, and keeps links. Where it lagged it fetched a whole map, or several steps, which do not stand on that link.
	for hour := 8; ; hour++ {
		wait("s3 has the newest map", func() bool { return has("s3") })
		stops["s3"]()
		if damageLink(t, files["s3"], bases[len(bases)-2], newest) {
			break
		}
		if hour == 100 {
			t.Fatal("no two transactions in a row are links")
		}
		start("s3")
		change(hour)
		newest = bases[len(bases)-1]
	}
	start("s3")
	_, err = servers["s3"].Fetch(t.Context(), &peer.FileQuery{Table: "cpu", Txn: newest}) // as a follower asks
	if err != nil && !fault.Is(err, fault.NotFound) {
		t.Fatalf("asked for a damaged file: %v", err)
	}
	wait("s3 has the map again", func() bool { return has("s3") })
	stops["s3"]()
	disk := start("s3")
	if _, got, err := disk.Get("cpu", newest); err != nil || got.Digest() != m.Digest() {
		t.Errorf("after a restart: %v", err)
	}
}

// damageLink flips a bit in the link of a transaction on the disk of a server that is stopped. It reports whether a newer map stands on the link: it
// cannot be read then. Else the disk is as it was.
func damageLink(t *testing.T, files vfs.FS, rotten, newest peer.TxnID) bool {
	t.Helper()
	br, d := open(t, files)
	defer func() {
		if err := br.Close(); err != nil {
			t.Error(err)
		}
	}()
	k := key(linkPrefix, "cpu", rotten)
	set := func(v []byte) {
		batch := br.NewBatch()
		batch.Set(k, v)
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
	}
	v, ok, err := br.Get(k)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return false
	}
	v = bytes.Clone(v)
	flipped := bytes.Clone(v)
	flipped[len(flipped)/2] ^= 1
	set(flipped)
	if _, _, err = d.Get("cpu", newest); fault.Is(err, fault.Corrupt) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	set(v)
	return false
}
