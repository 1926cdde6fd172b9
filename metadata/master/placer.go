package master

import (
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Placer chooses the servers of partitions that a process makes itself, because a write came for a time that nothing
// covers: by the same rules as the master's plans. All methods are safe for concurrent use.
type Placer struct {
	// Constant after NewPlacer.
	look     func() State
	replicas func(table string) int
	set      Settings

	mu struct {
		sync.Mutex
		view *view
		at   time.Time
	}
}

// placerAge is how long a Placer uses a view of the cluster. It counts the placements that it hands out meanwhile itself.
const placerAge = time.Second

// NewPlacer makes one. look gives tables and servers; leases and sizes may be missing. replicas is how many placements a partition of a
// table has by its newest map, and costs a look-up: a table may be newer than what look gave, and a look is at all partitions, so that each
// new table must not need one.
func NewPlacer(look func() State, replicas func(table string) int, set Settings) *Placer {
	set.SetDefaults()
	return &Placer{look: look, replicas: replicas, set: set}
}

// Place gives the servers of a new partition in chain order: as many as the table wants, or as live. None: no live
// server could hold it.
func (p *Placer) Place(table string, id point.PartitionID) []topology.ServerID {
	replicas := p.replicas(table) // before the lock: it may wait for that of the tables
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.view == nil || time.Since(p.mu.at) > placerAge {
		p.mu.view, p.mu.at = newView(p.look(), p.set), time.Now()
	}
	v := p.mu.view
	servers := v.places(where{part: lease.Partition{Table: table, ID: id}}, replicas)
	for _, s := range servers {
		v.servers[s].active++
		v.servers[s].load += v.expected.unknown
		v.servers[s].all++
	}
	return servers
}
