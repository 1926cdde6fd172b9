package brick

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A repair, and what a crash leaves after each step of Rebuild:
//
//	Examine          nothing was changed
//	catalogue.new    written, closed and read back: the old catalogue is as it was, the next repair writes it anew
//	identity         only if entries may be lost, and before the new catalogue is used: its epochs may be lower than those the store has seen,
//	                 and under the old identity it would accept frames of leaders that were replaced (I3)
//	put aside        catalogue/ is in lost+found: a start finds an empty one, older than witness, mirrors and log say, and refuses
//	rename, fsync    the new catalogue: the repair is done

// Remains is a store that is examined for repair: locked, read, and not changed before Rebuild.
type Remains struct {
	// Constant after Examine.
	Trouble  error  // the catalogue's damage; nil: none
	Known    uint64 // the newest commit of the catalogue that any source names
	Mirrored uint64 // the newest commit that the mirror holds whole; 0: none
	Metadata uint64 // the newest commit that the mirror of METADATA holds whole; 0: none

	fs       vfs.FS
	set      Settings
	log      *slog.Logger
	ids      identity
	locks    []io.Closer
	mirror   map[string][]byte // the content of the catalogue at commit Mirrored
	metadata map[string][]byte // METADATA at commit Metadata
	readable map[string][]byte // the readable part of the catalogue
	says     watermark
	files    []uint32 // of the log, rising
	said     testimony
	logs     map[point.PlacementID]*LogSeqs
}

// LogSeqs are the records of a placement that the log holds, superfluous ones too. Seqs of a placement rise by one.
type LogSeqs struct {
	Epoch   point.Epoch // the highest
	Records int
	Dropped bool     // the log ends with its drop
	runs    []seqRun // rising
}

// seqRun is seqs from lo to hi, both included.
type seqRun struct{ lo, hi uint64 }

// add notes a record in the order of the log. A frame behind a drop means that the placement came back.
func (l *LogSeqs) add(s point.Serial) {
	l.Epoch, l.Records, l.Dropped = max(l.Epoch, s.Epoch), l.Records+1, false
	if n := len(l.runs); n > 0 && s.Seq <= l.runs[n-1].hi+1 {
		l.runs[n-1].hi = max(l.runs[n-1].hi, s.Seq) // a copy that was moved forward counts once
		return
	}
	l.runs = append(l.runs, seqRun{s.Seq, s.Seq})
}

// After returns up to which seq the log continues from seq without a gap, and its last one. l may be nil.
func (l *LogSeqs) After(seq uint64) (to, last uint64) {
	to, last = seq, seq
	if l == nil {
		return to, last
	}
	for _, r := range l.runs {
		if r.lo <= to+1 {
			to = max(to, r.hi)
		}
		last = max(last, r.hi)
	}
	return to, last
}

// Examine examines a store that no process uses. Errors: Unavailable (in use, not readable), Corrupt (it has no identity). The caller closes it.
func Examine(d Deps, s Settings) (_ *Remains, err error) {
	d.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.setDefaults(d.FS)
	r := &Remains{fs: d.FS, set: s, log: d.Log, logs: map[point.PlacementID]*LogSeqs{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	// Before anything is written, be it a lock: the directory may be another program's.
	if found, err := Exists(d.FS, s.DataDir); err != nil {
		return nil, err
	} else if !found {
		return nil, noStore(d.FS, s)
	}
	for _, dir := range []string{s.DataDir, s.LogDir} {
		if _, err := r.fs.Stat(dir); err != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "%s holds no store; is data_dir right?", dir)
		}
		l, err := lockDir(r.fs, dir)
		if err != nil {
			return nil, err
		}
		r.locks = append(r.locks, l)
	}
	if r.ids, _, err = readIdentities(r.fs, s.DataDir, s.LogDir); err != nil {
		return nil, err
	}
	return r, r.read()
}

