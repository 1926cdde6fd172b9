package runner

import (
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/storage/staging"
)

// watched is a file system that reports removals of files, and holds fsyncs up.
type watched struct {
	*vfs.MemFS
	removed func() // after a removal

	mu      sync.Mutex
	gate    chan struct{} // fsyncs wait until it is closed; nil: they do not
	waiting int
}

func (w *watched) Remove(name string) error {
	err := w.MemFS.Remove(name)
	if err == nil && w.removed != nil {
		w.removed()
	}
	return err
}

func (w *watched) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.MemFS.Create(name, c)
	return watchedFile{f, w}, err
}

type watchedFile struct {
	vfs.File
	fs *watched
}

func (f watchedFile) SyncData() error {
	f.fs.mu.Lock()
	gate := f.fs.gate
	if gate != nil {
		f.fs.waiting++
	}
	f.fs.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return f.File.SyncData()
}

// smallFiles ends a file of the log after a frame of 8 series.
var smallFiles = staging.Settings{BytesMax: 8 * 200}

// TestRowsBesideDeletedOnesSurviveAPowerCut: of a frame that fills a file of its own a row is deleted. The file may go only once the frame that is left is
// durable: the rows that stay are there if the power is cut right after the removal.
func TestRowsBesideDeletedOnesSurviveAPowerCut(t *testing.T) {
	h := newHouse(t)
	fs := &watched{MemFS: h.fs}
	s := h.openOn(fs, smallFiles)
	of, f := several(1, 1, 2, 3, 4, 5, 6, 7, 8)
	h.must(s.Stage(t.Context(), "t", 1, of, f))
	var crashes []*vfs.MemFS
	fs.removed = func() { crashes = append(crashes, h.powerCut()) } // a file system may make a removal durable before data that was written earlier
	h.must(s.Delete(t.Context(), these(1)))
	h.must(s.Close())
	if len(crashes) == 0 {
		t.Fatal("no file was removed")
	}
	for i, crashed := range crashes {
		h.fs = crashed
		s := h.open(smallFiles)
		if got := h.values(s, "t"); !slices.Equal(got, []float64{2, 3, 4, 5, 6, 7, 8}) {
			t.Errorf("removal %d: of the rows 2 to 8 there are %v", i, got)
		}
		h.must(s.Close())
	}
}

// TestFramesBesideARenamedOneSurviveAPowerCut: a frame gets new holders twice at once, as from a gateway and from another holder, and beside that a row of
// it is deleted. A frame in the same file of the log stays durable.
func TestFramesBesideARenamedOneSurviveAPowerCut(t *testing.T) {
	for _, deletes := range []bool{false, true} {
		h := newHouse(t)
		fs := &watched{MemFS: h.fs}
		s := h.openOn(fs, staging.Settings{BytesMax: 8 * 250})
		for n := range 2 {
			of, f := several(n+1, 1+2*n, 2+2*n)
			h.must(s.Stage(t.Context(), "t", 1, of, f))
		}
		if n := len(s.journal.mu.files); n != 1 || s.journal.mu.current != nil {
			t.Fatalf("the log has %d files, and the last one ended is %t", n, s.journal.mu.current == nil)
		}
		gate := make(chan struct{})
		fs.mu.Lock()
		fs.gate = gate
		fs.mu.Unlock()
		var all sync.WaitGroup
		written := s.journal.written()
		rename := func(to string) {
			all.Go(func() {
				of, f := several(1, 1, 2)
				of.Holders = []string{"a", to}
				if err := s.Stage(t.Context(), "t", 1, of, f); err != nil {
					t.Error(err)
				}
			})
		}
		rename("c")
		h.await("the first record waits for its fsync", func() bool { fs.mu.Lock(); defer fs.mu.Unlock(); return fs.waiting == 1 })
		if deletes {
			all.Go(func() {
				if err := s.Delete(t.Context(), these(1)); err != nil {
					t.Error(err)
				}
			})
		} else {
			rename("d")
		}
		h.await("both records are written", func() bool { return s.journal.written() == written+2 })
		fs.mu.Lock()
		fs.gate = nil
		fs.mu.Unlock()
		close(gate)
		all.Wait()
		h.must(s.journal.settle())
		crashed := h.fs.CrashClone(vfs.CrashCloneCfg{})
		h.must(s.Close())
		h.fs = crashed
		s = h.open(staging.Settings{})
		if deletes {
			h.want(s, "t", 2, 3, 4)
		} else {
			h.want(s, "t", 1, 2, 3, 4)
		}
		h.must(s.Close())
	}
}

func (j *journal) written() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.written
}

// TestADeletionReachesAFrameThatWentAndCameBack: a frame that this server gave to another one is read here for some seconds, and is staged here again meanwhile.
func TestADeletionReachesAFrameThatWentAndCameBack(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	stage := func() {
		of, f := several(1, 1, 2)
		h.must(s.Stage(t.Context(), "t", 1, of, f))
	}
	stage()
	s.mu.Lock()
	s.mu.given[idOf(1)] = s.mu.held[idOf(1)]
	s.mu.Unlock()
	h.must(s.Forget(idOf(1)))
	h.want(s, "t", 1, 2)
	stage()
	h.must(s.Delete(t.Context(), these(1)))
	h.want(s, "t", 2)
	h.must(s.Close())
}

// TestFramesSurviveAPowerCutAfterAKill: the process is killed before the record that replaces another is durable, and the next one reads it all the same: the
// kernel has it. It makes it durable before it removes the file with the record before.
func TestFramesSurviveAPowerCutAfterAKill(t *testing.T) {
	h := newHouse(t)
	fs := &watched{MemFS: h.fs}
	killed := h.openOn(fs, smallFiles)
	of, f := several(1, 1, 2, 3, 4, 5, 6, 7, 8)
	h.must(killed.Stage(t.Context(), "t", 1, of, f))
	gate, ended := make(chan struct{}), make(chan error)
	fs.mu.Lock()
	fs.gate = gate
	fs.mu.Unlock()
	go func() {
		of, f := several(1, 1, 2, 3, 4, 5, 6, 7, 8)
		of.Holders = []string{"a", "c"}
		ended <- killed.Stage(t.Context(), "t", 1, of, f)
	}()
	h.await("the record waits for its fsync", func() bool { fs.mu.Lock(); defer fs.mu.Unlock(); return fs.waiting == 1 })
	next := &watched{MemFS: h.fs}
	var crashes []*vfs.MemFS
	next.removed = func() { crashes = append(crashes, h.powerCut()) }
	s := h.openOn(next, smallFiles)
	h.want(s, "t", 1, 2, 3, 4, 5, 6, 7, 8)
	h.must(s.Close())
	if len(crashes) == 0 {
		t.Fatal("no file was removed")
	}
	h.fs = crashes[0]
	s = h.open(smallFiles)
	h.want(s, "t", 1, 2, 3, 4, 5, 6, 7, 8)
	h.must(s.Close())
	close(gate)
	h.must(<-ended)
	h.must(killed.Close())
}

// powerCut returns the disk as after a power cut now, where it has made all removals durable, and no data beyond the fsyncs.
func (h *house) powerCut() *vfs.MemFS {
	dir, err := h.fs.OpenDir("staging")
	h.must(err)
	h.must(dir.Sync())
	h.must(dir.Close())
	return h.fs.CrashClone(vfs.CrashCloneCfg{})
}
