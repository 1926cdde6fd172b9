package topology

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/point"
)

// leafMax is how many partitions lie in one leaf. Larger: an op copies more; smaller: it copies a longer row of leaves.
const leafMax = 128

// key is the sort key of an index.
type key[K any] interface {
	compare(K) int
	end() point.Nanos // for the index by time: when the partition ends
}

// box is a partition's rectangle and id, stored separately so that a search reads memory in a row.
type box struct {
	timeLo, timeHi   point.Nanos
	pointLo, pointHi uint64
	id               point.PartitionID
	closed           bool // it accepts no writes
}

func (p *Partition) box() box {
	return box{p.TimeLo, p.TimeHi, p.PointLo, p.PointHi, p.ID, !p.Accepts()}
}

// compare orders by time, then ring. A parent may begin where its child does: the older id comes first.
func (b box) compare(o box) int {
	switch { // by hand: cmp.Or evaluates all its arguments
	case b.timeLo != o.timeLo:
		return cmp.Compare(b.timeLo, o.timeLo)
	case b.pointLo != o.pointLo:
		return cmp.Compare(b.pointLo, o.pointLo)
	}
	return cmp.Compare(b.id, o.id)
}

func (b box) end() point.Nanos { return b.timeHi }

func (b *box) contains(ring uint64, t point.Nanos) bool {
	return t < b.timeHi && t >= b.timeLo && ring >= b.pointLo && (b.pointHi == 0 || ring < b.pointHi)
}

func (b *box) overlaps(o *box) bool {
	return b.timeLo < o.timeHi && o.timeLo < b.timeHi &&
		(b.pointHi == 0 || o.pointLo < b.pointHi) && (o.pointHi == 0 || b.pointLo < o.pointHi)
}

type number point.PartitionID

func (n number) compare(o number) int { return cmp.Compare(n, o) }
func (n number) end() point.Nanos     { return 0 }

type entry[K any] struct {
	key K
	p   *Partition
}

// leaf is a stretch of an index. Only the transaction that made it changes it; once that is over, it never changes.
type leaf[K any] struct {
	owner   *txn
	entries []entry[K]  // never empty
	end     point.Nanos // no entry ends later
}

// index is a sorted row of leaves. Two maps of one table share all leaves but those a transaction touched:
//
//	seq 7   [leaf a] [leaf b] [leaf c]
//	            \                 \
//	seq 8   [leaf a] [leaf b'] [leaf c]      b' is the copy in which a partition was split
type index[K key[K]] struct {
	leaves []*leaf[K]
	n      int
}

// at gives the leaf in which k lies or would lie, and its place there. There must be a leaf.
func (x *index[K]) at(k K) (i, j int) {
	i = sort.Search(len(x.leaves), func(i int) bool { return x.leaves[i].entries[0].key.compare(k) > 0 })
	i = max(i-1, 0)
	es := x.leaves[i].entries
	return i, sort.Search(len(es), func(j int) bool { return es[j].key.compare(k) >= 0 })
}

func (x *index[K]) get(k K) (*Partition, bool) {
	if len(x.leaves) == 0 {
		return nil, false
	}
	i, j := x.at(k)
	if es := x.leaves[i].entries; j < len(es) && es[j].key.compare(k) == 0 {
		return es[j].p, true
	}
	return nil, false
}

// own gives leaf i as one that t may change: a copy, the first time, since readers of older maps have the leaf. A quarter of room is left for what the op inserts.
func (x *index[K]) own(t *txn, i int) *leaf[K] {
	l := x.leaves[i]
	if l.owner != t {
		l = &leaf[K]{owner: t, entries: append(make([]entry[K], 0, min(leafMax, len(l.entries)*5/4+1)), l.entries...), end: l.end}
		x.leaves[i] = l
	}
	return l
}

