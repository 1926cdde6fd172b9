package partition

import (
	"math/bits"

	"github.com/spillwaydb/spillway/storage/series"
)

// numbering assigns refs numbers from 0 in the order in which it is first asked for them: open addressing over memory that
// is used again. A Go map made for each frame needed half of the time for which the partition's lock is held.
type numbering struct {
	slots []uint64     // ref, then number+1; 0: free; a power of two of them, at most half in use
	refs  []series.Ref // by number
}

const numberingMin = 64

// reset forgets all refs. Memory of a large frame is released at a small one.
func (n *numbering) reset() {
	if len(n.slots) > 16*(len(n.refs)+numberingMin) {
		*n = numbering{}
	}
	clear(n.slots)
	n.refs = n.refs[:0]
}

// number returns the number of ref, the next one if need be.
func (n *numbering) number(ref series.Ref) int {
	if 2*len(n.refs) >= len(n.slots) {
		n.grow()
	}
	i := n.home(ref)
	for ; n.slots[i] != 0; i = (i + 1) & (len(n.slots) - 1) {
		if series.Ref(n.slots[i]>>32) == ref {
			return int(uint32(n.slots[i])) - 1
		}
	}
	n.refs = append(n.refs, ref)
	n.slots[i] = uint64(ref)<<32 | uint64(len(n.refs))
	return len(n.refs) - 1
}

// home spreads refs, which mostly come in rows, by the golden ratio.
func (n *numbering) home(ref series.Ref) int {
	const golden = 0x9e3779b9
	return int(uint32(ref) * golden >> (33 - bits.Len32(uint32(len(n.slots)))))
}

func (n *numbering) grow() {
	n.slots = make([]uint64, max(numberingMin, 2*len(n.slots)))
	for number, ref := range n.refs {
		i := n.home(ref)
		for n.slots[i] != 0 {
			i = (i + 1) & (len(n.slots) - 1)
		}
		n.slots[i] = uint64(ref)<<32 | uint64(number+1)
	}
}
