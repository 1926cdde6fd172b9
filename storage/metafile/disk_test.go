package metafile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/mapstore"
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

// mapOf makes a map of a table, at transaction n, with as many partitions.
func mapOf(t *testing.T, table string, n byte, partitions int) *topology.Map {
	t.Helper()
	m, err := topology.New(table, topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var times []point.Nanos
	for hour := range partitions {
		times = append(times, int64(hour)*int64(time.Hour))
	}
	m = m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	})
	again := *m
	again.Seq = uint64(n)
	return &again
}

func put(t *testing.T, d *Disk, m *topology.Map) *peer.File {
	t.Helper()
	f := &peer.File{Table: m.Table, Txn: peer.TxnID{byte(m.Seq)}, Base: peer.TxnID{byte(m.Seq) - 1}, Seq: m.Seq, Digest: m.Digest()}
	if err := d.Put(f, m); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWhatWasPutSurvivesAPowerCut: after every Put, an image of the disk without anything unsynced has the file.
func TestWhatWasPutSurvivesAPowerCut(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, d := open(t, fs)
	defer b.Close()
	for n := byte(1); n <= 8; n++ {
		m := mapOf(t, "cpu", n, int(n)*30)
		put(t, d, m)
		if n > 4 {
			if err := d.Delete(mapstore.Info{Table: "cpu", Txn: peer.TxnID{n - 4}}); err != nil {
				t.Fatal(err)
			}
		}
		after, disk := open(t, fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, uint64(n)))}))
		got, back, err := disk.Get("cpu", peer.TxnID{n})
		if err != nil || !bytes.Equal(back.Encode(), m.Encode()) || got.Digest != m.Digest() || got.Seq != uint64(n) || got.Base != (peer.TxnID{n - 1}) {
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

// TestAFileThatIsTooLargeLeavesNothing: neither a file, nor a node on which a later one would stand, which could not be read then.
func TestAFileThatIsTooLargeLeavesNothing(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	m := mapOf(t, "cpu", 1, 30)
	f := &peer.File{Table: m.Table, Txn: peer.TxnID{1}, Seq: m.Seq, Digest: m.Digest(), Map: make([]byte, peer.MapBytesMax+1)}
	if err := d.Put(f, m); !fault.Is(err, fault.TooLarge) {
		t.Fatal(err)
	}
	if all, err := d.List(); err != nil || len(all) > 0 {
		t.Errorf("files: %v, %v", all, err)
	}
	if n := len(d.mu.nodes); n > 0 {
		t.Errorf("%d nodes of the graph are left", n)
	}
}

func TestTablesDoNotMix(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	for _, table := range []string{"a", "ab", "a/b", "ä"} {
		put(t, d, mapOf(t, table, 1, 1))
	}
	list, err := d.List()
	if err != nil || len(list) != 4 {
		t.Fatalf("%v %v", list, err)
	}
	for _, i := range list {
		f, m, err := d.Get(i.Table, i.Txn)
		if err != nil || m.Table != i.Table || i.Bytes != len(m.Encode()) || i.Digest != f.Digest {
			t.Errorf("%+v: %v", i, err)
		}
	}
	if err := d.Put(&peer.File{Table: "a\x00b", Seq: 1}, mapOf(t, "x", 1, 1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a name with a zero byte: %v", err)
	}
	if _, _, err := d.Get("a", peer.TxnID{9}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestDamageIsSeen: any change of the stored bytes gives Corrupt, not another map.
func TestDamageIsSeen(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	m := mapOf(t, "cpu", 1, 3)
	f, encoded := put(t, d, m), m.Encode()
	damage := func(k, v []byte) {
		t.Helper()
		put(t, d, m)
		batch := b.NewBatch()
		if v == nil {
			batch.Delete(k)
		} else {
			batch.Set(k, v)
		}
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.Get("cpu", f.Txn); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: %v", v, err)
		}
	}
	for i := range encoded {
		flipped := bytes.Clone(encoded)
		flipped[i] ^= 4
		damage(pieceKey("cpu", f.Txn, 0), flipped)
		damage(pieceKey("cpu", f.Txn, 0), encoded[:i])
	}
	damage(pieceKey("cpu", f.Txn, 0), mapOf(t, "cpu", 1, 2).Encode()) // a whole map, and another one
	damage(pieceKey("cpu", f.Txn, 0), nil)
	damage(pieceKey("cpu", f.Txn, 1), []byte{0})
	damage(key(mapPrefix, "cpu", f.Txn), []byte{0})
	damage(key(headPrefix, "cpu", f.Txn), []byte{2})
}

func TestHeadIsAsDrawn(t *testing.T) {
	h := head{seq: 7, base: peer.TxnID{0xba, 0x5e}, sum: 0x1122334455667788, bytes: 1234, root: peer.TxnID{0x20, 0x07}}
	old := h
	old.old = true
	linked := h
	linked.linked, linked.root = true, peer.TxnID{}
	for name, h := range map[string]head{"head_v2.hex": h, "head_v1.hex": old, "head.hex": linked} {
		golden, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(golden)), "\n", ""))
		if err != nil || !bytes.Equal(h.encode(), want) {
			t.Fatalf("%s: stored as\n%x", name, h.encode())
		}
		if got, err := decodeHead(want); err != nil || got != h {
			t.Fatalf("%s: read as %+v, %v", name, got, err)
		}
		for i := range want {
			if _, err := decodeHead(want[:i]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: cut at %d: %v", name, i, err)
			}
			bad := bytes.Clone(want)
			bad[i] ^= 1
			if _, err := decodeHead(bad); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: flipped at %d: %v", name, i, err)
			}
		}
	}
}

