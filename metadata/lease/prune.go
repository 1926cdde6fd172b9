package lease

// prune looks after a list of all rows which partitions are to be forgotten; forgetOver does so.
func (m *Machine) prune() {
	m.watched = max(m.watched, m.floor) // what is older is no news
	for _, e := range m.sorted() {
		if e.over() {
			m.over = append(m.over, e)
		}
	}
}

// over reports whether nothing is left of a partition, as far as we know.
func (e *entry) over() bool {
	return e.assigned == nil && !e.present() && e.born == 0 &&
		e.busy == 0 && !e.reread && !e.leading && !e.running && e.want == nil && !e.proving && !e.touched
}
