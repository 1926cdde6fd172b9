package brick

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

var goldenID = StoreID{0: 1, 1: 2, 15: 0xff}

// golden compares bytes with a file of hexadecimal digits.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is now\n%x, was\n%x (%v)", name, got, want, err)
	}
}

// goldenMirror is a snapshot in two parts and two commits, with the states they lead to.
func goldenMirror() (b []byte, states []map[string]string) {
	b = append([]byte(catalogueMirror.magic), goldenID[:]...)
	set := func(k, v string) change { return change{key: []byte(k), value: []byte(v)} }
	mark := watermark{seq: 7}
	for _, kv := range [][2]string{{"a", "1"}, {"b", ""}, {"c", "3"}} {
		mark.add([]byte(kv[0]), []byte(kv[1]))
	}
	b = appendMirrorRecord(b, mirrorPart, mark, []change{set("a", "1"), set("b", "")})
	b = appendMirrorRecord(b, mirrorEnd, mark, []change{set("c", "3")})
	states = append(states, map[string]string{"a": "1", "b": "", "c": "3"})
	mark.seq++
	mark.remove([]byte("a"), []byte("1"))
	mark.add([]byte("a"), []byte("one"))
	b = appendMirrorRecord(b, mirrorCommit, mark, []change{set("a", "one")})
	states = append(states, map[string]string{"a": "one", "b": "", "c": "3"})
	mark.seq++
	mark.remove([]byte("b"), nil)
	b = appendMirrorRecord(b, mirrorCommit, mark, []change{{key: []byte("b"), deleted: true}})
	states = append(states, map[string]string{"a": "one", "c": "3"})
	return b, states
}

func writeBytes(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, writeCategory)
	if err == nil {
		_, err = f.Write(bytes.Clone(b))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// goldenMetadata is a mirror of METADATA: a snapshot and two commits, between which there were others.
func goldenMetadata() (b []byte, states map[uint64]map[string]string) {
	b = append([]byte(metadataMirror.magic), goldenID[:]...)
	mark := watermark{seq: 7}
	mark.add([]byte("m/a"), []byte("1"))
	b = appendMirrorRecord(b, mirrorEnd, mark, []change{{key: []byte("m/a"), value: []byte("1")}})
	states = map[uint64]map[string]string{7: {"m/a": "1"}}
	mark.seq = 12
	mark.add([]byte("m/b"), []byte("2"))
	b = appendMirrorRecord(b, mirrorCommit, mark, []change{{key: []byte("m/b"), value: []byte("2")}})
	states[12] = map[string]string{"m/a": "1", "m/b": "2"}
	mark.seq = 20
	mark.remove([]byte("m/a"), []byte("1"))
	b = appendMirrorRecord(b, mirrorCommit, mark, []change{{key: []byte("m/a"), deleted: true}})
	states[20] = map[string]string{"m/b": "2"}
	return b, states
}

// stateOf reads a mirror of these bytes.
func stateOf(t testing.TB, kind mirrorKind, b []byte) (map[string]string, uint64) {
	t.Helper()
	fs := vfs.NewMem()
	writeBytes(t, fs, "m", b)
	state, mark, err := mirroredState(fs, kind, "m", goldenID)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for k, v := range state {
		out[k] = string(v)
	}
	return out, mark.seq
}

func sameState(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || w != v {
			return false
		}
	}
	return true
}

func TestCopiesStayReadable(t *testing.T) {
	b, states := goldenMirror()
	golden(t, "mirror.hex", b)
	if got, seq := stateOf(t, catalogueMirror, b); seq != 9 || !sameState(got, states[2]) {
		t.Errorf("the mirror gives %v at commit %d", got, seq)
	}
	b, kept := goldenMetadata()
	golden(t, "metadata.hex", b)
	if got, seq := stateOf(t, metadataMirror, b); seq != 20 || !sameState(got, kept[20]) {
		t.Errorf("the mirror of METADATA gives %v at commit %d", got, seq)
	}
	if _, seq := stateOf(t, catalogueMirror, b); seq != 0 {
		t.Error("the mirror of METADATA is taken for that of the catalogue")
	}
	golden(t, "witness.hex", appendTestimony(nil, goldenID, 3, testimony{log: at(2, 77), catalogue: 9}))
	golden(t, "watermark.hex", watermark{seq: 9, keys: 2, sum: 0x1122334455667788}.append(nil))
	rebuilt := identity{store: StoreID{1}, log: goldenID}
	if got, ok := parseIdentity("spillway store 2\nuuid 01000000000000000000000000000000\nlog 010200000000000000000000000000ff\n"); !ok || got != rebuilt {
		t.Errorf("a rebuilt store is %v", got)
	}
	if got, ok := parseIdentity(string(rebuilt.text())); !ok || got != rebuilt {
		t.Errorf("a rebuilt store writes %q", rebuilt.text())
	}
}

