package brick

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Dropped is a placement whose catalogue entry is gone, durably, while its directory of segments is still there. A note of its owner says that the
// files are to go.
//
//	Drop ─ RemoveLater ─▶ waits, its bytes count as free ─ RemoveSome ─▶ … ─▶ the directory is gone, durably ─▶ Gone: the note goes, too
//	                            └─ a kill: the next start finds the note, and calls RemoveLater
//
// Not at once: the file system frees and discards the blocks of a file in one go, and fsyncs of the log on that disk wait meanwhile.
type Dropped struct {
	Placement point.PlacementID
	// Read reports whether a view still reads its files: they wait for a minute, unless the disk is short of room. Once false it stays so. Nil: none does.
	Read func() bool
	// Gone is called once no file is left, also after a power cut. After an error it is called again.
	Gone func() error
}

// left is a dropped placement with files. Once it is in the list, all but d is owned by the holder of removing.
type left struct {
	d       Dropped
	since   time.Time
	counted int64     // bytes of it that count as free
	free    bool      // they do
	unread  bool      // no view reads its files
	listed  bool      // names are those of the files that are left
	names   []string  // the next is the last
	retry   time.Time // after a failure
}

// garbage are the dropped placements with files.
type garbage struct {
	bytes    atomic.Int64
	removing sync.Mutex // held while a piece is removed; acquired before mu
	mu       struct {
		sync.Mutex // never held for I/O: partitions that are made ask whether they have files here
		// Only the holder of removing shortens it, so that it reads without mu those that it saw there. A table of narrow partitions that is dropped has 100,000.
		left []*left // oldest first
		of   map[point.PlacementID]*left
	}
}

const (
	// removePiece is how much of a file is removed at once. Larger: the log waits longer for one.
	removePiece = 16 << 20
	// readMax is how long files wait for views that read them. Larger: longer queries go on, and more bytes lie there during a backup.
	readMax = time.Minute
	// removeRetry is when a placement whose files cannot be removed is tried again.
	removeRetry = time.Minute
	// hurryBytes are how much room there must be beside FreeBytesMin for removing to yield to writers, or FreeBytesMin again, if that is more:
	// all bytes written until the next look must find room. Larger: fuller disks yield less.
	hurryBytes = 1 << 30
)

// RemoveLater notes that the files of a dropped placement may go. From then on they count as free. It does not wait for what is being removed.
func (b *Brick) RemoveLater(d Dropped) {
	l := &left{d: d, since: time.Now()}
	b.count(l)
	g := &b.garbage
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.of[d.Placement] != nil {
		b.uncount(l, l.counted)
		return
	}
	if g.mu.of == nil {
		g.mu.of = map[point.PlacementID]*left{}
	}
	g.mu.left, g.mu.of[d.Placement] = append(g.mu.left, l), l
}

// DroppedBytes are the bytes of dropped placements that are still on the disk and may be removed.
func (b *Brick) DroppedBytes() int64 { return b.garbage.bytes.Load() }

// Removed is what a call of RemoveSome did.
type Removed struct {
	Bytes int64 // of a file that is gone, or shorter by them
	Ended bool  // a directory is gone, with an fsync
	More  bool  // there may be more to remove at once
	Hurry bool  // the disk is short of room
}

// RemoveSome removes a piece of what dropped placements left: a file, 16 MiB of a large one, or the directory. Where the disk is short of room it
// is a whole file, and files that are being read go, too. Errors are Unavailable: that placement is tried again after a minute, and the others meanwhile.
func (b *Brick) RemoveSome() (r Removed, err error) {
	if b.Err() != nil || b.Frozen() {
		return Removed{}, nil
	}
	g := &b.garbage
	g.removing.Lock()
	defer g.removing.Unlock()
	r.Hurry = g.any() && b.hurried()
	l := b.next(r.Hurry)
	if l == nil {
		return Removed{Hurry: r.Hurry}, nil
	}
	r.More = true
	if r.Bytes, r.Ended, err = b.removeSome(l, r.Hurry); err != nil {
		b.failed(l)
	}
	return r, err
}

// RemoveNow removes all that a placement left: it comes back. Errors are Unavailable.
func (b *Brick) RemoveNow(p point.PlacementID) error {
	g := &b.garbage
	if g.find(p) == nil {
		return nil
	}
	g.removing.Lock()
	defer g.removing.Unlock()
	l := g.find(p)
	if l == nil {
		return nil
	}
	err := b.removeRest(l)
	if err != nil {
		b.failed(l)
	}
	return err
}

