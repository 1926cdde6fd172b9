package backup

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// unsynced is a file system on which, once on, a directory is not fsynced.
type unsynced struct {
	on  atomic.Bool
	dir string
}

func (u *unsynced) MaybeError(op errorfs.Op) error {
	if u.on.Load() && op.Kind == errorfs.OpFileSync && op.Path == u.dir {
		return errorfs.ErrInjected
	}
	return nil
}

func (u *unsynced) String() string { return "unsynced" }

// TestASegmentOfARestoreThatWentOnSurvivesAPowerCut: the first try ended between the name of a segment and the fsync of its directory. The second one found the file, and
// did not fsync the directory either: after a power cut the restored store named a segment that was gone.
func TestASegmentOfARestoreThatWentOnSurvivesAPowerCut(t *testing.T) {
	mem := vfs.NewCrashableMem()
	rows := bytes.Repeat([]byte("rows"), 1000)
	g := Segment{Placement: 42, Epoch: 1, Seq: 1, Size: int64(len(rows)), Checksum: xxhash.Sum64(rows), Path: "/rows"}
	at := Dir{FS: mem, Path: "/bk"}
	if err := writeFile(mem, g.Path, bytes.NewReader(rows)); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), mem, at, &Content{Store: "s", Segments: []Segment{g}}, time.Unix(1, 0), Settings{}); err != nil {
		t.Fatal(err)
	}
	cut := &unsynced{dir: "/data/segments/" + g.Placement.String()}
	restore := func() error {
		_, err := Restore(t.Context(), at, "", brick.Deps{FS: errorfs.Wrap(mem, cut)}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{})
		return err
	}
	cut.on.Store(true)
	if restore() == nil {
		t.Fatal("the first try does not end")
	}
	cut.on.Store(false)
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	image := mem.CrashClone(vfs.CrashCloneCfg{})
	if st, err := image.Stat(cut.dir + "/1-1.seg"); err != nil || st.Size() != g.Size {
		t.Errorf("after a power cut: %v", err)
	}
}

// TestABackupOfAnotherPlaceIsNotReadByItsName: the name ../x read x.backup beside the directory of backups, and that backup's segments here.
func TestABackupOfAnotherPlaceIsNotReadByItsName(t *testing.T) {
	mem := vfs.NewMem()
	other, here := Dir{FS: mem, Path: "/bk"}, Dir{FS: mem, Path: "/bk/here"}
	for _, at := range []Dir{other, here} {
		if _, err := Write(t.Context(), mem, at, &Content{Store: "s"}, time.Unix(1, 0), Settings{}); err != nil {
			t.Fatal(err)
		}
	}
	name := (&Manifest{Made: time.Unix(1, 0)}).name()
	if _, err := Verify(t.Context(), here, name, Settings{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../" + name, "segments/../" + name, "/bk/" + name, `..\` + name} {
		if _, err := Verify(t.Context(), here, name, Settings{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Restore(t.Context(), here, name, brick.Deps{FS: mem}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
