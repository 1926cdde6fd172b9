package rpc

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Series that travel together share most of their labels. Each label pair is written once a message; a series is written
// as its difference from the one before, and s2 compresses the repetition in that:
//
//	{__name__="cpu_idle", host="a", os="x"}   3 pairs: new pair 0 …, new pair 1 …, new pair 2 …
//	{__name__="cpu_user", host="a", os="x"}   3 pairs: new pair 3 …, the 2 at the same place as before

// Those two sets in bytes (FORMAT.md has the tokens), where "…" stands for name and value, each after its length:
//
//	03  01 …cpu_idle  03 …a  05 …x     3 pairs; 0<<1|1, 1<<1|1, 2<<1|1: pairs 0, 1, 2, all new
//	03  07 …cpu_user  02               3 pairs; 3<<1|1: pair 3, new; (2-1)<<1: the 2 of before at the same places

// Bounds of the labels of one message.
const (
	labelSetsMax   = 1 << 20
	labelBytesMax  = 32 << 20 // of all sets, as strings
	labelPackedMax = 32 << 20 // before s2
	// defineBytesMax bounds the definitions of one record before s2, and as strings. Senders cut records at about a quarter of it.
	defineBytesMax = 4 * definePartBytesMax
)

// labelWriter writes label sets. It keeps scratch memory: pool it, and Reset before use.
type labelWriter struct {
	b []byte
	// Substrings of the added labels, which stay in memory until Reset.
	pairs  []string // by number
	number map[string]uint32
	// prev and next change places after each set, so no set allocates.
	prev  []uint32 // the pairs of the set before
	next  []uint32
	bytes int // of all sets, as strings
}

func (w *labelWriter) Reset() {
	clear(w.pairs)
	clear(w.number)
	if w.number == nil {
		w.number = map[string]uint32{}
	}
	w.b, w.pairs, w.prev, w.bytes = w.b[:0], w.pairs[:0], w.prev[:0], 0
}

// add appends a set; it must be Valid.
func (w *labelWriter) add(l point.Labels) {
	w.bytes += len(l)
	w.b = binary.AppendUvarint(w.b, uint64(l.Len()))
	same := uint64(0) // pairs at the same place as in the set before
	w.next = w.next[:0]
	for {
		_, _, rest, ok := l.Next()
		if !ok {
			break
		}
		pair := string(l[:len(l)-len(rest)])
		l = rest
		if i := len(w.next); i < len(w.prev) && w.pairs[w.prev[i]] == pair {
			w.next = append(w.next, w.prev[i])
			same++
			continue
		}
		w.same(&same)
		n, ok := w.number[pair]
		if !ok {
			n = uint32(len(w.pairs))
		}
		w.b = binary.AppendUvarint(w.b, uint64(n)<<1|1)
		if !ok {
			w.number[pair] = n
			w.pairs = append(w.pairs, pair)
			w.b = append(w.b, pair...)
		}
		w.next = append(w.next, n)
	}
	w.same(&same)
	w.prev, w.next = w.next, w.prev
}

func (w *labelWriter) same(n *uint64) {
	if *n > 0 {
		w.b = binary.AppendUvarint(w.b, (*n-1)<<1)
		*n = 0
	}
}

// labelReader reads the output of labelWriter. It keeps scratch memory; the zero value is ready.
type labelReader struct {
	b     []byte
	pairs [][]byte // in b
	prev  []uint32
	next  []uint32
	set   []byte
	bytes int
}

func (r *labelReader) reset(b []byte) {
	r.b, r.pairs, r.prev, r.bytes = b, r.pairs[:0], r.prev[:0], 0
}

func (r *labelReader) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		return 0, false
	}
	r.b = r.b[n:]
	return v, true
}

var errLabels = fault.Errorf(fault.Corrupt, "labels are malformed")

// read returns the next set, in memory of its own and Valid. Errors are Corrupt.
//
// A token of a byte stands for a pair of up to 64 KiB, so a message is bounded by its unpacked size: each set while it grows, and all sets together. Tokens
// are compared before they are converted or added to, as the largest ones do not fit into an int.
func (r *labelReader) read() (point.Labels, error) {
	n, ok := r.uvarint()
	if !ok || n > point.LabelsMax {
		return "", errLabels
	}
	r.next, r.set = r.next[:0], r.set[:0]
	for len(r.next) < int(n) {
		token, ok := r.uvarint()
		switch {
		case !ok:
			return "", errLabels
		case token&1 == 0:
			from := len(r.next)
			if same := token>>1 + 1; token>>1 >= n || uint64(from)+same > min(n, uint64(len(r.prev))) {
				return "", errLabels
			}
			for _, p := range r.prev[from : from+int(token>>1)+1] {
				r.take(p)
			}
		case token>>1 > uint64(len(r.pairs)):
			return "", errLabels
		default:
			if token>>1 == uint64(len(r.pairs)) && !r.newPair() {
				return "", errLabels
			}
			r.take(uint32(token >> 1))
		}
		if len(r.set) > point.LabelsBytesMax {
			return "", errLabels
		}
	}
	r.prev, r.next = r.next, r.prev
	if r.bytes += len(r.set); r.bytes > labelBytesMax {
		return "", fault.Errorf(fault.Corrupt, "labels of more than %d bytes in a message", labelBytesMax)
	}
	l := point.Labels(r.set)
	if !l.Valid() {
		return "", errLabels
	}
	return l, nil
}

