package local_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/metadata/coord/local"
)

func TestConformance(t *testing.T) {
	coordtest.Run(t, func(t *testing.T) coord.Store { return open(t, vfs.NewMem()) })
}

func open(t *testing.T, fs vfs.FS) *local.Store {
	t.Helper()
	s, err := local.Open(fs, "coord", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// After a power cut every committed transaction is there whole, and revisions go on rising.
func TestCommittedRowsSurvivePowerCut(t *testing.T) {
	for _, kept := range []int{0, 100} {
		fs := vfs.NewCrashableMem()
		s := open(t, fs)
		var last coord.Revision
		for i := range 20 {
			rev, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "a", Value: fmt.Append(nil, i)}, {Key: fmt.Sprint("b/", i)}})
			if err != nil || !ok {
				t.Fatal(err)
			}
			last = rev
			image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(1, 2))})
			after := open(t, image)
			row, _, err := after.Get(t.Context(), "a")
			rows, _, _ := after.List(t.Context(), "b/")
			if err != nil || string(row.Value) != fmt.Sprint(i) || row.Revision != last || len(rows) != i+1 {
				t.Fatalf("after commit %d: %q at %d, %d rows, %v", i, row.Value, row.Revision, len(rows), err)
			}
			if rev, _, err := after.Commit(t.Context(), nil, nil); err != nil || rev <= last {
				t.Fatalf("revision %d after %d: %v", rev, last, err)
			}
			if err := after.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
