package point

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Labels is a label set in canonical form: pairs sorted by name, each name and each value preceded by its length as a
// uvarint. Equal sets are equal strings, so Labels can be a map key. The metric name is the label __name__.
type Labels string

// MetricName is the label that holds the metric's name.
const MetricName = "__name__"

// Limits of one label set. They bound the memory of a single series; they are no policy for users.
const (
	LabelsMax      = 256       // pairs
	LabelNameMax   = 1 << 10   // bytes
	LabelValueMax  = 64 << 10  // bytes
	LabelsBytesMax = 256 << 10 // bytes of a whole set
)

// LabelsRequestMax bounds the labels of series that are not known yet, written out, of one request: in remote write 2.0 any number of series can
// refer to one symbol of 64 KiB, those of an OTLP resource share its attributes, and fields of a line its tags. Series that are refused are
// written out each time. It is more than new series of one request could have memory for.
const LabelsRequestMax = 512 << 20

// Next cuts the first pair off; ok is false at the end and at malformed bytes.
func (l Labels) Next() (name, value string, rest Labels, ok bool) {
	name, s, ok := cutString(string(l))
	if !ok {
		return "", "", "", false
	}
	value, s, ok = cutString(s)
	return name, value, Labels(s), ok
}

func cutString(s string) (head, rest string, ok bool) {
	var n uint64
	for i := 0; i < len(s) && i < 5; i++ {
		c := s[i]
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			if uint64(len(s)-i-1) < n {
				return "", "", false
			}
			return s[i+1 : i+1+int(n)], s[i+1+int(n):], true
		}
	}
	return "", "", false
}

// Get returns the value of a label, or "".
func (l Labels) Get(name string) string {
	for {
		n, v, rest, ok := l.Next()
		if !ok || n > name {
			return ""
		}
		if n == name {
			return v
		}
		l = rest
	}
}

// Range calls f for each pair in order until f returns false.
func (l Labels) Range(f func(name, value string) bool) {
	for {
		n, v, rest, ok := l.Next()
		if !ok || !f(n, v) {
			return
		}
		l = rest
	}
}

// Len counts the pairs.
func (l Labels) Len() int {
	n := 0
	l.Range(func(string, string) bool { n++; return true })
	return n
}

// Compare orders label sets pair by pair, names before values, the shorter first: Prometheus' order, which is not the
// order of the encoded strings.
func (l Labels) Compare(o Labels) int {
	for {
		ln, lv, lrest, lok := l.Next()
		on, ov, orest, ook := o.Next()
		switch {
		case !lok && !ook:
			return 0
		case !lok:
			return -1
		case !ook:
			return 1
		}
		if c := strings.Compare(ln, on); c != 0 {
			return c
		}
		if c := strings.Compare(lv, ov); c != 0 {
			return c
		}
		l, o = lrest, orest
	}
}

// String prints {a="b", …}; for people, not for machines.
func (l Labels) String() string {
	var b strings.Builder
	b.WriteByte('{')
	l.Range(func(name, value string) bool {
		if b.Len() > 1 {
			b.WriteString(", ")
		}
		b.WriteString(name + "=" + strconv.Quote(value))
		return true
	})
	b.WriteByte('}')
	return b.String()
}

