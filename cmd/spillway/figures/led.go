package figures

import "github.com/spillwaydb/spillway/gateway/ui"

// Led adds up the partitions that each server leads.
type Led map[string]*ledSum

type ledSum struct {
	partitions, unknown, damaged int
	bytes                        uint64
}

// Add counts a partition to the server that leads it.
func (l Led) Add(p *ui.Partition) {
	s := l[p.Leader]
	if s == nil {
		s = &ledSum{}
		l[p.Leader] = s
	}
	s.partitions++
	if p.Bytes == nil {
		s.unknown++
		return
	}
	s.bytes += *p.Bytes
	if p.Damaged != "" {
		s.damaged++
	}
}

// AddTo adds the partitions that a server leads to its status; sizes stay unknown if one of these is.
func (l Led) AddTo(to *ui.Server) {
	s := l[to.ID]
	if s == nil {
		s = &ledSum{}
	}
	to.Leads = s.partitions
	if s.unknown == 0 {
		to.Bytes, to.Damaged = &s.bytes, &s.damaged
	}
}
