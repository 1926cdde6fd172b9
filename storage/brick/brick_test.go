package brick

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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
	next := point.PlacementID(3000)
	waitFor(t, func() bool { // the catalogue has it that they are gone a moment later, and the next drop goes by that
		next++
		put(t, b, next, seq(1), 10)
		if err := b.Drop(next); err != nil {
			t.Fatal(err)
		}
		return len(b.manifest.tombs) < 60
	})
	mustClose(t, b)
	b, got := openAfter(t, fs, Settings{}, upTo{2000: keep.s})
	wantKept(t, got, nil)
	mustClose(t, b)
}

// TestADropCostsTheSameHoweverManyCameBefore: each looked through the tombstones of all the others, which stay as long as the oldest file.
func TestADropCostsTheSameHoweverManyCameBefore(t *testing.T) {
	b, _ := open(t, vfs.NewMem(), Settings{})
	defer mustClose(t, b)
	keep := point.PlacementID(1 << 32)
	put(t, b, keep, seq(1), 10)
	p := point.PlacementID(0)
	drop := func() {
		p++
		put(t, b, p, seq(1), 10)
		if err := b.Drop(p); err != nil {
			t.Fatal(err)
		}
	}
	first := testing.AllocsPerRun(50, drop)
	for len(b.manifest.tombs) < 2000 {
		drop()
	}
	if last := testing.AllocsPerRun(50, drop); last > 2*first+500 {
		t.Errorf("a drop makes %.0f allocations after %d others, and %.0f before", last, p, first)
	}
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
