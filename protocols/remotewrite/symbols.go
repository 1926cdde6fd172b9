package remotewrite

import (
	"bytes"
	"math/bits"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// SymbolsMax bounds the symbols of one 2.0 request. A request of 10,000 series with 12 labels, none shared, has 240,000.
const SymbolsMax = 1 << 19

// symbolsKept bounds the table that a decoder keeps for its next request: 1.5 MiB.
const symbolsKept = 1 << 16

// symbols is the table of strings of one 2.0 request. Each is hashed once; a series is the mix of its symbols' hashes.
type symbols struct {
	body   []byte
	spans  []span       // where symbol i lies in body
	hashes []point.Hash // of symbol i
	name   uint64       // the first that is __name__; 0: none
	before mixed        // the series hashed before
}

type span struct{ from, to uint32 }

func (s *symbols) reset(body []byte) {
	if cap(s.spans) > symbolsKept {
		*s = symbols{}
	}
	s.body, s.spans, s.hashes = body, s.spans[:0], s.hashes[:0]
	s.name = 0
	s.before.forget() // its references are to the last table
}

// add appends the symbol that lies in body and ends at byte to.
func (s *symbols) add(d *point.Dict, symbol []byte, to int) error {
	if len(s.spans) >= SymbolsMax {
		return fault.Errorf(fault.TooLarge, "more than %d symbols in one request", SymbolsMax)
	}
	if s.name == 0 && string(symbol) == point.MetricName {
		s.name = uint64(len(s.spans))
	}
	s.spans = append(s.spans, span{uint32(to - len(symbol)), uint32(to)})
	s.hashes = append(s.hashes, d.Hash(symbol))
	return nil
}

func (s *symbols) len() int { return len(s.spans) }

func (s *symbols) has(ref uint32) bool { return uint64(ref) < uint64(len(s.spans)) }

// at gives the bytes of a symbol that the table has.
func (s *symbols) at(ref uint32) []byte {
	sp := s.spans[ref]
	return s.body[sp.from:sp.to]
}

// Odd multipliers with well-spread bits: of the golden ratio and of the root of 3.
const (
	mixLo = 0x9e3779b97f4a7c15
	mixHi = 0xbb67ae8584caa73b
)

// mixState is the hash of a sequence of pairs in the making. Every step is a bijection of the 128 bits for a given pair,
// so that nothing is lost on the way: two sequences of one length that differ collide only if their pairs' 128 bits
// happen to cancel, and those come from the Dict's secret seeds. The initial value sets 2.0 apart from the sums of raw
// bytes.
type mixState struct{ lo, hi uint64 }

func mixBegin() mixState { return mixState{0x6a09e667f3bcc908, 0xa54ff53a5f1d36f1} }

// pair mixes a label in. Name and value are joined first, off the chain of dependent steps: 12 steps for 12 labels.
func (m *mixState) pair(name, value point.Hash) {
	lo := name.Lo ^ bits.RotateLeft64(value.Lo, 29)
	hi := name.Hi ^ bits.RotateLeft64(value.Hi, 31)
	l := bits.RotateLeft64((m.lo^lo)*mixLo, 32) + m.hi
	m.hi = bits.RotateLeft64((m.hi^hi)*mixHi, 27) + l
	m.lo = l
}

// sum spreads the last pair over all bits; the table's slots are chosen by the low ones.
func (m mixState) sum() point.Hash {
	lo, hi := spread(m.lo), spread(m.hi)
	lo += hi
	return point.Hash{Lo: lo, Hi: hi + lo}
}

func spread(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// hashRefs reads packed references, name and value in turn, and mixes the hashes of their symbols: the first label, mostly the metric's name, last,
// so that the others need not be mixed again where the series before has them too. ok is false when there is a mistake in them; then refsFault reports it.
func (s *symbols) hashRefs(packed []byte) (h point.Hash, ok bool) {
	hashes := s.hashes
	name, next := shortRef(packed, 0)
	value, first := shortRef(packed, next)
	if name >= uint64(len(hashes)) || value >= uint64(len(hashes)) {
		return s.hashLongRefs(packed)
	}
	others := packed[first:]
	m, at := s.before.shared(others)
	for at < len(others) {
		name, next := shortRef(others, at)
		value, end := shortRef(others, next)
		if name >= uint64(len(hashes)) || value >= uint64(len(hashes)) {
			return s.hashLongRefs(packed)
		}
		m.pair(hashes[name], hashes[value])
		s.before.add(end, m)
		at = end
	}
	m.pair(hashes[name], hashes[value])
	return m.sum(), true
}

const badRef = 1 << 63

// shortRef reads a reference of one or two bytes. All others are badRef.
func shortRef(b []byte, i int) (ref uint64, next int) {
	if uint(i) >= uint(len(b)) {
		return badRef, i
	}
	c := uint64(b[i])
	if c < 0x80 {
		return c, i + 1
	}
	if uint(i+1) >= uint(len(b)) || b[i+1] >= 0x80 {
		return badRef, i
	}
	return c&0x7f | uint64(b[i+1])<<7, i + 2
}

// hashLongRefs is hashRefs for requests of more than 16,384 symbols and for unusual spellings.
func (s *symbols) hashLongRefs(packed []byte) (h point.Hash, ok bool) {
	m := mixBegin()
	var first [2]uint32
	for i := 0; i < len(packed); {
		name, next, err := wire.Uvarint(packed, i)
		if err != nil {
			return h, false
		}
		value, next, err := wire.Uvarint(packed, next)
		if err != nil || !s.has(uint32(name)) || !s.has(uint32(value)) {
			return h, false
		}
		if i == 0 {
			first = [2]uint32{uint32(name), uint32(value)}
		} else {
			m.pair(s.hashes[uint32(name)], s.hashes[uint32(value)])
		}
		i = next
	}
	if len(packed) > 0 {
		m.pair(s.hashes[first[0]], s.hashes[first[1]])
	}
	return m.sum(), true
}

// refsFault returns the mistake in a list of references, or nil. Errors are Invalid.
func (s *symbols) refsFault(refs []uint32) error {
	if len(refs) > 2*point.LabelsMax {
		return fault.Errorf(fault.Invalid, "more than %d labels", point.LabelsMax)
	}
	if len(refs)%2 != 0 {
		return fault.Errorf(fault.Invalid, "%d label references; they come in pairs of name and value", len(refs))
	}
	for _, r := range refs {
		if !s.has(r) {
			return fault.Errorf(fault.Invalid, "label reference %d to a table of %d symbols", r, s.len())
		}
	}
	return nil
}

// plainName finds the symbol of a metric's name that stands first in references of one or two bytes.
func (s *symbols) plainName(packed []byte) (name uint32, ok bool) {
	key, next := shortRef(packed, 0)
	value, _ := shortRef(packed, next)
	ok = key == s.name && key != 0 && value < uint64(len(s.spans)) && len(s.at(uint32(value))) > 0
	return uint32(value), ok
}

var metricNameBytes = []byte(point.MetricName)

// isMetricName reports whether a symbol is __name__.
func (s *symbols) isMetricName(ref uint32) bool {
	return s.has(ref) && bytes.Equal(s.at(ref), metricNameBytes)
}
