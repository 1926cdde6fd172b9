package brick

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The catalogue has three words about a file, the directory may have others, and each pair has one meaning:
//
//	catalogue       directory       read
//	closed at x     there           up to x; anything unreadable before x is damage
//	open            there           up to the trailer, or to the first unreadable byte: torn end or damage (oddity)
//	open            behind a torn   not read and removed: no record in it was acked, as acks of a file wait for the end of the one before it
//	                end             (tracker)
//	removed         there or not    not read and removed: a crash came between the mark and the removal
//	closed, open    missing         refused, or accepted once with SkipDamagedLog
//	none            there           made by a process that crashed before its entry: removed; with records of placements: put aside
//
// read changes nothing, so a start that is refused can be repeated, with the same result. finish changes the catalogue by one commit.

// Recover reads the whole log once, file by file from front to end, and opens it for Append. It is called once, after
// Open and before anything but the catalogue is used.
//
// released returns up to which serial a placement's records are superfluous (in segments, acked elsewhere); it is called once a
// placement. For a placement that is not held any more it returns the highest Serial: then its records pin no file. apply is
// called in log order, by this goroutine, for every other record; within a placement serials rise. apply owns rec from then on and
// may pass it to another goroutine; up to 256 KiB of neighbours share its memory, so a caller that keeps a small part for long
// copies it.
//
// Where the log ends. A closed file's end is in the catalogue, and any unreadable byte before it is damage. In a file that was
// open when the process ended, the first unreadable byte is the torn end of records that were never reported safe. It is cut off
// for good together with the bytes behind it; unless a record behind it, or the catalogue, proves that it had been fsynced: then
// it is damage. Damage is refused as Corrupt, or skipped with SkipDamagedLog. An error of apply ends Recover and is returned; the
// brick can then only be closed.
func (b *Brick) Recover(released func(point.PlacementID) point.Serial, apply func(p point.PlacementID, s point.Serial, rec []byte) error) error {
	start := time.Now()
	r := &recovery{b: b, released: released, apply: apply, known: map[point.PlacementID]*privateLog{}}
	err := r.read()
	if err == nil {
		err = r.finish()
	}
	if err != nil {
		return fault.Annotate(err, "recover the log in %s", b.set.LogDir)
	}
	b.startRunner()
	b.poke() // records released meanwhile may have left whole files unneeded
	b.log.Info("log recovered", "files", len(r.numbers), "records", r.records, "applied", r.applied, "applied_bytes", r.appliedBytes,
		"read_bytes", r.readBytes, "duration", time.Since(start))
	return nil
}

// recovery is the state of one Recover.
// Used by one goroutine, that of Recover. It locks Brick.mu for each change of the index, as metrics read that meanwhile.
type recovery struct {
	b        *Brick
	released func(point.PlacementID) point.Serial
	apply    func(point.PlacementID, point.Serial, []byte) error

	numbers []uint32              // files to read, rising
	highest uint32                // file number ever used
	orphans []uint32              // files without an entry
	kept    []uint32              // files read
	changed map[uint32]*fileEntry // entries to write
	over    bool                  // the log ended in a file before the last one

	known     map[point.PlacementID]*privateLog
	last      position
	catalogue uint64 // the newest commit that a record names
	slab      slab
	buf       []byte

	records, applied                      int
	readBytes, appliedBytes, skippedBytes int64
}

// read changes nothing on disk.
func (r *recovery) read() error {
	err := r.listFiles()
	for i := 0; err == nil && i < len(r.numbers) && !r.over; i++ {
		err = r.readFile(i)
	}
	if err == nil {
		err = r.checkCatalogue()
	}
	return err
}

// checkCatalogue compares the catalogue with the commits that records of the log name.
func (r *recovery) checkCatalogue() error {
	if has := r.b.commits.mark; r.catalogue > has.seq&(1<<catalogueBits-1) {
		return r.b.catalogueDamage(fault.Errorf(fault.Corrupt, "it ends at %s, but commit %d was durable, as the log knows", has, r.catalogue),
			r.b.fs.PathJoin(r.b.set.DataDir, "catalogue"))
	}
	return nil
}