// TestLargeMapsLieInPieces, which go together.
func TestLargeMapsLieInPieces(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	m := mapOf(t, "cpu", 1, 5000)
	f := put(t, d, m)
	if n, size := keys(t, b, mapPrefix); n != 3 || size != len(m.Encode()) {
		t.Fatalf("%d pieces of %d bytes", n, size)
	}
	if _, got, err := d.Get("cpu", f.Txn); err != nil || got.Digest() != m.Digest() {
		t.Fatal(err)
	}
	batch := b.NewBatch()
	batch.Delete(pieceKey("cpu", f.Txn, 2))
	if err := batch.Commit(true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get("cpu", f.Txn); !fault.Is(err, fault.Corrupt) {
		t.Errorf("without one: %v", err)
	}
	put(t, d, m)
	if err := d.Delete(mapstore.Info{Table: "cpu", Txn: f.Txn}); err != nil {
		t.Fatal(err)
	}
	if n, _ := keys(t, b, mapPrefix); n != 0 {
		t.Errorf("%d pieces stay behind", n)
	}
}

// asBefore keeps a file in the form of version 2: all ops since the file that is whole.
func asBefore(t *testing.T, d *Disk, batch *brick.Batch, f *peer.File, h *head) {
	t.Helper()
	root, ops, err := d.below(f.Table, f.Txn, *h)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(ops)
	h.linked, h.root = false, root
	batch.Set(key(opsPrefix, f.Table, f.Txn), bytes.Join(ops, nil))
	batch.Delete(key(linkPrefix, f.Table, f.Txn))
}

// TestFilesOfOlderBuildsStillOpen: a whole file and one kept as ops, with the sums of their encoded maps in heads of version
// 1, are read, and a file of today comes after them.
func TestFilesOfOlderBuildsStillOpen(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	files := chain(t, d, 4)
	maps := map[peer.TxnID]*topology.Map{}
	if err := d.Delete(infos(files[3:])...); err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Backward(files[:3]) {
		got, m, err := d.Get("cpu", f.Txn)
		if err != nil {
			t.Fatal(err)
		}
		maps[f.Txn] = m
		v, _, err := b.Get(key(headPrefix, "cpu", f.Txn))
		if err != nil {
			t.Fatal(err)
		}
		h, err := decodeHead(bytes.Clone(v))
		if err != nil {
			t.Fatal(err)
		}
		encoded := m.Encode()
		batch := b.NewBatch()
		if h.linked {
			asBefore(t, d, batch, f, &h)
		}
		h.old, h.sum, h.bytes = true, xxhash.Sum64(encoded), uint64(len(encoded))
		batch.Set(key(headPrefix, "cpu", f.Txn), h.encode())
		if f == files[0] { // in one piece
			batch.Delete(pieceKey("cpu", f.Txn, 0))
			batch.Set(key(mapPrefix, "cpu", f.Txn), encoded)
		}
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
		if got.Digest != m.Digest() {
			t.Fatalf("%+v", got)
		}
	}
	d = New(b)
	list, err := d.List()
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v %v", list, err)
	}
	newest, err := topology.Decode(files[3].Map)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Put(files[3], newest); err != nil {
		t.Fatal(err)
	}
	list, err = d.List()
	if err != nil || len(list) != 4 || list[0].Digest != 0 || list[0].Sum == 0 || list[3].Digest == 0 {
		t.Fatalf("%+v %v", list, err)
	}
	for _, f := range files {
		got, m, err := d.Get("cpu", f.Txn)
		if err != nil || maps[f.Txn] != nil && m.Digest() != maps[f.Txn].Digest() || got.Digest != m.Digest() {
			t.Fatalf("transaction %d: %+v %v", f.Seq, got, err)
		}
	}
	v, _, _ := b.Get(key(headPrefix, "cpu", files[2].Txn))
	h, err := decodeHead(bytes.Clone(v))
	if err != nil {
		t.Fatal(err)
	}
	h.sum++
	batch := b.NewBatch()
	batch.Set(key(headPrefix, "cpu", files[2].Txn), h.encode())
	if err := batch.Commit(true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get("cpu", files[2].Txn); !fault.Is(err, fault.Corrupt) {
		t.Errorf("another sum: %v", err)
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
		f := &peer.File{Table: "cpu", Txn: peer.TxnID{1, byte(i), byte(i >> 8)}, Base: base, Seq: m.Seq, Digest: m.Digest(), Map: b, Ops: topology.EncodeOps([]topology.Op{op})}
		if err := d.Put(f, m); err != nil {
			t.Fatal(err)
		}
		base = f.Txn
		out = append(out, f)
	}
	return out
}

// keys counts the stored keys, by prefix.
func keys(t *testing.T, b *brick.Brick, prefix string) (n, size int) {
	t.Helper()
	if err := b.Scan([]byte(prefix), func(_, v []byte) error { n++; size += len(v); return nil }); err != nil {
		t.Fatal(err)
	}
	return n, size
}

// TestSmallChangesAreKeptAsLinks, each a few bytes, and read back whole, also after the files they stand on are deleted, and after a restart.
func TestSmallChangesAreKeptAsLinks(t *testing.T) {
	fs := vfs.NewMem()
	b, d := open(t, fs)
	put := chain(t, d, 150)
	maps, _ := keys(t, b, mapPrefix) // of one piece each
	links, size := keys(t, b, linkPrefix)
	if maps+links != 150 || maps > 20 || size/links > 200 {
		t.Fatalf("%d maps, %d links of %d bytes", maps, links, size/links)
	}
	check := func(d *Disk, from int) {
		t.Helper()
		for i, f := range put {
			_, got, err := d.Get("cpu", f.Txn)
			if i < from {
				if !fault.Is(err, fault.NotFound) {
					t.Fatalf("transaction %d of the deleted: %v", i, err)
				}
				continue
			}
			if err != nil || !bytes.Equal(got.Encode(), f.Map) {
				t.Fatalf("transaction %d: %v", i, err)
			}
		}
	}
	check(d, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.Delete(infos(put[:70])...))
	check(d, 70)
	last, err := topology.Decode(put[149].Map)
	must(err)
	must(d.Put(put[149], last)) // again, and what went before is durable
	must(b.Close())
	b, d = open(t, fs)
	list, err := d.List()
	must(err)
	if len(list) != 80 {
		t.Fatalf("%d files, %v", len(list), err)
	}
	check(d, 70)
	must(d.Delete(infos(put[70:149])...))
	check(d, 149)
	must(d.Delete(infos(put[149:])...))
	nothingLeft(t, b)
	must(b.Close())
}

func infos(files []*peer.File) (out []mapstore.Info) {
	for _, f := range files {
		out = append(out, mapstore.Info{Table: f.Table, Txn: f.Txn})
	}
	return out
}

// nothingLeft checks that the catalogue has no key of a METADATA file.
func nothingLeft(t *testing.T, b *brick.Brick) {
	t.Helper()
	for _, prefix := range []string{headPrefix, mapPrefix, linkPrefix, opsPrefix} {
		if n, _ := keys(t, b, prefix); n != 0 {
			t.Errorf("%d keys stay behind at %s", n, prefix)
		}
	}
}

// TestManyLinksGetARootInTheBackground: transactions go on as links while a file is made whole, reads never walk more than twice as many
// links as that is due at, and the links below go with the files that stood on them.
func TestManyLinksGetARootInTheBackground(t *testing.T) {
	fs := vfs.NewMem()
	b, d := open(t, fs)
	m, place := wide(t)
	var files []*peer.File
	base := peer.TxnID{}
	add := func(n int) {
		for range n {
			op := m.Covering([]point.Nanos{int64(len(files)) * int64(time.Hour)}, place)
			next, err := m.Apply(op)
			if err != nil {
				t.Fatal(err)
			}
			m = next
			f := &peer.File{Table: "cpu", Txn: peer.TxnID{1, byte(len(files)), byte(len(files) >> 8)}, Base: base, Seq: m.Seq, Digest: m.Digest(), Ops: topology.EncodeOps([]topology.Op{op})}
			if err := d.Put(f, m); err != nil {
				t.Fatal(err)
			}
			files, base = append(files, f), f.Txn
		}
	}
	wholes := func() (n int) {
		last := ""
		_ = b.Scan([]byte(mapPrefix), func(k, _ []byte) error {
			if file := string(k[:len(k)-4]); file != last {
				n, last = n+1, file
			}
			return nil
		})
		return n
	}
	add(linksDue + 2)
	if n := wholes(); n != 1 {
		t.Fatalf("%d files are whole before there was time to tidy", n)
	}
	at := len(files) - 1
	if err := d.Tidy(); err != nil {
		t.Fatal(err)
	}
	if n := wholes(); n != 2 {
		t.Fatalf("%d files are whole after it", n)
	}
	add(linksDue / 2)
	if err := d.Delete(infos(files[:at])...); err != nil {
		t.Fatal(err)
	}
	if n, _ := keys(t, b, linkPrefix); n != len(files)-1-at || wholes() != 1 {
		t.Errorf("%d links and %d whole files are left, want %d and 1", n, wholes(), len(files)-1-at)
	}
	for _, i := range []int{at, at + 1, len(files) - 1} {
		if _, got, err := d.Get("cpu", files[i].Txn); err != nil || got.Digest() != files[i].Digest {
			t.Fatalf("transaction %d: %v", i, err)
		}
	}
	add(linksMax + 5) // without Tidy a file is at last written whole at once
	if n := wholes(); n != 2 {
		t.Errorf("%d files are whole", n)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b, d = open(t, fs)
	if _, err := d.List(); err != nil {
		t.Fatal(err)
	}
	for n, x := range d.mu.nodes {
		if x.steps > linksMax {
			t.Errorf("%x stands on %d transactions", n.txn, x.steps)
		}
	}
	if err := d.Delete(infos(files)...); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLinksSurviveAPowerCut: every file put is read from an image without anything unsynced, also while files below are deleted and one
// in the midst is made whole.
func TestLinksSurviveAPowerCut(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, d := open(t, fs)
	defer b.Close()
	look := func(files []*peer.File) {
		t.Helper()
		after, disk := open(t, fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))}))
		if _, err := disk.List(); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if _, got, err := disk.Get("cpu", f.Txn); err != nil || !bytes.Equal(got.Encode(), f.Map) {
				t.Fatalf("transaction %d: %v", f.Seq, err)
			}
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
	files := chain(t, d, 8)
	look(files)
	if err := d.Delete(infos(files[:4])...); err != nil {
		t.Fatal(err)
	}
	look(files[4:])
	m, err := topology.Decode(files[5].Map)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.makeWhole(due{name{"cpu", files[5].Txn}, m}); err != nil {
		t.Fatal(err)
	}
	look(files[4:])
	if err := d.Delete(infos(files[4:5])...); err != nil {
		t.Fatal(err)
	}
	look(files[5:])
	if links, _ := keys(t, b, linkPrefix); links != 2 {
		t.Errorf("%d links are left", links)
	}
}

