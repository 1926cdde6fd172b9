package master

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// narrowTable is a cluster of three servers with a table of partitions with rows, from some time on.
func narrowTable(t *testing.T, from point.Nanos, width time.Duration, n int, bytes int64) *world {
	w := newWorld()
	w.rng = rand.New(rand.NewPCG(1, 1))
	w.Now = from + 10*24*int64(time.Hour)
	for _, id := range []topology.ServerID{"s1", "s2", "s3"} {
		w.Servers = append(w.Servers, Server{Server: registry.Server{ID: id, Host: string(id), Copies: registry.CopiesOn}, Live: true, For: time.Hour})
	}
	m, err := topology.New("t", topology.Config{PartitionWidth: width, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	var all []topology.Partition
	for i := range n {
		lo := from + int64(i)*int64(width)
		all = append(all, topology.Partition{ID: m.NextID + point.PartitionID(i), TimeLo: lo, TimeHi: lo + int64(width),
			Placements: []topology.Placement{{ID: point.PlacementID(i + 1), Server: w.Servers[i%3].ID}}})
	}
	if m, err = m.Apply(topology.Create{Partitions: all}); err != nil {
		t.Fatal(err)
	}
	w.Tables = append(w.Tables, m)
	for _, p := range all {
		key := lease.Partition{Table: "t", ID: p.ID}
		pl := p.Placements[0]
		w.Leases[key] = lease.Lease{State: lease.Held, Boot: "b", Epoch: 3, Holder: pl.Server, InSync: []lease.Member{{Placement: pl.ID, Server: pl.Server}}}
		w.Born[key], w.Sizes[key] = true, Size{Bytes: bytes, Rows: 10, MinTime: p.TimeLo, MaxTime: p.TimeHi - 1}
	}
	return w
}

// merges returns how many partitions each merge of the plan has.
func mergesOf(w *world) (sizes []int) {
	for _, s := range Plan(w.State, w.set, rand.New(rand.NewPCG(1, 1))) {
		for _, op := range s.Ops {
			if m, ok := op.(topology.Merge); ok {
				sizes = append(sizes, len(m.Partitions))
			}
		}
	}
	return sizes
}

func TestNarrowPartitionsWithRowsAreMergedByTheHour(t *testing.T) {
	day := int64(20_000) * 24 * int64(time.Hour)
	for name, c := range map[string]struct {
		n     int
		width time.Duration
		bytes int64
		set   func(*world)
		want  []int
	}{
		"few stay":              {n: 100, width: time.Minute},
		"minutes":               {n: 240, width: time.Minute, want: []int{60, 60}},   // as many as may unload at once
		"seconds":               {n: 240, width: 20 * time.Second, want: []int{180}}, // an hour has more than may unload at once
		"large ones stay":       {n: 240, width: time.Minute, bytes: 600 << 20},
		"up to the size":        {n: 240, width: time.Minute, bytes: 100 << 20, want: []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
		"off":                   {n: 240, width: time.Minute, set: func(w *world) { w.set.MergeFrom = -1 }},
		"open ones stay":        {n: 240, width: time.Minute, set: func(w *world) { w.Now = day + int64(2*time.Hour) }, want: []int{60}},
		"hours stay":            {n: 240, width: time.Hour},
		"many hours":            {n: 1100, width: time.Hour, set: func(w *world) { w.Now += 100 * 24 * int64(time.Hour) }, want: []int{24, 24, 24, 24, 24}},
		"a server that is away": {n: 240, width: time.Minute, set: func(w *world) { w.Servers[1].Live, w.Servers[1].For = false, time.Minute }},
		"what retention drops": {n: 240, width: time.Minute, set: func(w *world) {
			c := w.Tables[0].Config
			c.Retention = 10*24*time.Hour + time.Hour
			m, err := w.Tables[0].Apply(topology.SetConfig{Config: c})
			if err != nil {
				t.Fatal(err)
			}
			w.Tables[0] = m
		}, want: []int{60, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			w := narrowTable(t, day, c.width, c.n, c.bytes)
			if c.set != nil {
				c.set(w)
			}
			got := mergesOf(w)
			if len(got) != len(c.want) {
				t.Fatalf("%v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("%v, want %v", got, c.want)
				}
			}
		})
	}
}

// TestATableOfMinutesStaysSmall plays 60 days of a table with partitions of a minute, each with rows: what was merged is emptied within the hour. Hours become days from 1,000 partitions
// on, so that the days of ten years and the hours before them are below 5,000.
func TestATableOfMinutesStaysSmall(t *testing.T) {
	const days = 60
	day := int64(20_000) * 24 * int64(time.Hour)
	w := narrowTable(t, day, time.Minute, 60, 1000)
	rng := rand.New(rand.NewPCG(1, 1))
	most := 0
	for hour := int64(1); hour < days*24; hour++ {
		lo := day + hour*int64(time.Hour)
		w.Now = lo + int64(time.Hour)
		m := w.Tables[0]
		var ops []topology.Op
		var minutes topology.Create
		for p := range m.All() {
			if p.State == topology.Unload {
				ops = append(ops, topology.UnloadFinal{Partition: p.ID})
			}
		}
		for i := range int64(60) {
			minutes.Partitions = append(minutes.Partitions, topology.Partition{ID: m.NextID + point.PartitionID(i), TimeLo: lo + i*int64(time.Minute), TimeHi: lo + (i+1)*int64(time.Minute),
				Placements: []topology.Placement{{ID: point.PlacementID(rng.Uint64()), Server: w.Servers[i%3].ID}}})
		}
		ops = append(ops, minutes)
		m, err := m.Apply(ops...)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range Plan(w.with(m), w.set, rng) {
			for _, op := range s.Ops {
				if merge, ok := op.(topology.Merge); ok {
					if m, err = m.Apply(merge); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		w.with(m)
		most = max(most, m.Len())
	}
	if most > 1100 {
		t.Errorf("the table had %d partitions after %d days; those of minutes and hours are to stay below 1100", most, days)
	}
}

// with makes a map the table's, of which every partition is led and has rows.
func (w *world) with(m *topology.Map) State {
	w.Tables[0] = m
	clear(w.Leases)
	clear(w.Born)
	clear(w.Sizes)
	for p := range m.All() {
		key, pl := lease.Partition{Table: m.Table, ID: p.ID}, p.Placements[0]
		w.Leases[key] = lease.Lease{State: lease.Held, Boot: "b", Epoch: 3, Holder: pl.Server, InSync: []lease.Member{{Placement: pl.ID, Server: pl.Server}}}
		w.Born[key], w.Sizes[key] = true, Size{Bytes: 1000, Rows: 10, MinTime: p.TimeLo, MaxTime: p.TimeHi - 1}
	}
	return w.State
}
