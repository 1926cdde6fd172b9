package point

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// RingRule says which labels of a series decide where it lies on the ring of its table (C95). The zero rule: all, so that series are spread evenly. By any
// other rule series with the same *prefix*, which are the values of the rule's labels or the beginnings of these, lie beside one another:
//
//	ring point = ┌───────── 32 bits ─────────┬────────── 32 bits ──────────┐
//	             │ hash of the prefix        │ hash of the whole label set │
//	             └───────────────────────────┴─────────────────────────────┘
//
// So a query that names a prefix concerns one column of the ring, mostly one server; and series of one prefix that are too many for one server can still be
// cut apart. A series with none of the labels lies by its whole label set alone.
//
// The function of a rule is part of the data on disk and in partition maps: it must never change. Rules are values; == compares them.
type RingRule struct {
	parts [RingLabelsMax]ringPart
}

// RingLabelsMax bounds the labels of a rule.
const RingLabelsMax = 4

// ringPrefixMax bounds a part's length in bytes and its number of separators.
const ringPrefixMax = 255

// ringPart is a label of a rule, and how much of its value counts. At most one of bytes and seps is set; neither: all of it.
type ringPart struct {
	label string
	bytes uint8 // the first so many bytes
	sep   byte  // up to the separator number seps; all of a value that has fewer
	seps  uint8
}

// ParseRingRule reads a rule as String writes it: labels separated by commas, each with the part of its value that counts. "" is the zero rule.
//
//	host        the whole value of host
//	host,job    of both
//	path:8      the first eight bytes
//	path:/      up to the first slash
//	path:/2     up to the second one
//
// Labels whose names contain a comma or colon cannot be in a rule. Errors are Invalid.
func ParseRingRule(s string) (RingRule, error) {
	var r RingRule
	if s == "" {
		return r, nil
	}
	for i, text := range strings.Split(s, ",") {
		if i == RingLabelsMax {
			return RingRule{}, fault.Errorf(fault.Invalid, "ring rule %q has more than %d labels", s, RingLabelsMax)
		}
		p, err := parseRingPart(text)
		if err != nil {
			return RingRule{}, fault.Wrap(err, fault.Invalid, "ring rule %q", s)
		}
		for _, other := range r.parts[:i] {
			if other.label == p.label {
				return RingRule{}, fault.Errorf(fault.Invalid, "ring rule %q names the label %q twice", s, p.label)
			}
		}
		r.parts[i] = p
	}
	return r, nil
}

func parseRingPart(s string) (ringPart, error) {
	label, cut, has := strings.Cut(s, ":")
	p := ringPart{label: label}
	switch {
	case label == "" || len(label) > LabelNameMax:
		return p, fault.Errorf(fault.Invalid, "%q has no label name of 1 to %d bytes", s, LabelNameMax)
	case !has:
		return p, nil
	case cut == "":
		return p, fault.Errorf(fault.Invalid, "after %q comes a number of bytes, or a separator", s)
	}
	if cut[0] >= '0' && cut[0] <= '9' {
		n, err := strconv.ParseUint(cut, 10, 8)
		if err != nil || n == 0 || cut[0] == '0' {
			return p, fault.Errorf(fault.Invalid, "%q: a number of bytes is 1 to %d", s, ringPrefixMax)
		}
		p.bytes = uint8(n)
		return p, nil
	}
	p.sep, p.seps = cut[0], 1
	if p.sep <= ' ' || p.sep >= 0x7f {
		return p, fault.Errorf(fault.Invalid, "%q: a separator is one printable character of ASCII", s)
	}
	if rest := cut[1:]; rest != "" {
		n, err := strconv.ParseUint(rest, 10, 8)
		if err != nil || n < 2 || rest[0] == '0' {
			return p, fault.Errorf(fault.Invalid, "%q: after the separator comes how many of them count, 2 to %d, or nothing", s, ringPrefixMax)
		}
		p.seps = uint8(n)
	}
	return p, nil
}

// String is the rule as ParseRingRule reads it; "" for the zero rule.
func (r RingRule) String() string {
	var b strings.Builder
	for _, p := range r.used() {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p.label)
		switch {
		case p.bytes > 0:
			b.WriteString(":" + strconv.Itoa(int(p.bytes)))
		case p.seps == 1:
			b.WriteString(":" + string(rune(p.sep)))
		case p.seps > 1:
			b.WriteString(":" + string(rune(p.sep)) + strconv.Itoa(int(p.seps)))
		}
	}
	return b.String()
}

// IsZero reports whether the whole label set decides.
func (r *RingRule) IsZero() bool { return r.parts[0].label == "" }

// Labels are the rule's labels.
func (r *RingRule) Labels() []string {
	var names []string
	for _, p := range r.used() {
		names = append(names, p.label)
	}
	return names
}

func (r *RingRule) used() []ringPart {
	for i := range r.parts {
		if r.parts[i].label == "" {
			return r.parts[:i]
		}
	}
	return r.parts[:]
}

// cut returns the part of a value that counts.
func (p *ringPart) cut(value string) string {
	if p.bytes > 0 {
		return value[:min(len(value), int(p.bytes))]
	}
	if p.seps == 0 {
		return value
	}
	at := 0
	for range p.seps {
		i := strings.IndexByte(value[at:], p.sep)
		if i < 0 {
			return value
		}
		at += i + 1
	}
	return value[:at-1]
}

// Point is the ring point of a series. It allocates nothing.
func (r *RingRule) Point(l Labels) uint64 {
	whole := l.RingPoint()
	if r.IsZero() {
		return whole
	}
	var buf [256]byte
	prefix, some := buf[:0], false
	for i := range r.used() {
		p := &r.parts[i]
		v := l.Get(p.label)
		some = some || v != ""
		prefix = appendRingPart(prefix, p.cut(v))
	}
	if !some {
		return whole
	}
	return ringRange(prefix).Lo | whole&(1<<32-1)
}

func appendRingPart(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Prefix describes the prefix of a series for people: the rule's labels with the parts of their values that count; "" if it has none of them.
func (r *RingRule) Prefix(l Labels) string {
	var b strings.Builder
	for _, p := range r.used() {
		v := l.Get(p.label)
		if v == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.label + "=" + strconv.Quote(p.cut(v)))
	}
	return b.String()
}

// RingRange is a range of the ring, both ends included.
type RingRange struct{ Lo, Hi uint64 }

// Overlaps reports whether the range shares points with [lo, hi), where a hi of 0 means 2^64.
func (r RingRange) Overlaps(lo, hi uint64) bool { return r.Hi >= lo && (hi == 0 || r.Lo < hi) }

func ringRange(prefix []byte) RingRange {
	lo := xxhash.Sum64(prefix) &^ (1<<32 - 1)
	return RingRange{lo, lo | (1<<32 - 1)}
}

// Range is where all series lie that have the labels' values that of returns; ok is false if these can lie anywhere: the rule is zero, or of returns no value, or
// an empty one, for one of its labels.
func (r *RingRule) Range(of func(label string) (value string, known bool)) (at RingRange, ok bool) {
	var buf [256]byte
	prefix := buf[:0]
	for i := range r.used() {
		p := &r.parts[i]
		v, known := of(p.label)
		if !known || v == "" {
			return RingRange{}, false
		}
		prefix = appendRingPart(prefix, p.cut(v))
	}
	return ringRange(prefix), !r.IsZero()
}
