package backup

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestPruningLeavesTheFilesOfOthers: a directory with files of other programs lost its temporary files, and whatever lay in its
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
	made := ""
	for i := range 2 {
		if res, err := Write(ctx, at.FS, at, &Content{}, time.UnixMilli(int64(i)), Settings{}); err != nil {
			t.Fatal(err)
		} else {
			made = res.Name
		}
	}
	if removed, err := Prune(ctx, at, "", made, 1); err != nil || len(removed) != 1 {
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

// TestTheLastWholeBackupStays: backups that lack a server's partitions, because it was away for some nights, pushed the whole ones out; and where one was made by a clock in
// 2036, that one stayed for ever, and each new backup was removed as soon as it was made.
func TestTheLastWholeBackupStays(t *testing.T) {
	ctx, at := context.Background(), Dir{FS: vfs.NewMem(), Path: "backups"}
	unlock, err := at.Lock(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
	make := func(ms int64, missing ...string) string {
		t.Helper()
		m := &Manifest{Version: formatVersion, Made: time.UnixMilli(ms), Missing: missing}
		if err := writeManifest(ctx, at, m); err != nil {
			t.Fatal(err)
		}
		return m.name()
	}
	const in2036 = 2_100_000_000_000
	old, whole, ahead := make(1), make(2), make(in2036)
	for i, want := range [][]string{{old}, nil, nil} {
		made := make(int64(3+i), "partition default/3: its server is away")
		removed, err := Prune(ctx, at, "", made, 2)
		if i == 2 {
			want = []string{(&Manifest{Made: time.UnixMilli(3)}).name()}
		}
		if err != nil || !slices.Equal(removed, want) {
			t.Fatalf("backup %d removed %v, want %v: %v", i, removed, want, err)
		}
	}
	made := make(9)
	if removed, err := Prune(ctx, at, "", made, 1); err != nil || len(removed) != 3 || !slices.Contains(removed, whole) || slices.Contains(removed, ahead) || slices.Contains(removed, made) {
		t.Fatalf("a whole one removed %v: %v", removed, err)
	}
}

// TestABackupDatedInTheFutureIsNotTakenForTheNewest: a host whose clock was ten years ahead made one backup, and every restore of years to come used it.
func TestABackupDatedInTheFutureIsNotTakenForTheNewest(t *testing.T) {
	at := Dir{FS: vfs.NewMem(), Path: "backups"}
	if err := at.FS.MkdirAll("backups", 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(made time.Time) string {
		m := example()
		m.Made = made
		b, err := encoded(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := at.Put(t.Context(), m.name()+suffix, int64(len(b)), bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		return m.name()
	}
	write(time.Now().Add(-time.Hour))
	newest := write(time.Now().Add(time.Minute)) // clocks differ
	if name, _, err := Load(t.Context(), at, "", Settings{}); err != nil || name != newest {
		t.Errorf("the newest is %q, not %q: %v", name, newest, err)
	}
	ahead := write(time.Now().AddDate(10, 0, 0))
	if name, _, err := Load(t.Context(), at, "", Settings{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), ahead) {
		t.Errorf("%q is taken for the newest: %v", name, err)
	}
	if name, _, err := Load(t.Context(), at, ahead, Settings{}); err != nil || name != ahead {
		t.Errorf("a backup that is named is loaded: %q, %v", name, err)
	}
}
