package metafile

import (
	"context"
	"log/slog"
	"math/rand/v2"
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

// TestDamagedLinkIsFetchedFromAnotherServer: a link below the committed file rots on the disk of one of three metadata servers. After its restart
// the server notices, has the map again from another one, and keeps it in a form that is read after one more restart.
func TestDamagedLinkIsFetchedFromAnotherServer(t *testing.T) {
	store, log := mem.New(), slog.New(slog.DiscardHandler)
	servers, files := map[topology.ServerID]*mapstore.Server{}, map[topology.ServerID]vfs.FS{}
	peers := func(id topology.ServerID) (peer.Metadata, bool) { s, ok := servers[id]; return s, ok }
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
		stops[id] = func() {
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
			s.Close()
			if err := br.Close(); err != nil {
				t.Error(err)
			}
		}
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
	for hour := range 8 {
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
	newest, rotten := bases[len(bases)-1], bases[4]
	has := func(id topology.ServerID) bool {
		got, err := servers[id].Map("cpu", newest)
		return err == nil && got.Digest() == m.Digest()
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	wait("s3 has the newest map", func() bool { return has("s3") })
	stops["s3"]()
	br, d := open(t, files["s3"])
	k := key(linkPrefix, "cpu", rotten)
	v, ok, err := br.Get(k)
	if err != nil || !ok {
		t.Fatalf("transaction 4 is no link: %v", err)
	}
	flipped := append([]byte(nil), v...)
	flipped[len(flipped)/2] ^= 1
	batch := br.NewBatch()
	batch.Set(k, flipped)
	if err := batch.Commit(true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get("cpu", newest); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("the newest stands on a damaged link, and is read: %v", err)
	}
	if err := br.Close(); err != nil {
		t.Fatal(err)
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