// failed has a placement wait until it is tried again. Until then its bytes are not free: what relied on their room would fill the disk.
func (b *Brick) failed(l *left) {
	l.retry, l.listed, l.free = time.Now().Add(removeRetry), false, false
	b.uncount(l, l.counted)
}

// next returns the oldest dropped placement of which something may be removed; nil: there is none.
func (b *Brick) next(hurry bool) *left {
	now := time.Now()
	g := &b.garbage
	g.mu.Lock()
	all := g.mu.left
	g.mu.Unlock()
	for _, l := range all {
		if now.Before(l.retry) {
			continue
		}
		if !l.unread || !l.free {
			b.count(l)
		}
		if l.free || hurry {
			return l
		}
	}
	return nil
}

// count counts the bytes of a placement as free once they may be removed. Those of files with several names (a backup may be made of links) are
// not freed by removing one.
func (b *Brick) count(l *left) {
	l.unread = l.unread || l.d.Read == nil || !l.d.Read()
	if l.free || !l.unread && time.Since(l.since) < readMax {
		return
	}
	l.free = true
	dir := b.SegmentDir(l.d.Placement)
	names, _ := b.fs.List(dir) // their removal reports an error
	for _, name := range names {
		if st, err := b.fs.Stat(b.fs.PathJoin(dir, name)); err == nil && !linked(st) {
			l.counted += st.Size()
		}
	}
	b.garbage.bytes.Add(l.counted)
}

// uncount says that bytes of a placement are gone.
func (b *Brick) uncount(l *left, n int64) {
	n = min(n, l.counted)
	l.counted -= n
	b.garbage.bytes.Add(-n)
}

func (b *Brick) removeSome(l *left, hurry bool) (bytes int64, ended bool, err error) {
	dir := b.SegmentDir(l.d.Placement)
	if !l.listed {
		if l.names, err = b.fs.List(dir); err != nil && !oserror.IsNotExist(err) {
			return 0, false, fault.Wrap(err, fault.Unavailable, "list %s", dir)
		}
		l.listed = true
	}
	if len(l.names) == 0 {
		return 0, true, b.removeRest(l)
	}
	path := b.fs.PathJoin(dir, l.names[len(l.names)-1])
	st, err := b.fs.Stat(path)
	if err == nil && !st.IsDir() {
		if size := st.Size(); size > removePiece && l.unread && !hurry && isSegment(path) && b.shorten(path, size-removePiece) {
			b.uncount(l, removePiece)
			return removePiece, false, nil
		}
		if bytes = st.Size(); linked(st) {
			bytes = 0
		}
		err = b.fs.Remove(path)
	} // else it is removed with the directory
	if err != nil && !oserror.IsNotExist(err) {
		return 0, false, fault.Wrap(err, fault.Unavailable, "remove %s", path)
	}
	l.names = l.names[:len(l.names)-1]
	b.uncount(l, bytes)
	return bytes, false, nil
}

// isSegment reports whether Read tells of a file. One that a leader sends may be read to be checked, and surplus to be handed over.
func isSegment(path string) bool { return strings.HasSuffix(path, ".seg") }

// shorten cuts off the end of a file; false: it cannot be done here, or not with this file.
func (b *Brick) shorten(path string, size int64) bool {
	f, err := b.fs.OpenReadWrite(path, writeCategory)
	if err != nil {
		return false
	}
	fd := f.Fd()
	cut := fd != vfs.InvalidFd && truncate(fd, path, size) == nil
	return f.Close() == nil && cut
}

// removeRest removes the directory and all that is left in it.
func (b *Brick) removeRest(l *left) error {
	if err := b.RemoveSegmentDir(l.d.Placement); err != nil {
		return err
	}
	b.uncount(l, l.counted)
	if err := l.d.Gone(); err != nil {
		return err
	}
	g := &b.garbage
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.of, l.d.Placement)
	if g.mu.left[0] == l { // mostly
		g.mu.left[0], g.mu.left = nil, g.mu.left[1:]
		return nil
	}
	g.mu.left = slices.DeleteFunc(g.mu.left, func(o *left) bool { return o == l })
	return nil
}

func (g *garbage) find(p point.PlacementID) *left {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.of[p]
}

func (g *garbage) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.left) > 0
}