// TestADamagedMirrorGivesAStateThatWas: cut or changed anywhere, it yields one of the states that the catalogue had, or none.
func TestADamagedMirrorGivesAStateThatWas(t *testing.T) {
	b, states := goldenMirror()
	try := func(what string, at int, bad []byte) {
		t.Helper()
		got, seq := stateOf(t, catalogueMirror, bad)
		if seq == 0 {
			return
		}
		if seq < 7 || seq > 9 || !sameState(got, states[seq-7]) {
			t.Fatalf("%s at %d gives %v as commit %d", what, at, got, seq)
		}
	}
	for n := range len(b) {
		try("cut", n, b[:n])
		for bit := range 8 {
			bad := bytes.Clone(b)
			bad[n] ^= 1 << bit
			try("flipped", n, bad)
		}
	}
}

// TestADamagedMirrorOfMetadataGivesAStateThatWas: also with a commit missing in between.
func TestADamagedMirrorOfMetadataGivesAStateThatWas(t *testing.T) {
	b, states := goldenMetadata()
	try := func(what string, at int, bad []byte) {
		t.Helper()
		if got, seq := stateOf(t, metadataMirror, bad); seq != 0 && (states[seq] == nil || !sameState(got, states[seq])) {
			t.Fatalf("%s at %d gives %v as commit %d", what, at, got, seq)
		}
	}
	for n := range len(b) {
		try("cut", n, b[:n])
		for bit := range 8 {
			bad := bytes.Clone(b)
			bad[n] ^= 1 << bit
			try("flipped", n, bad)
		}
		for to := n + 1; to <= len(b); to++ {
			try("taken out", n, append(bytes.Clone(b[:n]), b[to:]...))
		}
	}
}

// TestADamagedWitnessSaysNothingFalse: cut or changed anywhere, it yields the content of one of its slots, or nothing.
func TestADamagedWitnessSaysNothingFalse(t *testing.T) {
	older, newer := testimony{at(1, 5), 3}, testimony{at(2, 9), 4}
	b := make([]byte, witnessApart+witnessSlot)
	copy(b, appendTestimony(nil, goldenID, 2, newer))
	copy(b[witnessApart:], appendTestimony(nil, goldenID, 1, older))
	read := func(b []byte) testimony {
		fs := vfs.NewMem()
		writeBytes(t, fs, "w", b)
		_, got, err := readTestimony(fs, "w", goldenID)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read(b); got != newer {
		t.Fatalf("whole: %v", got)
	}
	for n := range len(b) {
		if n > witnessSlot && n < witnessApart {
			continue
		}
		if got := read(b[:n]); got != newer && got != (testimony{}) {
			t.Fatalf("cut at %d: %v", n, got)
		}
		for bit := range 8 {
			bad := bytes.Clone(b)
			bad[n] ^= 1 << bit
			if got := read(bad); got != newer && got != older {
				t.Fatalf("flipped at %d: %v", n, got)
			}
		}
	}
	if got := read(nil); got != (testimony{}) {
		t.Fatalf("empty: %v", got)
	}
}

func FuzzMirror(f *testing.F) {
	b, _ := goldenMirror()
	f.Add(b)
	b, _ = goldenMetadata()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = stateOf(t, catalogueMirror, b)
		_, _ = stateOf(t, metadataMirror, b) // no panic, and no memory beyond the size of b
		if rec, ok := parseMirrorBody(b); ok {
			again, ok := parseMirrorBody(appendMirrorRecord(nil, rec.kind, rec.mark, rec.changes)[mirrorPrefixBytes:])
			if !ok || len(again.changes) != len(rec.changes) || again.mark != rec.mark {
				t.Fatalf("%v is read back as %v", rec, again)
			}
		}
	})
}

