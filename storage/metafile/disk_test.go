package metafile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

func open(t *testing.T, fs vfs.FS) (*brick.Brick, *Disk) {
	t.Helper()
	b, err := brick.Open(brick.Deps{FS: fs, Log: slog.New(slog.DiscardHandler)}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	return b, New(b)
}

func file(table string, n byte, m string) *peer.File {
	return &peer.File{Table: table, Txn: peer.TxnID{n}, Base: peer.TxnID{n - 1}, Seq: uint64(n), Sum: xxhash.Sum64String(m), Map: []byte(m)}
}

// TestWhatWasPutSurvivesAPowerCut: after every Put, an image of the disk without anything unsynced has the file.
func TestWhatWasPutSurvivesAPowerCut(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, d := open(t, fs)
	defer b.Close()
	for n := byte(1); n <= 8; n++ {
		if err := d.Put(file("cpu", n, strings.Repeat("map", int(n)*1000))); err != nil {
			t.Fatal(err)
		}
		if n > 4 {
			if err := d.Delete(files.Info{Table: "cpu", Txn: peer.TxnID{n - 4}}); err != nil {
				t.Fatal(err)
			}
		}
		after, disk := open(t, fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, uint64(n)))}))
		got, err := disk.Get("cpu", peer.TxnID{n})
		if err != nil || len(got.Map) != 3000*int(n) || got.Seq != uint64(n) || got.Base != (peer.TxnID{n - 1}) {
			t.Fatalf("transaction %d: %v", n, err)
		}
		list, err := disk.List()
		if err != nil || len(list) < min(int(n), 4) || len(list) > 5 {
			t.Fatalf("%d files are listed, %v", len(list), err)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTablesDoNotMix(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	for _, table := range []string{"a", "ab", "a/b", "ä"} {
		if err := d.Put(file(table, 1, table)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.List()
	if err != nil || len(list) != 4 {
		t.Fatalf("%v %v", list, err)
	}
	for _, i := range list {
		f, err := d.Get(i.Table, i.Txn)
		if err != nil || string(f.Map) != i.Table || i.Bytes != len(i.Table) || i.Sum != f.Sum {
			t.Errorf("%+v: %v", i, err)
		}
	}
	if err := d.Put(file("a\x00b", 1, "x")); !fault.Is(err, fault.Invalid) {
		t.Errorf("a name with a zero byte: %v", err)
	}
	if _, err := d.Get("a", peer.TxnID{9}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestDamageIsSeen: whatever changes under our feet is Corrupt, not another map.
func TestDamageIsSeen(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	f := file("cpu", 1, "the map")
	damage := func(k, v []byte) {
		t.Helper()
		if err := d.Put(f); err != nil {
			t.Fatal(err)
		}
		batch := b.NewBatch()
		if v == nil {
			batch.Delete(k)
		} else {
			batch.Set(k, v)
		}
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Get("cpu", f.Txn); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: %v", v, err)
		}
	}
	damage(key(mapPrefix, "cpu", f.Txn), []byte("the mop"))
	damage(key(mapPrefix, "cpu", f.Txn), []byte("the ma"))
	damage(key(mapPrefix, "cpu", f.Txn), nil)
	damage(key(headPrefix, "cpu", f.Txn), []byte{2})
}

func TestHeadIsAsDrawn(t *testing.T) {
	h := head{seq: 7, base: peer.TxnID{0xba, 0x5e}, sum: 0x1122334455667788, bytes: 1234, root: peer.TxnID{0x20, 0x07}}
	golden, err := os.ReadFile("testdata/head.hex")
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(golden)), "\n", ""))
	if err != nil || !bytes.Equal(h.encode(), want) {
		t.Fatalf("stored as\n%x", h.encode())
	}
	if got, err := decodeHead(want); err != nil || got != h {
		t.Fatalf("read as %+v, %v", got, err)
	}
	for i := range want {
		if _, err := decodeHead(want[:i]); !fault.Is(err, fault.Corrupt) {
			t.Errorf("cut at %d: %v", i, err)
		}
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if _, err := decodeHead(bad); !fault.Is(err, fault.Corrupt) {
			t.Errorf("flipped at %d: %v", i, err)
		}
	}
}

func FuzzDecodeHead(f *testing.F) {
	f.Add((&head{seq: 7, bytes: 1}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHead(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Fatalf("%x is read as %+v", b, h)
		}
	})
}

// chain puts n transactions, each a partition more than the one before, with their ops.
func chain(t *testing.T, d *Disk, n int) []*peer.File {
	t.Helper()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	place := func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	}
	var times []point.Nanos
	for hour := range 300 {
		times = append(times, -int64(hour+1)*int64(time.Hour))
	}
	var out []*peer.File
	var base peer.TxnID
	for i := range n {
		op := m.Covering(times, place)
		times = []point.Nanos{int64(i) * int64(time.Hour)}
		if m, err = m.Apply(op); err != nil {
			t.Fatal(err)
		}
		b := m.Encode()
		f := &peer.File{Table: "cpu", Txn: peer.TxnID{1, byte(i)}, Base: base, Seq: m.Seq, Sum: xxhash.Sum64(b), Map: b, Ops: topology.EncodeOps([]topology.Op{op})}
		if err := d.Put(f); err != nil {
			t.Fatal(err)
		}
		base = f.Txn
		out = append(out, f)
	}
	return out
}

