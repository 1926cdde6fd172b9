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

// canonical gives the canonical form of labels in the usual spelling of senders: sorted, with a metric name, names and values
// shorter than 128 bytes and not empty, whole UTF-8. Anything else is left to the builder, which also makes the errors.
//
// A new series costs three times less this way than by way of the builder: most of a scrape's time when every series is
// new, as at the start of a partition. And neighbours of one target differ in one or two labels at the front: where the
// rest of the labels as sent is the end of those sent before, its canonical form is the end of the form before.
type canonical struct {
	raw    []byte // labels that were given before, as they were sent
	starts []labelStart
	named  int // the one that is the metric name
	spare  []labelStart
}

// labelStart is where a label begins: in bytes before the end of all labels, as they were sent and in canonical form.
type labelStart struct{ raw, text int }

// reset forgets the labels given before.
func (c *canonical) reset() { c.raw, c.starts = nil, c.starts[:0] }

// labels appends the canonical form of raw to dst, or leaves something there and reports that raw is spelled otherwise. Right
// before it stand the labels given before, if there are any since reset; the raw form of those must not have changed.
// read gives the first label of its argument and its length, 0 if it is spelled otherwise.
func (c *canonical) labels(dst, raw []byte, read func([]byte) (name, value []byte, n int)) (text []byte, ok bool) {
	c.spare = c.spare[:0]
	from, named, same := len(dst), -1, 0
	var last []byte
	rest := raw // to be read, or the end of the raw labels before
	for len(rest) > 0 {
		name, value, n := read(rest)
		if n == 0 || len(name) == 0 || len(value) == 0 || len(name)|len(value) >= 0x80 || bytes.Compare(last, name) >= 0 {
			return dst, false
		}
		for same < len(c.starts) && c.starts[same].raw > len(rest) {
			same++
		}
		if same < len(c.starts) && c.starts[same].raw == len(rest) && bytes.HasSuffix(c.raw, rest) {
			break
		}
		if string(name) == point.MetricName {
			named = len(c.spare)
		}
		c.spare = append(c.spare, labelStart{len(rest), len(dst) - from})
		dst = append(append(dst, byte(len(name))), name...)
		dst = append(append(dst, byte(len(value))), value...)
		last, rest = name, rest[n:]
	}
	// Lengths below 128 are ASCII themselves, so that one check of the whole is as good as one of each piece; a rune
	// cannot straddle a piece's end, because a length is no continuation byte.
	if !utf8.Valid(dst[from:]) {
		return dst, false
	}
	if len(rest) > 0 {
		dst = append(dst, dst[from-c.starts[same].text:from]...)
	}
	for i := range c.spare {
		c.spare[i].text = len(dst) - from - c.spare[i].text
	}
	if len(rest) > 0 {
		if named < 0 && c.named >= same {
			named = len(c.spare) + c.named - same
		}
		c.spare = append(c.spare, c.starts[same:]...)
	}
	if named < 0 || len(c.spare) > point.LabelsMax {
		return dst, false
	}
	c.raw, c.named = raw, named
	c.starts, c.spare = c.spare, c.starts
	return dst, true
}

// plainLabel reads a label of a 1.0 request: tag, length, tag, length, name, tag, length, value.
func plainLabel(raw []byte) (name, value []byte, n int) {
	if len(raw) < 8 || raw[0] != tagLabel || raw[1] >= 0x80 || int(raw[1]) > len(raw)-2 {
		return nil, nil, 0
	}
	m := raw[2 : 2+raw[1]]
	if len(m) < 6 || m[0] != tagLabelName || m[1] >= 0x80 || int(m[1]) > len(m)-5 {
		return nil, nil, 0
	}
	name, value = m[2:2+m[1]], m[4+m[1]:]
	if m[2+m[1]] != tagLabelValue || m[3+m[1]] >= 0x80 || int(m[3+m[1]]) != len(value) {
		return nil, nil, 0
	}
	return name, value, 2 + len(m)
}

// plainLabel reads a label of a 2.0 request: the references of its name and value.
func (s *symbols) plainLabel(packed []byte) (name, value []byte, n int) {
	nameRef, i := shortRef(packed, 0)
	valueRef, n := shortRef(packed, i)
	if nameRef|valueRef >= badRef { // a large table
		var err error
		if nameRef, i, err = wire.Uvarint(packed, 0); err == nil {
			valueRef, n, err = wire.Uvarint(packed, i)
		}
		if err != nil {
			return nil, nil, 0
		}
	}
	if nameRef >= uint64(len(s.spans)) || valueRef >= uint64(len(s.spans)) {
		return nil, nil, 0
	}
	return s.at(uint32(nameRef)), s.at(uint32(valueRef)), n
}
