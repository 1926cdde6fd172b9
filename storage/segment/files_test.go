package segment

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// countedFS counts open files, and the most there were at once. Beyond limit, if there is one, it has none left.
type countedFS struct {
	vfs.FS
	open, most, limit atomic.Int64
}

func (c *countedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	n := c.open.Add(1)
	if l := c.limit.Load(); l > 0 && n > l {
		c.open.Add(-1)
		return nil, &syscallError{"open " + name, syscall.EMFILE}
	}
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	f, err := c.FS.Open(name, opts...)
	if err != nil {
		c.open.Add(-1)
		return nil, err
	}
	return &countedFile{f, c}, nil
}

type syscallError struct {
	op  string
	err error
}

func (e *syscallError) Error() string { return e.op + ": " + e.err.Error() }
func (e *syscallError) Unwrap() error { return e.err }

type countedFile struct {
	vfs.File
	fs *countedFS
}

func (f *countedFile) Close() error {
	f.fs.open.Add(-1)
	return f.File.Close()
}

// manySegments are n segments that differ in their ids.
func manySegments(t *testing.T, fs vfs.FS, c *Cache, n int) (*source, []*Reader) {
	s := small()
	readers := make([]*Reader, n)
	for i := range readers {
		s.meta.ID.Seq = uint64(100 + i)
		name := fmt.Sprint("seg", i)
		readers[i] = openSegment(t, fs, name, s.write(t, fs, name), c)
	}
	return s, readers
}

func readEverySeries(r *Reader, s *source) error {
	n := 0
	err := r.Read(s.order, math.MinInt64, math.MaxInt64, func(id point.DenseID, run rows.Run) error {
		if want := s.runs[id]; run.Len() != want.Len() {
			return fmt.Errorf("series %d has %d rows, want %d", id, run.Len(), want.Len())
		}
		n++
		return nil
	})
	if err == nil && n != len(s.order) {
		err = fmt.Errorf("%d series of %d", n, len(s.order))
	}
	return err
}

func TestManySegmentsAreReadWithFewFiles(t *testing.T) {
	const most, tasks = 3, 8
	fs := &countedFS{FS: vfs.NewMem()}
	c := openCache(t, 64<<10)
	c.LimitFiles(most)
	s, readers := manySegments(t, fs, c, 40)
	if n := fs.open.Load(); n > most {
		t.Errorf("%d files are open after the start, want at most %d", n, most)
	}
	var g sync.WaitGroup
	for task := range tasks {
		g.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(task), 1))
			for range 200 {
				if err := readEverySeries(readers[rng.IntN(len(readers))], s); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	g.Wait()
	if n := fs.most.Load(); n > most+2*tasks { // one being read and one being opened by each
		t.Errorf("%d files were open at once, want at most %d and those being read", n, most)
	}
	check(t, readEverySeries(readers[0], s))
	check(t, readEverySeries(readers[1], s))
	open, _, opened, shut := c.FileStats()
	if open > most || int64(open) != opened-shut || fs.open.Load() != int64(open) {
		t.Errorf("%d files are open, want at most %d; opened %d, closed %d, counted %d", open, most, opened, shut, fs.open.Load())
	}
}

// A file that is read again and again stays open while others come and go.
func TestFilesInUseStayOpen(t *testing.T) {
	c := openCache(t, 1<<20)
	c.LimitFiles(4)
	s, readers := manySegments(t, vfs.NewMem(), c, 12)
	check(t, readEverySeries(readers[0], s))
	check(t, readEverySeries(readers[0], s))
	hot := readers[0].file.Load()
	for _, r := range readers[1:] {
		check(t, readEverySeries(r, s))
		check(t, readEverySeries(readers[0], s))
	}
	if readers[0].file.Load() != hot {
		t.Error("the file of the segment that every second query reads was closed meanwhile")
	}
}

func TestAFileThatIsAnotherWhenItIsOpenedAgainIsCorrupt(t *testing.T) {
	for name, change := range map[string]func(*testing.T, vfs.FS, *source){
		"another segment": func(t *testing.T, fs vfs.FS, s *source) {
			s.meta.ID.Seq++
			s.write(t, fs, "seg0")
		},
		"shorter": func(t *testing.T, fs vfs.FS, _ *source) {
			f, err := fs.Create("seg0", vfs.WriteCategoryUnspecified)
			check(t, err)
			_, err = f.Write([]byte("short"))
			check(t, errors.Join(err, f.Close()))
		},
		"none": func(t *testing.T, fs vfs.FS, _ *source) { check(t, fs.Remove("seg0")) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			c := openCache(t, 1<<20)
			c.LimitFiles(1)
			s, readers := manySegments(t, fs, c, 2) // opening the second closed the first
			change(t, fs, s)
			if err := readEverySeries(readers[0], s); !fault.Is(err, fault.Corrupt) {
				t.Errorf("read gave %v, want Corrupt", err)
			}
			check(t, readEverySeries(readers[1], s))
		})
	}
}

func TestReadsGoOnWhenTheSystemHasNoDescriptorsLeft(t *testing.T) {
	fs := &countedFS{FS: vfs.NewMem()}
	c := openCache(t, 64<<10)
	s, readers := manySegments(t, fs, c, 20)
	check(t, readers[19].Close())
	fs.limit.Store(fs.open.Load()) // another part of the process uses all the others
	r := openSegment(t, fs, "seg19", readers[19].Info(), c)
	fs.limit.Store(fs.open.Load())
	for _, r := range append(readers[:19:19], r) {
		check(t, readEverySeries(r, s))
	}
}

func TestAReaderClosesWithItsFileOpenOrNot(t *testing.T) {
	fs := &countedFS{FS: vfs.NewMem()}
	c := openCache(t, 1<<20)
	c.LimitFiles(1)
	s, readers := manySegments(t, fs, c, 2)
	held, err := readers[1].Cursor()
	check(t, err)
	for _, r := range readers {
		check(t, r.Close())
		if err := readEverySeries(r, s); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a closed reader gave %v", err)
		}
	}
	if n := fs.open.Load(); n != 1 {
		t.Errorf("%d files are open under a walk that has begun", n)
	}
	check(t, held.Close())
	if open, _, _, _ := c.FileStats(); open != 0 || fs.open.Load() != 0 {
		t.Errorf("at the end %d files are open, %d by count", open, fs.open.Load())
	}
}

func BenchmarkAcquire(b *testing.B) {
	fs := vfs.NewMem()
	s := small()
	r := openSegment(b, fs, "seg", s.write(b, fs, "seg"), openCache(b, 1<<20))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if r.acquire() == nil {
				_ = r.release()
			}
		}
	})
}
