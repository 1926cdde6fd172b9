package master

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// copying follows the placements that are being filled with rows, whatever for, from plan to plan of one master. It is pure.
type copying struct {
	since map[copyOf]point.Nanos // when each was seen first
	// progress is when one of them was last whole or abandoned, or the first of them was seen.
	progress point.Nanos
}

// copyOf is a placement of a partition.
type copyOf struct {
	lease.Partition
	topology.Placement
}

// underWay describes the copies that are not whole yet. Times mean nothing where Placements is 0.
type underWay struct {
	Placements       int
	Bytes            int64 // of their partitions
	Oldest, Progress point.Nanos
}

// look records a state.
func (c *copying) look(s *State, set Settings) (all underWay) {
	v, now := newIndex(*s, set), map[copyOf]point.Nanos{}
	all.Oldest = s.Now
	for _, m := range v.Tables {
		for p := range m.All() {
			key := lease.Partition{Table: m.Table, ID: p.ID}
			for _, pl := range p.Joining {
				if v.lists(key, pl) || v.Empty(key) {
					continue
				}
				id := copyOf{key, pl}
				if now[id] = s.Now; c.since[id] != 0 {
					now[id] = c.since[id]
				}
				all.Placements, all.Bytes, all.Oldest = all.Placements+1, all.Bytes+v.Sizes[key].Bytes, min(all.Oldest, now[id])
			}
		}
	}
	ended := len(c.since) == 0
	for id := range c.since {
		ended = ended || now[id] == 0
	}
	if ended {
		c.progress = s.Now
	}
	c.since, all.Progress = now, c.progress
	return all
}
