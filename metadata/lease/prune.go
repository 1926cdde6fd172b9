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

// over reports whether no rows or state of a partition are left, as far as we have seen.
func (e *entry) over() bool {
	return e.assigned == nil && !e.present() && e.born == 0 &&
		e.busy == 0 && !e.reread && !e.leading && !e.running && e.want == nil && !e.proving && !e.touched
}
