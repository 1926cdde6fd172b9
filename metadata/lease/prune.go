package lease

// prune finds the partitions to be forgotten after a list of all rows; forgetOver forgets them.
func (m *Machine) prune() {
	m.watched = max(m.watched, m.floor) // older changes are ignored
	for _, e := range m.sorted() {
		if e.over() {
			m.over = append(m.over, e)
		}
	}
}

// Known is the number of partitions that the machine has an entry of: those with rows, an assignment, or something under way (I5).
func (m *Machine) Known() int { return len(m.entries) }

// over reports whether no rows or state of a partition are left, as far as we have seen.
func (e *entry) over() bool {
	return e.assigned == nil && !e.present() && e.born == 0 &&
		e.busy == 0 && !e.reread && !e.leading && !e.running && e.want == nil && !e.proving && !e.touched
}
