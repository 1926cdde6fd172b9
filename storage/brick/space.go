package brick

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ReadOnly reports whether appends are refused for want of disk space, with a sentence that has the numbers.
func (b *Brick) ReadOnly() (bool, string) {
	for _, p := range []*atomic.Pointer[string]{&b.frozen, &b.readOnly} {
		if why := p.Load(); why != nil {
			return true, *why
		}
	}
	return false, ""
}

// Freeze makes the brick read-only for good: nothing is appended, committed or removed any more. For a store that was opened
// on a file system that forgets, because the disk had no room.
func (b *Brick) Freeze(why string) {
	b.frozen.Store(&why)
}

// Frozen reports whether Freeze was called: then there is nothing to flush or to compact.
func (b *Brick) Frozen() bool { return b.frozen.Load() != nil }

// errFrozen is the error of what a frozen brick does not do; nil: it is not frozen.
func (b *Brick) errFrozen() error {
	if why := b.frozen.Load(); why != nil {
		return fault.Errorf(fault.Unavailable, "%s", *why)
	}
	return nil
}

// RoomFor refuses deferrable work that would need the reserve: bytes more in the data directory must leave FreeBytesMin, which is
// for the log and for flushes. Errors are Unavailable; nil if free space cannot be read.
func (b *Brick) RoomFor(bytes int64) error {
	if err := b.errFrozen(); err != nil {
		return err
	}
	u, err := b.usage(b.set.DataDir)
	if err != nil || u.AvailBytes >= b.set.FreeBytesMin && u.AvailBytes-b.set.FreeBytesMin >= uint64(max(0, bytes)) {
		return nil
	}
	return fault.Errorf(fault.Unavailable, "%d MiB are free in %s: not enough for %d MiB more beside the reserve of %d MiB (storage.free_bytes_min); it is tried again, make room there",
		u.AvailBytes>>20, b.set.DataDir, bytes>>20, b.set.FreeBytesMin>>20)
}

// Room is by how many bytes the data directory may grow, such that FreeBytesMin are left; 0 if there are none or the brick is frozen. ok is false
// if free space cannot be read.
func (b *Brick) Room() (bytes uint64, ok bool) {
	if b.Frozen() {
		return 0, true
	}
	u, err := b.usage(b.set.DataDir)
	if err != nil {
		return 0, false
	}
	return u.AvailBytes - min(u.AvailBytes, b.set.FreeBytesMin), true
}

// usage is the space of the disk with a directory. What dropped placements left is free: it is removed before writes are refused for want of room.
func (b *Brick) usage(dir string) (vfs.DiskUsage, error) {
	u, err := b.fs.GetDiskUsage(dir)
	if n := uint64(max(0, b.DroppedBytes())); err == nil && n > 0 && b.besideSegments(dir) {
		u.AvailBytes, u.UsedBytes = u.AvailBytes+n, u.UsedBytes-min(n, u.UsedBytes)
	}
	return u, err
}

// besideSegments reports whether a directory of the store lies on the disk with the segments, which may be another one, behind a link.
func (b *Brick) besideSegments(dir string) bool {
	here, err := b.fs.Stat(dir)
	if err != nil {
		return false
	}
	segments, err := b.fs.Stat(b.segments())
	return err == nil && here.DeviceID() == segments.DeviceID()
}

// segments is the directory of all placements' segments.
func (b *Brick) segments() string { return b.fs.PathJoin(b.set.DataDir, segmentsDir) }

// hurried reports whether the disk with the segments has so little room that what dropped placements left is removed at once.
func (b *Brick) hurried() bool {
	u, err := b.fs.GetDiskUsage(b.segments())
	if err == nil && u.AvailBytes < b.set.FreeBytesMin+max(b.set.FreeBytesMin, hurryBytes) {
		return true
	}
	return b.files != nil && b.files(b.segments()).Fewer(2*FilesMin)
}

// freeBytes returns the free space of the directory with less.
func (b *Brick) freeBytes() float64 {
	least := math.Inf(1)
	for _, dir := range []string{b.set.DataDir, b.set.LogDir} {
		u, err := b.usage(dir)
		if err != nil {
			return math.NaN()
		}
		least = min(least, float64(u.AvailBytes))
	}
	return least
}

// checkSpace looks at the free space of both directories, in bytes and in files. Once below FreeBytesMin or FilesMin the brick stays
// read-only until a quarter more is free, so that it does not flap. Before it is, all that dropped placements left is removed.
func (b *Brick) checkSpace() {
	if b.Frozen() {
		return
	}
	why, dir, ok := b.shortage()
	for end := time.Now().Add(shortageWork); why != nil && b.besideSegments(dir) && time.Now().Before(end); why, dir, ok = b.shortage() {
		r, err := b.RemoveSome()
		if err != nil {
			b.log.Warn("the files of a dropped partition could not be removed; they are tried again in a minute", "error", err)
		} else if !r.More {
			break
		}
	}
	if !ok {
		return
	}
	if was := b.readOnly.Swap(why); (was == nil) != (why == nil) {
		if why != nil {
			b.log.Error("brick is read-only", "reason", *why)
		} else {
			b.log.Info("brick takes writes again")
		}
	}
}

// shortageWork bounds how long other work of the goroutine waits: the loop that removes goes on.
const shortageWork = tickEvery / 2

// shortage returns why the brick is to be read-only, and the directory that is short; nil: it has room. ok is false where that is not known.
func (b *Brick) shortage() (why *string, dir string, ok bool) {
	for _, dir := range []string{b.set.DataDir, b.set.LogDir} {
		u, err := b.fs.GetDiskUsage(dir)
		// A file system in memory, in tests: it is never full.
		if errors.Is(err, vfs.ErrUnsupported) {
			return nil, "", false
		}
		if err != nil {
			b.log.Warn("free disk space is unknown", "dir", dir, "error", err)
			return nil, "", false
		}
		need := b.set.FreeBytesMin
		if b.readOnly.Load() != nil {
			need += need / 4
		}
		if u.AvailBytes < need {
			s := fmt.Sprintf("the store is read-only: %d MiB are free in %s, at least %d MiB must be; make room there or lower storage.free_bytes_min",
				u.AvailBytes>>20, dir, need>>20)
			return &s, dir, true
		}
		if s := b.filesShort(dir); s != "" {
			return &s, dir, true
		}
	}
	return nil, "", true
}
