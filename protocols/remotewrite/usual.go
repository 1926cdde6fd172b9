package remotewrite

import (
	"bytes"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

const (
	tagLabelName  = 1<<3 | wire.Bytes
	tagLabelValue = 2<<3 | wire.Bytes
)

// usualLabels is the same for labels by reference: even in number, at most LabelsMax, to symbols that are there.
func (s *symbols) usualLabels(dst []byte, refs []uint32) (labels []byte, ok bool) {
	if len(refs)%2 != 0 || len(refs) > 2*point.LabelsMax {
		return dst, false
	}
	var name []byte
	named, from := false, len(dst)
	for i := 0; i < len(refs); i += 2 {
		if !s.has(refs[i]) || !s.has(refs[i+1]) {
			return dst, false
		}
		next, value := s.at(refs[i]), s.at(refs[i+1])
		if len(next) == 0 || len(value) == 0 || len(next)|len(value) >= 0x80 || i > 0 && bytes.Compare(name, next) >= 0 {
			return dst, false
		}
		name = next
		named = named || string(next) == point.MetricName
		dst = append(append(dst, byte(len(next))), next...)
		dst = append(append(dst, byte(len(value))), value...)
	}
	return dst, named && utf8.Valid(dst[from:])
}

// usualLabels gives the canonical form of labels in the spelling that every known sender uses: name before value, both
// shorter than 128 bytes and not empty, sorted, whole UTF-8. It appends to dst, which the result shares. Anything else is
// left to the builder, which also knows what to say about it: ok is then false.
//
// A new series costs three times less this way than by way of the builder: most of a scrape's time when every series is
// new, as at the start of a partition.
func usualLabels(dst, raw []byte) (labels []byte, ok bool) {
	var name []byte
	named, from := false, len(dst)
	for n := 0; len(raw) > 0; n++ {
		// One label: tag, length, tag, length, name, tag, length, value.
		if len(raw) < 8 || raw[0] != tagLabel || raw[1] >= 0x80 || int(raw[1]) > len(raw)-2 {
			return dst, false
		}
		m := raw[2 : 2+raw[1]]
		raw = raw[2+len(m):]
		if len(m) < 6 || m[0] != tagLabelName || m[1] >= 0x80 || m[1] == 0 || int(m[1]) > len(m)-5 {
			return dst, false
		}
		next, rest := m[2:2+m[1]], m[2+m[1]:]
		if rest[0] != tagLabelValue || rest[1] >= 0x80 || rest[1] == 0 || int(rest[1]) != len(rest)-2 {
			return dst, false
		}
		if n >= point.LabelsMax || bytes.Compare(name, next) >= 0 {
			return dst, false
		}
		name = next
		named = named || string(next) == point.MetricName
		dst = append(append(dst, m[1:2+m[1]]...), rest[1:]...)
	}
	// Lengths below 128 are ASCII themselves, so that one look at the whole tells the same as one at each piece; a rune
	// cannot straddle a piece's end, because a length is no continuation byte.
	return dst, named && utf8.Valid(dst[from:])
}
