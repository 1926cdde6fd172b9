package brick

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// leave makes the directory of a placement with files, each so long.
func leave(t *testing.T, b *Brick, p point.PlacementID, sizes map[string]int) {
	t.Helper()
	if err := b.MakeSegmentDir(p); err != nil {
		t.Fatal(err)
	}
	for name, n := range sizes {
		f, err := b.FS().Create(b.FS().PathJoin(b.SegmentDir(p), name), writeCategory)
		if err == nil {
			_, err = f.Write(make([]byte, n))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (b *Brick) mustRemoveSome(t *testing.T) Removed {
	t.Helper()
	r, err := b.RemoveSome()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestALargeFileOfADroppedPartitionGoesPieceByPiece: the file system freed and discarded a GiB in one go, and all writers waited for it.
func TestALargeFileOfADroppedPartitionGoesPieceByPiece(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("files are removed as a whole here")
	}
	b, _ := open(t, vfs.Default, Settings{DataDir: t.TempDir(), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": 100})
	large := b.SegmentPath(7, point.SegmentID{Epoch: 1, Seq: 1})
	const size = 3*removePiece + 5
	if err := os.Truncate(large, size); err != nil { // sparse
		t.Fatal(err)
	}
	gone := false
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { gone = true; return nil }})
	for left := int64(size); left > 0; {
		if n := b.DroppedBytes(); n != left {
			t.Fatalf("%d bytes count as free, want %d", n, left)
		}
		if r := b.mustRemoveSome(t); r.Hurry {
			t.Skip("the disk of this machine is short of room")
		} else if r.Bytes != min(left, removePiece) || !r.More || r.Ended {
			t.Fatalf("%d bytes were left: %+v", left, r)
		}
		left -= min(left, removePiece)
		if st, err := os.Stat(large); left > 0 && (err != nil || st.Size() != left) {
			t.Fatalf("the file has %v, %v; want %d bytes", st, err, left)
		}
	}
	if r := b.mustRemoveSome(t); !r.Ended || !gone || b.DroppedBytes() != 0 {
		t.Errorf("the end: %+v, %t, %d bytes", r, gone, b.DroppedBytes())
	}
	if _, err := os.Stat(filepath.Dir(large)); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	if r := b.mustRemoveSome(t); r != (Removed{}) {
		t.Errorf("once more: %+v", r)
	}
}

// TestADropShortensNoFileOfABackup: a backup in a directory is made of links, and has the same bytes.
func TestADropShortensNoFileOfABackup(t *testing.T) {
	dir := t.TempDir()
	b, _ := open(t, vfs.Default, Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": 2*removePiece + 1})
	backup := filepath.Join(dir, "backup")
	if err := os.Link(b.SegmentPath(7, point.SegmentID{Epoch: 1, Seq: 1}), backup); err != nil {
		t.Skip("no links here: ", err)
	}
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
	if n := b.DroppedBytes(); n != 0 {
		t.Errorf("%d bytes count as free, and stay in the backup", n)
	}
	for range 2 {
		b.mustRemoveSome(t)
	}
	if _, err := os.Stat(b.SegmentDir(7)); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	if st, err := os.Stat(backup); err != nil || st.Size() != 2*removePiece+1 {
		t.Errorf("the backup has %v, %v", st, err)
	}
}

// TestAQueryReadsADroppedPartitionForAMinute, and no longer: bytes that a backup reads for hours are needed.
func TestAQueryReadsADroppedPartitionForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := open(t, vfs.NewMem(), Settings{})
		leave(t, b, 7, map[string]int{"1-1.seg": 100})
		leave(t, b, 8, map[string]int{"1-1.seg": 10})
		b.RemoveLater(Dropped{Placement: 7, Read: func() bool { return true }, Gone: func() error { return nil }})
		b.RemoveLater(Dropped{Placement: 8, Gone: func() error { return nil }})
		if n := b.DroppedBytes(); n != 10 {
			t.Errorf("%d bytes count as free, want those that no view reads, 10", n)
		}
		for b.mustRemoveSome(t).More { // no placement waits for another's reader
		}
		if _, err := b.FS().Stat(b.SegmentDir(8)); err == nil || b.DroppedBytes() != 0 {
			t.Errorf("that which no view reads is still there, with %d bytes", b.DroppedBytes())
		}
		if _, err := b.FS().Stat(b.SegmentPath(7, point.SegmentID{Epoch: 1, Seq: 1})); err != nil {
			t.Errorf("that which is read: %v", err)
		}
		time.Sleep(readMax)
		for b.mustRemoveSome(t).More {
		}
		if _, err := b.FS().Stat(b.SegmentDir(7)); err == nil {
			t.Error("it waits for a reader that never ends")
		}
		mustClose(t, b)
	})
}

// filling is a disk of a size, with the files in its memory.
type filling struct {
	*vfs.MemFS
	size atomic.Int64
}

func (f *filling) GetDiskUsage(string) (vfs.DiskUsage, error) {
	_, used := weigh(f.MemFS, "data")
	return vfs.DiskUsage{AvailBytes: uint64(max(0, f.size.Load()-used)), TotalBytes: uint64(f.size.Load()), UsedBytes: uint64(used)}, nil
}

// TestNoWriteIsRefusedForRoomThatADroppedPartitionHas: it waited for its turn beside writers that had no room.
func TestNoWriteIsRefusedForRoomThatADroppedPartitionHas(t *testing.T) {
	const least = 2 << 30 // of free bytes
	disk := &filling{MemFS: vfs.NewMem()}
	disk.size.Store(10 << 30)
	b, _ := open(t, disk, Settings{FreeBytesMin: least})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": 3 << 20, "1-2.seg": 2 << 20})
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
	if r := b.mustRemoveSome(t); r.Hurry || r.Bytes == 0 {
		t.Errorf("on a disk with room: %+v", r)
	}
	_, used := weigh(disk.MemFS, "data")
	short := func(room int64) { disk.size.Store(used - b.DroppedBytes() + least + room) }
	left := b.DroppedBytes()

	short(left + 1<<20) // a MiB once all is removed
	if room, ok := b.Room(); !ok || int64(room) != left+1<<20 || b.RoomFor(left+1<<20) != nil || b.RoomFor(left+1<<20+1) == nil {
		t.Errorf("room for %d bytes, %v", room, ok)
	}
	if n := b.freeBytes(); int64(n) != least+left+1<<20 {
		t.Errorf("%v bytes are free", n)
	}
	short(1) // less than is needed, as long as they lie there
	b.checkSpace()
	if ro, why := b.ReadOnly(); ro {
		t.Errorf("read-only: %s", why)
	}
	if b.DroppedBytes() != 0 {
		t.Errorf("%d bytes are left", b.DroppedBytes())
	}
	for b.mustRemoveSome(t).More { // the directory
	}

	leave(t, b, 8, map[string]int{"1-1.seg": 1 << 20})
	_, used = weigh(disk.MemFS, "data")
	disk.size.Store(used + least + 1<<20)
	b.RemoveLater(Dropped{Placement: 8, Read: func() bool { return true }, Gone: func() error { return nil }})
	if r := b.mustRemoveSome(t); !r.Hurry || r.Bytes != 1<<20 {
		t.Errorf("short of room, and read: %+v", r)
	}
}

// failingRemovals refuses to remove what has a name.
type failingRemovals struct {
	vfs.FS
	part atomic.Pointer[string]
}

func (f *failingRemovals) Remove(name string) error {
	if part := f.part.Load(); part != nil && strings.Contains(name, *part) {
		return errors.New("not permitted")
	}
	return f.FS.Remove(name)
}

// TestAFileThatCannotBeRemovedKeepsNoOther: and it is tried again.
func TestAFileThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &failingRemovals{FS: vfs.NewMem()}
		b, _ := open(t, fs, Settings{})
		stays := b.SegmentDir(7)
		fs.part.Store(&stays)
		gone := map[point.PlacementID]int{}
		for _, p := range []point.PlacementID{7, 8} {
			leave(t, b, p, map[string]int{"1-1.seg": 10})
			b.RemoveLater(Dropped{Placement: p, Gone: func() error {
				if gone[p]++; gone[p] == 1 {
					return errors.New("the note stays")
				}
				return nil
			}})
		}
		_, err := b.RemoveSome()
		wantKind(t, err, fault.Unavailable, "not permitted")
		b.mustRemoveSome(t)
		if _, err := b.RemoveSome(); err == nil || b.mustRemoveSome(t).More {
			t.Errorf("the note of the second: %v", err)
		}
		fs.part.Store(nil)
		time.Sleep(removeRetry)
		for b.mustRemoveSome(t).More || gone[7] == 1 {
			time.Sleep(removeRetry)
			_, _ = b.RemoveSome()
		}
		if gone[7] != 2 || gone[8] != 2 || b.DroppedBytes() != 0 {
			t.Errorf("gone %v, %d bytes are left", gone, b.DroppedBytes())
		}
		mustClose(t, b)
	})
}

