package brick

import (
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Replay reads p's private log behind serial after, in order, and calls f for each record. It covers the records appended before
// the call and not released; it waits for the fsync of the last of these. rec is valid until f returns. An error of f ends Replay
// and is returned. Errors: Corrupt (a file was damaged since it was written), Unavailable.
func (b *Brick) Replay(p point.PlacementID, after point.Serial, f func(s point.Serial, rec []byte) error) error {
	return b.replay(p, after, func(ext []extent) []extent { return ext }, f)
}

// ReplaySome is Replay of the records up to a serial.
func (b *Brick) ReplaySome(p point.PlacementID, after, upto point.Serial, f func(s point.Serial, rec []byte) error) error {
	return b.replay(p, after, func(ext []extent) []extent { return extentsUpTo(ext, upto) }, f)
}

// AwaitSome waits for the fsync of the records that ReplaySome reads, which then waits for none.
func (b *Brick) AwaitSome(p point.PlacementID, after, upto point.Serial) error {
	b.mu.Lock()
	ext := extentsUpTo(b.behindLocked(p, after), upto)
	var last Wait
	if len(ext) > 0 {
		last = Wait{b, ext[len(ext)-1].end()}
	}
	b.mu.Unlock()
	return last.Wait()
}

func extentsUpTo(ext []extent, upto point.Serial) []extent {
	return ext[:sort.Search(len(ext), func(i int) bool { return upto.Less(ext[i].serial()) })]
}

// Behind describes the records of p's private log behind a serial, without reading: the first one, and those that follow it within bytesMax. It returns the serial of the
// last one, how many they are, and their bytes, some more where a record has chunks; n is 0 where there are none.
func (b *Brick) Behind(p point.PlacementID, after point.Serial, bytesMax int64) (upto point.Serial, n int, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.behindLocked(p, after) {
		if n > 0 && bytes+int64(e.bytes) > bytesMax {
			break
		}
		upto, n, bytes = e.serial(), n+1, bytes+int64(e.bytes)
	}
	return upto, n, bytes
}

func (b *Brick) replay(p point.PlacementID, after point.Serial, of func([]extent) []extent, f func(s point.Serial, rec []byte) error) error {
	b.mu.Lock()
	ext := slices.Clone(of(b.behindLocked(p, after))) // the index's own array moves with the next append or release
	b.mu.index.pin(ext)
	b.mu.Unlock()
	if len(ext) == 0 {
		return b.Err()
	}
	// The pins keep the files while no lock is held: a Release meanwhile frees extents, and the files go after letGo.
	defer b.letGo(ext)
	if err := (Wait{b, ext[len(ext)-1].end()}).Wait(); err != nil {
		return err
	}
	return fault.Annotate(b.readExtents(p, ext, f), "placement %s", p)
}

// behindLocked returns p's extents behind a serial. They are the index's own.
func (b *Brick) behindLocked(p point.PlacementID, after point.Serial) []extent {
	l := b.mu.index.logs[p]
	if l == nil {
		return nil
	}
	n := sort.Search(len(l.ext), func(i int) bool { return after.Less(l.ext[i].serial()) })
	return l.ext[n:]
}

// letGo releases a pin.
func (b *Brick) letGo(ext []extent) {
	b.mu.Lock()
	b.mu.index.unpin(ext)
	b.mu.Unlock()
	b.poke()
}

// gapBytesMax is how many foreign bytes between two records are read along rather than sought over. With 64 KiB a
// placement among sixteen was read at a third of the speed from the page cache; without any, neighbours cost a call each.
const gapBytesMax = 16 << 10

// readExtents reads records in the order of ext, neighbours with one read. The files must be pinned.
func (b *Brick) readExtents(p point.PlacementID, ext []extent, f func(s point.Serial, rec []byte) error) error {
	var buf []byte
	for len(ext) > 0 {
		n := 1
		for n < len(ext) && ext[n].file == ext[0].file {
			n++
		}
		var err error
		if buf, err = b.readFileExtents(p, ext[:n], buf, f); err != nil {
			return err
		}
		ext = ext[n:]
	}
	return nil
}

// readFileExtents reads records of one file. The reader's size is the end of one bounded read and not of the file: behind the extents the log is being
// written, and a half written record would look like damage. An extent that holds another record than the index says is damage too, however good its
// checksum: an older copy of a file in the place of the newer one has whole records throughout.
func (b *Brick) readFileExtents(p point.PlacementID, ext []extent, buf []byte, f func(s point.Serial, rec []byte) error) ([]byte, error) {
	path := b.filePath(ext[0].file)
	file, err := b.fs.Open(path)
	if err != nil {
		return buf, fault.Wrap(err, fault.Unavailable, "open log file")
	}
	defer file.Close()
	rd := newReader(file, 0, b.fileTag(ext[0].file), 0, buf)
	for i, e := range ext {
		// Behind the last group's end: a new group, of one read.
		if int64(e.offset) >= rd.size {
			rd.size = groupEnd(ext[i:])
		}
		rd.pos = int64(e.offset)
		rec, _, err := rd.next()
		if err != nil {
			kind := fault.Unavailable
			if isBadChunk(err) || err == errShort || err == errTrailer {
				kind = fault.Corrupt
			}
			return rd.buf, fault.Wrap(err, kind, "log file %s", path)
		}
		h, payload, err := decodeRecord(rec)
		if err == nil && (h.kind != kindFrame || h.placement != p || h.serial != e.serial()) {
			err = fault.Errorf(fault.Corrupt, "another record than %s lies there", e.serial())
		}
		if err != nil {
			return rd.buf, fault.Annotate(err, "log file %s, offset %d", path, e.offset)
		}
		if err := f(h.serial, payload); err != nil {
			return rd.buf, err
		}
	}
	return rd.buf, nil
}

// groupEnd returns the end of one read that begins at the first extent: gaps are small, the whole is bounded.
func groupEnd(ext []extent) int64 {
	end := int64(ext[0].offset) + int64(ext[0].bytes)
	for _, e := range ext[1:] {
		next := int64(e.offset) + int64(e.bytes)
		if int64(e.offset)-end > gapBytesMax || next-int64(ext[0].offset) > windowSize {
			break
		}
		end = next
	}
	return end
}
