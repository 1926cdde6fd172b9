package fanout

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// group is a request to one server.
type group struct {
	server     topology.ServerID
	asked      *asked // of a division; nil: none
	layer      int
	overlaps   bool              // with partitions of other groups: rows need their ranks
	accepts    bool              // its partitions accept rows by this map
	seq        uint64            // of the map, if they do
	by         uint64            // of the map
	next       point.PartitionID // the first that the map does not have
	partitions []*topology.Partition

	// Where several servers have copies: in the order in which they are asked, and how many that may lack rows are complete together.
	copies []topology.ServerID
	enough int
	leads  []topology.ServerID // of the partitions; "": none
	epochs []point.Epoch       // in which they lead

	guesses []bool      // of the partitions: none was seen to lead, and the server is one of the placements
	mode    peer.Copies // of the question to this server
}

// target says where a partition is read: at its leader, or at the copies.
type target struct {
	leader topology.ServerID
	epoch  point.Epoch // of the leader
	guess  bool        // it never had a leader, and this is one of its placements
	copies []topology.ServerID
	enough int
}

// key identifies targets that can be asked in one request.
func (t *target) key() string {
	var b strings.Builder
	for _, c := range t.copies {
		b.WriteString(string(c))
		b.WriteByte(0)
	}
	if t.copies != nil {
		b.WriteByte(byte(t.enough)) // at most topology.ReplicasMax and 1
	}
	return b.String()
}

// raw reports whether rows are asked for beside evaluations.
func (g *group) raw() bool { return g.asked != nil && g.asked.raw }

func (g *group) ids() []point.PartitionID {
	ids := make([]point.PartitionID, len(g.partitions))
	for i, p := range g.partitions {
		ids[i] = p.ID
	}
	return ids
}

// failures are the group's failed partitions, one failure for each leader asked, and one more for those where it was only guessed: another leader, or a guessed one that
// leads by now, is a reason to ask again.
func (g *group) failures(f follow.Failure) (all []follow.Failure) {
	type asked struct {
		server topology.ServerID
		guess  bool
	}
	at := map[asked]int{}
	for i, p := range g.partitions {
		lead := asked{g.server, g.guesses[i]}
		if g.copies != nil {
			lead.server = g.leads[i]
		}
		j, ok := at[lead]
		if !ok {
			j = len(all)
			at[lead] = j
			f.Asked, f.Guess, f.Partitions = lead.server, lead.guess, nil
			all = append(all, f)
		}
		all[j].Partitions = append(all[j].Partitions, p)
	}
	return all
}

// orphan is a partition that no server can be asked for, and why.
type orphan struct {
	partition *topology.Partition
	err       error
}

// plan groups partitions by their leaders. Partitions of one group never overlap. Where groups do, their servers return the ranks of
// rows; if one cannot, the newer partition wins.
func plan(ps []*topology.Partition, of func(*topology.Partition) (target, error)) ([]group, []orphan) {
	layers, overlapping := layersOf(ps)
	type key struct {
		server   topology.ServerID
		layer    int
		overlaps bool
		// Partitions that are unloading are asked for separately: this map already has the heirs.
		accepts bool
		copies  string
	}
	groups := map[key]*group{}
	var orphans []orphan
	for _, p := range ps {
		t, err := of(p)
		if err != nil {
			orphans = append(orphans, orphan{p, err})
			continue
		}
		lead := t.leader
		if t.copies != nil { // whichever leads
			t.leader = ""
		}
		k := key{t.leader, layers[p.ID], overlapping[p.ID], p.Accepts(), t.key()}
		g := groups[k]
		if g == nil {
			g = &group{server: t.leader, layer: k.layer, overlaps: k.overlaps, accepts: k.accepts, copies: t.copies, enough: t.enough}
			groups[k] = g
		}
		g.partitions, g.guesses = append(g.partitions, p), append(g.guesses, t.guess)
		if t.copies != nil {
			g.leads, g.epochs = append(g.leads, lead), append(g.epochs, t.epoch)
		}
	}
	out := make([]group, 0, len(groups))
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.server, b.server), cmp.Compare(a.layer, b.layer), boolOrder(a.overlaps, b.overlaps), boolOrder(a.accepts, b.accepts), slices.Compare(a.copies, b.copies))
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

// groups plans a request.
func (r *request) groups(ps []*topology.Partition, of func(*topology.Partition) (target, error)) ([]group, []orphan) {
	if r.plan == nil {
		return plan(ps, of)
	}
	return r.plan(ps, of)
}

// ask makes one server's request from the request to all.
func (g *group) ask(q *peer.Select) *peer.Select {
	mine := *q
	mine.Partitions, mine.MapSeq, mine.MapNext = g.ids(), g.seq, g.next
	mine.Copies = g.mode
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
