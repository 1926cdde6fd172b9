package topology_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Maps of many leaves, with columns cut at different times and one partition that is longer than all others: after many changes
// the index finds the same as a look at every partition.
func TestSearchesAgreeWithALookAtEverything(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		const end = 400 * hour
		var ps []topology.Partition
		next := point.PartitionID(1)
		for c := range uint64(4) {
			for lo := int64(0); lo < end; {
				hi := min(lo+hour/4+rnd.Int64N(hour), end)
				if c == 2 {
					hi = end
				}
				ps = append(ps, topology.Partition{ID: next, PointLo: c << 62, PointHi: (c + 1) << 62, TimeLo: lo, TimeHi: hi, Placements: placeThree(next)})
				next, lo = next+1, hi
			}
		}
		if m, err = m.Apply(topology.Create{Partitions: ps}); err != nil {
			t.Fatal(err)
		}
		for round := range 20 {
			for range 30 {
				all := m.Overlapping(rnd.Int64N(end), end)
				p := all[rnd.IntN(len(all))]
				var op topology.Op = topology.Drop{IDs: []point.PartitionID{p.ID}}
				if low := m.NextID; rnd.IntN(3) > 0 && p.TimeHi-p.TimeLo > 2 {
					split, err := m.Apply(topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: topology.AtTime(p.TimeLo + 1 + rnd.Int64N(p.TimeHi-p.TimeLo-1)),
						Low: topology.Child{ID: low, Placements: placeThree(low)}, High: topology.Child{ID: low + 1, Placements: placeThree(low)}}},
						topology.SplitFinalize{Partition: p.ID, Low: low})
					if err != nil {
						continue // it unloads already
					}
					m, op = split, topology.UnloadFinal{Partition: p.ID}
					if rnd.IntN(2) == 0 {
						continue
					}
				}
				if after, err := m.Apply(op); err == nil {
					m = after
				}
			}
			if err := m.Check(); err != nil {
				t.Fatalf("seed %d round %d: %v", seed, round, err)
			}
			all := slices.Collect(m.All())
			for range 300 {
				ring, at := rnd.Uint64(), rnd.Int64N(end+2*hour)-hour
				i := slices.IndexFunc(all, func(p *topology.Partition) bool { return p.Accepts() && p.Contains(ring, at) })
				if p, ok := m.Find(ring, at); ok != (i >= 0) || ok && p != all[i] {
					t.Fatalf("seed %d round %d: %#x at %d is in %v", seed, round, ring, at, p)
				}
				n := 1 + point.PartitionID(rnd.Uint64N(uint64(m.NextID)))
				i = slices.IndexFunc(all, func(p *topology.Partition) bool { return p.ID == n })
				if p, ok := m.ByID(n); ok != (i >= 0) || ok && p != all[i] {
					t.Fatalf("seed %d round %d: p%d is %v", seed, round, n, p)
				}
				want := slices.DeleteFunc(slices.Clone(all), func(p *topology.Partition) bool { return p.TimeLo > at+hour || p.TimeHi <= at })
				if got := m.Overlapping(at, at+hour); !slices.Equal(got, want) {
					t.Fatalf("seed %d round %d: from %d on %d partitions, want %d", seed, round, at, len(got), len(want))
				}
				want = slices.DeleteFunc(slices.Clone(all), func(p *topology.Partition) bool { return p.TimeLo <= at || p.TimeLo > at+hour })
				if got := slices.Collect(m.Beginning(at, at+hour)); !slices.Equal(got, want) {
					t.Fatalf("seed %d round %d: %d partitions begin after %d, want %d", seed, round, len(got), at, len(want))
				}
			}
			if back, err := topology.Decode(m.Encode()); err != nil || back.String() != m.String() {
				t.Fatalf("seed %d round %d: read back %v", seed, round, err)
			}
		}
		if m.Len() < 500 {
			t.Errorf("only %d partitions are left", m.Len())
		}
	}
}