// wide is a map of many partitions, so that ops are a small part.
func wide(t *testing.T) (*topology.Map, func(point.PartitionID) []topology.Placement) {
	t.Helper()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	place := func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	}
	var times []point.Nanos
	for hour := range 20_000 {
		times = append(times, -int64(hour+1)*int64(time.Hour))
	}
	return m.Cover(times, place), place
}

// TestDamagedLinkIsSeen: any flip, cut or loss in a link makes it and all that stands on it Corrupt, never another map; the file is
// written again, and then all is read again. Files below are not touched.
func TestDamagedLinkIsSeen(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	files := chain(t, d, 6)
	k := key(linkPrefix, "cpu", files[3].Txn)
	v, ok, err := b.Get(k)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	v = bytes.Clone(v)
	set := func(v []byte) {
		t.Helper()
		batch := b.NewBatch()
		if v == nil {
			batch.Delete(k)
		} else {
			batch.Set(k, v)
		}
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
	}
	damaged := func(what string, v []byte) {
		t.Helper()
		set(v)
		for _, f := range files[3:] {
			if _, _, err := d.Get("cpu", f.Txn); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: transaction %d: %v", what, f.Seq, err)
			}
		}
		if _, _, err := d.Get("cpu", files[2].Txn); err != nil {
			t.Errorf("%s: below it: %v", what, err)
		}
	}
	for i := range v {
		flipped := bytes.Clone(v)
		flipped[i] ^= 4
		damaged(fmt.Sprintf("flipped at %d", i), flipped)
		damaged(fmt.Sprintf("cut at %d", i), v[:i])
	}
	damaged("lost", nil)
	l, err := decodeLink(v)
	if err != nil {
		t.Fatal(err)
	}
	other := link{from: files[0].Txn, ops: l.ops} // whole and well-formed, and another one
	damaged("another", other.encode())
	self := link{from: files[3].Txn, ops: l.ops}
	damaged("on itself", self.encode())

	set(v[:9])
	after := New(b)
	if list, err := after.List(); err != nil || len(list) != 6 {
		t.Fatalf("a start finds %d files, %v", len(list), err)
	}
	m, err := topology.Decode(files[3].Map)
	if err != nil {
		t.Fatal(err)
	}
	whole := *files[3]
	whole.Ops = nil
	if err := after.Put(&whole, m); err != nil { // as it is fetched
		t.Fatal(err)
	}
	for _, f := range files {
		if _, got, err := after.Get("cpu", f.Txn); err != nil || !bytes.Equal(got.Encode(), f.Map) {
			t.Errorf("transaction %d after it was fetched: %v", f.Seq, err)
		}
	}
	if err := after.Delete(infos(files)...); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, b)
}

