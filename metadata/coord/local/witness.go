package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// witness is a file beside the database that records its durable state: the highest revision, the number of rows, and
// a sum over them. It has two slots that are written in turn, so that a torn write leaves the one before. FORMAT.md draws it.
//
// A store of before the witness has none; it gets one.
type witness struct {
	fs   vfs.FS
	dir  string
	file vfs.File // nil: not there yet

	last testimony         // of the durable state; its sum is kept from write to write
	rows map[string]uint64 // sum of each row
}

const (
	witnessFile    = "WITNESS"
	witnessMagic   = "spillwit"
	witnessVersion = 1
	slotBytes      = 512 // a sector
	slotUsed       = 8 + 4 + 8 + 8 + 8
)

// testimony is the content of a slot.
type testimony struct {
	rev  coord.Revision
	rows uint64
	sum  uint64 // of all rows, xored
}

func (t testimony) slot() []byte {
	b := append(make([]byte, 0, slotBytes), witnessMagic...)
	b = binary.LittleEndian.AppendUint32(b, witnessVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.rev))
	b = binary.LittleEndian.AppendUint64(b, t.rows)
	b = binary.LittleEndian.AppendUint64(b, t.sum)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:slotBytes]
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func parseSlot(b []byte) (t testimony, ok bool) {
	if len(b) < slotUsed+4 || string(b[:8]) != witnessMagic || crc32.Checksum(b[:slotUsed], castagnoli) != binary.LittleEndian.Uint32(b[slotUsed:]) ||
		binary.LittleEndian.Uint32(b[8:]) != witnessVersion {
		return t, false
	}
	return testimony{coord.Revision(binary.LittleEndian.Uint64(b[12:])), binary.LittleEndian.Uint64(b[20:]), binary.LittleEndian.Uint64(b[28:])}, true
}

// parseWitness gives the newest testimony of a file; ok is false when it has none.
func parseWitness(b []byte) (newest testimony, ok bool) {
	for ; len(b) >= slotBytes; b = b[slotBytes:] {
		if t, good := parseSlot(b); good && (!ok || t.rev > newest.rev) {
			newest, ok = t, true
		}
	}
	return newest, ok
}

// openWitness reads the file if there is one. It changes nothing.
func openWitness(fs vfs.FS, dir string) (*witness, error) {
	w := &witness{fs: fs, dir: dir, rows: map[string]uint64{}}
	f, err := fs.Open(w.path())
	if oserror.IsNotExist(err) {
		return w, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "open %s; check the device", w.path())
	}
	text, err := io.ReadAll(io.LimitReader(f, 2*slotBytes))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "read %s; check the device", w.path())
	}
	t, ok := parseWitness(text)
	if !ok && len(text) > 0 { // a file that was being made when the power went is empty
		return nil, fault.Errorf(fault.Corrupt, "%s is damaged: it cannot say whether all coordination rows are there; restore it from a backup, or remove it to accept those that are", w.path())
	}
	w.last = t
	return w, nil
}

func (w *witness) path() string { return w.fs.PathJoin(w.dir, witnessFile) }

// check compares the rows that were read with the durable state. A crash can come between a commit and its testimony, so the
// rows may be newer. It is called once, and keeps the sums of the rows.
func (w *witness) check(rows []coord.Row, rev coord.Revision) error {
	now := testimony{rev: rev, rows: uint64(len(rows))}
	for _, r := range rows {
		w.rows[r.Key] = sumOf(r.Key, r.Value, r.Revision)
		now.sum ^= w.rows[r.Key]
	}
	was := w.last
	w.last = now
	switch {
	case rev < was.rev:
		return fault.Errorf(fault.Corrupt, "coordination rows in %s: changes %d to %d were durable and cannot be read; restore the directory from a backup, or remove %s to go on without them",
			w.dir, rev+1, was.rev, w.path())
	case rev == was.rev && now != was:
		return fault.Errorf(fault.Corrupt, "coordination rows in %s: %d rows were durable, %d can be read, or they differ; restore the directory from a backup, or remove %s to go on with those",
			w.dir, was.rows, now.rows, w.path())
	}
	return nil
}

func sumOf(key string, value []byte, rev coord.Revision) uint64 {
	h := xxhash.New()
	_, _ = fmt.Fprintf(h, "%d %d ", rev, len(key)) // never fails
	_, _ = h.WriteString(key)
	_, _ = h.Write(value)
	return h.Sum64()
}

// create opens the file for writing, and makes it where there is none.
func (w *witness) create() error {
	f, err := w.fs.OpenReadWrite(w.path(), vfs.WriteCategoryUnspecified)
	made := oserror.IsNotExist(err)
	if made {
		f, err = w.fs.Create(w.path(), vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return err
	}
	w.file = f
	for _, slot := range []coord.Revision{w.last.rev + 1, w.last.rev} { // damage in one slot is repaired
		if err := w.put(slot, w.last); err != nil {
			return err
		}
	}
	if !made {
		return nil
	}
	return syncDir(w.fs, w.dir)
}

// syncDir makes the names in a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	return err
}

// note testifies that a transaction is durable.
func (w *witness) note(rev coord.Revision, writes []coord.Write) error {
	w.last.rev = rev
	for _, c := range writes {
		w.last.sum ^= w.rows[c.Key] // 0 for a row that was not there
		delete(w.rows, c.Key)
		if !c.Delete {
			w.rows[c.Key] = sumOf(c.Key, c.Value, rev)
			w.last.sum ^= w.rows[c.Key]
		}
	}
	w.last.rows = uint64(len(w.rows))
	return w.put(rev, w.last)
}

// put writes the slot that a revision has.
func (w *witness) put(slot coord.Revision, t testimony) error {
	_, err := w.file.WriteAt(t.slot(), int64(slot%2)*slotBytes)
	if err == nil {
		err = w.file.Sync()
	}
	return err
}

func (w *witness) close() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file = nil
	return err
}
