package local_test

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/local"
)

// TestRowsOfANewDirectoryAreThereAfterAPowerCut: the name of the directory was never fsynced. It was gone with the power, its witness with it, and the next start began
// an empty store.
func TestRowsOfANewDirectoryAreThereAfterAPowerCut(t *testing.T) {
	mem := vfs.NewCrashableMem()
	open := func(fs vfs.FS) *local.Store {
		t.Helper()
		s, err := local.Open(fs, "/data/coord", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, dir := range []string{"/data", "/"} { // what a store makes durable before
		if err := mem.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if d, err := mem.OpenDir(dir); err != nil || d.Sync() != nil {
			t.Fatal(err)
		}
	}
	s := open(mem)
	if _, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "table", Value: []byte("t")}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	image := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(image)
	defer s.Close()
	if _, ok, err := s.Get(t.Context(), "table"); err != nil || !ok {
		t.Errorf("the row that was committed: %v, %v", ok, err)
	}
}
