package brick

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// mirror is a second copy of the catalogue in one file: a snapshot, then the commits that followed it. It gets a commit after the
// catalogue has it durably, so it may lag behind by the loss of a power cut, and never runs ahead. It is written without an fsync;
// the runner adds one within a second. Repair makes a new catalogue from this file.
//
// If writing the mirror fails, no reader or writer is affected: a second later a new file is written.
//
// The mirror of METADATA holds only the keys kept for the cluster ("m/…": partition maps), which no other file on this server has.
// A commit that changes such a key is fsynced there before Commit returns: if the catalogue and its mirror are both damaged, it is
// exact.
//
// A commit's way, and that of a snapshot beside it. The file has bytes of 40, 41, 42 …; a new one begins while commits go on:
//
//	commit 41   queue ─ (fsync of the catalogue) ─ durable ─▶ file
//	beginSnapshot, under the lock of commits: the snapshot has 42 and not 43
//	commit 43   queue ─ (fsync of the catalogue) ─ durable ─▶ file, and since
//	writeSnapshot ─▶ path.tmp: magic, parts, end (42), fsync
//	endSnapshot ─▶ path.tmp: 43, fsync; rename; fsync of the directory
//
// Until the rename the old file is whole and goes on; behind it the new one is. A crash leaves one of the two under the name, and perhaps a
// path.tmp, which the next snapshot overwrites.
//
// Locks: commits (held by apply) before mu, syncing before mu. Commits write under mu into the page cache, and wait for no fsync there.
type mirror struct {
	mirrorKind
	fs   vfs.FS
	path string
	uuid StoreID

	syncing sync.Mutex // held through an fsync: waiting callers share the next one; before mu
	mu      sync.Mutex
	file    vfs.File         // nil: no file can be continued
	size    int64            // the offset of the next record
	base    int64            // size of its snapshot
	pending []mirroredCommit // perhaps not yet durable in the catalogue, rising in seq
	since   []mirroredCommit // while a snapshot is being written: commits that it may lack
	during  bool
	dirty   bool
}

// mirroredCommit is a commit with its bytes as they will lie in the file: drawn once, for file and since.
type mirroredCommit struct {
	seq    uint64
	record []byte
}

// mirrorKind selects the keys of a mirror.
type mirrorKind struct {
	name   string
	magic  string // then the store's UUID
	prefix string // of its keys
}

var (
	catalogueMirror = mirrorKind{"catalogue.mirror", "spillway mirror 1\n", ""}
	metadataMirror  = mirrorKind{"metadata.mirror", "spillway metadata 1\n", "m/"}
)

// keeps reports whether a key belongs to the mirror.
func (k *mirrorKind) keeps(key []byte) bool { return bytes.HasPrefix(key, []byte(k.prefix)) }

// of picks the changes that belong to the mirror.
func (k *mirrorKind) of(changes []change) []change {
	if k.prefix == "" {
		return changes
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return !k.keeps(c.key) })
}

const (
	mirrorPrefixBytes = 8  // length, checksum
	mirrorFixedBytes  = 25 // kind, watermark

	mirrorPart   = 1 // some keys of a snapshot
	mirrorEnd    = 2 // the last keys of a snapshot
	mirrorCommit = 3

	mirrorPartBytes  = 256 << 10 // of a part of a snapshot, about
	mirrorGrowthMin  = 4 << 20   // bytes of commits before a new snapshot is worth while
	mirrorChangeSet  = 1
	mirrorChangeDrop = 2
)

// appendMirrorRecord encodes one record: FORMAT.md.
func appendMirrorRecord(b []byte, kind byte, w watermark, changes []change) []byte {
	at := len(b)
	b = append(b, make([]byte, mirrorPrefixBytes)...)
	b = append(b, kind)
	for _, v := range []uint64{w.seq, w.keys, w.sum} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, c := range changes {
		if c.deleted {
			b = binary.AppendUvarint(append(b, mirrorChangeDrop), uint64(len(c.key)))
			b = append(b, c.key...)
			continue
		}
		b = binary.AppendUvarint(append(b, mirrorChangeSet), uint64(len(c.key)))
		b = append(b, c.key...)
		b = binary.AppendUvarint(b, uint64(len(c.value)))
		b = append(b, c.value...)
	}
	body := b[at+mirrorPrefixBytes:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(body, castagnoli))
	return b
}

