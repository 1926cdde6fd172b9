package brick

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Usage is the size of the log and its used part.
type Usage struct {
	Files int
	Bytes int64 // of all files
	Live  int64 // needed by some placement
}

// Usage counts the log's files and bytes. O(1).
func (b *Brick) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Usage{Files: len(b.mu.index.files), Bytes: b.mu.index.bytes, Live: b.mu.index.live}
}

// Pinning returns the placements that hold the oldest log files (C89), at most limit, the oldest first. Their owners flush them
// and Release, or Rewrite them when they are small.
func (b *Brick) Pinning(limit int) []Pin {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.index.pins(limit)
}

// RewriteBytesMax bounds the copy of Rewrite: appends of all placements wait while it is written into the log, about a
// millisecond a MiB.
const RewriteBytesMax = 4 << 20

// Rewrite copies p's live records, in order, to the end of the log, so that the old files can go. Their serials stay.
// It returns how many bytes of log were copied. Durable and done when it returns. Errors: TooLarge (more than maxBytes
// or RewriteBytesMax are live: flush instead), Throttled (p is being written to: try later), Unavailable, Corrupt.
func (b *Brick) Rewrite(p point.PlacementID, maxBytes int64) (int64, error) {
	b.admin.Lock()
	defer b.admin.Unlock()
	for range 3 {
		moved, again, err := b.rewriteOnce(p, min(maxBytes, RewriteBytesMax))
		if !again {
			b.m.rewrittenBytes.Add(float64(moved))
			return moved, fault.Annotate(err, "rewrite the log of placement %s", p)
		}
	}
	return 0, fault.Errorf(fault.Throttled, "placement %s is being written to; its log was not rewritten", p)
}

