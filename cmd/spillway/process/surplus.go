package process

import (
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/surplus"
)

// openSurplus opens what gives leaders the rows that copies here set aside. Nil without copies: nothing is set aside.
func (p *storage) openSurplus() *surplus.Handover {
	if !p.cfg.Storage.Copies {
		return nil
	}
	return surplus.New(surplus.Deps{Ways: stagingWays{p}, Partitions: func() []*partition.Partition { return p.server.WithSurplus() }, Log: p.log, Registerer: p.registerer}, surplus.Settings{})
}
