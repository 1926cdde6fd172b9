package brick

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const writeCategory vfs.DiskWriteCategory = "spillway-log"

// fileBytesHard bounds a file with a late successor: offsets must stay within 32 bits.
const fileBytesHard = 3 << 30

// preallocateBytes is the step in which disk space is reserved; the unused part of a file's last step stays reserved.
const preallocateBytes = 4 << 20

// The life of a file of the log, and the goroutine that acts:
//
//	run      createFile          file, fsync of the directory, entry "open" in the catalogue (durable)     Brick.mu.next
//	Append   turnLocked          the one before is full                                                   Brick.mu.cur
//	Append   turnLocked          full; the next one is there                                              Brick.mu.retired
//	end      endRetired          trailer, fsync                                                           Brick.mu.ended
//	run      recordEnds          entry "closed" with its end                                              index alone
//	run      removeDead          no extent, no pin: entry "removed", file removed, entry deleted          gone
//
// If createFile is late the current file grows; if endRetired is late acks of the newer file wait.

// logFile is one file of the common log while it is written.
type logFile struct {
	// Constant after createFile.
	number uint32
	sink   *sink
	w      *record.LogWriter // used under Brick.mu until the file is retired, then by the runner

	// Owned by Brick.mu until the file is retired, constant then.
	base int64    // bytes of all files before it, in this life of the process
	last position // end of its newest record
	end  int64    // where its records end; set when it is retired

	// Owned by tracker.
	safe  position // end of its safe part
	ended bool
}

// sink is a log file as its LogWriter sees it: it measures fsyncs, and leaves them out under NoSync until the last.
type sink struct {
	vfs.File
	m      *metrics
	noSync bool
	final  atomic.Bool // the next Sync ends the file
}

func (s *sink) Sync() error {
	if s.noSync && !s.final.Load() {
		return nil
	}
	start := s.m.fsyncBegins()
	err := s.File.Sync()
	s.m.fsyncEnds(start)
	return err
}

func fileName(n uint32) string { return fmt.Sprintf("%010d.log", n) }

func parseFileName(s string) (n uint32, ok bool) {
	var x uint64
	if len(s) != 14 || s[10:] != ".log" {
		return 0, false
	}
	for _, c := range []byte(s[:10]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		x = x*10 + uint64(c-'0')
	}
	return uint32(x), x > 0 && x <= math.MaxInt32
}

func (b *Brick) filePath(n uint32) string { return b.fs.PathJoin(b.set.LogDir, fileName(n)) }

// fileTag is the log number in the chunks of file n: it derives from the secret UUID, so clients cannot forge a chunk, and a file
// of another store is not mistaken for a file of this store.
func fileTag(log StoreID, n uint32) uint32 {
	return uint32(xxhash.Sum64(binary.LittleEndian.AppendUint32(log[:], n)))
}

func (b *Brick) fileTag(n uint32) uint32 { return fileTag(b.logID, n) }

// newLogWriter infers the type of a log number, which pebble keeps internal.
func newLogWriter[N ~uint64](make func(io.Writer, N, record.LogWriterConfig) *record.LogWriter, w io.Writer, n uint32, c record.LogWriterConfig) *record.LogWriter {
	return make(w, N(n), c)
}

