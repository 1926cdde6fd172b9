package topology

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Change is one partition, or child of a split under way, that differs between two maps of a table. Was is nil where it is new,
// Is where it is gone.
type Change struct {
	ID      point.PartitionID
	Was, Is *Partition
}

// Changes lists the differences between base and next by id. It costs the size of the change, and one look at each leaf: maps that follow
// from each other share the leaves that no transaction between them touched.
func Changes(base, next *Map) []Change {
	was, is := apart(&base.byID, &next.byID)
	var out []Change
	for id, p := range was {
		if q := is[id]; q == nil || !p.equal(q) {
			out = append(out, Change{id, p, q})
		}
	}
	for id, q := range is {
		if was[id] == nil {
			out = append(out, Change{id, nil, q})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return number(a.ID).compare(number(b.ID)) })
	return out
}

// apart returns the partitions in leaves that two indexes do not share, with children of splits.
func apart(a, b *index[number]) (was, is map[point.PartitionID]*Partition) {
	leaves := make(map[*leaf[number]]bool, len(a.leaves))
	for _, l := range a.leaves {
		leaves[l] = true
	}
	is = map[point.PartitionID]*Partition{}
	for _, l := range b.leaves {
		if leaves[l] {
			delete(leaves, l)
			continue
		}
		gather(l, is)
	}
	was = map[point.PartitionID]*Partition{}
	for l := range leaves {
		gather(l, was)
	}
	return was, is
}

func gather(l *leaf[number], into map[point.PartitionID]*Partition) {
	for _, e := range l.entries {
		into[e.p.ID] = e.p
		for _, c := range e.p.Children() {
			into[c.ID] = c
		}
	}
}

// Unused names the partitions that ops replace because their proposer claims that they were never written to.
func Unused(ops []Op) []point.PartitionID {
	var ids []point.PartitionID
	for _, op := range ops {
		if o, ok := op.(Presplit); ok {
			ids = append(ids, o.Replace...)
		}
	}
	return ids
}