// TestAPlacementThatComesBackLosesNoFileOfItsNewLife: its old files are removed first.
func TestAPlacementThatComesBackLosesNoFileOfItsNewLife(t *testing.T) {
	b, _ := open(t, vfs.NewMem(), Settings{})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": 10, "1-2.seg": 10})
	gone := 0
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { gone++; return nil }})
	b.mustRemoveSome(t)
	if err := b.RemoveNow(7); err != nil || gone != 1 || b.DroppedBytes() != 0 {
		t.Fatalf("%v, gone %d times, %d bytes", err, gone, b.DroppedBytes())
	}
	leave(t, b, 7, map[string]int{"1-1.seg": 10})
	for b.mustRemoveSome(t).More {
	}
	if _, err := b.FS().Stat(b.SegmentPath(7, point.SegmentID{Epoch: 1, Seq: 1})); err != nil || gone != 1 {
		t.Errorf("its file: %v; gone %d times", err, gone)
	}
	if err := b.RemoveNow(9); err != nil {
		t.Error(err)
	}
}

// opens is called with the path of each file that is opened to be written to.
type opens struct {
	vfs.FS
	f func(path string)
}

func (o opens) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	o.f(name)
	return o.FS.OpenReadWrite(name, c, opts...)
}

// TestADropShortensNoFileThatWasLinkedJustNow: a tool that links files of a store to keep them did so between the look and the cut.
func TestADropShortensNoFileThatWasLinkedJustNow(t *testing.T) {
	dir := t.TempDir()
	const size = 2*removePiece + 1
	kept := filepath.Join(dir, "kept")
	fs := opens{vfs.Default, func(path string) {
		if strings.HasSuffix(path, ".seg") {
			_ = os.Link(path, kept)
		}
	}}
	b, _ := open(t, fs, Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": size})
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
	for b.mustRemoveSome(t).More {
	}
	if _, err := os.Stat(b.SegmentDir(7)); !os.IsNotExist(err) || b.DroppedBytes() != 0 {
		t.Errorf("the directory: %v, %d bytes", err, b.DroppedBytes())
	}
	if st, err := os.Stat(kept); err != nil && !os.IsNotExist(err) || err == nil && st.Size() != size {
		t.Errorf("what was kept: %v, %v", st, err)
	}
}

// TestADropShortensNoFileElsewhere: a link in a directory of segments goes, and not what it leads to.
func TestADropShortensNoFileElsewhere(t *testing.T) {
	dir := t.TempDir()
	const size = 2*removePiece + 1
	kept := filepath.Join(dir, "kept")
	b, _ := open(t, vfs.Default, Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-2.seg": 10})
	if err := os.WriteFile(kept, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kept, b.SegmentPath(7, point.SegmentID{Epoch: 1, Seq: 1})); err != nil {
		t.Skip("no links here: ", err)
	}
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
	for b.mustRemoveSome(t).More {
	}
	if _, err := os.Stat(b.SegmentDir(7)); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	if st, err := os.Stat(kept); err != nil || st.Size() != size {
		t.Errorf("what the link led to: %v, %v", st, err)
	}
}

// TestADropShortensSegmentsAlone: views count readers of these alone, and files that come from a leader are read to be checked.
func TestADropShortensSegmentsAlone(t *testing.T) {
	b, _ := open(t, vfs.Default, Settings{DataDir: t.TempDir(), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg.tmp": 2*removePiece + 1})
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
	if r := b.mustRemoveSome(t); r.Bytes != 2*removePiece+1 {
		t.Errorf("%+v", r)
	}
}

// TestFilesThatCannotBeRemovedAreNotFree: a compaction that relied on their room would fill the disk.
func TestFilesThatCannotBeRemovedAreNotFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &failingRemovals{FS: vfs.NewMem()}
		b, _ := open(t, fs, Settings{})
		defer mustClose(t, b)
		stays := b.SegmentDir(7)
		fs.part.Store(&stays)
		leave(t, b, 7, map[string]int{"1-1.seg": 10, "1-2.seg": 20})
		b.RemoveLater(Dropped{Placement: 7, Gone: func() error { return nil }})
		if n := b.DroppedBytes(); n != 30 {
			t.Errorf("%d bytes count as free, want 30", n)
		}
		for range 3 {
			if _, err := b.RemoveSome(); err == nil || b.DroppedBytes() != 0 {
				t.Errorf("%v, %d bytes count as free", err, b.DroppedBytes())
			}
			for range 2 {
				if r := b.mustRemoveSome(t); r.More || b.DroppedBytes() != 0 {
					t.Errorf("before it is tried again: %+v, %d bytes count as free", r, b.DroppedBytes())
				}
			}
			time.Sleep(removeRetry)
		}
		fs.part.Store(nil)
		for b.mustRemoveSome(t).More {
		}
		if _, err := b.FS().Stat(b.SegmentDir(7)); err == nil || b.DroppedBytes() != 0 {
			t.Errorf("%v, %d bytes count as free", err, b.DroppedBytes())
		}
	})
}

// TestRoomOnAnotherDiskIsNotFree: the segments lie behind a link, and rows that were staged beside the log filled its disk.
func TestRoomOnAnotherDiskIsNotFree(t *testing.T) {
	data, other := t.TempDir(), "/dev/shm"
	of := func(dir string) vfs.DeviceID {
		st, err := vfs.Default.Stat(dir)
		if err != nil {
			t.Skip("no second disk here: ", err)
		}
		return st.DeviceID()
	}
	if of(data) == of(other) {
		t.Skip("no second disk here")
	}
	other, err := os.MkdirTemp(other, "spillway")
	if err != nil {
		t.Skip("no second disk here: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
	if err := os.Symlink(other, filepath.Join(data, segmentsDir)); err != nil {
		t.Fatal(err)
	}
	b, _ := open(t, vfs.Default, Settings{DataDir: data, FreeBytesMin: 1})
	defer mustClose(t, b)
	if b.besideSegments(data) || !b.besideSegments(other) {
		t.Error("the disk with the log gets the room of dropped segments on another one")
	}
}

// TestADropWaitsForNoRemovalOfOthers: a disk that hung in the removal of one partition had the drops of all tables wait, and first rows of new partitions behind them.
func TestADropWaitsForNoRemovalOfOthers(t *testing.T) {
	b, _ := open(t, vfs.Default, Settings{DataDir: t.TempDir(), FreeBytesMin: 1})
	defer mustClose(t, b)
	leave(t, b, 7, map[string]int{"1-1.seg": 100})
	leave(t, b, 8, map[string]int{"1-1.seg": 200})
	hangs, goesOn := make(chan struct{}), make(chan struct{})
	b.RemoveLater(Dropped{Placement: 7, Gone: func() error { close(hangs); <-goesOn; return nil }})
	removed := make(chan error, 1)
	go func() { removed <- b.RemoveNow(7) }()
	<-hangs
	b.RemoveLater(Dropped{Placement: 8, Gone: func() error { return nil }})
	if n := b.DroppedBytes(); n != 200 {
		t.Errorf("%d bytes may be removed, want 200", n)
	}
	b.RemoveLater(Dropped{Placement: 8, Gone: func() error { t.Error("a second note of a drop counts"); return nil }})
	if n := b.DroppedBytes(); n != 200 {
		t.Errorf("noted twice, %d bytes may be removed, want 200", n)
	}
	close(goesOn)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	for b.mustRemoveSome(t).More {
	}
	if n := b.DroppedBytes(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
