package staging

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The log of staged frames (FORMAT.md).
const (
	// FileMagic begins every file; its last digit is the version.
	FileMagic = "spstage1"
	// RecordBytesMax bounds a record: an encoded frame as it travels, and its header.
	RecordBytesMax = 33 << 20

	recordLen = 12 // before the payload
	frameLen  = 32 // of a frame's payload before its holders

	recordFrame  = 1
	recordForget = 2
	recordLater  = 3 // a frame with a due time

	tableBytesMax = 1 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Record is a record of the log: a frame, or that one is forgotten.
type Record struct {
	Frame  Frame  // of Forget only the ID
	Body   []byte // the encoded frame
	Forget bool
}

// AppendFrame appends the record of a frame. Its holders and table are within their bounds (Validate).
func AppendFrame(dst []byte, f *Frame, body []byte) []byte {
	kind := byte(recordFrame)
	if !f.Due.IsZero() {
		kind = recordLater
	}
	dst, from := begin(dst, kind)
	dst = appendID(dst, f.ID)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Since.UnixNano()))
	dst = binary.LittleEndian.AppendUint64(dst, f.MapSeq)
	if kind == recordLater {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Due.UnixNano()))
	}
	dst = append(dst, byte(len(f.Holders)))
	for _, h := range f.Holders {
		dst = append(append(dst, byte(len(h))), h...)
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(f.Table)))
	dst = append(dst, f.Table...)
	dst = append(dst, body...)
	return end(dst, from)
}

// AppendForget appends the record that forgets a frame.
func AppendForget(dst []byte, id ID) []byte {
	dst, from := begin(dst, recordForget)
	return end(appendID(dst, id), from)
}

func appendID(dst []byte, id ID) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(id.Stamp))
	return binary.LittleEndian.AppendUint64(dst, id.Nonce)
}

func begin(dst []byte, kind byte) (b []byte, from int) {
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0), len(dst)
}

func end(b []byte, from int) []byte {
	binary.LittleEndian.PutUint32(b[from:], uint32(len(b)-from-recordLen))
	binary.LittleEndian.PutUint32(b[from+4:], crc32.Checksum(b[from+8:], castagnoli))
	return b
}

// CutRecord reads the first record of b; nothing is copied. Errors are Corrupt: it is damaged, or ends early, as the last one of a
// file does after a crash.
func CutRecord(b []byte) (r Record, rest []byte, err error) {
	if len(b) < recordLen {
		return r, nil, fault.Errorf(fault.Corrupt, "a record ends within its header, after %d bytes", len(b))
	}
	n := int64(binary.LittleEndian.Uint32(b))
	if n > RecordBytesMax || n > int64(len(b)-recordLen) {
		return r, nil, fault.Errorf(fault.Corrupt, "a record of %d bytes, where %d follow", n, len(b)-recordLen)
	}
	whole := b[:recordLen+int(n)]
	if got, want := crc32.Checksum(whole[8:], castagnoli), binary.LittleEndian.Uint32(whole[4:]); got != want {
		return r, nil, fault.Errorf(fault.Corrupt, "a record with checksum %08x, should be %08x", got, want)
	}
	if whole[9]|whole[10]|whole[11] != 0 {
		return r, nil, fault.Errorf(fault.Corrupt, "a record with unknown flags: a newer version wrote it")
	}
	payload := whole[recordLen:]
	switch whole[8] {
	case recordFrame, recordLater:
		r, err = cutFrame(payload, whole[8] == recordLater)
	case recordForget:
		if len(payload) != 16 {
			return r, nil, fault.Errorf(fault.Corrupt, "a record that forgets a frame, of %d bytes", len(payload))
		}
		r = Record{Frame: Frame{ID: idAt(payload)}, Forget: true}
	default:
		err = fault.Errorf(fault.Corrupt, "a record of kind %d: a newer version wrote it", whole[8])
	}
	return r, b[len(whole):], err
}

func idAt(b []byte) ID {
	return ID{point.Stamp(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])}
}

