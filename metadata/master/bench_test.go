package master

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkPlan plans for 20 servers and 100,000 partitions that are all led, when nothing is to do.
func BenchmarkPlan(b *testing.B) {
	const servers, partitions = 20, 100_000
	s := State{Now: time.Now().UnixNano(), Leases: map[lease.Partition]lease.Lease{}, Born: map[lease.Partition]bool{}}
	for i := range servers {
		id := topology.ServerID(fmt.Sprintf("s%02d", i))
		s.Servers = append(s.Servers, Server{Server: registry.Server{ID: id, Host: string(id)}, Live: true, For: time.Hour})
	}
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	ps := make([]topology.Partition, partitions)
	for i := range ps {
		id := point.PartitionID(i + 1)
		lo := s.Now + int64(time.Hour)*int64(i-partitions)
		srv := s.Servers[i%servers].ID
		ps[i] = topology.Partition{ID: id, TimeLo: lo, TimeHi: lo + int64(time.Hour), Placements: []topology.Placement{{ID: point.PlacementID(id), Server: srv}}}
		key := lease.Partition{Table: "cpu", ID: id}
		s.Leases[key] = lease.Lease{State: lease.Held, Holder: srv, Boot: "b", Epoch: 1, InSync: []lease.Member{{Placement: point.PlacementID(id), Server: srv}}}
		s.Born[key] = true
	}
	if m, err = m.Apply(topology.Create{Partitions: ps}); err != nil {
		b.Fatal(err)
	}
	s.Tables = []*topology.Map{m}
	rng := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		if steps := Plan(s, Settings{}, rng); len(steps) > 0 {
			b.Fatal(Format(steps))
		}
	}
}