// rewriteOnce tries to copy the records live at its start; again reports that records came meanwhile.
func (b *Brick) rewriteOnce(p point.PlacementID, maxBytes int64) (moved int64, again bool, err error) {
	// 1. Read, without blocking appends.
	b.mu.Lock()
	ext := slices.Clone(b.behindLocked(p, point.Serial{}))
	b.mu.index.pin(ext)
	b.mu.Unlock()
	if len(ext) == 0 {
		return 0, false, b.Err()
	}
	defer b.letGo(ext) // not before the tombstone is durable: until then a crash needs the originals
	for _, e := range ext {
		moved += int64(e.bytes)
	}
	if moved > maxBytes {
		return 0, false, fault.Errorf(fault.TooLarge, "%d bytes are live, at most %d are copied; flush it instead", moved, maxBytes)
	}
	if err := (Wait{b, ext[len(ext)-1].end()}).Wait(); err != nil {
		return 0, false, err
	}
	recs := make([][]byte, 0, len(ext))
	err = b.readExtents(p, ext, func(_ point.Serial, rec []byte) error {
		recs = append(recs, slices.Clone(rec))
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	// 2. Append the copies with nothing of p between them, and let the index point at them.
	first, last, again, err := b.copyForward(p, ext, recs)
	if again || err != nil || last == 0 {
		return 0, again, err
	}
	// 3. When they are durable, the originals are declared dead: a reader must not find them before newer records.
	if err := (Wait{b, last}).Wait(); err != nil {
		return 0, false, err
	}
	return moved, false, b.bury(p, tombstone{before: first})
}

func (b *Brick) copyForward(p point.PlacementID, ext []extent, recs [][]byte) (first, last position, again bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.mu.index.logs[p]
	if l == nil || len(l.ext) == 0 || b.mu.cur == nil {
		return 0, 0, false, b.Err() // all was released meanwhile
	}
	if l.last != ext[len(ext)-1].serial() {
		return 0, 0, true, nil
	}
	released := len(ext) - len(l.ext)
	copies := make([]extent, 0, len(l.ext))
	for i, e := range l.ext {
		h := header{kind: kindFrame, flags: flagCopy, synced: position(b.synced.Load()), catalogue: b.commits.durable.Load(), placement: p, serial: e.serial()}
		start, end, err := b.writeLocked(append(h.append(nil), recs[released+i]...))
		if err != nil {
			return 0, 0, false, err // the next start finds the copies as doubles, and skips them
		}
		if i == 0 {
			first = start
		}
		last = end
		copies = append(copies, extentOf(e.serial(), start, end))
	}
	b.mu.index.replace(l, copies)
	return first, last, false, nil
}

// bury makes records of p dead for every later start. Tombstones of other placements go with their last files: of minute-wide tables one is dropped
// each minute, for as long as the process runs.
func (b *Brick) bury(p point.PlacementID, t tombstone, also ...func(*Batch)) error {
	ts := b.manifest.tombs[p].add(t)
	batch := b.NewBatch()
	batch.set(placementKey(keyTomb, p), ts.append(nil))
	for _, f := range also {
		f(batch)
	}
	oldest, err := b.oldestFile()
	if err != nil {
		batch.Close()
		return err
	}
	var over []point.PlacementID
	if oldest != b.manifest.swept { // once a file, and not at each of the thousands of partitions that retention drops
		for o, ts := range b.manifest.tombs {
			if o != p && len(ts.since(oldest)) == 0 {
				over = append(over, o)
				batch.delete(placementKey(keyTomb, o))
			}
		}
	}
	if err := batch.Commit(true); err != nil {
		return err
	}
	b.manifest.tombs[p], b.manifest.swept = ts, oldest
	for _, o := range over {
		delete(b.manifest.tombs, o)
	}
	return nil
}

// oldestFile returns the first file that a start would read, by the catalogue: the index may lack one of which the removal failed.
func (b *Brick) oldestFile() (n uint32, err error) {
	n = math.MaxUint32
	err = b.scan([]byte{ownKeys, keyFile}, []byte{ownKeys, keyFile + 1}, func(k, v []byte) error {
		var e fileEntry
		if err := e.decode(v); err != nil {
			return err
		}
		if e.state != fileRemoved {
			n = min(n, binary.BigEndian.Uint32(k[2:]))
		}
		return nil
	})
	return n, err
}

// Cut removes the records behind serial after from the end of p's log, durably: records that a new leader lacks, once they are set
// aside elsewhere. The next serial must be above after. The caller makes sure that nothing is appended to p meanwhile. Errors:
// Unavailable.
func (b *Brick) Cut(p point.PlacementID, after point.Serial) error {
	b.admin.Lock()
	defer b.admin.Unlock()
	b.mu.Lock()
	end, err := b.endLocked()
	l := b.mu.index.logs[p]
	nothing := l == nil || !after.Less(l.last)
	b.mu.Unlock()
	if err != nil || nothing {
		return err
	}
	// Only then may a file go: a start that found a part of the records, and no tombstone, would count the others as lost. And a call that failed
	// must find something to do when it is repeated.
	if err := b.bury(p, tombstone{before: end, after: after}); err != nil {
		return fault.Annotate(err, "cut the log of placement %s behind %s", p, after)
	}
	b.mu.Lock()
	if l := b.mu.index.logs[p]; l != nil {
		b.mu.index.truncate(l, after)
	}
	b.mu.Unlock()
	b.poke()
	return nil
}

// Drop forgets a placement that will not come back: its records, its highest epoch. Durable when it returns. Its
// catalogue keys and segments are its owner's. Errors: Unavailable.
func (b *Brick) Drop(p point.PlacementID) error {
	b.admin.Lock()
	defer b.admin.Unlock()
	b.mu.Lock()
	end, err := b.endLocked()
	noted := Wait{}
	if ro, _ := b.ReadOnly(); err == nil && !ro {
		h := header{kind: kindDrop, synced: position(b.synced.Load()), catalogue: b.commits.durable.Load(), placement: p}
		noted.b = b
		_, noted.pos, err = b.writeLocked(h.append(nil))
	}
	if l := b.mu.index.logs[p]; err == nil && l != nil {
		b.mu.index.replace(l, nil)
		delete(b.mu.index.logs, p)
	}
	b.mu.Unlock()
	if err == nil {
		err = noted.Wait()
	}
	if err != nil {
		return err
	}
	defer b.poke()
	forgetEpoch := func(t *Batch) { t.delete(placementKey(keyEpoch, p)) }
	return fault.Annotate(b.bury(p, tombstone{before: end}, forgetEpoch), "drop placement %s", p)
}

// endLocked returns the lowest possible position of the next record.
func (b *Brick) endLocked() (position, error) {
	if b.mu.cur == nil {
		return 0, fault.Errorf(fault.Unavailable, "the log of %s is not open: before Recover or after Close", b.set.DataDir)
	}
	return at(b.mu.cur.number, b.mu.cur.w.Size()), b.Err()
}