// createFile makes log file n and returns when a start after a crash will find it (I7): its directory entry is durable, then its
// entry in the catalogue. Only then may one of its records be acknowledged.
//
// A failed fsync of the directory is final. A directory or file that cannot be opened may be tried again.
func (b *Brick) createFile(n uint32, entries *Batch) (*logFile, error) {
	dir, err := b.fs.OpenDir(b.set.LogDir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "open directory %s", b.set.LogDir)
	}
	defer dir.Close()
	f, err := b.fs.Create(b.filePath(n), writeCategory)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "create log file %s", b.filePath(n))
	}
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20, PreallocateSize: int(min(preallocateBytes, b.set.FileBytesMax))})
	lf := &logFile{number: n, sink: &sink{File: f, m: b.m, noSync: b.set.NoSync}}
	// The order of these steps: an entry without a file would be a missing file, and refuse the next start. A file without an entry is removed
	// by it, as it has no record of a placement.
	if err := b.syncFinal(dir, b.set.LogDir); err != nil {
		return nil, closeAll(err, f)
	}
	entries.set(fileKey(n), (&fileEntry{}).append(nil))
	if err := entries.Commit(true); err != nil {
		return nil, closeAll(err, f)
	}
	lf.w = newLogWriter(record.NewLogWriter, lf.sink, b.fileTag(n), record.LogWriterConfig{
		WriteWALSyncOffsets:       func() bool { return false }, // the brick's own count whole files, and are in the records
		ExternalSyncQueueCallback: func(i record.PendingSyncIndex, err error) { b.reached(lf, position(i.Index), err) },
	})
	return lf, nil
}

func closeAll(err error, c io.Closer) error {
	_ = c.Close()
	return err
}

// Append puts one record at the end of p's private log and returns a Wait for its fsync. Records reach the log in the
// order of the calls. rec is copied before the return. Safe for many goroutines; the caller orders those of one
// placement, since serials must rise.
//
// sender is the epoch of the record's sender; the serial inside may be of an older epoch (I3). A sender above the highest epoch is
// raised durably first: one catalogue commit an epoch. Errors: Stale (the sender's epoch was overtaken), Throttled
// (InFlightBytesMax), Unavailable (fenced, read-only, closed), TooLarge, Invalid (a serial that does not rise).
func (b *Brick) Append(p point.PlacementID, sender point.Epoch, s point.Serial, rec []byte) (Wait, error) {
	if err := b.takes(len(rec)); err != nil {
		return Wait{}, err
	}
	h := header{kind: kindFrame, synced: position(b.synced.Load()), catalogue: b.commits.durable.Load(), placement: p, serial: s}
	buf := scratches.Get().(*scratch)
	defer buf.put()
	buf.b = append(h.append(buf.b[:0]), rec...)

	for {
		b.mu.Lock()
		pos, err := b.appendLocked(p, sender, s, buf.b)
		b.mu.Unlock()
		if err == errRaise {
			if err := b.RaiseEpoch(p, sender); err != nil {
				return Wait{}, err
			}
			continue
		}
		if err != nil {
			return Wait{}, err
		}
		b.m.appendedRecords.Inc()
		b.m.appendedBytes.Add(float64(len(rec)))
		return Wait{b, pos}, nil
	}
}

// errRaise makes Append raise the epoch outside of the lock.
var errRaise = fault.Errorf(fault.Internal, "epoch not yet raised")

// takes refuses a record for reasons that do not depend on its placement.
func (b *Brick) takes(n int) error {
	if err := b.Err(); err != nil {
		return err
	}
	if ro, why := b.ReadOnly(); ro {
		return fault.Errorf(fault.Unavailable, "%s", why)
	}
	if n > RecordBytesMax {
		return fault.Errorf(fault.TooLarge, "record of %d bytes, at most %d are taken", n, RecordBytesMax)
	}
	// Read without a lock: callers that pass at once may exceed the bound by a record each. f > 0 lets a record pass that is larger than the bound.
	if f := b.InFlight(); f > 0 && f+int64(n) > b.set.InFlightBytesMax {
		return fault.Errorf(fault.Throttled, "%d bytes wait for the log device, at most %d may", f, b.set.InFlightBytesMax)
	}
	return nil
}

// InFlight is the number of log bytes appended and not yet safe.
func (b *Brick) InFlight() int64 {
	if b.acked.Load() >= b.last.Load() {
		return 0
	}
	return max(0, b.appended.Load()-b.ackedBytes.Load())
}

