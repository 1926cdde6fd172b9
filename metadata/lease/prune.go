package lease

import "slices"

// prune forgets partitions that are nobody's business here any more: dropped, merged or moved away, with no row left in
// the store. It runs after a list of all rows: what is older than that list is no news (floor), so that nothing from before
// can bring a forgotten row back.
//
// Invariant: I5 (after a list, entries are of partitions that are assigned, have rows, or have something under way).
func (m *Machine) prune() {
	m.order = slices.DeleteFunc(m.order, func(p Partition) bool {
		e := m.entries[p]
		gone := e.over() && e.asOf <= m.floor && e.bornAsOf <= m.floor
		if gone {
			delete(m.entries, p)
		}
		return gone
	})
}

// over reports whether nothing is left of a partition, as far as we know.
func (e *entry) over() bool {
	return e.assigned == nil && !e.present() && e.born == 0 &&
		e.busy == 0 && !e.reread && !e.leading && !e.running && e.want == nil
}
