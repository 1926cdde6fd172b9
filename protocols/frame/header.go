package frame

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// HeaderLen is the length of the header, in bytes.
const HeaderLen = 64

const version = 1

// Offsets within the header; all numbers are little endian.
const (
	atVersion   = 0  // u8
	atKind      = 1  // u8
	atFlags     = 2  // u8
	atReserved  = 3  // u8, zero
	atRows      = 4  // u32
	atStamp     = 8  // u64
	atSerial    = 16 // u64 epoch, u64 seq
	atPrev      = 32 // u64 epoch, u64 seq
	atHists     = 48 // u32
	atBodyBytes = 52 // u32, before compression
	atBodySum   = 56 // u32, CRC-32C of the body as it stands
	atHeaderSum = 60 // u32, CRC-32C of the 60 bytes before
)

const (
	flagForeign = 1 << 0
	flagS2      = 1 << 1
	flagTails   = 1 << 2 // definitions share tails
	flagColumns = 1 << 3 // definitions lie in columns; only with flagTails
	flagsKnown  = flagForeign | flagS2 | flagTails | flagColumns
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Head is the content of the header, read without opening the body.
type Head struct {
	Serial, Prev point.Serial
	Stamp        point.Stamp
	Kind         Kind
	Foreign      bool
	Rows         int // float rows
	Hists        int // native histograms

	s2        bool
	tails     bool
	columns   bool
	bodyBytes int
	bodySum   uint32
}

// DecodedBytes is about the most memory that Decode needs for the frame, in bytes. A frame of a few kilobytes may hold a million rows.
func (h *Head) DecodedBytes() int64 {
	const row, hist = 4 + 8 + 8, 4 + 8 + 24
	// An exemplar has at least 11 bytes of the body, and needs 40 more here and 40 in package peer's form.
	return 9*int64(h.bodyBytes) + row*int64(h.Rows) + 2*hist*int64(h.Hists)
}

// Header reads the header of an encoded frame and verifies it; the body is not looked at. Errors are Corrupt.
func Header(b []byte) (Head, error) {
	if len(b) < HeaderLen {
		return Head{}, fault.Errorf(fault.Corrupt, "frame of %d bytes, its header alone has %d", len(b), HeaderLen)
	}
	if b[atVersion] != version {
		return Head{}, fault.Errorf(fault.Corrupt, "frame of version %d, known is %d", b[atVersion], version)
	}
	if got, want := crc32.Checksum(b[:atHeaderSum], castagnoli), u32(b, atHeaderSum); got != want {
		return Head{}, fault.Errorf(fault.Corrupt, "frame header has checksum %08x, should have %08x", got, want)
	}
	h := Head{
		Serial: serialAt(b, atSerial), Prev: serialAt(b, atPrev),
		Stamp: point.Stamp(binary.LittleEndian.Uint64(b[atStamp:])),
		Kind:  Kind(b[atKind]), Foreign: b[atFlags]&flagForeign != 0, s2: b[atFlags]&flagS2 != 0, tails: b[atFlags]&flagTails != 0, columns: b[atFlags]&flagColumns != 0,
		Rows: int(u32(b, atRows)), Hists: int(u32(b, atHists)),
		bodyBytes: int(u32(b, atBodyBytes)), bodySum: u32(b, atBodySum),
	}
	return h, h.check(b[atFlags], b[atReserved])
}

func (h *Head) check(flags, reserved byte) error {
	switch {
	case !h.Kind.known():
		return fault.Errorf(fault.Corrupt, "frame %v of %v, known are %v, %v and %v", h.Serial, h.Kind, Rows, Delete, Freeze)
	case h.Kind != Rows && h.Rows+h.Hists > 0:
		return fault.Errorf(fault.Corrupt, "frame %v of kind %v has rows", h.Serial, h.Kind)
	case h.Kind == Freeze && (h.bodyBytes > 0 || flags != 0):
		return fault.Errorf(fault.Corrupt, "frame %v of kind %v has a body or flags", h.Serial, h.Kind)
	case flags&^flagsKnown != 0 || reserved != 0:
		return fault.Errorf(fault.Corrupt, "frame %v with unknown flags %#x, %#x: a newer version wrote it", h.Serial, flags, reserved)
	case h.columns && !h.tails:
		return fault.Errorf(fault.Corrupt, "frame %v has columns of definitions that share no tails", h.Serial)
	case h.Rows > RowsMax || h.Hists > RowsMax:
		return fault.Errorf(fault.Corrupt, "frame %v of %d rows and %d histograms, at most %d fit", h.Serial, h.Rows, h.Hists, RowsMax)
	case h.bodyBytes > BodyMax:
		return fault.Errorf(fault.Corrupt, "frame %v with a body of %d bytes, at most %d fit", h.Serial, h.bodyBytes, BodyMax)
	}
	return nil
}

// SetSerial gives an encoded frame its place in the log, and the rank that it has there. It touches the header only and
// costs a few nanoseconds, so that a body can be encoded outside the lock under which serials and ranks are given. b must
// come from Encoder.Append.
func SetSerial(b []byte, serial, prev point.Serial, stamp point.Stamp) {
	binary.LittleEndian.PutUint64(b[atStamp:], uint64(stamp))
	putSerial(b, atSerial, serial)
	putSerial(b, atPrev, prev)
	binary.LittleEndian.PutUint32(b[atHeaderSum:], crc32.Checksum(b[:atHeaderSum], castagnoli))
}

// putHeader writes the header of f over b[:HeaderLen] for the body behind it.
func putHeader(b []byte, f *Frame, flags byte, bodyBytes int) {
	if f.Foreign {
		flags |= flagForeign
	}
	b[atVersion], b[atKind], b[atFlags], b[atReserved] = version, byte(f.Kind), flags, 0
	binary.LittleEndian.PutUint32(b[atRows:], uint32(len(f.IDs)))
	binary.LittleEndian.PutUint32(b[atHists:], uint32(len(f.Hists)))
	binary.LittleEndian.PutUint32(b[atBodyBytes:], uint32(bodyBytes))
	binary.LittleEndian.PutUint32(b[atBodySum:], crc32.Checksum(b[HeaderLen:], castagnoli))
	SetSerial(b, f.Serial, f.Prev, f.Stamp)
}

func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }

func serialAt(b []byte, at int) point.Serial {
	return point.Serial{
		Epoch: point.Epoch(binary.LittleEndian.Uint64(b[at:])),
		Seq:   binary.LittleEndian.Uint64(b[at+8:]),
	}
}

func putSerial(b []byte, at int, s point.Serial) {
	binary.LittleEndian.PutUint64(b[at:], uint64(s.Epoch))
	binary.LittleEndian.PutUint64(b[at+8:], s.Seq)
}

// Verify is Header, and verifies the body's checksum, too; the body is not decoded. Errors are Corrupt.
func Verify(b []byte) (Head, error) {
	h, err := Header(b)
	if err != nil {
		return h, err
	}
	return h, fault.Annotate(h.verify(b[HeaderLen:]), "frame %v", h.Serial)
}

func (h *Head) verify(packed []byte) error {
	if sum := crc32.Checksum(packed, castagnoli); sum != h.bodySum {
		return fault.Errorf(fault.Corrupt, "body has checksum %08x, should have %08x", sum, h.bodySum)
	}
	return nil
}
