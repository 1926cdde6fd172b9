package frame

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Decoder decodes frames. The zero value is ready; not for concurrent use.
type Decoder struct {
	// JoinDefs makes the definitions of a frame parts of one string, which each of them keeps: for readers that release all definitions at once.
	JoinDefs bool
	// KnownDefs leaves out the check that definitions are well formed, a third of decoding a frame of many series: the frame was encoded by this process, or
	// decoded before. Checksums are verified all the same.
	KnownDefs bool
	// NoDefs refuses frames with definitions, before they are decoded: a few bytes may stand for 64 KiB of labels. Corrupt.
	NoDefs bool

	r reader
}

// Decode decodes b into f, reusing f's memory; nothing of b is kept. Definitions and exemplar labels are strings of
// their own; Hists[i].H lies in f until the next Decode into it. It allocates only as much as b's size and the bounds
// allow, after both checksums are verified. Errors are Corrupt, and f is then empty.
func (d *Decoder) Decode(b []byte, f *Frame) error { return d.DecodeWith(nil, b, f) }

// DecodeWith is Decode of a frame that this process encoded, with definitions that the caller kept: they are most of the cost of a frame with one row of each
// series. f.Defs is a copy of the list. Nil: they are decoded. The error is Internal if the frame defines another number of series.
func (d *Decoder) DecodeWith(defs []point.Labels, b []byte, f *Frame) error {
	f.Reset()
	h, err := Header(b)
	if err != nil {
		return err
	}
	if err = d.decode(b[HeaderLen:], &h, f, defs); err != nil {
		f.Reset()
		return fault.Annotate(err, "frame %v", h.Serial)
	}
	f.Serial, f.Prev, f.Stamp, f.Kind, f.Foreign = h.Serial, h.Prev, h.Stamp, h.Kind, h.Foreign
	return nil
}

func (d *Decoder) decode(packed []byte, h *Head, f *Frame, known []point.Labels) error {
	if err := h.verify(packed); err != nil {
		return err
	}
	if err := f.unpack(packed, h); err != nil {
		return err
	}
	switch h.Kind {
	case Delete:
		var err error
		f.Deletion, err = ParseDeletion(f.body[:h.bodyBytes])
		return err
	case Freeze:
		return nil
	}
	d.r = reader{padded: f.body, end: h.bodyBytes, join: d.JoinDefs, known: d.KnownDefs, joined: d.r.joined[:0], ends: d.r.ends[:0]}
	r := &d.r
	f.FirstDef = point.DenseID(r.count(1<<32-1, 0))
	defs := r.count(RowsMax, 2)
	exemplars := r.count(RowsMax, exemplarBytesMin)
	if r.err == nil && defs > 0 && d.NoDefs {
		r.fail("it defines series, and may define none")
	}
	if r.err == nil && (uint64(f.FirstDef)+uint64(defs) > 1<<32 || (h.Rows+1)/2 > r.left() || h.Hists*histBytesMin > r.left()) {
		r.fail("counts do not fit the body")
	}
	if r.err != nil {
		return r.err
	}
	limit := uint64(f.FirstDef) + uint64(defs)
	f.IDs, f.Times, f.Values = sized(f.IDs, h.Rows), sized(f.Times, h.Rows), sized(f.Values, h.Rows)
	f.Hists, f.Exemplars, f.Defs = sized(f.Hists, h.Hists), sized(f.Exemplars, exemplars), sized(f.Defs, defs)
	r.ids(f.IDs, limit)
	r.times(f.Times)
	r.values(f.Values, f.IDs)
	r.hists(f.Hists, limit)
	r.exemplars(f.Exemplars, limit)
	switch {
	case r.err != nil:
	case known == nil:
		r.defs(f.Defs, h)
	case len(known) != defs:
		return fault.Errorf(fault.Internal, "a frame of %d definitions is decoded with %d", defs, len(known))
	default:
		copy(f.Defs, known)
		return nil
	}
	if r.left() > 0 {
		r.fail("bytes follow the last definition")
	}
	return r.err
}

// The fewest bytes of a histogram row and of an exemplar in the body.
const (
	histBytesMin     = 3
	exemplarBytesMin = 11
)

// padding behind the body lets values be read 8 bytes at a time.
const padding = 8

// unpack puts the body, decompressed, into f.body.
func (f *Frame) unpack(packed []byte, h *Head) error {
	n, err := len(packed), error(nil)
	if h.s2 {
		if n, err = s2.DecodedLen(packed); err != nil {
			return fault.Wrap(err, fault.Corrupt, "body")
		}
	}
	if n != h.bodyBytes {
		return fault.Errorf(fault.Corrupt, "body of %d bytes, its header says %d", n, h.bodyBytes)
	}
	if cap(f.body) > scratchKept && n+padding <= scratchKept {
		f.body = nil
	}
	f.body = sized(f.body, n+padding)
	if !h.s2 {
		copy(f.body, packed)
	} else if got, err := s2.Decode(f.body[:n], packed); err != nil || len(got) != n {
		return fault.Errorf(fault.Corrupt, "body does not decompress: %v", err)
	}
	clear(f.body[n:])
	return nil
}

func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// reader reads a body until the first error, after which everything is zero.
type reader struct {
	padded  []byte // the body and padding bytes of zero
	at, end int
	err     error

	known bool // definitions were checked before

	// Definitions, where they are parts of one string.
	join   bool
	joined []byte
	ends   []int // of each, in joined
}

func (r *reader) left() int { return r.end - r.at }

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fault.Errorf(fault.Corrupt, "%s (at byte %d of %d of the body)", what, r.at, r.end)
	}
	r.at = r.end
}

func (r *reader) uvarint() uint64 {
	if r.at < r.end && r.padded[r.at] < 0x80 {
		r.at++
		return uint64(r.padded[r.at-1])
	}
	v, n := binary.Uvarint(r.padded[r.at:r.end])
	if n <= 0 {
		r.fail("a number ends early")
		return 0
	}
	r.at += n
	return v
}

// count reads a count of items of at least size bytes each.
func (r *reader) count(most uint64, size int) int {
	n := r.uvarint()
	if n > most || size > 0 && n > uint64(r.left()/size) {
		r.fail("a count is too large")
		return 0
	}
	return int(n)
}

// run reads the length of a run within rows.
func (r *reader) run(rows int) int {
	n := r.uvarint()
	if rows < 2 || n > uint64(rows-2) {
		r.fail("a run is longer than the frame")
		return 1
	}
	return int(n) + 2
}

func (r *reader) u64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// take returns the next n bytes, in memory of the frame.
func (r *reader) take(n int) []byte {
	if r.left() < n {
		r.fail("bytes are missing")
		return nil
	}
	r.at += n
	return r.padded[r.at-n : r.at : r.at]
}

// takePadded is take with padding bytes more at the end, with any content.
func (r *reader) takePadded(n int) []byte {
	if r.take(n) == nil {
		return nil
	}
	return r.padded[r.at-n : r.at+padding]
}

// bytes reads a length and so many bytes.
func (r *reader) bytes() []byte { return r.part(r.uvarint()) }

// part gives the next n bytes.
func (r *reader) part(n uint64) []byte {
	if n > uint64(r.left()) {
		r.fail("bytes are missing")
		return nil
	}
	return r.take(int(n))
}

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }
