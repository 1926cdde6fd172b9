package brick

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// failing is a file system on which, once on, operations of some kind on some files fail.
type failing struct {
	on   atomic.Bool
	kind errorfs.OpKind
	part string // of the path
	hits atomic.Int32
}

func (f *failing) MaybeError(op errorfs.Op) error {
	if f.on.Load() && op.Kind == f.kind && strings.Contains(op.Path, f.part) {
		f.hits.Add(1)
		return errorfs.ErrInjected
	}
	return nil
}

func (f *failing) String() string { return "failing" }

func TestFailedWriteOrFsyncIsFinalAndNothingIsAcked(t *testing.T) {
	for name, f := range map[string]*failing{
		"fsync": {kind: errorfs.OpFileSyncData, part: "/log/"},
		"write": {kind: errorfs.OpFileWrite, part: "/log/"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			b, _ := open(t, errorfs.Wrap(mem, f), Settings{FileBytesMax: fileBytesMin})
			acked := []kept{put(t, b, 1, seq(1), 100)}
			b.runner.stop()
			f.on.Store(true)
			var wg sync.WaitGroup
			for p := range 20 {
				w, err := b.Append(point.PlacementID(p+2), 1, seq(1), []byte("x"))
				if err != nil {
					wantKind(t, err, fault.Unavailable, "fenced")
					continue
				}
				wg.Go(func() { wantKind(t, w.Wait(), fault.Unavailable, "check the device") })
			}
			wg.Wait()
			<-b.Fenced()
			f.on.Store(false) // the disk is well again; the brick must not trust it
			_, err := b.Append(1, 1, seq(2), nil)
			wantKind(t, err, fault.Unavailable, "injected")
			wantKind(t, b.RaiseEpoch(1, 9), fault.Unavailable, "fenced")
			wantKind(t, b.Replay(2, point.Serial{}, nil), fault.Unavailable, "fenced")
			if !errors.Is(b.Err(), errorfs.ErrInjected) {
				t.Errorf("the cause is lost: %v", b.Err())
			}
			if name == "fsync" && f.hits.Load() != 1 {
				t.Errorf("%d fsyncs were tried after the first failed", f.hits.Load()-1)
			}
			image := mem.CrashClone(vfs.CrashCloneCfg{})
			wantKind(t, b.Close(), fault.Unavailable, "fenced")
			b, got := open(t, image, Settings{})
			wantKept(t, got[:1], acked)
			mustClose(t, b)
		})
	}
}

func TestFailedCatalogueSyncFences(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: "/catalogue/"}
	mem := vfs.NewCrashableMem()
	b, _ := open(t, errorfs.Wrap(mem, f), Settings{})
	acked := put(t, b, 1, seq(1), 100)
	f.on.Store(true)
	wantKind(t, b.RaiseEpoch(1, 5), fault.Unavailable, "fenced")
	<-b.Fenced()
	if e := b.HighestEpoch(1); e != 1 {
		t.Errorf("epoch %d counts although it is not durable", e)
	}
	_, err := b.Append(1, 5, seq(2), nil)
	wantKind(t, err, fault.Unavailable, "fenced")
	bt := b.NewBatch()
	bt.Set([]byte("x"), nil)
	wantKind(t, bt.Commit(false), fault.Unavailable, "fenced")
	image := mem.CrashClone(vfs.CrashCloneCfg{})
	f.on.Store(false)
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
	b, got := open(t, image, Settings{})
	wantKept(t, got, []kept{acked})
	mustClose(t, b)
}

// TestRecordsThatCouldNotBeCutStayNeeded: the index forgot them before the cut was durable. Their file could go without it, and a repeated cut found
// nothing to do.
func TestRecordsThatCouldNotBeCutStayNeeded(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSyncData, part: "/catalogue/"}
	b, _ := open(t, errorfs.Wrap(vfs.NewMem(), f), Settings{})
	put(t, b, 1, seq(1), 100)
	put(t, b, 1, seq(2), 100)
	live := b.Usage().Live
	f.on.Store(true)
	wantKind(t, b.Cut(1, seq(1)), fault.Unavailable, "cut the log")
	f.on.Store(false)
	if got := b.Usage().Live; got != live {
		t.Errorf("%d bytes are needed after a cut that failed, %d before", got, live)
	}
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
}

// TestALogFileOnADeviceOfItsOwnIsPutAside: where log/ is a mount, a log file that the catalogue does not know could not be moved off it, and no start succeeded.
func TestALogFileOnADeviceOfItsOwnIsPutAside(t *testing.T) {
	mem := vfs.NewMem()
	b, _ := open(t, errorfs.Wrap(mem, new(mount)), Settings{})
	path := b.filePath(77)
	f, err := mem.Create(path, writeCategory)
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	before := b.LostFound().Entries
	if err := b.putLogFileAside(path, "nobody knows it"); err != nil {
		t.Fatal(err)
	}
	if names, err := mem.List(b.logLostFound()); err != nil || len(names) != 1 || b.LostFound().Entries != before+1 {
		t.Errorf("put aside are %q (%v), %v", names, err, b.LostFound())
	}
	mustClose(t, b)
}

// mount is a file system on which log/ is a device of its own: the first move of a log file is off it.
type mount struct{ tried atomic.Bool }

func (m *mount) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, "77.log") && !m.tried.Swap(true) {
		return &os.LinkError{Op: "rename", Old: op.Path, Err: syscall.EXDEV}
	}
	return nil
}

func (m *mount) String() string { return "mount" }

