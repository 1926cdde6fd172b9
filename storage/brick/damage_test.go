package brick

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// remains is a store's log as a test may alter it: the files' bytes and their catalogue entries.
type remains struct {
	uuid    StoreID
	files   map[uint32][]byte
	entries map[uint32]fileEntry
	set     Settings
	mark    watermark
}

// remainsOf reads the log of a store that is not open.
func remainsOf(t *testing.T, fs vfs.FS) *remains {
	t.Helper()
	b, err := Open(Deps{FS: fs}, Settings{DataDir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	m := &remains{uuid: b.logID, files: map[uint32][]byte{}, entries: map[uint32]fileEntry{}, set: b.set, mark: b.commits.mark}
	for n, e := range b.manifest.files {
		f, err := fs.Open(b.filePath(n))
		if err != nil {
			t.Fatal(err)
		}
		if m.files[n], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		m.entries[n] = *e
	}
	mustClose(t, b)
	return m
}

// read recovers from the remains, with the bytes of file n replaced.
func (m *remains) read(t *testing.T, n uint32, content []byte) (*recovery, []kept, error) {
	t.Helper()
	fs := vfs.NewMem()
	b := &Brick{fs: fs, log: slog.New(slog.DiscardHandler), logID: m.uuid, set: m.set, witness: &witness{}}
	b.mu.index = newIndex()
	b.commits.mark = m.mark
	b.manifest.files = map[uint32]*fileEntry{}
	if err := fs.MkdirAll(m.set.LogDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, c := range m.files {
		if i == n {
			c = content
		}
		f, err := fs.Create(b.filePath(i), writeCategory)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(c)); err != nil {
			t.Fatal(err)
		}
		e := m.entries[i]
		b.manifest.files[i] = &e
	}
	var got []kept
	r := &recovery{b: b, released: none, known: map[point.PlacementID]*privateLog{}, apply: func(p point.PlacementID, s point.Serial, rec []byte) error {
		got = append(got, kept{p, s, rec})
		return nil
	}}
	err := r.read()
	return r, got, err
}

// smallStore is five acked records, one of them over the end of a block, in file 1. ended: the file was closed.
func smallStore(t *testing.T, marked, ended bool) (*remains, []kept, []int64) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{})
	var want []kept
	var ends []int64
	for i, n := range []int{200, blockSize, 0, 90, 60} {
		want = append(want, put(t, b, point.PlacementID(i%2+1), seq(uint64(i+1)), n))
		ends = append(ends, b.mu.cur.w.Size())
	}
	if marked {
		b.runner.stop()
		b.mark()
		b.mark()
		waitFor(t, func() bool { return b.InFlight() == 0 })
	}
	image := fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, b)
	if ended {
		image = fs
	}
	return remainsOf(t, image), want, ends
}

func TestTruncatedAtEveryByteAnOpenFileGivesItsExactPrefix(t *testing.T) {
	m, want, ends := smallStore(t, false, false)
	all := m.files[1]
	for n := 0; n <= len(all); n += step(n) {
		r, _, err := m.read(t, 1, all[:n])
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", n, len(all), err)
		}
		whole := 0
		for whole < len(ends) && ends[whole] <= int64(n) {
			whole++
		}
		if r.applied != whole {
			t.Fatalf("cut at %d: %d records, want %d", n, r.applied, whole)
		}
	}
	_, got, _ := m.read(t, 1, all)
	wantKept(t, got, want)
}

// step visits every byte of the interesting parts and hurries through the long record.
func step(n int) int {
	if n > 800 && n < blockSize-100 {
		return 97
	}
	return 1
}

func TestTruncatedAtEveryByteAClosedFileIsRefused(t *testing.T) {
	m, _, ends := smallStore(t, false, true)
	for n := 0; int64(n) < ends[len(ends)-1]; n += step(n) {
		if _, _, err := m.read(t, 1, m.files[1][:n]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("cut at %d: %v, want corrupt", n, err)
		}
	}
}

func TestFlippedBitsAreDamageAndNotTheEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, c := range []struct {
		name          string
		marked, ended bool
		certain       int // of the five records, how many are certainly fsynced
	}{
		{"crashed after the last ack", false, false, 4},
		{"crashed when idle", true, false, 5},
		{"closed", false, true, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, _, ends := smallStore(t, c.marked, c.ended)
			for n := 0; int64(n) < ends[len(ends)-1]; n += step(n) {
				b := bytes.Clone(m.files[1])
				b[n] ^= 1 << rng.IntN(8)
				r, _, err := m.read(t, 1, b)
				if int64(n) >= ends[c.certain-1] { // no proof of an fsync: the end
					if err != nil || r.applied != c.certain {
						t.Fatalf("flipped at %d: %d records, %v; want the first %d", n, r.applied, err, c.certain)
					}
					continue
				}
				if !fault.Is(err, fault.Corrupt) {
					t.Fatalf("flipped at %d: %d records, %v; want corrupt", n, r.applied, err)
				}
			}
		})
	}
}

func TestSkippedDamageCostsOnlyTheDamagedRecordAndIsRemembered(t *testing.T) {
	for name, percent := range map[string]int{"crashed": 100, "closed": -1} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
			var want []kept
			for i := range 30 {
				want = append(want, put(t, b, 1, seq(uint64(i+1)), 5000+i))
			}
			if percent == 100 {
				image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
				mustClose(t, b)
				fs = image
			} else {
				mustClose(t, b)
			}
			flip(t, fs, "/data/log/0000000001.log", 12_000)
			_, _, err := tryOpen(fs, Settings{})
			wantKind(t, err, fault.Corrupt, "skip_damaged_log")
			wantKind(t, err, fault.Corrupt, "/data/log/0000000001.log")
			b, got := open(t, fs, Settings{SkipDamagedLog: true})
			want = append(want[:2:2], want[3:]...)
			wantKept(t, got, want)
			want = append(want, put(t, b, 1, seq(31), 10))
			mustClose(t, b)
			b, got = open(t, fs, Settings{}) // the setting was needed once
			wantKept(t, got, want)
			mustClose(t, b)
		})
	}
}

func TestMissingFileIsRefusedUnlessSkipped(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	for i := range 30 {
		put(t, b, 1, seq(uint64(i+1)), 5000)
		waitFor(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.mu.cur.w.Size() < fileBytesMin })
	}
	mustClose(t, b)
	if err := fs.Remove("/data/log/0000000001.log"); err != nil {
		t.Fatal(err)
	}
	_, _, err := tryOpen(fs, Settings{})
	wantKind(t, err, fault.Corrupt, "0000000001.log is missing")
	b, got := open(t, fs, Settings{SkipDamagedLog: true})
	if len(got) == 0 || got[len(got)-1].s != seq(30) {
		t.Errorf("%d records left", len(got))
	}
	mustClose(t, b)
	b, again := open(t, fs, Settings{})
	wantKept(t, again, got)
	mustClose(t, b)
}

func TestDamageUnderARunningBrickIsFoundByReplay(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	for i := range 5 {
		put(t, b, 1, seq(uint64(i+1)), 5000)
	}
	flip(t, fs, "/data/log/0000000001.log", 12_000)
	n := 0
	err := b.Replay(1, point.Serial{}, func(point.Serial, []byte) error { n++; return nil })
	wantKind(t, err, fault.Corrupt, "0000000001.log")
	if n != 2 {
		t.Errorf("%d records before the damage, want 2", n)
	}
	_, err = b.Rewrite(1, 1<<20)
	wantKind(t, err, fault.Corrupt, "rewrite the log")
	mustClose(t, b)
}

func TestForeignFileIsNotRead(t *testing.T) {
	one, other := vfs.NewMem(), vfs.NewMem()
	for _, fs := range []*vfs.MemFS{one, other} {
		b, _ := open(t, fs, Settings{})
		put(t, b, 1, seq(1), 100)
		mustClose(t, b)
	}
	f, err := other.Open("/data/log/0000000001.log")
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	overwrite(t, one, "/data/log/0000000001.log", content)
	_, _, err = tryOpen(one, Settings{})
	wantKind(t, err, fault.Corrupt, "log tag")
}

func flip(t *testing.T, fs vfs.FS, path string, off int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, fs vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fs.Create(path, writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
}
