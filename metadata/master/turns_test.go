package master

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// TestNarrowPartitionsLieOnTheServersInTurn lays out partitions of ten seconds, column by column, and sends a smeared load to them: no server gets much more
// than the others, although one has many partitions of another table.
func TestNarrowPartitionsLieOnTheServersInTurn(t *testing.T) {
	f := func(servers, columns, replicas int, most float64) {
		t.Helper()
		const slots, width = 120, point.Nanos(10 * time.Second)
		v := &view{set: Settings{}, servers: map[topology.ServerID]*standing{}}
		number := map[topology.ServerID]int{}
		for i := range servers {
			id := topology.ServerID(fmt.Sprintf("s%03d", i))
			st := &standing{Server: Server{Server: registry.Server{ID: id, Host: "h" + string(id)}, Live: true, For: time.Hour}}
			if i == 1 {
				st.active, st.all, st.bytes = 500, 900, 1<<40
			}
			v.servers[id], number[id] = st, i
			v.order = append(v.order, st)
		}
		m, err := topology.New("narrow", topology.Config{PartitionWidth: time.Duration(width), Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		ranges, err := topology.Spread(nil, slices.Repeat([]uint32{1}, columns))
		if err != nil {
			t.Fatal(err)
		}
		if m, err = m.Apply(topology.SetColumns{Layout: topology.Layout{Weights: slices.Repeat([]uint32{1}, columns), Ranges: ranges}}); err != nil {
			t.Fatal(err)
		}
		var made []topology.Partition
		placed := make([][][]int, columns)
		for c := range columns {
			for slot := range slots {
				part := topology.Partition{ID: point.PartitionID(len(made) + 1), PointLo: ranges[c].Lo, TimeLo: point.Nanos(slot) * width, TimeHi: point.Nanos(slot+1) * width}
				var on []int
				for _, s := range v.places(v.at(m, &part, made), replicas) {
					part.Placements = append(part.Placements, topology.Placement{Server: s})
					v.servers[s].active++
					on = append(on, number[s])
				}
				made, placed[c] = append(made, part), append(placed[c], on)
			}
		}
		load := smear.Load{Width: width, Columns: columns, Servers: servers}
		window, why := smear.Rule{Mode: smear.Auto}.WithDefaults().Wanted(load)
		loads := smear.Simulate(smear.Scenario{Load: load, Window: window, Duration: slots * width, Place: func(slot, column int) []int { return placed[column][slot] }})
		busiest := loads.Busiest(time.Duration(window), 10*time.Second)
		t.Logf("%d servers, %d columns, %d replicas, window %v (%s): the busiest takes %.2f of the mean", servers, columns, replicas, time.Duration(window), why, busiest)
		if busiest > most {
			t.Errorf("%d servers, %d columns, %d replicas: the busiest takes %.2f of the mean, want %.2f", servers, columns, replicas, busiest, most)
		}
	}
	f(3, 1, 1, 1.25)
	f(5, 1, 1, 1.25)
	f(5, 1, 3, 1.25)
	f(12, 1, 2, 1.25)
	f(20, 2, 1, 1.25)
	f(20, 2, 3, 1.25)
	f(100, 10, 1, 1.25)
	f(100, 10, 3, 1.25)
}