// TestFilesOfTheFormBeforeAreReadAndReplaced: after an upgrade the next file is whole, since nothing can stand on the old form, and the one after
// it a link again.
func TestFilesOfTheFormBeforeAreReadAndReplaced(t *testing.T) {
	b, d := open(t, vfs.NewMem())
	defer b.Close()
	files := chain(t, d, 5)
	if err := d.Delete(infos(files[4:])...); err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Backward(files[1:4]) {
		v, _, err := b.Get(key(headPrefix, "cpu", f.Txn))
		if err != nil {
			t.Fatal(err)
		}
		h, err := decodeHead(bytes.Clone(v))
		if err != nil || !h.linked {
			t.Fatal(h, err)
		}
		batch := b.NewBatch()
		asBefore(t, d, batch, f, &h)
		batch.Set(key(headPrefix, "cpu", f.Txn), h.encode())
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
	}
	d = New(b)
	if list, err := d.List(); err != nil || len(list) != 4 {
		t.Fatalf("%d files, %v", len(list), err)
	}
	for i, f := range files[:4] {
		if _, got, err := d.Get("cpu", f.Txn); err != nil || !bytes.Equal(got.Encode(), f.Map) {
			t.Fatalf("transaction %d: %v", i, err)
		}
	}
	m, err := topology.Decode(files[4].Map)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Put(files[4], m); err != nil {
		t.Fatal(err)
	}
	if n, _ := keys(t, b, linkPrefix); n != 0 {
		t.Errorf("%d links stand on the old form", n)
	}
	if err := d.Delete(infos(files[:4])...); err != nil {
		t.Fatal(err)
	}
	if _, got, err := d.Get("cpu", files[4].Txn); err != nil || got.Digest() != m.Digest() {
		t.Errorf("after the old ones went: %v", err)
	}
	if err := d.Delete(infos(files)...); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, b)
}

