package segment

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Open files are a bounded cache: a store has more segments than a process may have file descriptors.
//
//	acquire ─▶ Reader.file is open: count the read, no lock ─▶ read ─▶ release
//	        └▶ it is not: open it, look that it is the same segment ─▶ Cache.files ─▶ is one too many open? close one
//	                                                                                 that is not being read, and was not lately
//
// Which one: the one that was read longest ago among the next victimLooks under a circulating hand, where time is the number of files
// opened so far. A file that is being read is never closed. So no more than FilesMax are open, or as many as there are reads at one moment,
// if that is more.

// References and states of a file:
//
//	refs 1      open, not being read         acquire: n → n+1, unless n is 0        release: n → n-1
//	refs n+1    open, n reads
//	refs 0      closed, or about to be: a victim (1 → 0 by victimLocked), or Reader.Close gave up its 1 and the last read ended
//
// From 0 there is no way back but for a victim that is spared, whose reader's opening is held meanwhile: reads that come wait for that
// lock in reopen, and find the file open again, or open it.

// FilesMax is how many segment files are open at once, unless Cache.LimitFiles says otherwise.
const FilesMax = 4096

// file is an open segment file.
type file struct {
	r    *Reader
	sst  *sstable.Reader
	info Info // as its header says

	// Read and written without a lock: by all reads of the segment at once.
	refs atomic.Int64 // 1 for being open, 1 for each read; at 0 it is closed and stays so
	used atomic.Int64 // files.opened when it was read last

	place int // in files; owned by files.mu
}

// files are the open files of a Cache.
type files struct {
	// mu guards max, open and hand, for the time of a few dozen comparisons: files are closed after it is released. It is acquired under a
	// Reader.opening; the other way about only by TryLock, which gives up.
	mu     sync.Mutex
	max    int
	open   []*file
	hand   int
	opened atomic.Int64
	shut   atomic.Int64 // to make room
}

// LimitFiles bounds how many files are open at once; at least one. Before the first Open.
func (c *Cache) LimitFiles(n int) { c.files.max = max(1, n) }

// FileStats returns how many files are open now, how many may be, how often one was opened, and how often one was closed to make room.
func (c *Cache) FileStats() (open, most int, opened, shut int64) {
	c.files.mu.Lock()
	defer c.files.mu.Unlock()
	return len(c.files.open), c.files.max, c.files.opened.Load(), c.files.shut.Load()
}

// acquire keeps the file open until release. Between them r.file does not change.
func (r *Reader) acquire() error {
	if f := r.file.Load(); f != nil && !r.closed.Load() && f.acquire() {
		return nil
	}
	return r.reopen()
}

// acquire counts a read; false when the file is closed. The compare-and-swap refuses to count from 0: an Add could revive a file that
// is being closed.
func (f *file) acquire() bool {
	now := f.r.cache.files.opened.Load()
	for {
		n := f.refs.Load()
		if n == 0 {
			return false
		}
		if f.refs.CompareAndSwap(n, n+1) {
			if f.used.Load() != now { // mostly it is: a store would invalidate the cache line of all others
				f.used.Store(now)
			}
			return true
		}
	}
}

// release ends a read. The last one after Close closes the file.
func (r *Reader) release() error {
	f := r.file.Load()
	if f.refs.Add(-1) > 0 {
		return nil
	}
	err := f.sst.Close()
	r.end()
	return fault.Wrap(err, fault.Unavailable, "close segment %s", r.path)
}

// reopen opens the file and acquires it.
// opening is held while the disk is read: other reads of this segment need the same file, those of other segments do not wait.
func (r *Reader) reopen() error {
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.closed.Load() {
		return fault.Errorf(fault.Unavailable, "segment %s is closed", r.path)
	}
	if f := r.file.Load(); f != nil && f.acquire() {
		return nil // another read was faster
	}
	f, err := r.load()
	if tooManyFiles(err) && r.cache.files.shrink() {
		f, err = r.load()
	}
	if err != nil {
		return err
	}
	// 1 for being open and 1 for this read: it is complete before Store makes it visible, and before add may look for victims.
	f.refs.Store(2)
	f.used.Store(r.cache.files.opened.Load())
	r.file.Store(f)
	r.cache.files.add(f)
	return nil
}

// tooManyFiles reports that the process or the system has no descriptors left: sockets and the log use them, too.
func tooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// load opens the file, and checks that it matches Reader.info.
func (r *Reader) load() (_ *file, err error) {
	f, err := r.fs.Open(r.path, vfs.RandomReadsOption)
	if err != nil {
		return nil, diskError(err, r.path)
	}
	stat, err := f.Stat()
	// The size is compared first: a short copy is reported as that, and not as whatever pebble finds instead of a footer.
	if want := r.info.Size; err == nil && want > 0 && stat.Size() != want {
		err = fault.Errorf(fault.Corrupt, "%d bytes instead of %d", stat.Size(), want)
	}
	if err != nil {
		_ = f.Close()
		return nil, diskError(err, r.path)
	}
	if !stat.ModTime().Equal(r.modified) { // the cache may hold other bytes, and would hide that
		r.evict()
		r.cache.forget(r)
		r.modified = stat.ModTime()
	}
	t, err := openTable(f, r.opts)
	if err != nil {
		return nil, diskError(err, r.path)
	}
	out := &file{r: r, sst: t}
	out.info, err = r.readHeader(t)
	out.info.Size, out.info.Checksum = stat.Size(), r.info.Checksum
	if err == nil && r.info.Size > 0 && !out.info.same(&r.info) {
		err = r.corrupt([]byte{keyHeader}, errForm("header: it describes another segment"))
	}
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	return out, nil
}

