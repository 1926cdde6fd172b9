package overlay_test

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/storage/overlay"
)

func write(t *testing.T, fs vfs.FS, name, text string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// read returns a file's text, or "" when there is none.
func read(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestNothingReachesTheDisk: every change shows above, and none below.
func TestNothingReachesTheDisk(t *testing.T) {
	under := vfs.NewMem()
	if err := under.MkdirAll("/d/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"a", "b", "c", "d", "sub/e"} {
		write(t, under, "/d/"+n, n+" below")
	}
	o := overlay.New(under)
	write(t, o, "/d/a", "a above")
	write(t, o, "/d/new", "new")
	for _, err := range []error{o.Remove("/d/b"), o.Rename("/d/c", "/d/a2"), o.RemoveAll("/d/sub"), o.MkdirAll("/d/other", 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	reused, err := o.ReuseForWrite("/d/d", "/d/d2", vfs.WriteCategoryUnspecified)
	if err != nil || reused.Close() != nil {
		t.Fatal(err)
	}
	names, err := o.List("/d")
	if want := []string{"a", "a2", "d2", "new", "other"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v %v, want %v", names, err, want)
	}
	for name, want := range map[string]string{"a": "a above", "b": "", "c": "", "a2": "c below", "sub/e": "", "new": "new", "d": ""} {
		if got := read(t, o, "/d/"+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
		if _, err := o.Stat("/d/" + name); (err == nil) != (want != "") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []string{"a", "b", "c", "d", "sub/e"} {
		if got := read(t, under, "/d/"+n); got != n+" below" {
			t.Errorf("below, %s became %q", n, got)
		}
	}
	if names, _ := under.List("/d"); len(names) != 5 {
		t.Errorf("below there is %v", names)
	}
	if _, err := o.Create("/none/x", vfs.WriteCategoryUnspecified); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file in no directory: %v", err)
	}
}

// TestLargeFilesOfTheDiskTakeNoWrites, and are synced without harm.
func TestLargeFilesOfTheDiskTakeNoWrites(t *testing.T) {
	under := vfs.NewMem()
	text := strings.Repeat("text", 32<<10)
	write(t, under, "/a", text)
	f, err := overlay.New(under).OpenReadWrite("/a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("a write was taken")
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	b := make([]byte, len(text))
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != text {
		t.Errorf("%.10q %v", b, err)
	}
}

// TestSmallFilesOfTheDiskAreCopied when something is written into them; the disk stays as it was.
func TestSmallFilesOfTheDiskAreCopied(t *testing.T) {
	under := vfs.NewMem()
	write(t, under, "/a", "text")
	o := overlay.New(under)
	f, err := o.OpenReadWrite("/a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if over, below := read(t, o, "/a"), read(t, under, "/a"); over != "txxt" || below != "text" {
		t.Errorf("it is %q over %q", over, below)
	}
}

// TestADatabaseOpensOnIt: pebble replays, flushes, compacts and deletes, and the disk stays as it was.
func TestADatabaseOpensOnIt(t *testing.T) {
	under := vfs.NewMem()
	fill := func(fs vfs.FS, from, to byte) {
		db, err := pebble.Open("/db", &pebble.Options{FS: fs, MemTableSize: 64 << 10, L0CompactionThreshold: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := from; i < to; i++ {
			if err := errors.Join(db.Set([]byte{i}, make([]byte, 3000), pebble.Sync), db.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range to {
			v, c, err := db.Get([]byte{i})
			if err != nil || len(v) != 3000 {
				t.Fatalf("key %d: %d bytes, %v", i, len(v), err)
			}
			_ = c.Close()
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fill(under, 0, 20)
	before := map[string]string{}
	names, _ := under.List("/db")
	for _, n := range names {
		before[n] = read(t, under, "/db/"+n)
	}
	o := overlay.New(under)
	fill(o, 20, 40)
	fill(o, 40, 50)
	after, _ := under.List("/db")
	if len(after) != len(before) {
		t.Errorf("%v became %v", names, after)
	}
	for _, n := range after {
		if read(t, under, "/db/"+n) != before[n] {
			t.Errorf("%s changed", n)
		}
	}
}

// TestAFolderThatAStartPutsAsideMovesWithItsFiles: on a full disk such a start was refused, and `spillway verify` said that any would be.
func TestAFolderThatAStartPutsAsideMovesWithItsFiles(t *testing.T) {
	under := vfs.NewMem()
	if err := under.MkdirAll("/d/segments/ca/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, under, "/d/segments/ca/a", "a below")
	write(t, under, "/d/segments/ca/sub/b", "b below")
	o := overlay.New(under)
	write(t, o, "/d/segments/ca/c", "c above")
	if err := errors.Join(o.MkdirAll("/d/lost+found", 0o755), o.Rename("/d/segments/ca", "/d/lost+found/x")); err != nil {
		t.Fatal(err)
	}
	if err := o.Rename("/d/lost+found/x/a", "/d/lost+found/x/a2"); err != nil { // a second time
		t.Error(err)
	}
	for name, want := range map[string]string{"a2": "a below", "sub/b": "b below", "c": "c above", "a": ""} {
		path := "/d/lost+found/x/" + name
		if got := read(t, o, path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
		if st, err := o.Stat(path); (err == nil) != (want != "") || err == nil && st.Size() != int64(len(want)) {
			t.Errorf("%s: %v %v", path, st, err)
		}
	}
	if names, err := o.List("/d/segments"); err != nil || len(names) != 0 {
		t.Errorf("%v %v", names, err)
	}
	if err := o.RemoveAll("/d/lost+found/x"); err != nil {
		t.Error(err)
	}
	if got := read(t, o, "/d/lost+found/x/a2"); got != "" {
		t.Errorf("after its removal it is %q", got)
	}
	write(t, o, "/d/lost+found/a2", "new")
	if got := read(t, o, "/d/lost+found/a2") + read(t, under, "/d/segments/ca/a") + read(t, under, "/d/segments/ca/sub/b"); got != "newa belowb below" {
		t.Errorf("%q", got)
	}
}
