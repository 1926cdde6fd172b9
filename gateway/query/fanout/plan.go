package fanout

import (
	"cmp"
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// group is a request to one server.
type group struct {
	server     topology.ServerID
	layer      int
	overlaps   bool              // with partitions of other groups: rows need their ranks
	accepts    bool              // its partitions take rows by this map
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

// orphan is a partition that no server can be asked for, and why.
type orphan struct {
	partition *topology.Partition
	err       error
}

// plan groups partitions by their leaders. Partitions of one group never overlap. Where groups do, their servers return the ranks of
// rows; if one cannot, the newer partition wins.
func plan(ps []*topology.Partition, leader func(*topology.Partition) (topology.ServerID, error)) ([]group, []orphan) {
	layers, overlapping := layersOf(ps)
	type key struct {
		server   topology.ServerID
		layer    int
		overlaps bool
		// Partitions that are unloading are asked for separately: this map already has the ones that took over.
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

// ask makes one server's request from the request to all.
func (g *group) ask(q *peer.Select) *peer.Select {
	mine := *q
	mine.Partitions, mine.MapSeq, mine.MapNext = g.ids(), g.seq, g.next
	mine.Ranks = g.overlaps && !q.LabelsOnly
	return &mine
}

// layersOf numbers each partition that lies over older ones above them, and returns which ones overlap any. Nearly always none does, and
// the maps are nil. ps are sorted by time.
func layersOf(ps []*topology.Partition) (layers map[point.PartitionID]int, overlapping map[point.PartitionID]bool) {
	over := map[point.PartitionID][]*topology.Partition{} // the older ones below each
	var open []*topology.Partition                        // those that reach the current time
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
	for _, id := range slices.Sorted(maps.Keys(over)) { // those below have lower ids, and their layers already
		overlapping[id] = true
		for _, below := range over[id] {
			overlapping[below.ID] = true
			layers[id] = max(layers[id], layers[below.ID]+1)
		}
	}
	return layers, overlapping
}
