package lease

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// A placement with damaged files is not read, and where the damage was found by a start it accepts no rows until another has sent the bytes. So it leaves a lease to a listed
// placement that is whole, as far as heartbeats show, for a while; then it acquires that lease, so that the partition is led.
//
//	files damaged ──Damaged──▶ our heartbeat row ──▶ others: no one to wait for, and no target for a partition
//	                       ├─▶ a row of an earlier boot of ours is released while a candidate is whole: others need not wait until it is silent
//	                       └─▶ our turn comes damagedWait OverWaits later while a candidate is whole

// damaged are the partitions with damaged files here.
type damaged struct {
	here map[Partition]bool
	said []string // those in our heartbeat row
}

const (
	// damagedWait is how much longer, in OverWaits, a damaged placement waits for a whole one: longer than such a one waits for others, unless it is far above its share.
	damagedWait = 4
	// damagedMax bounds the partitions that a heartbeat row names: others wait for those left out a TurnStep each.
	damagedMax = 256
)

func (m *Machine) setDamaged(all []Partition) {
	here := make(map[Partition]bool, len(all))
	for _, p := range all {
		here[p] = true
	}
	for _, e := range m.sorted() {
		if here[e.p] != m.damaged.here[e.p] {
			m.touch(e)
		}
	}
	all = slices.SortedFunc(slices.Values(all), comparePartitions)
	said := make([]string, 0, min(len(all), damagedMax))
	for _, p := range all[:min(len(all), damagedMax)] {
		said = append(said, p.String())
	}
	if !slices.Equal(said, m.damaged.said) {
		m.beat.next = m.now
	}
	m.damaged = damaged{here, said}
}

// isDamaged reports whether a server has said that its placement of a partition is damaged.
func (m *Machine) isDamaged(e *entry, s topology.ServerID) bool {
	if s == m.self.Server {
		return m.damaged.here[e.p]
	}
	b := m.beats[s]
	return b != nil && len(b.beat.Damaged) > 0 && slices.Contains(b.beat.Damaged, e.p.String())
}

// wholeElsewhere reports whether another placement could acquire a partition now that is not known to be damaged.
func (m *Machine) wholeElsewhere(e *entry, members []Member) bool {
	return slices.ContainsFunc(members, func(c Member) bool { return m.candidate(e, c) && !m.isDamaged(e, c.Server) })
}