// noStore is why a directory without an identity cannot be examined.
func noStore(fs vfs.FS, s Settings) error {
	if _, err := fs.Stat(s.DataDir); err != nil {
		return fault.Wrap(err, fault.Unavailable, "%s holds no store; is data_dir right?", s.DataDir)
	}
	if _, _, err := readIdentities(fs, s.DataDir, s.LogDir); err != nil { // without an identity of the store nothing is written
		return err
	}
	return fault.Errorf(fault.Corrupt, "%s holds no file %s: it is no store", s.DataDir, storeFile)
}

// read reads all sources before any is judged: each may be the only one that names the newest commit.
func (r *Remains) read() (err error) {
	dir := r.catalogueDir()
	var mark, kept, is watermark
	if r.mirror, mark, err = mirroredState(r.fs, catalogueMirror, r.fs.PathJoin(r.set.DataDir, catalogueMirror.name), r.ids.log); err != nil {
		return err
	}
	if r.metadata, kept, err = mirroredState(r.fs, metadataMirror, r.fs.PathJoin(r.set.DataDir, metadataMirror.name), r.ids.log); err != nil {
		return err
	}
	if _, r.said, err = readTestimony(r.fs, r.fs.PathJoin(r.set.DataDir, witnessFile), r.ids.log); err != nil {
		return err
	}
	r.says, is, r.Trouble = examine(r.fs, dir, r.set.CatalogueMemBytes, nil)
	r.readable = salvage(r.fs, dir, r.set.CatalogueMemBytes)
	r.Mirrored, r.Metadata = mark.seq, kept.seq
	if err := r.readLog(); err != nil {
		return err
	}
	r.Known = max(r.Known, mark.seq, kept.seq, r.said.catalogue, r.says.seq)
	switch {
	case r.Trouble != nil:
	case r.says.seq > 0 && r.says != is:
		r.Trouble = fault.Errorf(fault.Corrupt, "it says that it holds %d keys, and holds %d, or others", r.says.keys, is.keys)
	case r.says.seq < r.Known:
		r.Trouble = fault.Errorf(fault.Corrupt, "it ends at commit %d, but commit %d was durable", r.says.seq, r.Known)
	}
	return nil
}

