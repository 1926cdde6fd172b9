package metafile

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
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
	h := head{seq: 7, base: peer.TxnID{0xba, 0x5e}, sum: 0x1122334455667788, bytes: 1234}
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