// TestLinkIsAsDrawn checks the bytes of a link.
func TestLinkIsAsDrawn(t *testing.T) {
	l := link{from: peer.TxnID{0x20, 0x07}, ops: []byte{3, 'o', 'p', 's', 1, 'x'}}
	golden, err := os.ReadFile("testdata/link.hex")
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(golden)), "\n", ""))
	if err != nil || !bytes.Equal(l.encode(), want) {
		t.Fatalf("stored as\n%x", l.encode())
	}
	if got, err := decodeLink(want); err != nil || got.from != l.from || !bytes.Equal(got.ops, l.ops) {
		t.Fatalf("read as %+v, %v", got, err)
	}
}

func FuzzDecodeLink(f *testing.F) {
	f.Add((&link{from: peer.TxnID{1}, ops: []byte{1, 'x'}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLink(b)
		switch {
		case err != nil && !fault.Is(err, fault.Corrupt):
			t.Fatal(err)
		case err == nil && !bytes.Equal(l.encode(), b):
			t.Fatalf("%x is read as %+v", b, l)
		}
	})
}

func FuzzReplay(f *testing.F) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	ops := topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: 2 * time.Hour}}})
	f.Add(append(binary.AppendUvarint(nil, uint64(len(ops))), ops...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := replay(m, b); err != nil && !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
	})
}
