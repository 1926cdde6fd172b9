package chain

import "slices"

// spared reports whether a placement is on a slow disk, and enough others keep each row in its place: then it leaves the chain, and is not added. It goes on getting frames, so that
// it is added as soon as its disk is well, or one of the others fails. Before it leaves it is made sure no more, so that no row waits until it is unsure.
func (m *Machine) spared(x Member) bool {
	h := &m.head
	if len(h.slow) == 0 || !slices.Contains(h.slow, x) || slices.Contains(h.slow, m.self) {
		return false
	}
	quick := 1
	for _, o := range m.order[1:] {
		if o != x && m.counted(o) && !slices.Contains(h.slow, o) && !m.silent(m.peer(o)) && !m.peer(o).leaving {
			quick++
		}
	}
	return quick >= max(h.min, sparedMin)
}

// sparedMin is how many other copies there must be: a disk may be slow for days, and then one copy alone is not enough, even where a person accepts it for the time of a failure.
const sparedMin = 2