// listFiles compares the directory with the catalogue. A file without an entry was never used, or has no owner.
func (r *recovery) listFiles() error {
	names, err := r.b.fs.List(r.b.set.LogDir)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "list %s", r.b.set.LogDir)
	}
	r.changed = map[uint32]*fileEntry{}
	removed := map[uint32]bool{}
	for _, n := range r.b.manifest.removed {
		r.highest, removed[n] = max(r.highest, n), true
	}
	missing := maps.Clone(r.b.manifest.files)
	for _, name := range names {
		n, ok := parseFileName(name)
		if !ok {
			continue
		}
		r.highest = max(r.highest, n)
		if removed[n] {
			continue
		}
		if _, ok := missing[n]; !ok {
			r.orphans = append(r.orphans, n)
			continue
		}
		delete(missing, n)
		r.numbers = append(r.numbers, n)
	}
	slices.Sort(r.numbers)
	for _, n := range slices.Sorted(maps.Keys(missing)) {
		r.highest = max(r.highest, n)
		r.changed[n] = nil
		if !r.b.set.SkipDamagedLog {
			return fault.Errorf(fault.Corrupt, "log file %s is missing; was log_dir changed? Restore the store from a replica or a backup, "+
				"or start once with skip_damaged_log to go on without the records of that file", r.b.filePath(n))
		}
		r.b.log.Error("missing log file skipped", "file", r.b.filePath(n))
	}
	return nil
}

// readFile reads the i-th file to its end and settles the position of the end.
//
// A file ends in one of three ways. The manifest has the end of one that is closed: all before it is whole, or damaged, and a record behind it is damage as
// well, since no start has read it. A trailer is the end that its writer gave it. Else the last write was cut, and oddity decides whether that is a torn end
// or damage in fsynced bytes: damage that looked like a torn end dropped acked rows in silence.
func (r *recovery) readFile(i int) error {
	n := r.numbers[i]
	e := r.b.manifest.files[n]
	f, err := r.b.fs.Open(r.b.filePath(n), vfs.SequentialReadsOption)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open log file")
	}
	defer f.Close()
	size, err := fileSize(f)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "log file %s", r.b.filePath(n))
	}
	r.b.mu.Lock()
	r.b.mu.index.addFile(n, size, false)
	r.b.mu.Unlock()
	r.kept = append(r.kept, n)

	rd := newReader(f, size, r.b.fileTag(n), 0, r.buf)
	defer func() { r.buf, r.readBytes = rd.buf, r.readBytes+rd.pos }()
	for {
		rd.skipPadding()
		if e.closed() && rd.pos == e.end {
			return nil
		}
		// Damage that an earlier start accepted: it is not read again, and not reported again.
		if s, ok := e.skip(rd.pos); ok {
			rd.pos = s.to
			continue
		}
		rec, start, err := rd.next()
		switch {
		case err == nil && (!e.closed() || start < e.end):
			rd.skipPadding()
			if err := r.record(n, start, rd.pos-start, rec); err != nil {
				return fault.Annotate(err, "log file %s, offset %d", r.b.filePath(n), start)
			}
			continue
		case err == nil:
			err = &badChunk{start, start, "a record where the file had ended"}
		case err == errTrailer && !e.closed():
			r.close(n, e, start)
			return nil
		case err != errTrailer && err != errShort && !isBadChunk(err):
			return fault.Wrap(err, fault.Unavailable, "log file %s", r.b.filePath(n))
		}
		if done, err := r.oddity(i, rd, e, start, err); done || err != nil {
			return err
		}
	}
}

func isBadChunk(err error) bool {
	var bad *badChunk
	return errors.As(err, &bad)
}

// close settles that file n ends at end.
func (r *recovery) close(n uint32, e *fileEntry, end int64) {
	e.state, e.end = fileClosed, end
	r.changed[n] = e
}

