package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// backUp makes a backup of a server in the directory "bk" of its file system.
func backUp(t *testing.T, s *server.Server, fs vfs.FS, made time.Time, set backup.Settings) backup.Result {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	must(t, err)
	defer snap.Close()
	res, err := backup.Write(t.Context(), fs, backup.Dir{FS: fs, Path: "bk"}, &snap.Content, made, set)
	must(t, err)
	return res
}

// TestABackupLacksNothingWhereAPartitionIsDroppedMeanwhile: its segments were named as missing and the command ended with 1, whenever a table was dropped, or a partition was older than
// its table keeps, while a backup was made; and the backups before were kept for ever, as each newer one lacked something.
func TestABackupLacksNothingWhereAPartitionIsDroppedMeanwhile(t *testing.T) {
	fs, maps, truth := vfs.NewMem(), newMap(t), model{}
	p := start(t, fs, maps, 1)
	defer func() { p.stop(t) }()
	w := newWriter(t, p.server)
	w.insert(t, 1024, []row{{1, 1e9, 1}}, truth)
	w.insert(t, 409600, []row{{1, 150e9, 1}}, model{})
	snap, err := p.server.Snapshot(t.Context())
	must(t, err)
	defer snap.Close()
	at, _ := p.server.Placement(lease.Partition{Table: "t", ID: 2})
	must(t, p.server.RemovePlacement("t", 2, at.Identity().Placement, false))
	must(t, p.brick.RemoveNow(at.Identity().Placement)) // as on a disk that is short of room
	res, err := backup.Write(t.Context(), fs, backup.Dir{FS: fs, Path: "bk"}, &snap.Content, backupTime, backup.Settings{})
	if must(t, err); len(res.Missing) > 0 {
		t.Errorf("missing: %q", res.Missing)
	}
	to, got := restored(t, fs, "")
	if len(got.Missing) > 0 {
		t.Errorf("missing in the restored store: %q", got.Missing)
	}
	if what, why := ask(t, to, maps, truth); what != whole {
		t.Errorf("restored: %d %s", what, why)
	}
}

// restored makes a store "data" on a new file system from the backups in "bk" on another.
func restored(t *testing.T, from vfs.FS, name string) (vfs.FS, backup.Result) {
	t.Helper()
	fs := vfs.NewMem()
	for path, b := range diskOf(t, from, "bk") {
		must(t, fs.MkdirAll(fs.PathDir(path), 0o755))
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(b)
		must(t, errors.Join(err, f.Close()))
	}
	res, err := backup.Restore(t.Context(), backup.Dir{FS: fs, Path: "bk"}, name, brick.Deps{FS: fs}, brick.Settings{DataDir: "data", FreeBytesMin: 1}, backup.Settings{})
	must(t, err)
	return fs, res
}

var backupTime = time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC)

// TestARestoredBackupHasAllRowsAndNoDeletedOnes makes backups between writes, flushes, compactions and deletions,
// restores each, and writes to the restored store.
func TestARestoredBackupHasAllRowsAndNoDeletedOnes(t *testing.T) {
	fs, maps, truth := vfs.NewMem(), newMap(t), model{}
	p := start(t, fs, maps, 3)
	defer func() { p.stop(t) }()
	w := newWriter(t, p.server)
	stamp := point.Stamp(1024)
	var copied int64
	for round := range int64(6) {
		for i := range int64(3) {
			stamp += 1024
			at := (5*round + i) * 1e9
			w.insert(t, stamp, []row{{int(i), at, float64(round)}, {int(i + 1), at + 100e9, float64(i)}, {7, at + 200e9, 1}}, truth)
			if i == 0 && round%2 == 0 {
				w.flush(t, round == 2)
			}
		}
		if round == 3 {
			must(t, p.server.DeleteSeries(context.Background(), &peer.Select{Table: "t", Lo: 100e9, Hi: 110e9, Matchers: []peer.Matcher{{Name: "i", Value: "2"}}}))
			for at := range truth[string(labelsOf(2))] {
				if at >= 100e9 && at <= 110e9 {
					delete(truth[string(labelsOf(2))], at)
				}
			}
		}
		res := backUp(t, p.server, fs, backupTime.Add(time.Duration(round)*time.Second), backup.Settings{Link: round%2 == 1})
		if len(res.Missing) > 0 || res.Segments == 0 {
			t.Fatalf("round %d: %+v", round, res)
		}
		copied += res.Copied
		again := backUp(t, p.server, fs, backupTime.Add(time.Duration(round)*time.Second+time.Millisecond), backup.Settings{})
		if again.Copied != 0 {
			t.Errorf("round %d: a second backup copied %d bytes again", round, again.Copied)
		}
		to, got := restored(t, fs, "")
		if len(got.Missing) > 0 || got.Name != again.Name {
			t.Fatalf("round %d: %+v, not of %s", round, got, again.Name)
		}
		if what, why := ask(t, to, maps, truth); what != whole {
			t.Fatalf("round %d, restored: %d %s", round, what, why)
		}
		q := start(t, to, maps, 10)
		more := model{}
		newWriter(t, q.server).insert(t, 1<<40, []row{{99, 50e9, 4}}, more)
		if all, err := tryRead(q.server, &peer.Select{Table: "t", Lo: 50e9, Hi: 50e9}); err != nil || !strings.Contains(all, more.String(50e9, 50e9, func(point.Labels) bool { return true })) {
			t.Errorf("round %d: written to after the restore: %q %v", round, all, err)
		}
		q.stop(t)
	}
	if copied == 0 {
		t.Error("nothing was ever copied")
	}
	all, err := backup.List(t.Context(), backup.Dir{FS: fs, Path: "bk"})
	must(t, err)
	removed, err := backup.Prune(t.Context(), backup.Dir{FS: fs, Path: "bk"}, "", all[len(all)-1].Name, 2)
	if must(t, err); len(removed) != len(all)-2 {
		t.Errorf("%d of %d backups were removed", len(removed), len(all))
	}
	for _, l := range all[len(all)-2:] {
		if res, err := backup.Verify(t.Context(), backup.Dir{FS: fs, Path: "bk"}, l.Name, backup.Settings{}); err != nil || len(res.Missing) > 0 {
			t.Errorf("after older ones were removed, %s: %+v %v", l.Name, res, err)
		}
	}
	to, _ := restored(t, fs, all[len(all)-1].Name)
	if what, why := ask(t, to, maps, truth); what != whole {
		t.Errorf("restored after older ones were removed: %d %s", what, why)
	}
}

