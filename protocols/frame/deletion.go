package frame

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Deletion hides the rows in [Lo, Hi] of the series that fulfil all matchers, if the partition accepted them before the deletion;
// later rows stay, whatever their time.
type Deletion struct {
	Matchers []Matcher   `json:"matchers"`
	Lo       point.Nanos `json:"lo"`
	Hi       point.Nanos `json:"hi"`
}

// Matcher is a condition on one label. Type is 0 =, 1 !=, 2 =~, 3 !~.
type Matcher struct {
	Type        uint8
	Name, Value string
}

const (
	// DeletionBytesMax bounds an encoded deletion.
	DeletionBytesMax = 64 << 10

	matcherBytesMin = 3
)

// Check says why a deletion cannot be encoded: TooLarge, or Invalid.
func (d *Deletion) Check() error {
	for _, m := range d.Matchers {
		if m.Type > 3 {
			return fault.Errorf(fault.Invalid, "matcher on %q of type %d", m.Name, m.Type)
		}
	}
	if n := len(AppendDeletion(nil, d)); n > DeletionBytesMax {
		return fault.Errorf(fault.TooLarge, "a deletion of %d bytes, at most %d are taken", n, DeletionBytesMax)
	}
	return nil
}

// AppendDeletion appends the encoding of d: FORMAT.md.
func AppendDeletion(b []byte, d *Deletion) []byte {
	b = binary.AppendVarint(b, d.Lo)
	b = binary.AppendVarint(b, d.Hi)
	b = binary.AppendUvarint(b, uint64(len(d.Matchers)))
	for _, m := range d.Matchers {
		b = append(b, m.Type)
		b = binary.AppendUvarint(b, uint64(len(m.Name)))
		b = append(b, m.Name...)
		b = binary.AppendUvarint(b, uint64(len(m.Value)))
		b = append(b, m.Value...)
	}
	return b
}

// ParseDeletion reads the output of AppendDeletion, and nothing else. Errors are Corrupt. It keeps nothing of b.
func ParseDeletion(b []byte) (Deletion, error) {
	if len(b) > DeletionBytesMax {
		return Deletion{}, fault.Errorf(fault.Corrupt, "a deletion of %d bytes, at most %d are written", len(b), DeletionBytesMax)
	}
	r := reader{padded: append(append(make([]byte, 0, len(b)+padding), b...), make([]byte, padding)...), end: len(b)}
	d := Deletion{Lo: unzigzag(r.uvarint()), Hi: unzigzag(r.uvarint())}
	n := r.count(DeletionBytesMax, matcherBytesMin)
	for i := 0; i < n && r.err == nil; i++ {
		m := Matcher{}
		if t := r.take(1); t != nil {
			m.Type = t[0]
		}
		m.Name, m.Value = string(r.bytes()), string(r.bytes())
		if m.Type > 3 {
			r.fail("a matcher has an unknown type")
		}
		d.Matchers = append(d.Matchers, m)
	}
	if r.left() > 0 {
		r.fail("bytes follow the last matcher")
	}
	return d, r.err
}