// oddity classifies unreadable bytes at offset start: the torn end of the log, or damage. done reports that the file is finished.
func (r *recovery) oddity(i int, rd *reader, e *fileEntry, start int64, what error) (done bool, err error) {
	n := r.numbers[i]
	path := r.b.filePath(n)
	damaged := e.closed()
	if !damaged {
		if damaged, err = r.sworn(i, rd, start); err != nil {
			return false, err
		}
	}
	if !damaged {
		if err := r.reportTornEnd(i, rd, start, what); err != nil {
			return false, err
		}
		r.close(n, e, start)
		r.over = true
		return true, nil
	}
	if !r.b.set.SkipDamagedLog {
		return false, fault.Errorf(fault.Corrupt, "log file %s is damaged: %v at offset %d, in what had been fsynced. Restore the store from a replica "+
			"or a backup, or start once with skip_damaged_log to lose the damaged records and keep the others", path, what, start)
	}
	to, found, err := r.resume(rd, e, start)
	if err != nil {
		return false, err
	}
	r.skippedBytes += to - start
	r.b.log.Error("damaged log records skipped", "file", path, "offset", start, "bytes", to-start, "reason", what.Error())
	if !found && !e.closed() {
		r.close(n, e, start)
		return true, nil
	}
	if to > start {
		e.skips = append(e.skips, span{start, to})
	}
	r.changed[n] = e
	if !found {
		e.end = to
		return true, nil
	}
	rd.pos = to
	return false, nil
}

// reportTornEnd logs the part that is cut off at offset start of the i-th file. It was not acked; yet an operator may want to see it.
func (r *recovery) reportTornEnd(i int, rd *reader, start int64, what error) error {
	bytes, records, err := r.remnant(rd, start)
	for _, n := range r.numbers[i+1:] {
		if err == nil {
			err = r.withFile(n, func(rd *reader) error {
				more, recs, err := r.remnant(rd, 0)
				bytes, records = bytes+more, records+recs
				return err
			})
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "log file %s", r.b.filePath(r.numbers[i]))
	}
	level := slog.LevelInfo
	if bytes > 0 {
		level = slog.LevelWarn
	}
	r.b.log.Log(context.Background(), level, "torn end of the log is cut off: it was not acknowledged", "file", r.b.filePath(r.numbers[i]), "offset", start,
		"bytes", bytes, "records", records, "reason", what.Error(), "files_behind", len(r.numbers)-i-1)
	return nil
}

// remnant counts the bytes behind offset start up to the last one that is not zero, and the records that begin there.
func (r *recovery) remnant(rd *reader, start int64) (bytes int64, records int, err error) {
	for off := start; off < rd.size; {
		b, err := rd.window(off, int(min(blockSize-off%blockSize, rd.size-off)))
		if err != nil {
			return 0, 0, err
		}
		for i := len(b); i > 0; i-- {
			if b[i-1] != 0 {
				bytes = off + int64(i) - start
				break
			}
		}
		off += int64(len(b))
	}
	if bytes == 0 {
		return 0, 0, nil
	}
	err = rd.scan(start, func(_ int64, h header) bool {
		if h.kind == kindFrame {
			records++
		}
		return true
	})
	return bytes, records, err
}