func cutFrame(b []byte, later bool) (r Record, err error) {
	short := fault.Errorf(fault.Corrupt, "the record of a frame ends early")
	fixed := frameLen
	if later {
		fixed += 8
	}
	if len(b) < fixed+1 {
		return r, short
	}
	f := &r.Frame
	f.ID = idAt(b)
	f.Since, f.MapSeq = time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))), binary.LittleEndian.Uint64(b[24:])
	if later {
		f.Due = time.Unix(0, int64(binary.LittleEndian.Uint64(b[frameLen:])))
	}
	n := int(b[fixed])
	b = b[fixed+1:]
	for ; n > 0; n-- {
		if len(b) == 0 || len(b)-1 < int(b[0]) {
			return r, short
		}
		end := 1 + int(b[0])
		f.Holders, b = append(f.Holders, topology.ServerID(b[1:end])), b[end:]
	}
	if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
		return r, short
	}
	end := 2 + int(binary.LittleEndian.Uint16(b))
	f.Table, r.Body = string(b[2:end]), b[end:]
	f.Bytes = int64(len(r.Body))
	if err := f.Validate(); err != nil {
		return r, fault.Wrap(err, fault.Corrupt, "a staged frame")
	}
	return r, nil
}

// Validate checks the bounds of a frame's names. Errors are Invalid.
func (f *Frame) Validate() error {
	switch {
	case f.Table == "" || len(f.Table) > tableBytesMax:
		return fault.Errorf(fault.Invalid, "a staged frame of a table with a name of %d bytes", len(f.Table))
	case len(f.Holders) == 0 || len(f.Holders) > peer.HoldersMax:
		return fault.Errorf(fault.Invalid, "a staged frame with %d holders, 1 to %d there may be", len(f.Holders), peer.HoldersMax)
	case slices.ContainsFunc(f.Holders, func(s topology.ServerID) bool { return s == "" || len(s) > peer.HolderBytesMax }):
		return fault.Errorf(fault.Invalid, "a staged frame with a holder whose name is empty or longer than %d bytes", peer.HolderBytesMax)
	}
	return nil
}

// Measure fills the fields that the machine needs of a frame's rows. Errors are Invalid: it has none, or is not self-contained.
func (f *Frame) Measure(g *frame.Frame) error {
	if g.Kind != frame.Rows || g.FirstDef != 0 || g.Samples()+len(g.Exemplars) == 0 {
		return fault.Errorf(fault.Invalid, "a staged frame defines its series from %d on, and has %d rows", g.FirstDef, g.Samples())
	}
	f.Rows, f.Lo, f.Hi = g.Samples(), math.MaxInt64, math.MinInt64
	see := func(t point.Nanos) { f.Lo, f.Hi = min(f.Lo, t), max(f.Hi, t) }
	for _, t := range g.Times {
		see(t)
	}
	for i := range g.Hists {
		see(g.Hists[i].Time)
	}
	for i := range g.Exemplars {
		see(g.Exemplars[i].Time)
	}
	return nil
}

// EndsEarly reports whether b is less than the record that it begins: all of a file that was not yet written when its writer was killed.
func EndsEarly(b []byte) bool {
	return len(b) < recordLen || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-recordLen)
}

// sumsMax bounds the bytes that Torn computes checksums of: rows whose values look like records may make it try many.
const sumsMax = 1 << 30

// Torn reports whether b, which EndsEarly, is what a killed writer leaves: the beginning of one record, which was never acked. It is not where
// only the length is wrong, which no checksum covers: it is beyond the bound, the rest of b has the sum of the header, or a whole record follows.
func Torn(b []byte) bool {
	if !EndsEarly(b) {
		return false
	}
	if len(b) < recordLen {
		return true
	}
	if binary.LittleEndian.Uint32(b) > RecordBytesMax || crc32.Checksum(b[8:], castagnoli) == binary.LittleEndian.Uint32(b[4:]) {
		return false
	}
	sums := int64(0)
	for at := 1; at+recordLen <= len(b); at++ {
		r := b[at:]
		n := int64(binary.LittleEndian.Uint32(r))
		if r[8] < recordFrame || r[8] > recordLater || r[9]|r[10]|r[11] != 0 || n > RecordBytesMax || n > int64(len(r)-recordLen) {
			continue
		}
		if sums += n; sums > sumsMax {
			return false // in doubt it is damage, which is kept
		}
		if crc32.Checksum(r[8:recordLen+int(n)], castagnoli) == binary.LittleEndian.Uint32(r[4:]) {
			return false
		}
	}
	return true
}
