package fanout

import (
	"cmp"
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// group is what one server is asked for in one go.
type group struct {
	server     topology.ServerID
	layer      int
	overlaps   bool              // with partitions of other groups: rows need their ranks
	accepts    bool              // its partitions take rows by that map
	seq        uint64            // of the map, if they do
	next       point.PartitionID // the first that the map does not have
	partitions []*topology.Partition
}

func (g *group) ids() []point.PartitionID {
	ids := make([]point.PartitionID, len(g.partitions))
	for i, p := range g.partitions {
		ids[i] = p.ID
	}
	return ids
}

// orphan is a partition that nobody can be asked for, and why.
type orphan struct {
	partition *topology.Partition
	err       error
}

// plan groups partitions by their leaders. Partitions of one group never overlap. Where groups do, their servers give the ranks of
// rows; where one cannot, it is known at least which partition is the newer.
func plan(ps []*topology.Partition, leader func(*topology.Partition) (topology.ServerID, error)) ([]group, []orphan) {
	layers, overlapping := layersOf(ps)
	type key struct {
		server   topology.ServerID
		layer    int
		overlaps bool
		// What unloads already is asked for by itself: that others took over is nothing new about it.
		accepts bool
	}
	groups := map[key]*group{}
	var orphans []orphan
	for _, p := range ps {
		s, err := leader(p)
		if err != nil {
			orphans = append(orphans, orphan{p, err})
			continue
		}
		k := key{s, layers[p.ID], overlapping[p.ID], p.Accepts()}
		g := groups[k]
		if g == nil {
			g = &group{server: s, layer: k.layer, overlaps: k.overlaps, accepts: k.accepts}
			groups[k] = g
		}
		g.partitions = append(g.partitions, p)
	}
	out := make([]group, 0, len(groups))
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.server, b.server), cmp.Compare(a.layer, b.layer), boolOrder(a.overlaps, b.overlaps), boolOrder(a.accepts, b.accepts))
	}) {
		out = append(out, *g)
	}
	return out, orphans
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// ask makes the question to a server of what is asked of all.
func (g *group) ask(q *peer.Select) *peer.Select {
	mine := *q
	mine.Partitions, mine.MapSeq, mine.MapNext = g.ids(), g.seq, g.next
	mine.Ranks = g.overlaps && !q.LabelsOnly
	return &mine
}

// layersOf gives each partition that lies over older ones a number above theirs, and says which ones overlap any. Nearly always none does, and
// the maps are nil. ps are sorted by time.
func layersOf(ps []*topology.Partition) (layers map[point.PartitionID]int, overlapping map[point.PartitionID]bool) {
	over := map[point.PartitionID][]*topology.Partition{} // the older ones below each
	var open []*topology.Partition                        // those that reach up to where we are
	for _, p := range ps {
		open = slices.DeleteFunc(open, func(q *topology.Partition) bool { return q.TimeHi <= p.TimeLo })
		for _, q := range open {
			if p.SharesRing(q) {
				above, below := p, q
				if p.ID < q.ID {
					above, below = q, p
				}
				over[above.ID] = append(over[above.ID], below)
			}
		}
		open = append(open, p)
	}
	if len(over) == 0 {
		return nil, nil
	}
	layers, overlapping = map[point.PartitionID]int{}, map[point.PartitionID]bool{}
	for _, id := range slices.Sorted(maps.Keys(over)) { // what lies below has a lower id, and its layer already
		overlapping[id] = true
		for _, below := range over[id] {
			overlapping[below.ID] = true
			layers[id] = max(layers[id], layers[below.ID]+1)
		}
	}
	return layers, overlapping
}
