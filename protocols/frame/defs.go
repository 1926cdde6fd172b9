package frame

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Definitions that stand beside one another are mostly those of one host: they differ in the metric name, which is in
// front, and share the rest. Each is written without the tail that it shares with the one before, so that s2 has a
// fifth of the text to read (DESIGN.md).

//
// The lengths of all definitions come first, and the remaining bytes of all behind them: of hosts with the same metrics both repeat,
// host by host, and s2 copies the whole of a host at once. Side by side they do not repeat where a host's name is longer.

// The approximate bytes left of a definition where tails are shared. Where they are not, the body grows as needed.
const (
	defBytesTypical = 40
	lengthsTypical  = 4
)

func (e *Encoder) appendDefs(b []byte, defs []point.Labels) []byte {
	b = slices.Grow(b, len(defs)*defBytesTypical)
	rests := slices.Grow(e.rests[:0], len(defs)*(defBytesTypical-lengthsTypical))
	prev, tail := point.Labels(""), 0
	for _, l := range defs {
		tail = sharedTail(string(prev), string(l), tail-tailSlack)
		rest := l[:len(l)-tail]
		b = binary.AppendUvarint(b, uint64(tail))
		b = binary.AppendUvarint(b, uint64(len(rest)))
		rests = append(rests, rest...)
		prev = l
	}
	e.rests = rests
	return append(b, rests...)
}

// defsBound is at least the length of appendDefs' output, as no tail needs more bytes than it saves, and at least the
// expanded length.
func defsBound(defs []point.Labels) int {
	n := 0
	for _, l := range defs {
		n += len(l) + 5
	}
	return n
}

// tailSlack is by how many bytes the tails of one host's series differ: the bytes that the ends of metric names share.
const tailSlack = 16

// sharedTail counts the bytes that two strings have in common at their ends, eight at a time. It first compares the likely
// number of bytes at once, in a third of the time where the text is not in the cache (DESIGN.md); likely may be
// wrong.
func sharedTail(a, b string, likely int) int {
	n := 0
	if likely > 0 && likely <= min(len(a), len(b)) && a[len(a)-likely:] == b[len(b)-likely:] {
		n = likely
	}
	x, y := []byte(a[:len(a)-n]), []byte(b[:len(b)-n]) // not copied, as they are never written
	for len(x) >= 8 && len(y) >= 8 {
		differ := binary.LittleEndian.Uint64(x[len(x)-8:]) ^ binary.LittleEndian.Uint64(y[len(y)-8:])
		if differ != 0 {
			return n + bits.LeadingZeros64(differ)/8 // the last byte is the highest
		}
		x, y, n = x[:len(x)-8], y[:len(y)-8], n+8
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y, n = x[:len(x)-1], y[:len(y)-1], n+1
	}
	return n
}

// defs copies each label set into a string of its own: the log's readers keep a few strings for ever and most not at all.
// Without columns the rest of each stands beside its lengths, and without tails every set is stored whole, as older writers
// did.
//
// Two bytes can stand for a set of any length: the expanded size of all sets is counted before memory is allocated.
//
// Joined definitions are parts of one string instead: one allocation, which stays as long as any definition is used.
func (r *reader) defs(defs []point.Labels, h *Head) {
	lengths := r
	if h.columns {
		of := *r
		for range 2 * len(defs) {
			r.uvarint()
		}
		of.end, lengths = r.at, &of
	}
	prev, room := 0, BodyMax // prev: the length of the definition before
	for i := range defs {
		tail := 0
		if h.tails {
			tail = lengths.tail(prev)
		}
		rest := r.part(lengths.uvarint())
		prev = len(rest) + tail
		if room -= prev; room < 0 {
			r.fail("the definitions expand to too much")
			return
		}
		if r.join {
			r.joined = append(append(r.joined, rest...), r.joined[len(r.joined)-tail:]...)
			r.ends = append(r.ends, len(r.joined))
		} else {
			shared := point.Labels("")
			if tail > 0 {
				shared = defs[i-1][len(defs[i-1])-tail:]
			}
			defs[i] = joined(rest, shared)
			r.checkDef(defs[i])
		}
		if lengths.err != nil {
			r.err = lengths.err
		}
		if r.err != nil {
			return
		}
	}
	if r.join {
		r.split(defs)
	}
}

// split gives each definition its part of the joined string.
func (r *reader) split(defs []point.Labels) {
	all, from := string(r.joined), 0
	for i, end := range r.ends {
		defs[i] = point.Labels(all[from:end])
		from = end
		r.checkDef(defs[i])
	}
	if cap(r.joined) > scratchKept {
		r.joined = nil
	}
}

func (r *reader) checkDef(l point.Labels) {
	if !r.known && !l.ValidSeries() {
		r.fail("the labels of a definition are malformed")
	}
}

// tail reads how many bytes a definition shares with the one before, of a length.
func (r *reader) tail(prev int) int {
	n := r.uvarint()
	if n > uint64(prev) {
		r.fail("a definition shares more than there is")
		return 0
	}
	return int(n)
}

// joined is one string, allocated once.
func joined(rest []byte, tail point.Labels) point.Labels {
	var b strings.Builder
	b.Grow(len(rest) + len(tail))
	b.Write(rest)
	b.WriteString(string(tail))
	return point.Labels(b.String())
}
