package series

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/point"
)

// SortByLabels sorts xs by their labels, in the order of point.Labels.Compare. It needs 16 bytes for each of xs while it runs.
//
// Comparing whole label sets costs 350 ns where they are not in the cache, and sorting a million does it 20 million times. So a set
// is read seven bytes at a time: all sets by their first seven bytes, those that agree by their next seven, until none agree. A
// million series of 12 labels: 4.4 µs a series by comparing, 1.1 µs by parts (DESIGN.md).
func SortByLabels[T ~uint32](xs []T, labels func(T) point.Labels) {
	if len(xs) < 2 {
		return
	}
	s := labelSorter{labels: func(x uint32) point.Labels { return labels(T(x)) }}
	keys := make([]labelKey, len(xs))
	for i, x := range xs {
		keys[i].x = uint32(x)
	}
	s.sort(keys, labelPlace{})
	for i := range keys {
		xs[i] = T(keys[i].x)
	}
}

type labelSorter struct{ labels func(uint32) point.Labels }

// labelKey is one element to sort, and the current part of its labels.
type labelKey struct {
	part uint64 // see labelPlace.part
	x    uint32
}

// labelPlace is where a part begins: done bytes into the string that has its length at byte at. Sets that agree in all
// parts before agree byte for byte. So the next part begins at the same place in all sets, and no key stores it.
type labelPlace struct{ at, done int }

const partBytes = 7

// part gives the next seven bytes of a name or a value, high bytes first, and in the low byte how many they are: partBytes+1 if
// the string goes on. 0 says that no label follows. So the order of parts is that of the strings.
func (p labelPlace) part(l point.Labels) uint64 {
	if p.at == len(l) {
		return 0
	}
	size, n := uvarint(l[p.at:])
	from := p.at + n + p.done
	left := size - p.done
	var word uint64
	if from+8 <= len(l) {
		word = binary.BigEndian.Uint64([]byte(l[from : from+8]))
	} else {
		var b [8]byte
		copy(b[:], l[from:])
		word = binary.BigEndian.Uint64(b[:])
	}
	if left > partBytes {
		return word&^0xff | (partBytes + 1)
	}
	return word&^(1<<(64-8*left)-1) | uint64(left)
}

// after gives the place behind a part.
func (p labelPlace) after(part uint64) labelPlace {
	n := int(part & 0xff)
	if n > partBytes {
		return labelPlace{p.at, p.done + partBytes}
	}
	size := p.done + n
	return labelPlace{at: p.at + uvarintLen(size) + size}
}

// sort sorts keys that agree in everything before a place.
func (s *labelSorter) sort(keys []labelKey, at labelPlace) {
	for len(keys) > 1 {
		differ := uint64(0)
		for i := range keys {
			keys[i].part = at.part(s.labels(keys[i].x))
			differ |= keys[i].part ^ keys[0].part
		}
		if differ != 0 {
			break
		}
		if keys[0].part == 0 {
			return // the same labels
		}
		at = at.after(keys[0].part)
	}
	slices.SortFunc(keys, func(a, b labelKey) int { return cmp.Compare(a.part, b.part) })
	for len(keys) > 0 {
		n := 1
		for n < len(keys) && keys[n].part == keys[0].part {
			n++
		}
		if n > 1 && keys[0].part != 0 {
			s.sort(keys[:n], at.after(keys[0].part))
		}
		keys = keys[n:]
	}
}

// uvarint reads a length of canonical labels.
func uvarint(l point.Labels) (v, n int) {
	for shift := 0; ; shift += 7 {
		c := l[n]
		v |= int(c&0x7f) << shift
		if n++; c < 0x80 {
			return v, n
		}
	}
}

func uvarintLen(v int) (n int) {
	for n = 1; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// Merge gives the elements of two ordered lists in order; of equal ones those of a first. It is quick where one is much shorter than
// the other: then it compares for each of the shorter a few times.
func Merge[T any](a, b []T, compare func(T, T) int) []T {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	out := make([]T, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		n := gallop(len(a), func(i int) bool { return compare(a[i], b[0]) > 0 })
		out, a = append(out, a[:n]...), a[n:]
		if len(a) == 0 {
			break
		}
		n = gallop(len(b), func(i int) bool { return compare(b[i], a[0]) >= 0 })
		out, b = append(out, b[:n]...), b[n:]
	}
	return append(append(out, a...), b...)
}

// gallop is sort.Search for an answer that is probably small.
func gallop(n int, f func(int) bool) int {
	lo, hi := 0, 1 // f is false below lo
	for hi <= n && !f(hi-1) {
		lo, hi = hi, 2*hi
	}
	hi = min(hi, n)
	return lo + sort.Search(hi-lo, func(i int) bool { return f(lo + i) })
}
