package brick

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/spillwaydb/spillway/protocols/database.halt")) // opens that failed within Pebble
}

type kept struct {
	p   point.PlacementID
	s   point.Serial
	rec []byte
}

func none(point.PlacementID) point.Serial { return point.Serial{} }

// seq is a serial of epoch 1.
func seq(n uint64) point.Serial { return point.Serial{Epoch: 1, Seq: n} }

// load fills a record with bytes that identify its placement and serial.
func load(p point.PlacementID, s point.Serial, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(p), s.Seq<<8|uint64(s.Epoch)))
	for i := 0; i < n; i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], r.Uint64())
		copy(b[i:], w[:])
	}
	return b
}

func tryOpen(fs vfs.FS, set Settings) (*Brick, []kept, error) { return tryOpenAfter(fs, set, nil) }

// tryOpenAfter opens a store after its owner released the serials in the map.
func tryOpenAfter(fs vfs.FS, set Settings, released map[point.PlacementID]point.Serial) (*Brick, []kept, error) {
	if set.DataDir == "" {
		set.DataDir = "/data"
	}
	b, err := Open(Deps{FS: fs}, set)
	if err != nil {
		return nil, nil, err
	}
	var got []kept
	err = b.Recover(func(p point.PlacementID) point.Serial { return released[p] }, func(p point.PlacementID, s point.Serial, rec []byte) error {
		got = append(got, kept{p, s, rec})
		return nil
	})
	if err != nil {
		return nil, got, errors.Join(err, b.Close())
	}
	return b, got, nil
}

type upTo = map[point.PlacementID]point.Serial

func open(t testing.TB, fs vfs.FS, set Settings) (*Brick, []kept) {
	t.Helper()
	return openAfter(t, fs, set, nil)
}

func openAfter(t testing.TB, fs vfs.FS, set Settings, released upTo) (*Brick, []kept) {
	t.Helper()
	b, got, err := tryOpenAfter(fs, set, released)
	if err != nil {
		t.Fatal(err)
	}
	return b, got
}

func mustClose(t testing.TB, b *Brick) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, b *Brick, p point.PlacementID, s point.Serial, n int) kept {
	t.Helper()
	k := kept{p, s, load(p, s, n)}
	w, err := b.Append(p, s.Epoch, s, k.rec)
	if err == nil {
		err = w.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func wantKind(t testing.TB, err error, k fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, k) || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v of kind %v; want kind %v and %q", err, fault.KindOf(err), k, text)
	}
}

func wantKept(t testing.TB, got, want []kept) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("lost %v %v and %d more", want[i].p, want[i].s, len(want)-i-1)
		case i >= len(want):
			t.Fatalf("invented %v %v and %d more", got[i].p, got[i].s, len(got)-i-1)
		case got[i].p != want[i].p || got[i].s != want[i].s || !bytes.Equal(got[i].rec, want[i].rec):
			t.Fatalf("record %d is %v %v (%d B), want %v %v (%d B)", i, got[i].p, got[i].s, len(got[i].rec), want[i].p, want[i].s, len(want[i].rec))
		}
	}
}

func replay(t testing.TB, b *Brick, p point.PlacementID, after point.Serial) (got []kept) {
	t.Helper()
	err := b.Replay(p, after, func(s point.Serial, rec []byte) error {
		got = append(got, kept{p, s, bytes.Clone(rec)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// sizes at the edges of blocks: empty, tiny, nearly a block, several blocks.
var sizes = []int{0, 1, 100, 4096, blockSize - chunkHeaderSize - headerSize - 1, blockSize - chunkHeaderSize - headerSize, blockSize, 3*blockSize + 17, 7}

func TestWhatWasAckedComesBackInOrder(t *testing.T) {
	fs := vfs.NewMem()
	b, got := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	wantKept(t, got, nil)
	var want []kept
	for i := range 60 {
		want = append(want, put(t, b, point.PlacementID(i%3+1), seq(uint64(i+1)), sizes[i%len(sizes)]))
	}
	var ofTwo []kept
	for _, k := range want {
		if k.p == 2 && seq(20).Less(k.s) {
			ofTwo = append(ofTwo, k)
		}
	}
	wantKept(t, replay(t, b, 2, seq(20)), ofTwo)
	mustClose(t, b)
	for range 3 { // and again: a start changes nothing
		b, got = open(t, fs, Settings{})
		wantKept(t, got, want)
		wantKept(t, replay(t, b, 2, seq(20)), ofTwo)
		mustClose(t, b)
	}
}

func TestReleaseLetsFilesGo(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	for i := range 100 {
		put(t, b, 1, seq(uint64(i+1)), 8<<10)
		waitFor(t, func() bool { // until the files are tended: on a busy machine one may grow far past its size
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.mu.retired) == 0 && (b.mu.next != nil || b.mu.cur.w.Size() < fileBytesMin/2)
		})
	}
	keep := put(t, b, 2, seq(1), 10)
	before := b.Usage()
	if before.Files < 4 || before.Live < 800<<10 || before.Bytes < before.Live {
		t.Fatalf("usage %+v", before)
	}
	if pins := b.Pinning(5); len(pins) != 2 || pins[0].Placement != 1 || pins[0].Records != 100 || pins[1].Placement != 2 {
		t.Errorf("pinning %+v", pins)
	}
	b.Release(1, seq(100))
	waitFor(t, func() bool { return b.Usage().Files <= 2 })
	mustClose(t, b)
	b, got := openAfter(t, fs, Settings{}, upTo{1: seq(100)})
	wantKept(t, got, []kept{keep})
	mustClose(t, b)
}

// TestDroppedPlacementsLeaveNothingBehind: each left a tombstone in memory and in the catalogue until the next start.
func TestDroppedPlacementsLeaveNothingBehind(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	put(t, b, 1000, seq(1), 10)
	if err := b.Drop(1000); err != nil { // its file stays for a while
		t.Fatal(err)
	}
	keep := put(t, b, 2000, seq(1), 10)
	for p := range point.PlacementID(60) {
		put(t, b, p+1, seq(1), 16<<10)
		waitFor(t, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.mu.retired) == 0 && (b.mu.next != nil || b.mu.cur.w.Size() < fileBytesMin/2)
		})
		if err := b.Drop(p + 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.manifest.tombs); n != 61 { // the file of placement 2000 is the oldest
		t.Errorf("%d tombstones, want 61, and %+v: a start would read records that were dropped", n, b.Usage())
	}
	b.Release(2000, seq(1))
	waitFor(t, func() bool { return b.Usage().Files <= 2 })
	put(t, b, 3000, seq(1), 10)
	if err := b.Drop(3000); err != nil {
		t.Fatal(err)
	}
	if n := len(b.manifest.tombs); n >= 60 {
		t.Errorf("%d tombstones, although all but two files of the log are gone", n)
	}
	mustClose(t, b)
	b, got := openAfter(t, fs, Settings{}, upTo{2000: keep.s})
	wantKept(t, got, nil)
	mustClose(t, b)
}

func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatal("it never happens")
}

func TestRecoverAsksWhatIsReleased(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	for i := range 10 {
		put(t, b, 1, seq(uint64(i+1)), 10)
		put(t, b, 2, seq(uint64(i+1)), 10)
	}
	mustClose(t, b)
	b, err := Open(Deps{FS: fs}, Settings{DataDir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	asked, applied := map[point.PlacementID]int{}, map[point.PlacementID]int{}
	err = b.Recover(func(p point.PlacementID) point.Serial {
		asked[p]++
		if p == 2 {
			return point.Serial{Epoch: math.MaxUint64, Seq: math.MaxUint64}
		}
		return seq(7)
	}, func(p point.PlacementID, s point.Serial, rec []byte) error { applied[p]++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if asked[1] != 1 || asked[2] != 1 || applied[1] != 3 || applied[2] != 0 {
		t.Errorf("asked %v, applied %v", asked, applied)
	}
	if u := b.Usage(); u.Live == 0 || len(b.Pinning(9)) != 1 {
		t.Errorf("usage %+v", u)
	}
	mustClose(t, b)
}

func TestApplyErrorEndsRecover(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	want := put(t, b, 1, seq(1), 10)
	mustClose(t, b)
	b, err := Open(Deps{FS: fs}, Settings{DataDir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Recover(none, func(point.PlacementID, point.Serial, []byte) error { return fault.Errorf(fault.Corrupt, "not a frame") })
	wantKind(t, err, fault.Corrupt, "not a frame")
	_, err = b.Append(1, 1, seq(2), nil)
	wantKind(t, err, fault.Unavailable, "before Recover")
	mustClose(t, b)
	b, got := open(t, fs, Settings{})
	wantKept(t, got, []kept{want})
	mustClose(t, b)
}

func TestEpochsFenceLowerSendersAlsoAfterARestart(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	put(t, b, 1, point.Serial{Epoch: 3, Seq: 1}, 10)
	_, err := b.Append(1, 2, point.Serial{Epoch: 3, Seq: 2}, nil)
	wantKind(t, err, fault.Stale, "epoch 3 has begun")
	if err := b.RaiseEpoch(1, 7); err != nil {
		t.Fatal(err)
	}
	_, err = b.Append(1, 6, point.Serial{Epoch: 3, Seq: 2}, nil)
	wantKind(t, err, fault.Stale, "epoch 7")
	// The serial inside may be older than the sender.
	if _, err := b.Append(1, 7, point.Serial{Epoch: 3, Seq: 2}, nil); err != nil {
		t.Fatal(err)
	}
	_, err = b.Append(1, 7, point.Serial{Epoch: 3, Seq: 2}, nil)
	wantKind(t, err, fault.Invalid, "does not follow")
	if err := b.RaiseEpoch(1, 5); err != nil || b.HighestEpoch(1) != 7 {
		t.Errorf("epoch %d, %v", b.HighestEpoch(1), err)
	}
	mustClose(t, b)
	b, _ = open(t, fs, Settings{})
	if e := b.HighestEpoch(1); e != 7 {
		t.Errorf("after a restart the epoch is %d, want 7", e)
	}
	_, err = b.Append(1, 6, point.Serial{Epoch: 6, Seq: 9}, nil)
	wantKind(t, err, fault.Stale, "epoch 7")
	mustClose(t, b)
}

func TestRewriteFreesOldFilesAndKeepsOrder(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	var want []kept
	for i := range 5 {
		want = append(want, put(t, b, 9, seq(uint64(i+1)), sizes[i]))
	}
	fill := func(from int) {
		for i := range 40 {
			put(t, b, 1, seq(uint64(from+i)), 8<<10)
			waitFor(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.mu.retired) == 0 })
		}
	}
	fill(1)
	_, err := b.Rewrite(9, 100)
	wantKind(t, err, fault.TooLarge, "flush it instead")
	b.Release(9, seq(1))
	if n, err := b.Rewrite(9, 1<<20); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	want = append(want[1:], put(t, b, 9, seq(6), 50))
	wantKept(t, replay(t, b, 9, seq(0)), want)
	b.Release(1, seq(40))
	waitFor(t, func() bool { return b.Usage().Files <= 3 })
	wantKept(t, replay(t, b, 9, seq(0)), want)
	mustClose(t, b)
	b, got := openAfter(t, fs, Settings{FileBytesMax: fileBytesMin}, upTo{1: seq(40)})
	wantKept(t, got, want)
	// Twice is fine.
	if _, err := b.Rewrite(9, 1<<20); err != nil {
		t.Fatal(err)
	}
	mustClose(t, b)
	b, got = openAfter(t, fs, Settings{}, upTo{1: seq(40)})
	wantKept(t, got, want)
	mustClose(t, b)
}

func TestCutAndDropAreForEver(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	one := put(t, b, 1, seq(1), 10)
	put(t, b, 1, seq(2), 10)
	put(t, b, 1, seq(3), 10)
	put(t, b, 2, seq(1), 10)
	if err := b.RaiseEpoch(2, 5); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Cut(1, seq(1)), b.Drop(2), b.Drop(77)); err != nil {
		t.Fatal(err)
	}
	if b.HighestEpoch(2) != 0 {
		t.Error("a dropped placement has an epoch")
	}
	two := put(t, b, 1, point.Serial{Epoch: 2, Seq: 2}, 11)
	put(t, b, 1, point.Serial{Epoch: 2, Seq: 3}, 11)
	if err := b.Cut(1, point.Serial{Epoch: 2, Seq: 2}); err != nil {
		t.Fatal(err)
	}
	three := put(t, b, 1, point.Serial{Epoch: 3, Seq: 3}, 12)
	for range 2 {
		wantKept(t, replay(t, b, 1, point.Serial{}), []kept{one, two, three})
		mustClose(t, b)
		var got []kept
		b, got = open(t, fs, Settings{})
		wantKept(t, got, []kept{one, two, three})
	}
	b.Release(1, three.s)
	mustClose(t, b)
	b, _ = open(t, fs, Settings{})
	mustClose(t, b)
	b, _ = open(t, fs, Settings{}) // the files are gone now, and so are the tombstones
	if len(b.manifest.tombs) != 0 {
		t.Errorf("tombstones left: %v", b.manifest.tombs)
	}
	mustClose(t, b)
}

func TestNumbersOfFilesAreNeverUsedTwice(t *testing.T) {
	fs := vfs.NewMem()
	last := uint32(0)
	for i := range 5 {
		b, got := openAfter(t, fs, Settings{}, upTo{1: seq(uint64(i))})
		wantKept(t, got, nil)
		if n := b.mu.cur.number; n <= last {
			t.Fatalf("file %d after %d", n, last)
		}
		last = b.mu.cur.number
		put(t, b, 1, seq(uint64(i+1)), 10)
		b.Release(1, seq(uint64(i+1)))
		if i%2 == 0 {
			if err := b.Drop(1); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, b)
	}
}

func TestDirectoryIsLocked(t *testing.T) {
	dir := t.TempDir()
	b, _ := open(t, vfs.Default, Settings{DataDir: dir})
	_, err := Open(Deps{}, Settings{DataDir: dir})
	wantKind(t, err, fault.Unavailable, "another process holds")
	id := b.ID()
	mustClose(t, b)
	b, _ = open(t, vfs.Default, Settings{DataDir: dir})
	if b.ID() != id {
		t.Error("the store has another identity")
	}
	mustClose(t, b)
}

// foreign is a file system on which the lock of another user's directory cannot be opened.
type foreign struct{ vfs.FS }

// Lock implements vfs.FS.
func (foreign) Lock(name string) (io.Closer, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
}

// TestDirectoryOfAnotherUserIsNotCalledInUse: the message said to stop another process, and there was none.
func TestDirectoryOfAnotherUserIsNotCalledInUse(t *testing.T) {
	dir := t.TempDir()
	refused := func(disk vfs.FS, want string) {
		t.Helper()
		_, err := Open(Deps{FS: disk}, Settings{DataDir: dir})
		wantKind(t, err, fault.Unavailable, want)
		if strings.Contains(err.Error(), "another process") {
			t.Errorf("no other process is there: %v", err)
		}
	}
	refused(foreign{vfs.Default}, "no permission to write "+filepath.Join(dir, LockFile)+"; start it as the user who owns "+dir)
	if err := os.Mkdir(filepath.Join(dir, LockFile), 0o755); err != nil {
		t.Fatal(err)
	}
	refused(vfs.Default, "is a directory")
}

func TestWrongDirectoriesAreNoticed(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{DataDir: "/a", LogDir: "/la"})
	put(t, b, 1, seq(1), 1)
	mustClose(t, b)
	b, _ = open(t, fs, Settings{DataDir: "/b", LogDir: "/lb"})
	mustClose(t, b)
	_, _, err := tryOpen(fs, Settings{DataDir: "/b", LogDir: "/la"})
	wantKind(t, err, fault.Corrupt, "is log_dir right?")
	_, _, err = tryOpen(fs, Settings{DataDir: "/c", LogDir: "/la"})
	wantKind(t, err, fault.Corrupt, "is data_dir right?")
	_, _, err = tryOpen(fs, Settings{DataDir: "/a", LogDir: "/new"})
	wantKind(t, err, fault.Corrupt, "was log_dir changed?")
}

func TestSettingsReportEveryMistake(t *testing.T) {
	err := (&Settings{FileBytesMax: 1, InFlightBytesMax: -1}).Validate()
	wantKind(t, err, fault.Invalid, "data_dir")
	wantKind(t, err, fault.Invalid, "file_bytes_max")
	wantKind(t, err, fault.Invalid, "in_flight_bytes_max")
	_, err = Open(Deps{FS: vfs.NewMem()}, Settings{})
	wantKind(t, err, fault.Invalid, "data_dir is empty")
}

func TestLimits(t *testing.T) {
	fs := &slowFS{FS: vfs.NewMem(), gate: make(chan struct{})}
	close(fs.gate)
	b, _ := open(t, fs, Settings{InFlightBytesMax: 10_000})
	_, err := b.Append(1, 1, seq(1), make([]byte, RecordBytesMax+1))
	wantKind(t, err, fault.TooLarge, "at most")
	put(t, b, 1, seq(1), 50_000) // alone, a record may be larger than the bound

	fs.setGate(make(chan struct{})) // now the device stands still
	var ws []Wait
	for n := uint64(2); ; n++ {
		w, err := b.Append(1, 1, seq(n), make([]byte, 1000))
		if err != nil {
			wantKind(t, err, fault.Throttled, "wait for the log device")
			break
		}
		ws = append(ws, w)
	}
	if len(ws) > 11 || len(ws) < 9 {
		t.Errorf("%d records of 1000 bytes were taken, bound 10000", len(ws))
	}
	if ws[0].Done() {
		t.Error("acked before the fsync")
	}
	if d := b.OldestWait(time.Now()); d != 0 {
		t.Errorf("nothing waits, but the oldest does so for %s", d)
	}
	waited := make(chan error)
	go func() { waited <- ws[0].Wait() }()
	for b.OldestWait(time.Now().Add(time.Hour)) < time.Hour {
		runtime.Gosched()
	}
	close(fs.gate)
	if err := <-waited; err != nil {
		t.Error(err)
	}
	for _, w := range ws {
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	if d := b.OldestWait(time.Now().Add(time.Hour)); d != 0 {
		t.Errorf("all was fsynced, but the oldest waits for %s", d)
	}
	put(t, b, 1, seq(1000), 10)
	mustClose(t, b)
}

// slowFS holds fsyncs of log files until its gate is closed.
type slowFS struct {
	vfs.FS
	mu   sync.Mutex
	gate chan struct{}
}

func (s *slowFS) setGate(c chan struct{}) { s.mu.Lock(); s.gate = c; s.mu.Unlock() }

func (s *slowFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	if err == nil && strings.HasSuffix(name, ".log") && strings.Contains(name, "/log/") {
		f = slowFile{f, s}
	}
	return f, err
}

type slowFile struct {
	vfs.File
	s *slowFS
}

func (f slowFile) SyncData() error {
	f.s.mu.Lock()
	gate := f.s.gate
	f.s.mu.Unlock()
	<-gate
	return f.File.SyncData()
}

func TestOneFsyncServesAllThatWait(t *testing.T) {
	reg := prometheus.NewRegistry()
	fs := &slowFS{FS: vfs.NewMem(), gate: make(chan struct{})}
	b, err := Open(Deps{FS: fs, Registerer: reg}, Settings{DataDir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Recover(none, nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	first, err := b.Append(1, 1, seq(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	for p := range 100 {
		w, err := b.Append(point.PlacementID(p+2), 1, seq(1), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := w.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	close(fs.gate)
	wg.Wait()
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
	// At most: the first record alone, those that came while it was synced, and one that was cut in between.
	if n := histogramCount(t, reg, "spillway_brick_fsync_seconds"); n == 0 || n > 3 {
		t.Errorf("%d fsyncs for 101 records", n)
	}
	mustClose(t, b)
	if fams, _ := reg.Gather(); len(fams) != 0 {
		t.Errorf("%d metrics are left after Close", len(fams))
	}
}

func histogramCount(t *testing.T, reg *prometheus.Registry, name string) uint64 {
	fams, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fams {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestReadOnlyBelowTheFreeSpaceLimit(t *testing.T) {
	fs := vfs.NewMem()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 20 << 30})
	b, _ := open(t, fs, Settings{FreeBytesMin: 1 << 30})
	put(t, b, 1, seq(1), 10)
	free := func(n uint64, want bool) {
		t.Helper()
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 20 << 30})
		b.checkSpace()
		if ro, why := b.ReadOnly(); ro != want {
			t.Errorf("%d bytes free: read-only %v (%s), want %v", n, ro, why, want)
		}
	}
	free(1<<30-1, true)
	_, err := b.Append(1, 1, seq(2), nil)
	wantKind(t, err, fault.Unavailable, "make room there")
	free(1<<30+1, true) // no flapping
	free(5<<28, false)
	put(t, b, 1, seq(2), 10)
	mustClose(t, b)
}

// TestWritesEndBeforeTheLastFile: a store on a file system with room for bytes and for no file more would be fenced by its log or catalogue.
func TestWritesEndBeforeTheLastFile(t *testing.T) {
	files := Files{Total: 100_000, Free: 2 * FilesMin}
	fs := vfs.NewMem()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 20 << 30})
	b, err := Open(Deps{FS: fs, Files: func(string) Files { return files }}, Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	free := func(f Files, want bool) {
		t.Helper()
		files = f
		b.checkSpace()
		if ro, why := b.ReadOnly(); ro != want || ro && !strings.Contains(why, "remove files there") {
			t.Errorf("%d: read-only %v (%s), want %v", f, ro, why, want)
		}
	}
	free(Files{Total: 100_000, Free: FilesMin}, false)
	free(Files{Total: 100_000, Free: FilesMin - 1}, true)
	free(Files{Total: 100_000, Free: FilesMin + 1}, true) // no flapping
	free(Files{Total: 100_000, Free: FilesMin * 5 / 4}, false)
	free(Files{Total: 800, Free: 99}, true)
	free(Files{Total: 800, Free: 100}, true)
	free(Files{Total: 800, Free: 125}, false)
	free(Files{}, false) // not known
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCatalogue(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	commit := func(sync bool, f func(*Batch)) error { bt := b.NewBatch(); f(bt); return bt.Commit(sync) }
	if err := commit(true, func(t *Batch) {
		t.Set([]byte("p/1"), []byte("a"))
		t.Set([]byte("p/2"), []byte("b"))
		t.Set([]byte("q"), nil)
	}); err != nil {
		t.Fatal(err)
	}
	if err := commit(false, func(t *Batch) { t.Delete([]byte("p/1")); t.Set([]byte("p/\xff"), []byte("c")) }); err != nil {
		t.Fatal(err)
	}
	wantKind(t, commit(true, func(t *Batch) { t.Set([]byte{0, 1}, nil) }), fault.Invalid, "zero byte")
	wantKind(t, commit(true, func(t *Batch) { t.Delete(nil) }), fault.Invalid, "empty")
	dump := func(prefix string) (s string) {
		err := b.Scan([]byte(prefix), func(k, v []byte) error { s += fmt.Sprintf("%q=%s ", k, v); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for range 2 {
		if got, want := dump("p/"), `"p/2"=b "p/\xff"=c `; got != want {
			t.Errorf("scan gives %s, want %s", got, want)
		}
		if got, want := dump(""), `"p/2"=b "p/\xff"=c "q"= `; got != want {
			t.Errorf("scan of all gives %s, want %s", got, want)
		}
		if v, ok, err := b.Get([]byte("p/2")); string(v) != "b" || !ok || err != nil {
			t.Errorf("get: %q %v %v", v, ok, err)
		}
		if _, ok, err := b.Get([]byte("p/1")); ok || err != nil {
			t.Errorf("get of a deleted key: %v %v", ok, err)
		}
		mustClose(t, b)
		b, _ = open(t, fs, Settings{})
	}
	mustClose(t, b)
}

func TestSegmentDirectories(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{})
	if err := b.MakeSegmentDir(0xabc); err != nil {
		t.Fatal(err)
	}
	if got := b.SegmentPath(0xabc, point.SegmentID{Epoch: 2, Seq: 5}); got != "/data/segments/0000000000000abc/2-5.seg" {
		t.Error(got)
	}
	after := fs.CrashClone(vfs.CrashCloneCfg{})
	if _, err := after.Stat(b.SegmentDir(0xabc)); err != nil {
		t.Errorf("the directory does not survive a crash: %v", err)
	}
	if err := errors.Join(b.SyncSegmentDir(0xabc), b.RemoveSegmentDir(0xabc), b.RemoveSegmentDir(0xabc)); err != nil {
		t.Error(err)
	}
	mustClose(t, b)
}

func TestNoSyncSurvivesAKilledProcess(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{NoSync: true, FileBytesMax: fileBytesMin})
	var want []kept
	for i := range 50 {
		want = append(want, put(t, b, 1, seq(uint64(i+1)), 8<<10))
	}
	killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	cut := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, b)
	b, got := open(t, killed, Settings{})
	wantKept(t, got, want)
	mustClose(t, b)
	b, got = open(t, cut, Settings{}) // less, but a prefix, and no damage
	wantKept(t, got, want[:len(got)])
	mustClose(t, b)
}

func TestIdleLogIsMarked(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	put(t, b, 1, seq(1), 100)
	b.runner.stop() // the test does its ticks now
	size := b.LogBytes()
	b.mark()
	b.mark()
	if got := b.LogBytes() - size; got != chunkHeaderSize+headerSize {
		t.Errorf("two idle ticks wrote %d bytes, want one empty record", got)
	}
	waitFor(t, func() bool { return b.InFlight() == 0 })
	b.mark()
	b.mark()
	if got := b.LogBytes() - size; got != chunkHeaderSize+headerSize {
		t.Errorf("the mark was marked")
	}
	mustClose(t, b)
}

func TestAppendDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop their contents at random under the race detector")
	}
	fs := discardFS{vfs.NewMem()}
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMax, InFlightBytesMax: 1 << 30})
	rec := make([]byte, 4096)
	n := uint64(0)
	step := func() {
		n++
		w, err := b.Append(1, 1, seq(n), rec)
		if err == nil {
			err = w.Wait()
		}
		if err != nil {
			t.Fatal(err)
		}
		b.Release(1, seq(n-1))
	}
	for range 2000 {
		step()
	}
	if a := testing.AllocsPerRun(2000, step); a > 0 {
		t.Errorf("%v allocations per record", a)
	}
	mustClose(t, b)
}

// discardFS discards writes to log files.
type discardFS struct{ vfs.FS }

func (d discardFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	if err == nil && strings.Contains(name, "/log/") && strings.HasSuffix(name, ".log") {
		f = discardFile{f}
	}
	return f, err
}

type discardFile struct{ vfs.File }

func (discardFile) Write(b []byte) (int, error) { return len(b), nil }

func TestManyAppendersKeepTheirOrder(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for n := range 200 {
				put(t, b, point.PlacementID(p+1), seq(uint64(n+1)), (p*n)%3000)
				if n%50 == 49 && p%2 == 0 {
					b.Release(point.PlacementID(p+1), seq(uint64(n-10)))
				}
				if n%60 == 59 && p == 1 {
					if _, err := b.Rewrite(2, 1<<20); err != nil {
						t.Error(err)
					}
				}
				if n%40 == 39 {
					replay(t, b, point.PlacementID(p+1), point.Serial{})
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, b)
	b, got := open(t, fs, Settings{})
	next := map[point.PlacementID]uint64{}
	for _, k := range got {
		n := next[k.p]
		if k.p%2 == 1 && k.s.Seq <= 190 {
			n = max(n, k.s.Seq) // up to 189 are released: a file that has nothing else may be gone, and an older one still there
		}
		if n != 0 && k.s.Seq != n || !bytes.Equal(k.rec, load(k.p, k.s, len(k.rec))) {
			t.Fatalf("placement %v: %v where %d should be", k.p, k.s, n)
		}
		next[k.p] = k.s.Seq + 1
	}
	for p := range 8 {
		if next[point.PlacementID(p+1)] != 201 {
			t.Errorf("placement %d ends before %d", p+1, next[point.PlacementID(p+1)])
		}
	}
	mustClose(t, b)
}

func TestStoreOnARealDisk(t *testing.T) {
	dir := t.TempDir()
	b, _ := open(t, vfs.Default, Settings{DataDir: dir, FileBytesMax: fileBytesMin})
	var want []kept
	for i := range 40 {
		want = append(want, put(t, b, 1, seq(uint64(i+1)), 5000))
	}
	mustClose(t, b)
	if st, err := os.Stat(dir + "/log/0000000001.log"); err != nil || st.Size() < fileBytesMin {
		t.Errorf("first log file: %v %v", st, err)
	}
	b, got := open(t, vfs.Default, Settings{DataDir: dir})
	wantKept(t, got, want)
	mustClose(t, b)
}
