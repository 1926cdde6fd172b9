package server

import (
	"math/bits"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// numbers gives series the numbers 0, 1, 2 … in the order in which they are first asked for. A map did the same at three times the price: here a reset needs
// constant time, and a place is found without a call. The zero value is ready.
//
// A slot counts only if its turn is the present one, so reset is turn++ and no slot is written. Example: slots of 1,024
// have shift 22, so ref 1 lies at (1 · 0x9e3779b1) >> 22 = 632, and the next ref that hashes there at 633.
type numbers struct {
	slots []slot // open addressing, at most half full; a power of two
	shift int    // from a hash to a place
	n     int
	turn  uint32 // slots of earlier turns are empty
}

type slot struct {
	ref    series.Ref
	turn   uint32
	number point.DenseID
}

const numbersMin = 1 << 10

// of returns the number of a series, and whether it had one.
// At most half full, so that find ends soon, and always ends.
func (t *numbers) of(ref series.Ref) (n point.DenseID, known bool) {
	if 2*t.n >= len(t.slots) {
		t.grow()
	}
	s := t.find(ref)
	if s.turn == t.turn {
		return s.number, true
	}
	*s = slot{ref, t.turn, point.DenseID(t.n)}
	t.n++
	return s.number, false
}

// find returns the place of a series, or an empty one for it.
func (t *numbers) find(ref series.Ref) *slot {
	for at := uint32(ref) * 0x9e3779b1 >> t.shift; ; at = (at + 1) & uint32(len(t.slots)-1) {
		if s := &t.slots[at]; s.turn != t.turn || s.ref == ref {
			return s
		}
	}
}

func (t *numbers) grow() {
	old, turn := t.slots, t.turn
	t.slots = make([]slot, max(2*len(old), numbersMin))
	// Len(1,023) is 10: the highest 10 bits of the product are the place. Turn 0 is that of slots never written.
	t.shift, t.turn = 32-bits.Len(uint(len(t.slots)-1)), max(turn, 1)
	for _, s := range old {
		if s.turn == turn && turn > 0 {
			*t.find(s.ref) = s
		}
	}
}

// reset forgets all numbers.
func (t *numbers) reset() {
	t.n = 0
	if t.turn++; t.turn == 0 { // slots of four billion turns ago would count again
		*t = numbers{}
	}
}