// appendLocked checks the order of epochs and serials, and appends. Under mu, so that both hold when the record is in the log.
func (b *Brick) appendLocked(p point.PlacementID, sender point.Epoch, s point.Serial, buf []byte) (position, error) {
	if b.mu.cur == nil {
		return 0, fault.Errorf(fault.Unavailable, "the log of %s is not open: before Recover or after Close", b.set.DataDir)
	}
	l := b.mu.index.of(p)
	switch {
	case sender < l.epoch:
		return 0, fault.Errorf(fault.Stale, "placement %s: sender's epoch %d is over, epoch %d has begun", p, sender, l.epoch)
	case sender > l.epoch:
		return 0, errRaise
	case !l.last.Less(s):
		return 0, fault.Errorf(fault.Invalid, "placement %s: serial %s does not follow %s", p, s, l.last)
	}
	start, end, err := b.writeLocked(buf)
	if err != nil {
		return 0, err
	}
	b.mu.index.add(l, extentOf(s, start, end))
	return end, nil
}

func extentOf(s point.Serial, start, end position) extent {
	return extent{epoch: s.Epoch, seq: s.Seq, file: start.file(), offset: uint32(start.offset()), bytes: uint32(end - start)}
}

// writeLocked writes a record to the current file, which it fills from start to end, and requests its fsync.
func (b *Brick) writeLocked(buf []byte) (start, end position, err error) {
	f := b.mu.cur
	if f.w.Size() > fileBytesHard {
		return 0, 0, fault.Errorf(fault.Throttled, "log file %d is full and the next one is not there yet", f.number)
	}
	from, to := f.w.Size(), recordEnd(f.w.Size(), len(buf))
	start, end = at(f.number, from), at(f.number, to)
	f.last = end
	// LogWriter keeps the number and not the pointer, and calls back with the highest one that an fsync covered (reached).
	b.mu.sync.Index = int64(end)
	if _, err := f.w.SyncRecordGeneralized(buf, &b.mu.sync); err != nil {
		b.Fence(err)
		return 0, 0, b.Err()
	}
	if f.w.Size() != to {
		// A position that is off by a byte would ack records before their fsync.
		fault.Bug("a record of %d bytes at %d ends at %d, not at %d", len(buf), from, f.w.Size(), to)
	}
	b.mu.index.grew(f.number, to-from)
	b.appended.Store(f.base + to)
	b.last.Store(int64(end))
	b.turnLocked(to)
	return start, end, nil
}

// turnLocked moves on to the next file when the current one, of size bytes, is full, and requests the next one in time. It does no
// I/O: when the next file is late, the current one grows past FileBytesMax.
func (b *Brick) turnLocked(size int64) {
	if b.mu.next == nil && size >= b.set.FileBytesMax/2 {
		b.poke()
	}
	if b.mu.next == nil || size < b.set.FileBytesMax {
		return
	}
	old := b.mu.cur
	old.end = size
	b.mu.retired = append(b.mu.retired, old)
	b.mu.cur, b.mu.next = b.mu.next, nil
	b.beginLocked(b.mu.cur, old.base+size)
	b.runner.noteTurned()
}

// beginLocked makes f the current file. Its header record is not worth an fsync.
func (b *Brick) beginLocked(f *logFile, base int64) {
	b.mu.cur = f
	f.base = base
	b.mu.index.addFile(f.number, 0, true)
	h := header{kind: kindFile, synced: position(b.synced.Load()), catalogue: b.commits.durable.Load(), serial: point.Serial{Epoch: point.Epoch(f.number)}}
	b.mu.sync.Index = record.NoSyncIndex
	if _, err := f.w.SyncRecordGeneralized(append(h.append(nil), b.logID[:]...), &b.mu.sync); err != nil {
		b.Fence(err)
	}
	f.last = at(f.number, f.w.Size())
	b.mu.index.grew(f.number, f.w.Size())
	b.tracker.Lock()
	b.tracker.open = append(b.tracker.open, f)
	b.tracker.Unlock()
}

// scratch is memory in which a record is put together outside of the lock.
type scratch struct{ b []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

const scratchBytesKept = 1 << 20

func (s *scratch) put() {
	if cap(s.b) <= scratchBytesKept {
		scratches.Put(s)
	}
}