// mirrorRecord is one record, read. The changes alias the parsed bytes.
type mirrorRecord struct {
	kind    byte
	mark    watermark
	changes []change
}

// parseMirrorBody reads what appendMirrorRecord wrote; ok is false for any other bytes. Sizes are checked before anything is cut.
func parseMirrorBody(b []byte) (r mirrorRecord, ok bool) {
	if len(b) < mirrorFixedBytes || b[0] < mirrorPart || b[0] > mirrorCommit {
		return r, false
	}
	r.kind = b[0]
	r.mark = watermark{binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint64(b[9:]), binary.LittleEndian.Uint64(b[17:])}
	take := func() (s []byte) {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			ok = false
			return nil
		}
		s, b = b[k:k+int(n)], b[k+int(n):]
		return s
	}
	ok = true
	for b = b[mirrorFixedBytes:]; len(b) > 0 && ok; {
		op := b[0]
		b = b[1:]
		c := change{key: take(), deleted: op == mirrorChangeDrop}
		if op == mirrorChangeSet && ok {
			c.value = take()
		}
		ok = ok && (op == mirrorChangeSet || op == mirrorChangeDrop)
		r.changes = append(r.changes, c)
	}
	return r, ok
}

// readMirror reads a mirror up to the first damaged or incomplete record, and calls use for each record of a state that the
// checksums confirm. It returns the newest such state, and the end of its last record; seq 0: there is none. clean reports that
// nothing followed.
func readMirror(fs vfs.FS, kind mirrorKind, path string, id StoreID, use func(mirrorRecord)) (mark watermark, base, end int64, clean bool, err error) {
	f, err := fs.Open(path, vfs.SequentialReadsOption)
	if oserror.IsNotExist(err) {
		return mark, 0, 0, false, nil
	}
	if err != nil {
		return mark, 0, 0, false, fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	defer f.Close()
	left, err := fileSize(f)
	if err != nil {
		return mark, 0, 0, false, fault.Wrap(err, fault.Unavailable, "read %s", path)
	}
	r := bufio.NewReaderSize(f, 256<<10)
	head := make([]byte, len(kind.magic)+len(id))
	if _, err := io.ReadFull(r, head); err != nil || string(head) != kind.magic+string(id[:]) {
		return mark, 0, 0, false, nil
	}
	left -= int64(len(head))
	at := int64(len(head))
	for left > 0 {
		rec, n, ok := readMirrorRecord(r, left)
		if !ok || !kind.follows(mark, &rec) {
			return mark, base, end, false, nil
		}
		at, left = at+n, left-n
		if use != nil {
			use(rec)
		}
		if rec.kind == mirrorPart {
			continue
		}
		mark, end = rec.mark, at
		if rec.kind == mirrorEnd {
			base = at
		}
	}
	return mark, base, end, mark.seq > 0, nil
}

// follows reports whether a record may stand behind the state w. Commits without keys of this mirror are left out; the sum of the
// keys shows whether another is missing.
func (k *mirrorKind) follows(w watermark, r *mirrorRecord) bool {
	if r.kind == mirrorCommit {
		return w.seq > 0 && (r.mark.seq == w.seq+1 || k.prefix != "" && r.mark.seq > w.seq)
	}
	return w.seq == 0
}

// readMirrorRecord reads the next record; it allocates no more than is left in the file.
func readMirrorRecord(r io.Reader, left int64) (rec mirrorRecord, n int64, ok bool) {
	var prefix [mirrorPrefixBytes]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return rec, 0, false
	}
	size := int64(binary.LittleEndian.Uint32(prefix[:]))
	if size > left-mirrorPrefixBytes {
		return rec, 0, false
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil || crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(prefix[4:]) {
		return rec, 0, false
	}
	rec, ok = parseMirrorBody(body)
	return rec, mirrorPrefixBytes + size, ok
}

// mirroredState is the newest state that a mirror holds whole; seq 0: none.
func mirroredState(fs vfs.FS, kind mirrorKind, path string, id StoreID) (map[string][]byte, watermark, error) {
	var held []mirrorRecord
	mark, _, _, _, err := readMirror(fs, kind, path, id, func(r mirrorRecord) { held = append(held, r) })
	state := map[string][]byte{}
	for _, r := range held {
		if r.kind == mirrorCommit && r.mark.seq > mark.seq {
			break
		}
		for _, c := range r.changes {
			if c.deleted {
				delete(state, string(c.key))
			} else {
				state[string(c.key)] = c.value
			}
		}
	}
	is := watermark{seq: mark.seq}
	for k, v := range state {
		is.add([]byte(k), v)
	}
	if is != mark || mark.seq == 0 {
		return nil, watermark{}, err
	}
	return state, mark, err
}

// resume continues the file where its last record ends.
func (m *mirror) resume(base, end int64) error {
	f, err := m.fs.OpenReadWrite(m.path, writeCategory)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open %s", m.path)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.file, m.base, m.size = f, base, end
	return nil
}

// queue adds a commit in the order of seq, before it is durable.
func (m *mirror) queue(w watermark, changes []change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Nothing can be continued: the next snapshot will have this commit.
	if m.file == nil && !m.during {
		return
	}
	m.pending = append(m.pending, mirroredCommit{w.seq, appendMirrorRecord(nil, mirrorCommit, w, changes)})
}

// durable writes the commits up to seq, which the catalogue holds durably by now.
func (m *mirror) durable(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b []byte
	n := 0
	for ; n < len(m.pending) && m.pending[n].seq <= seq; n++ {
		b = append(b, m.pending[n].record...)
	}
	if n == 0 {
		return
	}
	if m.during {
		// The snapshot may lack them; those that it has are left out by their seq (endSnapshot).
		m.since = append(m.since, m.pending[:n]...)
	}
	m.pending = append(m.pending[:0], m.pending[n:]...)
	if m.file == nil {
		return
	}
	if _, err := m.file.WriteAt(b, m.size); err != nil {
		m.giveUpLocked()
		return
	}
	m.size += int64(len(b))
	m.dirty = true
}

// giveUpLocked stops continuing a file that could not be written; its content stays valid.
func (m *mirror) giveUpLocked() {
	if m.file != nil {
		_ = m.file.Close()
		m.file = nil
	}
	if !m.during {
		m.pending = nil
	}
}

// stale reports whether a new snapshot is due.
func (m *mirror) stale() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.file == nil || m.size-m.base > max(mirrorGrowthMin, m.base)
}