// sworn looks behind offset start of the i-th file for a record that proves that this offset had been fsynced.
func (r *recovery) sworn(i int, rd *reader, start int64) (bool, error) {
	pos, found := at(r.numbers[i], start), false
	// From the cheapest to the dearest: the witness file, records behind the place in this file, those of newer files.
	if r.b.witness.now.log > pos {
		return true, nil
	}
	witness := func(_ int64, h header) bool {
		found = h.synced > pos
		return !found
	}
	if err := rd.scan(start, witness); err != nil || found {
		return found, fault.Wrap(err, fault.Unavailable, "log file %s", r.b.filePath(r.numbers[i]))
	}
	for _, n := range r.numbers[i+1:] {
		if r.b.manifest.files[n].closed() { // files are closed in order
			return true, nil
		}
		err := r.withFile(n, func(rd *reader) error { return rd.scan(0, witness) })
		if err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// withFile opens a file for a look outside of the main pass.
func (r *recovery) withFile(n uint32, use func(*reader) error) error {
	f, err := r.b.fs.Open(r.b.filePath(n), vfs.SequentialReadsOption)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open log file")
	}
	defer f.Close()
	size, err := fileSize(f)
	if err == nil {
		err = use(newReader(f, size, r.b.fileTag(n), 0, nil))
	}
	return fault.Wrap(err, fault.Unavailable, "log file %s", r.b.filePath(n))
}

// resume finds the next record behind damage at start, or the end of the file.
func (r *recovery) resume(rd *reader, e *fileEntry, start int64) (to int64, found bool, err error) {
	to = rd.size
	if e.closed() {
		to = e.end
	}
	end := to
	err = rd.scan(start+1, func(at int64, _ header) bool {
		if at < end {
			to, found = at, true
		}
		return false
	})
	return max(to, start), found, fault.Wrap(err, fault.Unavailable, "read behind the damage")
}

// record adds one record to the index and passes it to apply if it is live.
func (r *recovery) record(file uint32, start, bytes int64, rec []byte) error {
	h, payload, err := decodeRecord(rec)
	if err != nil {
		return err
	}
	pos := at(file, start)
	r.last = at(file, start+bytes)
	r.catalogue = max(r.catalogue, h.catalogue)
	switch h.kind {
	case kindFile:
		if string(payload) != string(r.b.logID[:]) || h.serial.Epoch != point.Epoch(file) {
			return fault.Errorf(fault.Corrupt, "the file says it is file %d of store %x; this is the log of store %s", h.serial.Epoch, payload, r.b.logID)
		}
		return nil
	// A mark has only fields for witnesses. A drop has its tombstone in the catalogue; the record is for repair.
	case kindMark, kindDrop:
		return nil
	}
	r.records++
	if r.b.manifest.tombs[h.placement].covers(pos, h.serial) {
		return nil
	}
	l := r.logOf(h.placement)
	// Three ways to meet a serial again, or a lower one:
	//
	//	released    l.last began at the released serial (logOf), and l.ext is empty
	//	a copy      Rewrite crashed before its tombstone was durable: the original was applied, the copy is not needed
	//	disorder    neither: the log has changed since
	if !l.last.Less(h.serial) {
		if h.flags&flagCopy == 0 && len(l.ext) > 0 && !h.serial.Less(l.ext[0].serial()) {
			return fault.Errorf(fault.Corrupt, "placement %s: serial %s follows %s", h.placement, h.serial, l.last)
		}
		return nil // released, or a copy of an original still there
	}
	if err := r.apply(h.placement, h.serial, r.slab.copy(payload)); err != nil {
		return fault.Annotate(err, "apply %s of placement %s", h.serial, h.placement)
	}
	r.applied++
	r.appliedBytes += int64(len(payload))
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.b.mu.index.add(l, extent{epoch: h.serial.Epoch, seq: h.serial.Seq, file: file, offset: uint32(start), bytes: uint32(bytes)})
	return nil
}

// logOf finds or makes the index's entry of a placement. Its log begins behind the released serial, so that records up to it pin no file.
func (r *recovery) logOf(p point.PlacementID) *privateLog {
	l := r.known[p]
	if l == nil {
		s := r.released(p)
		r.b.mu.Lock()
		l = r.b.mu.index.of(p)
		r.b.mu.Unlock()
		l.last = s
		r.known[p] = l
	}
	return l
}

// finish commits the result of the recovery. Its commit is the one moment at which the old log becomes the new one; a crash before
// it repeats the same recovery.
func (r *recovery) finish() error {
	b := r.b
	// 1. The records read may have been in the page cache only. Everything that is kept is made durable.
	// The commit below closes these files at their ends. After a kill the bytes before the ends may be in the page cache alone, and a power cut
	// would then leave a closed file with a hole: damage, where there was a torn end. Files closed earlier were fsynced then.
	for _, n := range r.kept {
		if e, ok := r.changed[n]; ok && e.end > 0 {
			if err := syncFile(b.fs, b.filePath(n)); err != nil {
				return err
			}
		}
	}
	// 2. The new file, with the ends of the old ones: one commit.
	t := b.NewBatch()
	dropped := r.numbers[len(r.kept):]
	gone, err := r.sortOrphans()
	if err != nil {
		return err
	}
	gone = append(gone, dropped...)
	for _, n := range gone {
		r.changed[n] = &fileEntry{state: fileRemoved}
	}
	for n, e := range r.changed {
		if e == nil {
			t.delete(fileKey(n)) // it is missing, and that was accepted
		} else {
			t.set(fileKey(n), e.append(nil))
		}
	}
	r.pruneTombstones(t)
	// The ends and the entry of the new file are one commit. After the entry alone and a crash there would be a torn end with fsynced records
	// behind it, which counts as damage; the ends in a commit of their own would be safe, and cost a second fsync. The file itself is made
	// before the commit: a crash between leaves a file without an entry and without records, which the next start removes.
	f, err := b.createFile(r.highest+1, t)
	if err != nil {
		return err
	}
	// All that was read is fsynced now. Positions go on rising: the new file has a higher number than any before.
	for _, at := range []interface{ Store(int64) }{&b.synced, &b.acked, &b.last} {
		at.Store(int64(r.last))
	}
	b.mu.Lock()
	b.beginLocked(f, 0)
	b.mu.Unlock()
	// reset and not note: with accepted damage the log may end before the witness's position, which would be reported at each start.
	b.witness.reset(b.testimony())
	// 3. Remove the files that are no longer needed.
	// Their entries say removed: a crash leaves the rest to the next start.
	if err := b.removeFiles(append(gone, b.manifest.removed...)); err != nil && b.Err() == nil {
		b.log.Warn("log files could not be removed", "error", err)
	}
	return b.Err()
}

// sortOrphans looks at the files without a catalogue entry. One without a record was made and never used: it can be removed. One
// with records is put aside.
func (r *recovery) sortOrphans() (unused []uint32, err error) {
	for _, n := range r.orphans {
		used := false
		err := r.withFile(n, func(rd *reader) error {
			return rd.scan(0, func(_ int64, h header) bool {
				used = used || h.kind == kindFrame
				return !used
			})
		})
		if err != nil {
			return nil, err
		}
		if !used {
			unused = append(unused, n)
			continue
		}
		if err := r.b.putLogFileAside(r.b.filePath(n), "a log file with records that the catalogue does not know"); err != nil {
			return nil, err
		}
	}
	return unused, nil
}

// pruneTombstones drops tombstones that only concern removed files.
func (r *recovery) pruneTombstones(t *Batch) {
	oldest := r.highest + 1
	if len(r.kept) > 0 {
		oldest = r.kept[0]
	}
	for p, ts := range r.b.manifest.tombs {
		kept := ts.since(oldest)
		switch {
		case len(kept) == len(ts):
			continue
		case len(kept) == 0:
			t.delete(placementKey(keyTomb, p))
			delete(r.b.manifest.tombs, p)
		default:
			t.set(placementKey(keyTomb, p), kept.append(nil))
			r.b.manifest.tombs[p] = kept
		}
	}
}

// syncFile makes a file durable that an earlier process wrote. Errors: Unavailable; here nothing is acked yet, so the start ends.
func syncFile(fs vfs.FS, path string) error {
	f, err := fs.OpenReadWrite(path, writeCategory)
	if err == nil {
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	return fault.Wrap(err, fault.Unavailable, "sync log file %s", path)
}

// slab hands out copies from larger pieces of memory: one allocation for many records, freed when the last one is.
type slab struct{ free []byte }

// slabBytes is shared by records of up to an eighth of it: one that is kept holds the others' memory, too.
const slabBytes = 256 << 10

func (s *slab) copy(b []byte) []byte {
	if len(b) > slabBytes/8 {
		return append(make([]byte, 0, len(b)), b...)
	}
	if len(b) > len(s.free) {
		s.free = make([]byte, slabBytes)
	}
	c := s.free[:len(b):len(b)]
	s.free = s.free[len(b):]
	copy(c, b)
	return c
}
