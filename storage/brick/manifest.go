package brick

import (
	"encoding/binary"
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The brick's own keys in the catalogue begin with a zero byte, which no other key may.
const (
	ownKeys  = 0x00
	keyFile  = 'f' // + file number, 4 B big endian → fileEntry
	keyEpoch = 'e' // + placement, 8 B big endian → highest epoch, 8 B
	keyTomb  = 't' // + placement → tombstones
)

func fileKey(n uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{ownKeys, keyFile}, n)
}

func placementKey(kind byte, p point.PlacementID) []byte {
	return binary.BigEndian.AppendUint64([]byte{ownKeys, kind}, uint64(p))
}

const manifestVersion = 1

// fileEntry is the catalogue's entry of a log file. A file without an entry was never used, or has no owner; an entry without a
// file is a loss, unless the file was to be removed.
// States of a file: (no entry) ─ createFile ─▶ open ─ recordEnds, or Recover ─▶ closed ─ forget ─▶ removed ─ removeFiles ─▶ (no entry)
type fileEntry struct {
	state fileState
	end   int64  // of a closed file: where its records end; all was fsynced
	skips []span // accepted damage
}

type fileState uint8

const (
	fileOpen    fileState = 0 // being written, or left by a process that ended without ending it
	fileClosed  fileState = 1
	fileRemoved fileState = 2 // no longer needed: it is about to be removed, or gone
)

// closed reports whether the file was ended, so that its end is in the entry.
func (e *fileEntry) closed() bool { return e.state == fileClosed }

// span is a stretch of a file, [from, to).
type span struct{ from, to int64 }

func (e *fileEntry) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, manifestVersion, byte(e.state)), uint64(e.end))
	for _, s := range e.skips {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, uint64(s.from)), uint64(s.to))
	}
	return b
}

func (e *fileEntry) decode(b []byte) error {
	if len(b) < 10 || b[0] != manifestVersion || b[1] > byte(fileRemoved) || (len(b)-10)%16 != 0 {
		return fault.Errorf(fault.Corrupt, "catalogue entry of a log file: %x", b)
	}
	*e = fileEntry{state: fileState(b[1]), end: int64(binary.LittleEndian.Uint64(b[2:]))}
	for b = b[10:]; len(b) > 0; b = b[16:] {
		s := span{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))}
		if s.from < 0 || s.to <= s.from {
			return fault.Errorf(fault.Corrupt, "catalogue entry of a log file skips from %d to %d", s.from, s.to)
		}
		e.skips = append(e.skips, s)
	}
	if e.end < 0 || e.end > math.MaxUint32 {
		return fault.Errorf(fault.Corrupt, "catalogue entry of a log file ends it at %d", e.end)
	}
	return nil
}

// skip finds the accepted damage that covers offset off.
func (e *fileEntry) skip(off int64) (span, bool) {
	for _, s := range e.skips {
		if s.from <= off && off < s.to {
			return s, true
		}
	}
	return span{}, false
}

// tombstone makes records of a placement dead that lie before a position and have a serial above one: records that were cut off
// (Cut), copied forward (Rewrite) or dropped (Drop) are the same to a reader of the log.
// An example: Rewrite copies serials 5 to 9 from file 3 to 8:100 … 8:900 and buries all before 8:100. Then 3:… is dead, and the copies
// are not. Cut behind serial 7 at the end 8:1200 makes 8 and 9 dead there; a new leader's 8 at 8:1300 is not.
type tombstone struct {
	before position
	after  point.Serial
}

type tombstones []tombstone

func (ts tombstones) append(b []byte) []byte {
	for _, t := range ts {
		b = binary.LittleEndian.AppendUint64(b, uint64(t.before))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.after.Epoch))
		b = binary.LittleEndian.AppendUint64(b, t.after.Seq)
	}
	return b
}

func decodeTombstones(b []byte) (ts tombstones, err error) {
	if len(b)%24 != 0 {
		return nil, fault.Errorf(fault.Corrupt, "catalogue entry of cut records has %d bytes, not a multiple of 24", len(b))
	}
	for ; len(b) > 0; b = b[24:] {
		ts = append(ts, tombstone{
			before: position(binary.LittleEndian.Uint64(b)),
			after:  point.Serial{Epoch: point.Epoch(binary.LittleEndian.Uint64(b[8:])), Seq: binary.LittleEndian.Uint64(b[16:])},
		})
	}
	return ts, nil
}

// covers reports whether a record is dead.
func (ts tombstones) covers(pos position, s point.Serial) bool {
	for _, t := range ts {
		if pos < t.before && t.after.Less(s) {
			return true
		}
	}
	return false
}

// add puts t to ts and drops the tombstones that it makes superfluous.
func (ts tombstones) add(t tombstone) tombstones {
	kept := ts[:0:0]
	for _, o := range ts {
		if o.before > t.before || o.after.Less(t.after) {
			kept = append(kept, o)
		}
	}
	return append(kept, t)
}

// since drops tombstones wholly before the oldest file.
func (ts tombstones) since(oldest uint32) tombstones {
	kept := ts[:0:0]
	for _, t := range ts {
		if t.before > at(oldest, 0) {
			kept = append(kept, t)
		}
	}
	return kept
}

// manifest is the brick's own part of the catalogue, as read at the start.
type manifest struct {
	files   map[uint32]*fileEntry // that are needed
	removed []uint32              // that were to be removed
	tombs   map[point.PlacementID]tombstones
	swept   uint32 // the oldest file when tombs were last looked through
}

func newManifest() manifest {
	return manifest{files: map[uint32]*fileEntry{}, tombs: map[point.PlacementID]tombstones{}}
}

// take reads one of the brick's own keys; an epoch is given to raise.
func (m *manifest) take(k, v []byte, raise func(point.PlacementID, point.Epoch)) error {
	switch {
	case isWatermarkKey(k):
		return nil
	case len(k) == 6 && k[1] == keyFile:
		e, n := new(fileEntry), binary.BigEndian.Uint32(k[2:])
		err := e.decode(v)
		if e.state == fileRemoved {
			m.removed = append(m.removed, n)
		} else {
			m.files[n] = e
		}
		return err
	case len(k) == 10 && k[1] == keyEpoch && len(v) == 8:
		raise(point.PlacementID(binary.BigEndian.Uint64(k[2:])), point.Epoch(binary.LittleEndian.Uint64(v)))
		return nil
	case len(k) == 10 && k[1] == keyTomb:
		ts, err := decodeTombstones(v)
		m.tombs[point.PlacementID(binary.BigEndian.Uint64(k[2:]))] = ts
		return err
	}
	return fault.Errorf(fault.Corrupt, "catalogue holds key %x, which this program does not know", k)
}

// loadManifest reads the brick's own keys; the epochs go to the index.
func (b *Brick) loadManifest() (manifest, error) {
	m := newManifest()
	raise := func(p point.PlacementID, e point.Epoch) { b.mu.index.of(p).epoch = e }
	err := b.scan([]byte{ownKeys}, []byte{ownKeys + 1}, func(k, v []byte) error { return m.take(k, v, raise) })
	return m, err
}