// openTable owns f even if it fails.
func openTable(f vfs.File, opts sstable.ReaderOptions) (t *sstable.Reader, err error) {
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	// Pebble does not check block handles from the footer and the index. Both have checksums, yet a file that was made
	// badly must not end the process.
	defer func() {
		if p := recover(); p != nil {
			err = fault.Errorf(fault.Corrupt, "no readable table: %v", p)
		}
		if err != nil {
			_ = readable.Close()
		}
	}()
	return sstable.NewReader(context.Background(), newCheckedFile(readable), opts)
}

// readHeader reads the header of a table that was just opened, and how many rows have ranks, which is a record of its own.
func (r *Reader) readHeader(sst *sstable.Reader) (info Info, err error) {
	t, err := r.iterOf(sst)
	if err != nil {
		return info, err
	}
	found, err := t.get([]byte{keyHeader}, func(v []byte) error {
		info, err = parseHeader(v)
		return err
	})
	if err == nil && !found {
		err = r.corrupt([]byte{keyHeader}, errForm("table: no header"))
	}
	if err != nil {
		return info, err
	}
	if t, err = r.iterOf(sst); err != nil {
		return info, err
	}
	_, err = t.get([]byte{keyRanked}, info.parseRanked)
	return info, err
}

// add adds a file that was just opened, and closes one if too many are open.
func (fs *files) add(f *file) {
	fs.opened.Add(1)
	fs.mu.Lock()
	f.place = len(fs.open)
	fs.open = append(fs.open, f)
	victims := fs.victimsLocked(len(fs.open) - fs.max)
	fs.mu.Unlock()
	closeFiles(victims)
}

// shrink closes half of the files that are not being read, for when the system has no descriptors left. It reports whether it
// closed any.
func (fs *files) shrink() bool {
	fs.mu.Lock()
	victims := fs.victimsLocked((len(fs.open) + 1) / 2)
	fs.mu.Unlock()
	closeFiles(victims)
	return len(victims) > 0
}

// victimLooks is how many files are looked at for each that is closed: all of a small cache, few of a large one.
// Approximate LRU: an exact list would need a lock at each read, and 4,096 files are not worth that.
const victimLooks = 32

// victimsLocked removes up to n files that are not being read. Their readers' opening stays locked until closeFiles.
func (fs *files) victimsLocked(n int) (victims []*file) {
	for len(victims) < n {
		f := fs.victimLocked()
		if f == nil {
			break
		}
		fs.removeLocked(f)
		victims = append(victims, f)
	}
	fs.shut.Add(int64(len(victims)))
	return victims
}

// victimLocked finds a file that is not being read, and keeps it from being read; nil when there is none under the hand.
func (fs *files) victimLocked() *file {
	var oldest *file
	for range min(victimLooks, len(fs.open)) {
		fs.hand = (fs.hand + 1) % len(fs.open)
		f := fs.open[fs.hand]
		// TryLock: a reader whose opening is held is just being opened, or closed. To wait for it under files.mu could wait for ever: it may be
		// waiting for files.mu in add.
		if f.refs.Load() > 1 || oldest != nil && oldest.used.Load() <= f.used.Load() || !f.r.opening.TryLock() {
			continue
		}
		if !f.refs.CompareAndSwap(1, 0) { // a read has begun
			f.r.opening.Unlock()
			continue
		}
		// The one found before is spared.
		if oldest != nil {
			oldest.refs.Store(1)
			oldest.r.opening.Unlock()
		}
		oldest = f
	}
	return oldest
}

// removeLocked moves the last file into the place that becomes free.
func (fs *files) removeLocked(f *file) {
	last := len(fs.open) - 1
	fs.open[f.place] = fs.open[last]
	fs.open[f.place].place = f.place
	fs.open[last] = nil
	fs.open = fs.open[:last]
}

// closeFiles ends what victimsLocked began. The pointer is cleared before the lock is released: a read that waited for it opens anew.
func closeFiles(victims []*file) {
	for _, f := range victims {
		f.r.file.Store(nil)
		_ = f.sst.Close() // nothing was written: there is nothing to lose
		f.r.opening.Unlock()
	}
}

// forgetFile removes the file of a reader that is closed.
func (c *Cache) forgetFile(f *file) {
	c.files.mu.Lock()
	defer c.files.mu.Unlock()
	c.files.removeLocked(f)
}
