package frame

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Encoder encodes frames. It holds scratch memory of twice the size of the largest body it has seen: pool it. The zero value
// is ready; not for concurrent use.
type Encoder struct {
	body  []byte
	rests []byte
}

// scratchKept bounds the memory an Encoder or a Frame holds on to between frames, in bytes.
const scratchKept = 4 << 20

// Append appends the encoding of f to dst. Nothing of f is kept. A frame that Check refuses is a bug of the caller and
// panics. With enough room in dst nothing is allocated.
func (e *Encoder) Append(dst []byte, f *Frame) []byte {
	if err := f.Check(); err != nil {
		fault.Bug("frame %v: %v", f.Serial, err)
	}
	e.appendBody(f)
	start := len(dst)
	room := s2.MaxEncodedLen(len(e.body))
	dst = slices.Grow(dst, HeaderLen+room)[:start+HeaderLen]
	flags := f.bodyFlags() | flagS2
	packed := s2.Encode(dst[len(dst):len(dst)+room], e.body)
	if len(packed) >= len(e.body) { // as values without a pattern are: do not pay for it at every reading
		flags &^= flagS2
		dst = append(dst, e.body...)
	} else {
		dst = dst[:len(dst)+len(packed)]
	}
	putHeader(dst[start:], f, flags, len(e.body))
	if cap(e.body) > scratchKept {
		e.body = nil
	}
	if cap(e.rests) > scratchKept {
		e.rests = nil
	}
	return dst
}

// appendBody writes the body into e.body: counts, columns, then the parts beside them.
func (e *Encoder) appendBody(f *Frame) {
	switch f.Kind {
	case Delete:
		e.body = AppendDeletion(e.body[:0], &f.Deletion)
		return
	case Freeze:
		e.body = e.body[:0]
		return
	}
	b := binary.AppendUvarint(e.body[:0], uint64(f.FirstDef))
	b = binary.AppendUvarint(b, uint64(len(f.Defs)))
	b = binary.AppendUvarint(b, uint64(len(f.Exemplars)))
	b = appendIDs(b, f.IDs)
	b = appendTimes(b, f.Times)
	b = appendValues(b, f.Values, f.IDs)
	b = appendHists(b, f.Hists)
	b = appendExemplars(b, f.Exemplars)
	e.body = e.appendDefs(b, f.Defs)
}

// bodyFlags says how the body of f is written. A frame without definitions is unchanged since before tails were shared.
func (f *Frame) bodyFlags() byte {
	if len(f.Defs) > 0 {
		return flagTails | flagColumns
	}
	return 0
}
