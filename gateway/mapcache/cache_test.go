package mapcache

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/fault"
)

var update = flag.Bool("update", false, "rewrite golden files")

func saved(name string) tables.Cached {
	return tables.Cached{Table: name, Row: []byte("row of " + name), Map: bytes.Repeat([]byte("map"), 20), At: time.Unix(1_700_000_000, 123)}
}

func open(t *testing.T, dir string, s Settings) *Cache {
	t.Helper()
	c, err := Open(dir, s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// names lists the result of Load, checked against the saved tables.
func names(t *testing.T, c *Cache) (string, error) {
	t.Helper()
	found, err := c.Load()
	var out []string
	for _, f := range found {
		if want := saved(f.Table); !bytes.Equal(f.Row, want.Row) || !bytes.Equal(f.Map, want.Map) || !f.At.Equal(want.At) {
			t.Errorf("%s was saved otherwise: %+v", f.Table, f)
		}
		out = append(out, f.Table)
	}
	slices.Sort(out)
	return strings.Join(out, " "), err
}

func TestTablesOutliveTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not/there/yet")
	c := open(t, dir, Settings{})
	long := strings.Repeat("ü", 120)
	for _, name := range []string{"a", "A/../b", "c", long, "c"} {
		if err := c.Save(saved(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Forget("a"); err != nil {
		t.Fatal(err)
	}
	if err := c.Forget("never there"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "t-half.cache.tmp"), []byte("SPW"), 0o600); err != nil {
		t.Fatal(err)
	}
	c2 := open(t, dir, Settings{})
	got, err := names(t, c2)
	if want := "A/../b c " + long; got != want || err != nil {
		t.Errorf("found %q %v, want %q", got, err, want)
	}
	if c.Bytes() != c2.Bytes() {
		t.Errorf("%d bytes, counted anew %d", c.Bytes(), c2.Bytes())
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.tmp")); err != nil || len(left) > 0 {
		t.Errorf("half written files are left: %v %v", left, err)
	}
}

// TestFilesOfTheFutureAreOld: the clock was an hour ahead when they were written. Their content counted as the newest for that hour.
func TestFilesOfTheFutureAreOld(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Settings{})
	ahead := saved("a")
	ahead.At = time.Now().Add(time.Hour)
	if err := c.Save(ahead); err != nil {
		t.Fatal(err)
	}
	found, err := c.Load()
	if err != nil || len(found) != 1 || time.Since(found[0].At) < 24*time.Hour {
		t.Errorf("%v, %v", found, err)
	}
	if err := c.write(fileName("r-", registry.Prefix), &file{kindRows, ahead.At, [][]byte{[]byte(registry.Prefix), make([]byte, 8)}}); err != nil {
		t.Fatal(err)
	}
	if age := remember(t, mem.New(), dir).Age(); age < 24*time.Hour {
		t.Errorf("the rows are %v old", age)
	}
}

// TestRowsThatCouldNotBeWrittenAreWrittenLater, also if none changes: a start without the store would go by older ones.
func TestRowsThatCouldNotBeWrittenAreWrittenLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	real := mem.New()
	if err := registry.Register(t.Context(), real, registry.Server{ID: "n1", Addr: "a:1", Host: "h", Store: "d"}, false, nil); err != nil {
		t.Fatal(err)
	}
	s := remember(t, real, dir)
	if _, _, err := s.List(t.Context(), registry.Prefix); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s.save(time.Now())
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.save(time.Now())
	if age := remember(t, real, dir).Age(); age == 0 {
		t.Error("no rows are kept")
	}
}

func TestTheBoundIsOfAllFiles(t *testing.T) {
	one := int64(len((&file{kindTable, time.Time{}, [][]byte{[]byte("a"), saved("a").Row, saved("a").Map}}).encode()))
	c := open(t, t.TempDir(), Settings{BytesMax: 2 * one})
	for _, name := range []string{"a", "b", "a", "b"} {
		if err := c.Save(saved(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Save(saved("c")); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a third: %v", err)
	}
	if err := c.Forget("a"); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(saved("c")); err != nil {
		t.Error(err)
	}
}

func golden(t *testing.T) ([]byte, *file) {
	t.Helper()
	s := saved("metrics")
	f := &file{kindTable, time.Unix(1_800_000_000, 123), [][]byte{[]byte(s.Table), s.Row, s.Map}}
	path := "testdata/table.cache"
	if *update {
		if err := os.MkdirAll("testdata", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.encode(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, f
}

// TestFilesOfVersion1StayReadable, and written files hold the bytes that were saved.
func TestFilesOfVersion1StayReadable(t *testing.T) {
	b, want := golden(t)
	if !bytes.Equal(want.encode(), b) {
		t.Error("the file is written otherwise than the golden one: that is another version")
	}
	got, err := decode(b)
	if err != nil || got.kind != want.kind || !got.at.Equal(want.at) || fmt.Sprint(got.fields) != fmt.Sprint(want.fields) {
		t.Errorf("read %+v %v, want %+v", got, err, want)
	}
}

// TestDamageIsSeen: cut anywhere, or with any byte changed, a file is Corrupt.
func TestDamageIsSeen(t *testing.T) {
	b, _ := golden(t)
	for i := range b {
		if _, err := decode(b[:i]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("cut at %d of %d: %v", i, len(b), err)
		}
		bad := slices.Clone(b)
		bad[i] ^= 0x10
		if _, err := decode(bad); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	if _, err := decode(append(slices.Clone(b), 0)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a byte more: %v", err)
	}

	dir := t.TempDir()
	c := open(t, dir, Settings{})
	for _, name := range []string{"good", "bad"} {
		if err := c.Save(saved(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "t-bad.cache"), b[:50], 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := names(t, open(t, dir, Settings{}))
	if got != "good" || !fault.Is(err, fault.Corrupt) && err == nil || !strings.Contains(err.Error(), "t-bad.cache") {
		t.Errorf("beside a bad file: %q %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	s := saved("metrics")
	f.Add((&file{kindTable, s.At, [][]byte{[]byte(s.Table), s.Row, s.Map}}).encode())
	f.Add((&file{kind: kindRows}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Errorf("%v", err)
			}
			return
		}
		if !bytes.Equal(got.encode(), b) {
			t.Error("what was read is written otherwise")
		}
	})
}