// readLog lists the log files and reads the kinds of their records, and the newest commit of the catalogue that they name.
func (r *Remains) readLog() error {
	names, err := r.fs.List(r.set.LogDir)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "list %s", r.set.LogDir)
	}
	for _, name := range names {
		if n, ok := parseFileName(name); ok {
			r.files = append(r.files, n)
		}
	}
	slices.Sort(r.files)
	for _, n := range r.files {
		err := r.withFile(n, func(rd *reader) error {
			return rd.scan(0, func(_ int64, h header) bool {
				r.Known = max(r.Known, h.catalogue)
				switch h.kind {
				case kindFrame:
					r.logOf(h.placement).add(h.serial)
				case kindDrop:
					r.logOf(h.placement).Dropped = true
				}
				return true
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Remains) logOf(p point.PlacementID) *LogSeqs {
	if r.logs[p] == nil {
		r.logs[p] = &LogSeqs{}
	}
	return r.logs[p]
}

// Logs returns the placements with records in the log. The map is not changed.
func (r *Remains) Logs() map[point.PlacementID]*LogSeqs { return r.logs }

// CheckLog reads the log as a start would with the entries, and changes nothing. Corrupt: the start would refuse it.
func (r *Remains) CheckLog(entries map[string][]byte) error {
	b := &Brick{fs: r.fs, log: slog.New(slog.DiscardHandler), set: r.set, uuid: r.ids.store, logID: r.ids.log, witness: &witness{now: r.said}, manifest: newManifest()}
	b.set.SkipDamagedLog = false
	b.mu.index = newIndex()
	b.commits.mark.seq = r.Known
	for k, v := range entries {
		if k != "" && k[0] == ownKeys {
			if err := b.manifest.take([]byte(k), v, func(point.PlacementID, point.Epoch) {}); err != nil {
				return err
			}
		}
	}
	rc := &recovery{b: b, known: map[point.PlacementID]*privateLog{}, apply: func(point.PlacementID, point.Serial, []byte) error { return nil },
		released: func(point.PlacementID) point.Serial { return point.Serial{} }}
	return rc.read()
}

// salvage reads the readable part of a damaged catalogue.
func salvage(fs vfs.FS, dir string, memBytes int64) map[string][]byte {
	o := catalogueOptions(fs, memBytes, &collectedLog{})
	o.ReadOnly = true
	db, err := openPebble(dir, o)
	if err != nil {
		return nil
	}
	defer db.Close()
	out := map[string][]byte{}
	_, _, _ = survey(db, func(k, v []byte) error { // up to the first error
		out[string(k)] = slices.Clone(v)
		return nil
	})
	return out
}

// Exact reports whether the entries at the newest commit that any source names are complete: nothing of the catalogue is lost.
func (r *Remains) Exact() bool { return r.Trouble == nil || r.Mirrored > 0 && r.Mirrored >= r.Known }

// Entries returns the best available state of the catalogue: its exact content, or else the readable part, completed from the
// mirrors. The caller owns the map.
func (r *Remains) Entries() (map[string][]byte, error) {
	switch {
	case r.Trouble == nil:
		return maps.Clone(r.readable), nil
	case r.Exact():
		return maps.Clone(r.mirror), nil
	}
	out := map[string][]byte{}
	older, newer := r.readable, r.mirror
	// Where both have a key, the newer one's value counts.
	if r.says.seq > r.Mirrored {
		older, newer = newer, older
	}
	sources := []map[string][]byte{r.metadata, older, newer}
	if r.Metadata > max(r.says.seq, r.Mirrored) {
		sources = []map[string][]byte{older, newer, r.metadata}
	}
	for _, s := range sources {
		maps.Copy(out, s)
	}
	return out, r.mendFiles(out)
}

// FS is the file system of the store.
func (r *Remains) FS() vfs.FS { return r.fs }

// SegmentsDir is the directory of all segment directories.
func (r *Remains) SegmentsDir() string { return r.fs.PathJoin(r.set.DataDir, segmentsDir) }

// LogFiles counts the files of the log.
func (r *Remains) LogFiles() int { return len(r.files) }

func (r *Remains) catalogueDir() string { return r.fs.PathJoin(r.set.DataDir, catalogueDir) }

// Rebuild makes a new catalogue of the entries and puts the old one aside in lost+found. Unless they are exact, the store gets a
// new identity: it lost the highest epochs it saw, so a cluster must treat it as an empty disk. The log keeps its identity. It
// returns the store's identity. A crash leaves a store that refuses to start until it is repaired again.
func (r *Remains) Rebuild(entries map[string][]byte, exact bool) (StoreID, error) {
	mark := watermark{seq: r.Known}
	if !exact {
		mark.seq++
	}
	for k, v := range entries {
		mark.add([]byte(k), v)
	}
	fresh := r.catalogueDir() + ".new"
	if err := r.writeCatalogue(fresh, entries, mark); err != nil {
		return r.ids.store, err
	}
	if !exact {
		_, _ = rand.Read(r.ids.store[:]) // never fails
		if err := writeIdentity(r.fs, r.set.DataDir, r.ids); err != nil {
			return r.ids.store, err
		}
	}
	b := &Brick{fs: r.fs, log: slog.New(slog.DiscardHandler), set: r.set}
	if _, err := r.fs.Stat(r.catalogueDir()); err == nil {
		if err := b.PutAside(r.catalogueDir(), "the catalogue that was damaged"); err != nil {
			return r.ids.store, err
		}
	}
	if err := r.fs.Rename(fresh, r.catalogueDir()); err != nil {
		return r.ids.store, fault.Wrap(err, fault.Unavailable, "put the new catalogue in place")
	}
	return r.ids.store, SyncDir(r.fs, r.set.DataDir)
}

// mendFiles makes the entries of log files match the files that are there. A file without information is open: its end is found as
// after a crash; but if a later process continued in a newer file, it had found and closed that end. An entry with state open may
// be older than that.
func (r *Remains) mendFiles(entries map[string][]byte) error {
	there := map[uint32]bool{}
	for i, n := range r.files {
		there[n] = true
		e := &fileEntry{}
		if known, ok := entries[string(fileKey(n))]; ok {
			if err := e.decode(known); err != nil || e.state != fileOpen {
				continue // the start reports its error
			}
		}
		if i+1 < len(r.files) {
			end, closed, err := r.closedEnd(n, r.files[i+1])
			if err != nil {
				return err
			}
			if closed {
				e.state, e.end = fileClosed, end
			}
		}
		entries[string(fileKey(n))] = e.append(nil)
	}
	prefix := string([]byte{ownKeys, keyFile})
	for k := range entries {
		if len(k) == 6 && k[:2] == prefix && !there[binary.BigEndian.Uint32([]byte(k[2:]))] {
			delete(entries, k)
		}
	}
	return nil
}

// closedEnd finds where a file without a trailer was closed by the process that made the next one: its records end there, none
// begins behind it, and that process did not claim that more was fsynced.
func (r *Remains) closedEnd(n, next uint32) (end int64, closed bool, err error) {
	err = r.withFile(n, func(rd *reader) error {
		var bad error
		for bad == nil {
			_, end, bad = rd.next()
		}
		if bad != errShort && !isBadChunk(bad) {
			if bad == errTrailer {
				return nil // the next reader finds it closed
			}
			return bad
		}
		closed = true
		return rd.scan(end, func(int64, header) bool { closed = false; return false })
	})
	if err != nil || !closed {
		return end, false, err
	}
	err = r.withFile(next, func(rd *reader) error {
		return rd.scan(0, func(_ int64, h header) bool {
			closed = h.kind == kindFile && h.synced <= at(n, end)
			return false
		})
	})
	return end, closed, err
}

func (r *Remains) withFile(n uint32, use func(*reader) error) error {
	path := r.fs.PathJoin(r.set.LogDir, fileName(n))
	f, err := r.fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open log file")
	}
	size, err := fileSize(f)
	if err == nil {
		err = use(newReader(f, size, fileTag(r.ids.log, n), 0, nil))
	}
	return fault.Wrap(errors.Join(err, f.Close()), fault.Unavailable, "read %s", path)
}

// RaiseEpoch records in the entries that an epoch was seen.
func RaiseEpoch(entries map[string][]byte, p point.PlacementID, e point.Epoch) {
	k := string(placementKey(keyEpoch, p))
	if was := entries[k]; len(was) != 8 || binary.LittleEndian.Uint64(was) < uint64(e) {
		entries[k] = binary.LittleEndian.AppendUint64(nil, uint64(e))
	}
}

// writeCatalogue writes a whole catalogue and reads it back. One fsync is enough, with the last key: before it nothing depends on the
// directory.
func (r *Remains) writeCatalogue(dir string, entries map[string][]byte, mark watermark) error {
	if err := r.fs.RemoveAll(dir); err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove %s", dir)
	}
	if err := MakeDir(r.fs, dir); err != nil {
		return err
	}
	var said collectedLog
	db, err := openPebble(dir, catalogueOptions(r.fs, r.set.CatalogueMemBytes, &said))
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", dir)
	}
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if err == nil {
			err = db.Set([]byte(k), entries[k], pebble.NoSync)
		}
	}
	if err == nil {
		err = db.Set(watermarkKey(), mark.append(nil), pebble.Sync)
	}
	if err = errors.Join(err, db.Close(), said.fatal()); err == nil {
		var says, is watermark
		if says, is, err = examine(r.fs, dir, r.set.CatalogueMemBytes, nil); err == nil && says != is {
			err = fault.Errorf(fault.Internal, "what was written reads as %v, not as %v", is, says)
		}
	}
	return fault.Wrap(err, fault.Unavailable, "write %s", dir)
}

// Close unlocks the directories.
func (r *Remains) Close() (err error) {
	for _, l := range r.locks {
		err = errors.Join(err, l.Close())
	}
	r.locks = nil
	return err
}