func (r *labelReader) take(p uint32) {
	r.next = append(r.next, p)
	r.set = append(r.set, r.pairs[p]...)
}

// newPair cuts name and value, each after its length.
// The pair stays where it lies in the message, which so must not be reused before the last set is read; read copies it
// into each set that has it.
func (r *labelReader) newPair() bool {
	at := 0
	for range 2 {
		n, k := binary.Uvarint(r.b[at:])
		if k <= 0 || n > uint64(len(r.b)-at-k) {
			return false
		}
		at += k + int(n)
	}
	r.pairs = append(r.pairs, r.b[:at])
	r.b = r.b[at:]
	return true
}

// defineEncoder encodes definitions. It keeps scratch memory: pool it.
type defineEncoder struct {
	labels labelWriter
	out    []byte
}

// Definitions are sent in parts of at most so many series and about so many bytes, so that a part fits any window.
const (
	definePartMax      = 8 << 10
	definePartBytesMax = 1 << 20
)

// defineLen is the length of the payload before its body.
// A count and the length of the body before s2, u32 each.
const defineLen = 8

// encode returns the record of the first definitions of defs, or offers, and their number, in memory of the encoder.
func (e *defineEncoder) encode(kind recordType, defs []peer.Def) (b []byte, n int) {
	w := &e.labels
	w.Reset()
	last := int64(-1)
	for n < len(defs) && n < definePartMax && w.bytes < definePartBytesMax {
		id := int64(defs[n].ID)
		// 0 for each number that follows the one before, which are nearly all; zigzag, as a number may also be lower.
		w.b = binary.AppendVarint(w.b, id-last-1)
		w.add(defs[n].Labels)
		last = id
		n++
	}
	b, from := beginRecord(e.out[:0], kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(w.b)))
	b = appendS2(b, w.b)
	endRecord(b, from)
	e.out = b
	return b, n
}

// The room is reserved before, so that s2 writes in place and does not allocate.
func appendS2(dst, src []byte) []byte {
	dst = slices.Grow(dst, s2.MaxEncodedLen(len(src)))
	at := len(dst)
	return dst[:at+len(s2.Encode(dst[at:cap(dst)], src))]
}

// defineDecoder decodes definitions: pool it.
type defineDecoder struct {
	labels labelReader
	body   []byte
	defs   []peer.Def // valid until the next decode; their labels stay valid
}

// decode reads the payload of a define. Errors are Corrupt.
func (d *defineDecoder) decode(b []byte) ([]peer.Def, error) {
	if len(b) < defineLen {
		return nil, fault.Errorf(fault.Corrupt, "definitions of %d bytes", len(b))
	}
	count, length := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if length > defineBytesMax {
		return nil, fault.Errorf(fault.Corrupt, "definitions of %d bytes in a record, at most %d travel", length, defineBytesMax)
	}
	body, err := unpack(d.body, b[defineLen:], length)
	if err != nil {
		return nil, err
	}
	d.body = body
	// Each definition has at least two bytes, a step and a count of pairs: a count that lies is found before memory is
	// reserved for it.
	if count > definePartMax || int(count) > len(body)/2 {
		return nil, fault.Errorf(fault.Corrupt, "%d definitions in %d bytes", count, len(body))
	}
	clear(d.defs)
	d.defs = d.defs[:0]
	d.labels.reset(body)
	last := int64(-1)
	for range count {
		step, n := binary.Varint(d.labels.b)
		if n <= 0 {
			return nil, errLabels
		}
		d.labels.b = d.labels.b[n:]
		id := last + 1 + step
		if id < 0 || id >= idsEnd {
			return nil, fault.Errorf(fault.Corrupt, "a definition of number %d", id)
		}
		l, err := d.labels.read()
		if err != nil {
			return nil, err
		}
		if d.labels.bytes > defineBytesMax {
			return nil, fault.Errorf(fault.Corrupt, "definitions of more than %d bytes in a record", defineBytesMax)
		}
		d.defs = append(d.defs, peer.Def{ID: point.SeriesID(id), Labels: l})
		last = id
	}
	if len(d.labels.b) > 0 {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes follow the last definition", len(d.labels.b))
	}
	return d.defs, nil
}

// unpack decompresses packed, which must decompress to length bytes, into dst's memory.
func unpack(dst, packed []byte, length uint32) ([]byte, error) {
	n, err := s2.DecodedLen(packed)
	if err != nil || n != int(length) || n > labelPackedMax {
		return nil, fault.Errorf(fault.Corrupt, "labels of %d bytes, at most %d, should have %d", n, labelPackedMax, length)
	}
	// A compressed byte stands for at most 64 or so, but a copy of a few bytes may stand for 16 MiB: memory is allocated
	// by the stated length, which is bounded.
	b, err := s2.Decode(slices.Grow(dst[:0], n)[:n], packed)
	if err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "labels do not decompress")
	}
	return b, nil
}
