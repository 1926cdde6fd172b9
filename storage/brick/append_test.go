package brick

import (
	"bytes"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

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

// heldFS holds the fsyncs of the catalogue's mirror while it has a gate.
type heldFS struct {
	vfs.FS
	gate    atomic.Pointer[chan struct{}]
	entered chan struct{} // of one: an fsync is held
}

func (s *heldFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	if err == nil && strings.Contains(name, catalogueMirror.name) {
		f = heldFile{f, s}
	}
	return f, err
}

type heldFile struct {
	vfs.File
	s *heldFS
}

func (f heldFile) Sync() error {
	if gate := f.s.gate.Load(); gate != nil {
		f.s.entered <- struct{}{}
		<-*gate
	}
	return f.File.Sync()
}

// TestAcksWaitForNoFsyncOfAMirror: the goroutine that waited for the data directory had to end the full log file, and all acks of the next one waited for that.
func TestAcksWaitForNoFsyncOfAMirror(t *testing.T) {
	fs := &heldFS{FS: vfs.NewMem(), entered: make(chan struct{}, 1)}
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	put(t, b, 1, seq(1), fileBytesMin/2)
	waitFor(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.mu.next != nil })
	gate := make(chan struct{})
	fs.gate.Store(&gate)
	if err := b.RaiseEpoch(7, 1); err != nil { // the mirror gets the commit, and a tick later an fsync
		t.Fatal(err)
	}
	<-fs.entered
	put(t, b, 1, seq(2), fileBytesMin/2)
	w, err := b.Append(1, 1, seq(3), load(1, seq(3), 100))
	if err != nil {
		t.Fatal(err)
	}
	if f := w.pos.file(); f != 2 {
		t.Fatalf("the last record is in file %d: no file was ended", f)
	}
	waitFor(t, w.Done)
	fs.gate.Store(nil)
	close(gate)
	mustClose(t, b)
}

// TestCommitsWaitForNoFsyncOfAMirror: the end of a mirror written anew was fsynced under the lock that each commit of the catalogue acquires: flushes and changes of leaders
// waited for a slow disk. Commits meanwhile are in the new mirror all the same.
func TestCommitsWaitForNoFsyncOfAMirror(t *testing.T) {
	mem := vfs.NewMem()
	fs := &heldFS{FS: mem, entered: make(chan struct{}, 1)}
	b, _ := open(t, fs, Settings{})
	b.runner.stop()
	gate := make(chan struct{})
	fs.gate.Store(&gate)
	done := make(chan error, 1)
	go func() { done <- b.remirror(&b.mirror) }()
	commit := func(e point.Epoch) {
		if err := b.RaiseEpoch(7, e); err != nil {
			t.Error(err)
		}
	}
	<-fs.entered // the snapshot
	commit(1)
	gate <- struct{}{}
	<-fs.entered // the commits behind it
	committed := make(chan struct{})
	go func() { commit(2); close(committed) }()
	waitFor(t, func() bool {
		select {
		case <-committed:
			return true
		default:
			return false
		}
	})
	fs.gate.Store(nil)
	gate <- struct{}{}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mark := b.commits.mark
	mustClose(t, b)
	state, held, err := mirroredState(mem, catalogueMirror, b.mirror.path, b.logID)
	if e := state[string(placementKey(keyEpoch, 7))]; err != nil || held.seq < mark.seq || len(e) != 8 || e[0] != 2 {
		t.Errorf("the mirror has %s (%v) and epoch %x, the catalogue %s", held, err, e, mark)
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

func TestIdleLogIsMarked(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	put(t, b, 1, seq(1), 100)
	b.runner.stop() // the test does its ticks now
	paceIs(b, time.Millisecond)
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
	paceIs(b, 2*time.Second)
	b.mark()
	if got := b.LogBytes() - size; got != chunkHeaderSize+headerSize {
		t.Errorf("a slow disk was asked how slow it is, and its pace was not asked for")
	}
	b.Fsync()
	for range 3 {
		b.mark()
		waitFor(t, func() bool { return b.InFlight() == 0 })
	}
	if got := b.LogBytes() - size; got != 4*(chunkHeaderSize+headerSize) {
		t.Errorf("after three ticks on a slow disk %d bytes were written, want the mark, and three that ask how slow it is", got)
	}
	mustClose(t, b)
}

// paceIs has all seconds that count take that long for an fsync.
func paceIs(b *Brick, d time.Duration) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	for i := range b.m.mu.pace.seconds {
		b.m.mu.pace.seconds[i] = paceSecond{at: int64(time.Since(b.m.opened)/time.Second) - paceSeconds + int64(i), total: d, n: 1}
	}
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