func TestWithoutANextFileTheLogGrows(t *testing.T) {
	f := &failing{kind: errorfs.OpCreate, part: "/log/"}
	mem := vfs.NewMem()
	b, _ := open(t, errorfs.Wrap(mem, f), Settings{FileBytesMax: fileBytesMin})
	f.on.Store(true)
	var want []kept
	for i := range 40 {
		want = append(want, put(t, b, 1, seq(uint64(i+1)), 5000))
	}
	waitFor(t, func() bool { return f.hits.Load() > 0 })
	if n := b.mu.cur.number; n != 1 {
		t.Errorf("file %d", n)
	}
	f.on.Store(false)
	b.poke()
	waitFor(t, func() bool { return b.Usage().Files == 2 })
	want = append(want, put(t, b, 1, seq(41), 5000))
	mustClose(t, b)
	b, got := open(t, mem, Settings{})
	wantKept(t, got, want)
	mustClose(t, b)
}

func TestFenceFromOutsideKeepsWhatWasAcked(t *testing.T) {
	b, _ := open(t, vfs.NewMem(), Settings{})
	w, err := b.Append(1, 1, seq(1), nil)
	if err != nil || w.Wait() != nil {
		t.Fatal(err)
	}
	b.Fence(errors.New("the controller says so"))
	b.Fence(errors.New("too late to matter"))
	if err := w.Wait(); err != nil {
		t.Errorf("what was acked is not acked any more: %v", err)
	}
	_, err = b.Append(1, 1, seq(2), nil)
	wantKind(t, err, fault.Unavailable, "the controller says so")
	wantKind(t, b.Close(), fault.Unavailable, "the controller says so")
}

// TestStartAfterAnyFailedOperation fails the n-th operation of opening and recovering, whatever it is, and then starts
// once more without failures.
func TestStartAfterAnyFailedOperation(t *testing.T) {
	mem := vfs.NewCrashableMem()
	b, _ := open(t, mem, Settings{FileBytesMax: fileBytesMin})
	var want []kept
	for i := range 30 {
		want = append(want, put(t, b, 1, seq(uint64(i+1)), 5000))
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, b)
	for n := int32(0); ; n++ {
		fs := crashed.CrashClone(vfs.CrashCloneCfg{})
		inj := errorfs.OnIndex(n)
		b, got, err := tryOpen(errorfs.Wrap(fs, errorfs.Any(notCatalogue{inj})), Settings{})
		if err == nil {
			wantKept(t, got, want)
			_ = b.Close()
		}
		b, got = open(t, fs.CrashClone(vfs.CrashCloneCfg{}), Settings{})
		wantKept(t, got, want)
		mustClose(t, b)
		if inj.Index.Load() >= 0 { // it never got that far
			return
		}
	}
}

// notCatalogue spares pebble: its own tests see to that.
type notCatalogue struct{ errorfs.Injector }

func (n notCatalogue) MaybeError(op errorfs.Op) error {
	if strings.Contains(op.Path, "/catalogue") {
		return nil
	}
	return n.Injector.MaybeError(op)
}

// TestRowsGoOnWhereNoLogFileCanBeMade: each write tried again to make the next file, and logged that it could not.
func TestRowsGoOnWhereNoLogFileCanBeMade(t *testing.T) {
	f := &failing{kind: errorfs.OpCreate, part: "/log/"}
	b, _ := open(t, errorfs.Wrap(vfs.NewMem(), f), Settings{FileBytesMax: fileBytesMin})
	f.on.Store(true)
	first := b.mu.cur.number
	began := time.Now()
	const rows, size = 500, fileBytesMin / 100
	for i := range rows {
		put(t, b, 1, seq(uint64(i+1)), size)
	}
	for f.hits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if most := 2 + int32(time.Since(began)/tickEvery); f.hits.Load() > most {
		t.Errorf("a file was tried %d times in %s of %d writes, want 1 to %d", f.hits.Load(), time.Since(began), rows, most)
	}
	if b.Err() != nil {
		t.Errorf("the store is fenced: %v", b.Err())
	}
	f.on.Store(false)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		made := b.mu.next != nil || b.mu.cur.number > first
		b.mu.Unlock()
		if made {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no file is made though the disk is well again")
		}
	}
	put(t, b, 1, seq(uint64(rows+1)), size)
	mustClose(t, b)
}

// lateDisk is a disk that something happens to while its free space is read.
type lateDisk struct {
	vfs.FS
	meanwhile atomic.Pointer[func()]
}

func (d *lateDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if f := d.meanwhile.Swap(nil); f != nil {
		(*f)()
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41}, nil
}

// TestAStoreThatIsFrozenWhileItsDiskIsLookedAtStaysSo: the look found room, and unmade the reason of the freeze; the next commit ended the process.
func TestAStoreThatIsFrozenWhileItsDiskIsLookedAtStaysSo(t *testing.T) {
	disk := &lateDisk{FS: vfs.NewMem()}
	b, _ := open(t, disk, Settings{})
	freeze := func() { b.Freeze("there was no room at the start") }
	disk.meanwhile.Store(&freeze)
	b.checkSpace()
	if ro, why := b.ReadOnly(); !ro || why != "there was no room at the start" {
		t.Errorf("read-only %t: %q", ro, why)
	}
	batch := b.NewBatch()
	batch.Set([]byte("m/k"), []byte("v"))
	if err := batch.Commit(true); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "no room at the start") {
		t.Errorf("a commit: %v", err)
	}
	if _, err := b.Append(1, 1, seq(1), []byte("x")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an append: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