// TestTheMirrorFollowsTheCatalogue: through commits, new snapshots, kills and restarts it holds the contents of the catalogue.
func TestTheMirrorFollowsTheCatalogue(t *testing.T) {
	fs := vfs.NewCrashableMem()
	for life := range 4 {
		b, _ := open(t, fs, Settings{})
		for i := range 300 {
			put(t, b, 1, seq(uint64(1000*life+i+1)), 10)
			batch := b.NewBatch()
			batch.Set([]byte{'k', byte(i % 7)}, bytes.Repeat([]byte{byte(life)}, i))
			if i%5 == 0 {
				batch.Delete([]byte{'k', byte(i % 11)})
			}
			if i%4 == 0 {
				batch.Set([]byte{'m', '/', byte(i % 7)}, bytes.Repeat([]byte{byte(life)}, i))
			}
			if i%9 == 0 {
				batch.Delete([]byte{'m', '/', byte(i % 11)})
			}
			if err := batch.Commit(i%3 > 0); err != nil {
				t.Fatal(err)
			}
			if i%100 == 50 {
				if err := errors.Join(b.remirror(&b.mirror), b.remirror(&b.metadata)); err != nil {
					t.Fatal(err)
				}
			}
		}
		last := b.NewBatch()
		last.Set([]byte("last"), []byte{byte(life)})
		if err := last.Commit(true); err != nil {
			t.Fatal(err)
		}
		want := b.commits.last()
		image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}) // a kill: written bytes survive
		mustClose(t, b)
		if life%2 == 0 {
			fs = image
		}
		for what, fs := range map[string]vfs.FS{"killed": image, "closed": fs} {
			r, err := Examine(Deps{FS: fs}, Settings{DataDir: "/data"})
			if err != nil {
				t.Fatal(err)
			}
			if r.Trouble != nil || r.Mirrored < want || len(r.mirror) != len(r.readable) {
				t.Errorf("life %d, %s: the mirror ends at %d with %d keys, the catalogue at %d with %d (%v)", life, what, r.Mirrored, len(r.mirror), want, len(r.readable), r.Trouble)
			}
			n := 0
			for k, v := range r.readable {
				if !metadataMirror.keeps([]byte(k)) {
					continue
				}
				if n++; !bytes.Equal(r.metadata[k], v) {
					t.Errorf("life %d, %s: the mirror of METADATA has %q, the catalogue %q", life, what, r.metadata[k], v)
				}
			}
			if r.Metadata == 0 || n != len(r.metadata) {
				t.Errorf("life %d, %s: the mirror of METADATA ends at %d with %d keys of %d", life, what, r.Metadata, len(r.metadata), n)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAnAckedMapSurvivesACutOfPowerAndTheLossOfTheCatalogue: all unsynced bytes are lost with the power, then the catalogue and
// its mirror with the disk.
func TestAnAckedMapSurvivesACutOfPowerAndTheLossOfTheCatalogue(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{})
	want := map[string]string{}
	for i := range 50 {
		batch := b.NewBatch()
		k := fmt.Sprint("m/file/", i)
		want[k] = fmt.Sprint("map ", i)
		batch.Set([]byte(k), []byte(want[k]))
		batch.Set([]byte("p/other"), []byte{byte(i)})
		if err := batch.Commit(true); err != nil {
			t.Fatal(err)
		}
		image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 1))})
		for _, path := range []string{"/data/catalogue", "/data/catalogue.mirror"} {
			if err := image.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Examine(Deps{FS: image}, Settings{DataDir: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		entries, err := r.Entries()
		if err != nil || r.Exact() {
			t.Fatalf("exact %t: %v", r.Exact(), err)
		}
		for k, v := range want {
			if string(entries[k]) != v {
				t.Fatalf("after %d commits %s is %q, want %q", i+1, k, entries[k], v)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, b)
}

// TestWhatNothingNamesIsPutAside: a log file with records is kept, one that was made and never used is removed.
func TestWhatNothingNamesIsPutAside(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{})
	put(t, b, 1, seq(1), 100)
	path := b.filePath(1)
	mustClose(t, b)
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	// A user copied a log file of this store under a number that the catalogue does not list.
	stray := bytes.Clone(all)
	other := at(99, 0).file()
	writeBytes(t, fs, b.filePath(other), retag(stray, b.fileTag(1), b.fileTag(other)))
	writeBytes(t, fs, b.filePath(98), make([]byte, 4096)) // made and never used
	b, _ = openAfter(t, fs, Settings{}, upTo{1: seq(1)})
	defer mustClose(t, b)
	if got := b.LostFound(); got.Entries != 1 || got.Bytes != int64(len(stray)) {
		t.Errorf("%v", got)
	}
	if _, err := fs.Stat(b.filePath(98)); err == nil {
		t.Error("an unused file is still there")
	}
	if b.mu.cur.number <= 99 {
		t.Errorf("the new file is number %d: numbers must not be used twice", b.mu.cur.number)
	}
	if err := b.PutLogAside(point.PlacementID(77)); err != nil {
		t.Fatal(err)
	}
}

// retag makes the chunks of one file those of another.
func retag(b []byte, from, to uint32) []byte {
	old := []byte{byte(from), byte(from >> 8), byte(from >> 16), byte(from >> 24)}
	now := []byte{byte(to), byte(to >> 8), byte(to >> 16), byte(to >> 24)}
	b = bytes.ReplaceAll(b, old, now)
	for off := 0; off+chunkHeaderSize < len(b); {
		n := int(b[off+4]) | int(b[off+5])<<8
		if n == 0 {
			break
		}
		sum := chunkSum(b[off+6 : off+chunkHeaderSize+n])
		b[off], b[off+1], b[off+2], b[off+3] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		off += chunkHeaderSize + n
	}
	return b
}