// sync makes the written commits durable. Concurrent calls share fsyncs, and commits go on meanwhile.
func (m *mirror) sync() error {
	m.syncing.Lock()
	defer m.syncing.Unlock()
	m.mu.Lock()
	f, dirty := m.file, m.dirty
	m.dirty = false
	m.mu.Unlock()
	if f == nil || !dirty {
		return nil
	}
	err := f.Sync()
	if err == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == f {
		m.giveUpLocked()
	}
	return fault.Wrap(err, fault.Unavailable, "sync %s", m.path)
}

func (m *mirror) close() error {
	err := m.sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveUpLocked()
	return err
}

// beginSnapshot collects, from now on, the commits that a snapshot may lack.
func (m *mirror) beginSnapshot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.during, m.since = true, nil
}

// endSnapshot replaces the file by a snapshot of the state w, in path+".tmp"; f nil: it failed. Commits go on while it is fsynced and renamed: those are
// written behind it, and fsynced with the next sync, as into any file. One that needs an fsync of its own waits for syncing.
func (m *mirror) endSnapshot(f vfs.File, size int64, w watermark) error {
	m.syncing.Lock() // no goroutine syncs the file that is abandoned here
	defer m.syncing.Unlock()
	base, tail, had := size, []byte(nil), 0
	var err error
	if f != nil {
		tail, had = m.lacking(0, w)
		if err = writeBehind(f, &size, tail); err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = m.fs.Rename(m.path+".tmp", m.path)
		}
		if err == nil {
			err = SyncDir(m.fs, m.fs.PathDir(m.path))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f != nil && err == nil {
		tail, _ = m.lackingLocked(had, w)
		err = writeBehind(f, &size, tail)
	}
	m.during, m.since = false, nil
	if f == nil {
		return nil
	}
	m.giveUpKeepingLocked()
	if err != nil {
		_ = f.Close()
		m.pending = nil
		return fault.Wrap(err, fault.Unavailable, "write %s", m.path)
	}
	m.file, m.base, m.size, m.dirty = f, base, size, len(tail) > 0
	for len(m.pending) > 0 && m.pending[0].seq <= w.seq {
		m.pending = m.pending[1:]
	}
	return nil
}

// lacking returns the records of commits that are newer than a snapshot of the state w, without the first from of the collected ones, and the number of commits collected by now.
func (m *mirror) lacking(from int, w watermark) ([]byte, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lackingLocked(from, w)
}

func (m *mirror) lackingLocked(from int, w watermark) (b []byte, collected int) {
	for _, c := range m.since[from:] {
		if c.seq > w.seq {
			b = append(b, c.record...)
		}
	}
	return b, len(m.since)
}

// writeBehind writes bytes at the end of a file.
func writeBehind(f vfs.File, size *int64, b []byte) error {
	_, err := f.WriteAt(b, *size)
	*size += int64(len(b))
	return err
}

// giveUpKeepingLocked is giveUpLocked that keeps pending commits: they belong to the file that follows.
func (m *mirror) giveUpKeepingLocked() {
	if m.file != nil {
		_ = m.file.Close()
		m.file = nil
	}
}

// writeSnapshot writes all keys of db, with watermark w, to a new file beside the mirror.
func (m *mirror) writeSnapshot(db pebble.Reader, w watermark) (f vfs.File, size int64, err error) {
	f, err = m.fs.Create(m.path+".tmp", writeCategory)
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Unavailable, "create %s.tmp", m.path)
	}
	put := func(b []byte) error {
		_, err := f.WriteAt(b, size)
		size += int64(len(b))
		return err
	}
	if err = put(append([]byte(m.magic), m.uuid[:]...)); err == nil {
		err = m.eachPart(db, func(kind byte, part []change) error { return put(appendMirrorRecord(nil, kind, w, part)) })
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, 0, fault.Wrap(errors.Join(err, f.Close()), fault.Unavailable, "write %s.tmp", m.path)
	}
	return f, size, nil
}