// Short is String, cut to 200 bytes: for the answer to a sender.
func (l Labels) Short() string {
	const most = 200
	s := l.String()
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Valid reports whether the string is one that Unnamed could have made: sorted, no name twice, no empty name or value,
// lengths in their shortest form, whole UTF-8, within the limits. Labels from a disk or a peer are so checked
// before they are trusted. A series needs a metric name as well: ValidSeries.
func (l Labels) Valid() bool {
	if len(l) > LabelsBytesMax {
		return false
	}
	prev, short := "", true // lengths below 128 are ASCII: then the UTF-8 of all pieces can be checked at once
	rest := string(l)
	for n := 0; len(rest) > 0; n++ {
		name, afterName, ok := cutString(rest)
		if !ok || name == "" || len(name) > LabelNameMax || n > 0 && name <= prev {
			return false
		}
		value, afterValue, ok := cutString(afterName)
		if !ok || value == "" || len(value) > LabelValueMax || n == LabelsMax {
			return false
		}
		if lengths := len(rest) - len(afterValue) - len(name) - len(value); lengths != 2 {
			if lengths != uvarintLen(len(name))+uvarintLen(len(value)) {
				return false
			}
			short = false
		}
		prev, rest = name, afterValue
	}
	return validPieces(l, short)
}

// validPieces checks the UTF-8 of each name and value. Where all lengths are below 128, each is a character of its own
// and cannot complete a rune that a piece left unfinished.
func validPieces(l Labels, short bool) bool {
	if short {
		return utf8.ValidString(string(l))
	}
	valid := true
	l.Range(func(name, value string) bool {
		valid = utf8.ValidString(name) && utf8.ValidString(value)
		return valid
	})
	return valid
}

// ValidSeries is Valid for the labels of a series: there must be a metric name.
func (l Labels) ValidSeries() bool { return l.Valid() && l.Get(MetricName) != "" }

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// RingPoint is the series' position on the ring: a hash of its whole label set. The function is part of the data on
// disk and in partition maps: it must never change.
func (l Labels) RingPoint() uint64 { return xxhash.Sum64String(string(l)) }

// LabelsBuilder collects pairs in any order and makes Labels. Reuse it by Reset; not for concurrent use.
type LabelsBuilder struct {
	pairs    []pair
	unsorted bool // a pair came after one of a greater or the same name
	buf      []byte
}

type pair struct{ name, value []byte }

// Reset forgets all pairs.
func (b *LabelsBuilder) Reset() { b.pairs, b.unsorted = b.pairs[:0], false }

// Add adds a pair. The bytes must stay as they are until Labels returns. An empty value means: no such label.
func (b *LabelsBuilder) Add(name, value []byte) {
	if len(value) == 0 {
		return
	}
	if n := len(b.pairs); n > 0 && bytes.Compare(b.pairs[n-1].name, name) >= 0 {
		b.unsorted = true
	}
	b.pairs = append(b.pairs, pair{name, value})
}

// Has reports whether a pair of that name was added.
func (b *LabelsBuilder) Has(name string) bool {
	return slices.ContainsFunc(b.pairs, func(p pair) bool { return string(p.name) == name })
}

// Labels sorts, checks and encodes the pairs. Errors are Invalid (empty or double name, bytes that are not UTF-8, no
// metric name, over a limit) and say which label. The result owns its memory.
func (b *LabelsBuilder) Labels() (Labels, error) {
	l, err := b.Unnamed()
	if err == nil && !b.Has(MetricName) {
		return "", fault.Errorf(fault.Invalid, "no metric name: label %s is missing", MetricName)
	}
	return l, err
}

// Unnamed is Labels for sets that need no metric name, such as those of exemplars.
func (b *LabelsBuilder) Unnamed() (Labels, error) {
	if b.unsorted {
		slices.SortStableFunc(b.pairs, func(x, y pair) int { return bytes.Compare(x.name, y.name) })
	}
	if len(b.pairs) > LabelsMax {
		return "", fault.Errorf(fault.Invalid, "%d labels, at most %d are taken", len(b.pairs), LabelsMax)
	}
	b.buf = b.buf[:0]
	short := true // see validPieces
	for i, p := range b.pairs {
		switch {
		case len(p.name) == 0:
			return "", fault.Errorf(fault.Invalid, "empty label name with value %q", p.value)
		case i > 0 && string(p.name) == string(b.pairs[i-1].name):
			return "", fault.Errorf(fault.Invalid, "label name %q appears twice", p.name)
		case len(p.name) > LabelNameMax:
			return "", fault.Errorf(fault.Invalid, "label name of %d bytes, at most %d are taken", len(p.name), LabelNameMax)
		case len(p.value) > LabelValueMax:
			return "", fault.Errorf(fault.Invalid, "label %q has a value of %d bytes, at most %d are taken", p.name, len(p.value), LabelValueMax)
		}
		short = short && len(p.name)|len(p.value) < 128
		b.buf = binary.AppendUvarint(b.buf, uint64(len(p.name)))
		b.buf = append(b.buf, p.name...)
		b.buf = binary.AppendUvarint(b.buf, uint64(len(p.value)))
		b.buf = append(b.buf, p.value...)
	}
	if len(b.buf) > LabelsBytesMax {
		return "", fault.Errorf(fault.Invalid, "labels of %d bytes, at most %d are taken", len(b.buf), LabelsBytesMax)
	}
	if !short || !utf8.Valid(b.buf) {
		if err := b.checkUTF8(); err != nil {
			return "", err
		}
	}
	return Labels(b.buf), nil
}

// Exemplar is Unnamed for the labels of an exemplar, which have a bound of their own.
func (b *LabelsBuilder) Exemplar() (Labels, error) {
	l, err := b.Unnamed()
	if err == nil && len(l) > ExemplarLabelsMax {
		return "", fault.Errorf(fault.Invalid, "labels of %d bytes, of an exemplar at most %d are taken", len(l), ExemplarLabelsMax)
	}
	return l, err
}

func (b *LabelsBuilder) checkUTF8() error {
	for _, p := range b.pairs {
		if !utf8.Valid(p.name) {
			return fault.Errorf(fault.Invalid, "label name %q is not UTF-8", p.name)
		}
		if !utf8.Valid(p.value) {
			return fault.Errorf(fault.Invalid, "label %q has a value that is not UTF-8", p.name)
		}
	}
	return nil
}

// MakeLabels builds Labels from name, value, name, value, …; for tests and fixed sets. It panics at a bad set.
func MakeLabels(pairs ...string) Labels {
	var b LabelsBuilder
	for i := 0; i+1 < len(pairs); i += 2 {
		b.Add([]byte(pairs[i]), []byte(pairs[i+1]))
	}
	l, err := b.Labels()
	if err != nil {
		fault.Bug("MakeLabels(%q): %v", pairs, err)
	}
	return l
}