// keys counts what is kept, by prefix.
func keys(t *testing.T, b *brick.Brick, prefix string) (n, size int) {
	t.Helper()
	if err := b.Scan([]byte(prefix), func(_, v []byte) error { n++; size += len(v); return nil }); err != nil {
		t.Fatal(err)
	}
	return n, size
}

// TestSmallChangesAreKeptAsOps, and read back whole, also after the files they stand on are deleted, and after a restart.
func TestSmallChangesAreKeptAsOps(t *testing.T) {
	fs := vfs.NewMem()
	b, d := open(t, fs)
	put := chain(t, d, 150)
	maps, _ := keys(t, b, mapPrefix)
	ops, size := keys(t, b, opsPrefix)
	if maps+ops != 150 || maps > 20 || size/ops > 4000 {
		t.Fatalf("%d maps, %d as ops of %d bytes", maps, ops, size/ops)
	}
	check := func(d *Disk, from int) {
		t.Helper()
		for i, f := range put {
			got, err := d.Get("cpu", f.Txn)
			if i < from {
				if !fault.Is(err, fault.NotFound) {
					t.Fatalf("transaction %d of the deleted: %v", i, err)
				}
				continue
			}
			if err != nil || !bytes.Equal(got.Map, f.Map) {
				t.Fatalf("transaction %d: %v", i, err)
			}
		}
	}
	check(d, 0)
	info := func(from, to int) (out []files.Info) {
		for _, f := range put[from:to] {
			out = append(out, files.Info{Table: "cpu", Txn: f.Txn})
		}
		return out
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.Delete(info(0, 70)...))
	check(d, 70)
	must(d.Put(put[149])) // again, and what went before is durable
	must(b.Close())
	b, d = open(t, fs)
	list, err := d.List()
	if err != nil || len(list) != 80 {
		t.Fatalf("%d files, %v", len(list), err)
	}
	check(d, 70)
	must(d.Delete(info(70, 149)...))
	check(d, 149)
	must(d.Delete(info(149, 150)...))
	for _, prefix := range []string{headPrefix, mapPrefix, opsPrefix} {
		if n, _ := keys(t, b, prefix); n != 0 {
			t.Errorf("%d keys stay behind at %s", n, prefix)
		}
	}
	must(b.Close())
}

func FuzzReplay(f *testing.F) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	ops := topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: 2 * time.Hour}}})
	f.Add(append(binary.AppendUvarint(nil, uint64(len(ops))), ops...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := replay(m.Encode(), b); err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
	})
}