// eachPart cuts a mirror's keys of a catalogue into pieces; the last one, perhaps empty, is the end.
func (k *mirrorKind) eachPart(db pebble.Reader, put func(kind byte, part []change) error) error {
	var part []change
	size := 0
	_, _, err := survey(db, func(key, v []byte) error {
		if !k.keeps(key) {
			return nil
		}
		part = append(part, change{key: append([]byte(nil), key...), value: append([]byte(nil), v...)})
		if size += len(key) + len(v); size < mirrorPartBytes {
			return nil
		}
		err := put(mirrorPart, part)
		part, size = part[:0], 0
		return err
	})
	if err != nil {
		return err
	}
	return put(mirrorEnd, part)
}

// remirror writes a new mirror from the present catalogue. Commits continue meanwhile.
func (b *Brick) remirror(m *mirror) error {
	b.commits.Lock()
	m.beginSnapshot()
	snap, mark := b.catalogue.NewSnapshot(), b.commits.mark
	if m == &b.metadata {
		mark = b.commits.metadata
	}
	b.commits.Unlock()
	f, size, err := m.writeSnapshot(snap, mark)
	err = errors.Join(err, snap.Close())
	if err == nil {
		// The snapshot may hold commits that are not durable yet. The mirror must not hold commits that a power cut can undo.
		if err = b.catalogue.LogData(nil, pebble.Sync); err == nil {
			err = b.Err()
		}
	}
	if err != nil && f != nil {
		_ = f.Close()
		f = nil
	}
	return errors.Join(err, m.endSnapshot(f, size, mark))
}
