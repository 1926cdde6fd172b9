package brick

import (
	"encoding/binary"
	"fmt"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// position is a place in the common log: file number above, offset below. Positions rise in the order of Append, through file ends
// and restarts, because file numbers are never used twice. A record is safe when a position at or behind its end is.
type position int64

func at(file uint32, offset int64) position { return position(file)<<32 | position(offset) }

func (p position) file() uint32  { return uint32(p >> 32) }
func (p position) offset() int64 { return int64(uint32(p)) }

func (p position) String() string { return fmt.Sprintf("%d:%d", p.file(), p.offset()) }

// recordKind is the kind of a record of the common log.
type recordKind uint8

const (
	kindFrame recordKind = 1 // one record of a placement
	kindFile  recordKind = 2 // the first record of a file: its store and number
	kindMark  recordKind = 3 // only its synced field counts; written when the log falls idle
	kindDrop  recordKind = 4 // the placement was dropped: for a catalogue that has to be rebuilt
)

const (
	recordVersion = 1
	headerSize    = 40

	// flagCopy marks a record that was copied forward: seen again, it is not out of order.
	flagCopy = 1 << 0
)

// header stands before every record's bytes. FORMAT.md draws it.
type header struct {
	kind  recordKind
	flags uint8
	// synced is the end of the fsynced part of the log when this record was appended. Garbage before it is damage, not the torn
	// end of records that were never reported safe.
	synced position
	// catalogue is the newest commit of the catalogue that was durable then: a catalogue that is older has lost commits.
	// The low 40 bits; 0 in records from before there were watermarks.
	catalogue uint64
	placement point.PlacementID
	serial    point.Serial
}

const catalogueBits = 40

func (h *header) append(b []byte) []byte {
	c := h.catalogue
	b = append(b, recordVersion, byte(h.kind), h.flags, byte(c), byte(c>>8), byte(c>>16), byte(c>>24), byte(c>>32))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.synced))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.placement))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.serial.Epoch))
	return binary.LittleEndian.AppendUint64(b, h.serial.Seq)
}

// decodeRecord splits a record. rec aliases b. Errors are Corrupt.
func decodeRecord(b []byte) (h header, rec []byte, err error) {
	if len(b) < headerSize {
		return h, nil, fault.Errorf(fault.Corrupt, "record of %d bytes is shorter than its header of %d", len(b), headerSize)
	}
	if b[0] != recordVersion {
		return h, nil, fault.Errorf(fault.Corrupt, "record version %d; this program reads version %d", b[0], recordVersion)
	}
	h = header{
		kind:      recordKind(b[1]),
		flags:     b[2],
		synced:    position(binary.LittleEndian.Uint64(b[8:])),
		catalogue: binary.LittleEndian.Uint64(b) >> (64 - catalogueBits),
		placement: point.PlacementID(binary.LittleEndian.Uint64(b[16:])),
		serial:    point.Serial{Epoch: point.Epoch(binary.LittleEndian.Uint64(b[24:])), Seq: binary.LittleEndian.Uint64(b[32:])},
	}
	if h.kind < kindFrame || h.kind > kindDrop {
		return h, nil, fault.Errorf(fault.Corrupt, "record kind %d is unknown", h.kind)
	}
	if h.synced < 0 {
		return h, nil, fault.Errorf(fault.Corrupt, "record names a synced position out of range")
	}
	return h, b[headerSize:], nil
}
