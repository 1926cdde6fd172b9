package backup

import (
	"bytes"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/storage/brick"
)

// TestABackupIntoANewDirectorySurvivesAPowerCut: the names of the directories above it were never fsynced, and were gone with all that lay in them. A store that was
// restored into a new directory was, too.
func TestABackupIntoANewDirectorySurvivesAPowerCut(t *testing.T) {
	mem := vfs.NewCrashableMem()
	rows := bytes.Repeat([]byte("rows"), 1000)
	g := Segment{Placement: 42, Epoch: 1, Seq: 1, Size: int64(len(rows)), Checksum: xxhash.Sum64(rows), Path: "/rows"}
	if err := writeFile(mem, g.Path, bytes.NewReader(rows)); err != nil {
		t.Fatal(err)
	}
	at := Dir{FS: mem, Path: "/mnt/host/backups"}
	res, err := Write(t.Context(), mem, at, &Content{Store: "s", Segments: []Segment{g}}, time.Unix(1, 0), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	image := Dir{FS: mem.CrashClone(vfs.CrashCloneCfg{}), Path: at.Path}
	if checked, err := Verify(t.Context(), image, res.Name, Settings{}); err != nil || len(checked.Missing) > 0 {
		t.Fatalf("after a power cut the backup has %+v, %v", checked, err)
	}
	if _, err := Restore(t.Context(), at, "", brick.Deps{FS: mem}, brick.Settings{DataDir: "/srv/spillway/data", FreeBytesMin: 1}, Settings{}); err != nil {
		t.Fatal(err)
	}
	if there, err := brick.Exists(mem.CrashClone(vfs.CrashCloneCfg{}), "/srv/spillway/data"); err != nil || !there {
		t.Errorf("after a power cut the restored store is there: %v, %v", there, err)
	}
}