// put inserts p, instead of the one with the same key if there is one.
func (x *index[K]) put(t *txn, k K, p *Partition) {
	if len(x.leaves) == 0 {
		x.leaves = append(x.leaves, &leaf[K]{owner: t, entries: []entry[K]{{k, p}}, end: k.end()})
		x.n++
		return
	}
	i, j := x.at(k)
	l := x.own(t, i)
	if j < len(l.entries) && l.entries[j].key.compare(k) == 0 {
		l.entries[j] = entry[K]{k, p}
		l.end = max(l.end, k.end())
		return
	}
	x.n++
	if len(l.entries) == leafMax {
		cut := leafMax / 2
		if j == leafMax { // ids rise and time goes on: leave full leaves behind
			cut = leafMax
		}
		next := &leaf[K]{owner: t, entries: append(make([]entry[K], 0, leafMax), l.entries[cut:]...), end: l.end}
		clear(l.entries[cut:])
		l.entries = l.entries[:cut]
		x.leaves = slices.Insert(x.leaves, i+1, next)
		if j >= cut {
			l, j = next, j-cut
		}
	}
	l.entries = slices.Insert(l.entries, j, entry[K]{k, p})
	l.end = max(l.end, k.end())
}

// remove deletes the entry of a key that is there. Leaves that have become small join.
func (x *index[K]) remove(t *txn, k K) {
	i, j := x.at(k)
	l := x.own(t, i)
	l.entries = slices.Delete(l.entries, j, j+1)
	x.n--
	if len(l.entries) == 0 {
		x.leaves = slices.Delete(x.leaves, i, i+1)
		return
	}
	if i+1 < len(x.leaves) && len(l.entries)+len(x.leaves[i+1].entries) <= leafMax/2 {
		next := x.leaves[i+1]
		l.entries = append(l.entries, next.entries...)
		l.end = max(l.end, next.end)
		x.leaves = slices.Delete(x.leaves, i+1, i+2)
	}
}

// seal ends t's rights to change leaves, and makes their ends exact: put only raises them, so after a removal or a shorter partition they may be too late. Until then
// a search looks into the leaf for nothing.
func (x *index[K]) seal(t *txn) {
	for _, l := range x.leaves {
		if l.owner == t {
			l.owner, l.end = nil, l.entries[0].key.end()
			for i := range l.entries {
				l.end = max(l.end, l.entries[i].key.end())
			}
		}
	}
}

// build makes an index of sorted entries.
func build[K key[K]](es []entry[K]) index[K] {
	x := index[K]{n: len(es)}
	for part := range slices.Chunk(es, leafMax) {
		l := &leaf[K]{entries: slices.Clip(part), end: part[0].key.end()}
		for i := range part {
			l.end = max(l.end, part[i].key.end())
		}
		x.leaves = append(x.leaves, l)
	}
	return x
}

// overlapping calls f with every partition that overlaps the times [lo, hi], both ends included, in order, until f returns false.
func (m *Map) overlapping(lo, hi point.Nanos, f func(*box, *Partition) bool) {
	leaves := m.byTime.leaves
	if len(m.stops) == len(leaves) { // not within a transaction that wrote
		leaves = leaves[sort.Search(len(m.stops), func(i int) bool { return m.stops[i].reach > lo }):]
	}
	for _, l := range leaves {
		if l.entries[0].key.timeLo > hi {
			return
		}
		if l.end <= lo {
			continue
		}
		for i := range l.entries {
			e := &l.entries[i]
			if e.key.timeLo > hi {
				return
			}
			if e.key.timeHi > lo && !f(&e.key, e.p) {
				return
			}
		}
	}
}

// stop is the summary of a leaf that a search by time reads before it looks into it.
type stop struct {
	begin point.Nanos // of the first partition in the leaf
	end   point.Nanos // of the last to end
	reach point.Nanos // the latest end in this leaf and all before it: where it is not past t, no older one holds t

	entries []entry[box] // of the leaf, one hop nearer
}

func stops(x *index[box]) []stop {
	out := make([]stop, len(x.leaves))
	for i, l := range x.leaves {
		out[i] = stop{l.entries[0].key.timeLo, l.end, l.end, l.entries}
		if i > 0 {
			out[i].reach = max(l.end, out[i-1].reach)
		}
	}
	return out
}

// shelf is where a search by id begins.
type shelf struct {
	first   number
	entries []entry[number]
}

func shelves(x *index[number]) []shelf {
	out := make([]shelf, len(x.leaves))
	for i, l := range x.leaves {
		out[i] = shelf{l.entries[0].key, l.entries}
	}
	return out
}
