package topology_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// big has n partitions of three placements: rows of an hour, cut by 16 columns.
func big(b testing.TB, n int) *topology.Map {
	b.Helper()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 3})
	if err != nil {
		b.Fatal(err)
	}
	weights := slices.Repeat([]uint32{1}, 16)
	ranges, err := topology.Spread(nil, weights)
	if err != nil {
		b.Fatal(err)
	}
	if m, err = m.Apply(topology.SetColumns{Layout: topology.Layout{From: 0, Weights: weights, Ranges: ranges}}); err != nil {
		b.Fatal(err)
	}
	var times []int64
	for i := range n / 16 {
		times = append(times, int64(i)*hour)
	}
	return m.Cover(times, placeThree)
}

func placeThree(id point.PartitionID) (ps []topology.Placement) {
	for i := range 3 {
		ps = append(ps, topology.Placement{ID: point.PlacementID(uint64(id)*8 + uint64(i)), Server: topology.ServerID(fmt.Sprintf("server-%02d", (int(id)+i)%50))})
	}
	return ps
}

const benchPartitions = 100_000

func BenchmarkFind(b *testing.B) {
	m := big(b, benchPartitions)
	b.ReportAllocs()
	last := int64(m.Len()/16-1) * hour
	b.Run("now", func(b *testing.B) {
		b.ReportAllocs()
		r := uint64(1)
		for b.Loop() {
			r = r*6364136223846793005 + 1442695040888963407
			if _, ok := m.Find(r, last+int64(r>>40)); !ok {
				b.Fatal("nowhere")
			}
		}
	})
	b.Run("anytime", func(b *testing.B) {
		b.ReportAllocs()
		r := uint64(1)
		for b.Loop() {
			r = r*6364136223846793005 + 1442695040888963407
			if _, ok := m.Find(r, int64(r>>8)%last); !ok {
				b.Fatal("nowhere")
			}
		}
	})
	b.Run("miss", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := m.Find(1, last+100*hour); ok {
				b.Fatal("somewhere")
			}
		}
	})
}

// Edges of columns that do not lie at the same times, and one partition that is as long as all others together.
func BenchmarkFindRagged(b *testing.B) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	const columns = 16
	var ps []topology.Partition
	id := point.PartitionID(1)
	end := int64(benchPartitions/columns) * hour
	for c := range uint64(columns) {
		for lo := int64(0); lo < end; {
			hi := lo + hour/2 + rnd.Int64N(hour)
			if c == 7 || hi > end {
				hi = end
			}
			ps = append(ps, topology.Partition{ID: id, PointLo: c << 60, PointHi: (c + 1) << 60, TimeLo: lo, TimeHi: hi, Placements: placeThree(id)})
			id, lo = id+1, hi
		}
	}
	if m, err = m.Apply(topology.Create{Partitions: ps}); err != nil {
		b.Fatal(err)
	}
	for name, column := range map[string]uint64{"narrow": 3, "the long one": 7} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := uint64(1)
			for b.Loop() {
				r = r*6364136223846793005 + 1442695040888963407
				if _, ok := m.Find(column<<60|r>>4, int64(r>>8)%end); !ok {
					b.Fatal("nowhere")
				}
			}
		})
	}
}

func BenchmarkByID(b *testing.B) {
	m := big(b, benchPartitions)
	b.ReportAllocs()
	r := uint64(1)
	for b.Loop() {
		r = r*6364136223846793005 + 1442695040888963407
		if _, ok := m.ByID(point.PartitionID(1 + r>>8%uint64(m.Len()))); !ok {
			b.Fatal("nowhere")
		}
	}
}

func BenchmarkOverlapping(b *testing.B) {
	m := big(b, benchPartitions)
	b.ReportAllocs()
	for b.Loop() {
		if n := len(m.Overlapping(3000*hour, 3006*hour-1)); n != 96 {
			b.Fatal(n)
		}
	}
}

func BenchmarkApplySplit(b *testing.B) {
	m := big(b, benchPartitions)
	p, _ := m.Find(0, 3000*hour)
	op := topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: topology.AtTime(3000*hour + 1),
		Low: topology.Child{ID: m.NextID, Placements: p.Placements}, High: topology.Child{ID: m.NextID + 1, Placements: p.Placements}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Apply(op, topology.SplitFinalize{Partition: p.ID, Low: op.Split.Low.ID}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyPresplit(b *testing.B) {
	m := big(b, benchPartitions)
	last := int64(m.Len()/16-1) * hour
	for _, edges := range []int{1, 100} {
		b.Run(fmt.Sprintf("edges=%d", edges), func(b *testing.B) {
			var es []topology.Edge
			for i := range edges {
				es = append(es, topology.Edge{At: last + hour/128*int64(i+1)})
			}
			b.ReportAllocs()
			for b.Loop() {
				op := m.Presplitting(last-1, es, placeThree)
				if _, err := m.Apply(op); err != nil || len(op.Partitions) != 16*(edges+1) {
					b.Fatal(len(op.Partitions), err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	m := big(b, benchPartitions)
	b.SetBytes(int64(len(m.Encode())))
	b.ReportAllocs()
	for b.Loop() {
		m.Encode()
	}
}

func BenchmarkDecode(b *testing.B) {
	bytes := big(b, benchPartitions).Encode()
	b.SetBytes(int64(len(bytes)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := topology.Decode(bytes); err != nil {
			b.Fatal(err)
		}
	}
}

// A map of 100,000 partitions stays below 100 MB, and a change of it shares almost all of that.
func TestMapsAreSmallAndShared(t *testing.T) {
	encoded := big(t, benchPartitions).Encode()
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	m, err := topology.Decode(encoded)
	if err != nil {
		t.Fatal(err)
	}
	whole := heap() - before
	maps := []*topology.Map{m}
	for i := range 100 {
		if m, err = m.Apply(topology.Join{Partition: point.PartitionID(1000*i + 1), Placement: topology.Placement{ID: 1, Server: "new"}}); err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	versions := heap() - before - whole
	t.Logf("%d partitions: %d B encoded, %d B in memory; each of 100 versions %d B more", m.Len(), len(encoded), whole, versions/100)
	if whole > 50e6 || versions/100 > 200e3 {
		t.Errorf("%d B for a map, %d B for a version", whole, versions/100)
	}
	runtime.KeepAlive(maps)
	runtime.KeepAlive(encoded)
}
