package backup

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestPruningLeavesTheFilesOfOthers: a directory that somebody keeps other things in lost its temporary files, and whatever lay in its
// folder called segments.
func TestPruningLeavesTheFilesOfOthers(t *testing.T) {
	ctx, at := context.Background(), Dir{FS: vfs.NewMem(), Path: "home"}
	others := []string{"letter.tmp", "20261122.backup.tmp", "segments/film-00001.ts", "segments/1-2.seg", "segments/upload.tmp", "segments/0123456789ABCDEF-1.seg",
		"segments/0123456789abcdef-1.seg.part"}
	left := []string{"20261122T070552.335Z.backup.tmp", "segments/0123456789abcdef-1.seg", "segments/fffffffffffffffe-1229.seg.tmp"} // by a backup that was killed
	unlock, err := at.Lock(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(others, left) {
		if err := at.Put(ctx, name, 1, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if _, err := Write(ctx, at.FS, at, &Content{}, time.UnixMilli(int64(i)), Settings{}); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := Prune(ctx, at, "", 1); err != nil || len(removed) != 1 {
		t.Fatalf("removed %v: %v", removed, err)
	}
	found := map[string]bool{}
	for _, folder := range []string{"", SegmentsDir} {
		files, err := at.List(ctx, folder)
		if err != nil {
			t.Fatal(err)
		}
		for name := range files {
			if folder != "" {
				name = folder + "/" + name
			}
			found[name] = true
		}
	}
	for _, name := range others {
		if !found[name] {
			t.Errorf("%s is gone", name)
		}
		delete(found, name)
	}
	if names := slices.Sorted(maps.Keys(found)); !slices.Equal(names, []string{"19700101T000000.001Z.backup", lockName}) {
		t.Errorf("of backups there are %v", names)
	}
}
