package topology

import (
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Check reports the first broken invariant: form and places of each partition, order, ids, and that those that accept
// writes do not overlap (I2). Maps read from a store are checked with it, in O(n log n); ops preserve the invariants step by step. Errors
// are Corrupt.
func (m *Map) Check() error {
	corrupt := func(err error) error { return fault.Wrap(err, fault.Corrupt, "table %q seq %d", m.Table, m.Seq) }
	if err := validName("table", m.Table); err != nil {
		return corrupt(err)
	}
	if err := m.Config.Validate(); err != nil {
		return corrupt(err)
	}
	for i := range m.Layouts {
		if err := m.Layouts[i].valid(); err != nil {
			return corrupt(err)
		}
		if i > 0 && m.Layouts[i-1].From >= m.Layouts[i].From {
			return fault.Errorf(fault.Corrupt, "table %q: layouts are out of order at %s", m.Table, stamp(m.Layouts[i].From))
		}
	}
	if n := m.Len(); n > PartitionsMax || len(m.Layouts) > LayoutsMax {
		return fault.Errorf(fault.Corrupt, "table %q has %d partitions and %d layouts, at most %d and %d are possible", m.Table, n, len(m.Layouts), PartitionsMax, LayoutsMax)
	}
	if m.byID.n != m.byTime.n {
		return fault.Errorf(fault.Corrupt, "table %q: an id is used twice", m.Table)
	}
	pending := map[point.PartitionID]bool{}
	var live sweep
	var last *Partition
	for p := range m.All() {
		if err := p.valid(); err != nil {
			return corrupt(err)
		}
		if last != nil && last.box().compare(p.box()) >= 0 {
			return fault.Errorf(fault.Corrupt, "table %q: partitions are out of order at %s", m.Table, name(p.ID))
		}
		last = p
		ids := append([]point.PartitionID{p.ID}, p.Into...)
		if p.Split != nil {
			for _, c := range []point.PartitionID{p.Split.Low.ID, p.Split.High.ID} {
				if _, ok := m.ByID(c); ok || pending[c] {
					return fault.Errorf(fault.Corrupt, "table %q: id %s of a child is used twice", m.Table, name(c))
				}
				pending[c] = true
				ids = append(ids, c)
			}
		}
		for _, id := range ids {
			if id == 0 || id >= m.NextID {
				return fault.Errorf(fault.Corrupt, "table %q: id %s was never given out", m.Table, name(id))
			}
		}
		if p.Accepts() {
			if q := live.meet(p); q != nil {
				return fault.Errorf(fault.Corrupt, "table %q: %s and %s overlap (I2)", m.Table, name(q.ID), name(p.ID))
			}
		}
	}
	return nil
}

// sweep goes up in time and holds, by ring, the partitions that reach up to where it is.
type sweep struct{ open []*Partition }

// meet adds the next partition and returns one that it overlaps.
func (s *sweep) meet(p *Partition) *Partition {
	b := p.box()
	i := sort.Search(len(s.open), func(i int) bool { return s.open[i].PointLo > p.PointLo })
	// Those that overlap p lie around i; others there that ended are removed, so that a neighbour is met once.
	from := i
	for from > 0 {
		q := s.open[from-1]
		if o := q.box(); o.overlaps(&b) {
			return q
		}
		if q.TimeHi > p.TimeLo {
			break // open ones do not overlap: nothing further down reaches over it
		}
		from--
	}
	to := i
	for to < len(s.open) && (p.PointHi == 0 || s.open[to].PointLo < p.PointHi) {
		q := s.open[to]
		if o := q.box(); o.overlaps(&b) {
			return q
		}
		to++ // it lies within p's ring range and does not overlap: it ended
	}
	s.open = slices.Replace(s.open, from, to, p)
	return nil
}