// TestABackupNamesWhatIsDamagedInTheStore: a backup names the damage and has everything else.
func TestABackupNamesWhatIsDamagedInTheStore(t *testing.T) {
	fs, maps, truth := vfs.NewMem(), newMap(t), model{}
	p := start(t, fs, maps, 1)
	defer func() { p.stop(t) }()
	w := newWriter(t, p.server)
	for i := range 3 {
		w.insert(t, point.Stamp(1024*(i+1)), []row{{1, int64(i) * 1e9, 1}, {2, 100e9 + int64(i)*1e9, 2}}, truth)
		w.flush(t, false)
	}
	snap, err := p.server.Snapshot(t.Context())
	must(t, err)
	defer snap.Close()
	bad := snap.Segments[0]
	f, err := fs.OpenReadWrite(bad.Path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xfe}, bad.Size/2)
	must(t, errors.Join(err, f.Close()))
	res, err := backup.Write(t.Context(), fs, backup.Dir{FS: fs, Path: "bk"}, &snap.Content, backupTime, backup.Settings{})
	must(t, err)
	if len(res.Missing) != 1 || !strings.Contains(res.Missing[0], "checksum") {
		t.Fatalf("missing: %q", res.Missing)
	}
	to, got := restored(t, fs, "")
	if len(got.Missing) != 1 {
		t.Errorf("missing after the restore: %q", got.Missing)
	}
	if what, why := ask(t, to, maps, truth); what != closed && what != refused {
		t.Errorf("a store without a segment answers: %d %s", what, why)
	}
}

// TestARestoreThatWasInterruptedGoesOn: an interrupted restore goes on, and until it ends the directory is no store.
func TestARestoreThatWasInterruptedGoesOn(t *testing.T) {
	fs, maps, truth := vfs.NewMem(), newMap(t), model{}
	p := start(t, fs, maps, 1)
	w := newWriter(t, p.server)
	for i := range 6 {
		w.insert(t, point.Stamp(1024*(i+1)), []row{{i, int64(i) * 1e9, 1}, {i, 100e9 + int64(i)*1e9, 2}}, truth)
		w.flush(t, false)
	}
	backUp(t, p.server, fs, backupTime, backup.Settings{})
	backUp(t, p.server, fs, backupTime.Add(time.Second), backup.Settings{})
	p.stop(t)
	to := func() (backup.Result, error) { return restoreUpTo(t, fs, 1<<30, "") }
	for n := range 4 {
		if _, err := restoreUpTo(t, fs, n+1, ""); !errors.Is(err, context.Canceled) {
			t.Fatalf("a restore that was cancelled: %v", err)
		}
		if _, err := brick.Open(brick.Deps{FS: fs}, brick.Settings{DataDir: "restored", FreeBytesMin: 1}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "restore") {
			t.Fatalf("half restored, it is taken for a store: %v", err)
		}
		if _, err := restoreUpTo(t, fs, 1, backupTime.Format("20060102T150405.000Z")); !fault.Is(err, fault.Invalid) {
			t.Fatalf("another backup was restored into it: %v", err)
		}
	}
	res, err := to()
	if must(t, err); len(res.Missing) > 0 || res.Segments != res.SegmentsAll {
		t.Fatalf("%+v", res)
	}
	if _, err := to(); !fault.Is(err, fault.Invalid) {
		t.Errorf("a second restore into the same directory: %v", err)
	}
	moved := vfs.NewMem()
	for path, b := range diskOf(t, fs, "restored") {
		path = "data" + strings.TrimPrefix(path, "restored")
		must(t, moved.MkdirAll(moved.PathDir(path), 0o755))
		f, err := moved.Create(path, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(b)
		must(t, errors.Join(err, f.Close()))
	}
	if what, why := ask(t, moved, maps, truth); what != whole {
		t.Errorf("%d %s", what, why)
	}
}

// restoreUpTo restores into "restored", and is cancelled after so many segments.
func restoreUpTo(t *testing.T, fs vfs.FS, n int, name string) (backup.Result, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	set := backup.Settings{Progress: func(p backup.Progress) {
		if p.Segments >= n {
			cancel()
		}
	}}
	res, err := backup.Restore(ctx, backup.Dir{FS: fs, Path: "bk"}, name, brick.Deps{FS: fs}, brick.Settings{DataDir: "restored", FreeBytesMin: 1}, set)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), fmt.Errorf("%w", err))
	}
	return res, err
}
