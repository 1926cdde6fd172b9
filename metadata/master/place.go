package master

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strconv"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// where holds the requirements for one more placement of a partition.
type where struct {
	part lease.Partition
	// has are the servers that the partition keeps: neither they nor, without ShareHosts, their hosts are chosen again.
	has []topology.ServerID
	// not are unsuitable servers, though their hosts may be suitable.
	not []topology.ServerID
	// turn is a point on the circle of the table's servers: the server there or behind it comes next, since the one before it leads the partition before in
	// time. Writes move on from one partition to the next, so this order spreads them. For narrow partitions nothing else counts: each has the table's load
	// only for a moment. 0: any point.
	turn   uint64
	narrow bool
	// weight is the load that the partition is expected to bring.
	weight int64
	// past: it brings none, so that only bytes and numbers of placements count. By load all past partitions of a dead server went to one server.
	past bool
	// settled demands servers that have been live for a while, copies those that keep copies and are being filled with few.
	settled, copies bool
	// bytes are the rows that are copied there.
	bytes int64
	// to is the server that a person wants: it is used if it is suitable, on any host, and waited for while too much is copied to it.
	to topology.ServerID
}

// takeNext removes the first of the servers that persons want, and makes it the wanted one.
func (w *where) takeNext(to *[]topology.ServerID) {
	w.to = ""
	if len(*to) > 0 {
		w.to, *to = (*to)[0], (*to)[1:]
	}
}

// unsuitable reports whether a server must not be chosen, whatever its host.
func (v *view) unsuitable(w *where, st *standing) bool {
	return !st.usable() || slices.Contains(w.has, st.ID) || slices.Contains(w.not, st.ID) || slices.Contains(v.No[w.part], st.ID) || w.copies && (!st.copies() || !st.fits(w.bytes) || v.full(st.ID, w.part) != "")
}

// choose returns the best server for one more placement. ok is false if no server is suitable. It is also false if the only servers in a zone that the
// partition uses less receive as many copies as they may: the placement waits for one of them. Servers are compared, in this order, by
//
//	how often the partition uses their zone
//	expected load                             not for past partitions
//	placements that accept writes             not for past partitions
//	whether it was their turn just now        not for past partitions
//	bytes, in steps of BalanceBytes           only for copies of past partitions
//	all placements, then bytes
//	turn
//
// For narrow partitions only zone and turn count. The server that leads the partition before counts as if it had half of this one's load already, so that
// neighbours lie apart where loads differ by less.
func (v *view) choose(w where) (best *standing, ok bool) {
	hosts, zones := map[string]int{}, map[string]int{}
	for _, id := range w.has {
		if st := v.servers[id]; st != nil {
			hosts[st.Host]++
			zones[st.Zone]++
		}
	}
	if st := v.servers[w.to]; st != nil && !v.unsuitable(&w, st) {
		return st, !w.copies || st.filling < v.set.FillsMax && st.takes(w.bytes)
	}
	step := max(v.set.BalanceBytes, 1) // copies that differ by less are not moved for it afterwards either
	further := func(a, b *standing) int {
		return cmp.Or(cmp.Compare(hosts[a.Host], hosts[b.Host]), cmp.Compare(zones[a.Zone], zones[b.Zone]))
	}
	better := func(a, b *standing) int {
		apart := further(a, b)
		if !w.narrow && !w.past {
			apart = cmp.Or(apart,
				cmp.Compare(2*a.load+w.weight*int64(w.last(a.ID)), 2*b.load+w.weight*int64(w.last(b.ID))),
				cmp.Compare(a.active, b.active),
				cmp.Compare(w.last(a.ID), w.last(b.ID)))
		}
		if w.past && w.copies {
			apart = cmp.Or(apart, cmp.Compare(a.bytes/step, b.bytes/step))
		}
		if !w.narrow {
			apart = cmp.Or(apart, cmp.Compare(a.all, b.all), cmp.Compare(a.bytes, b.bytes))
		}
		return cmp.Or(apart, cmp.Compare(w.wait(a.ID), w.wait(b.ID)), cmp.Compare(a.ID, b.ID))
	}
	var busy *standing
	for _, st := range v.order {
		switch {
		case v.unsuitable(&w, st):
		case hosts[st.Host] > 0 && !v.set.ShareHosts:
		case w.settled && st.For < v.set.SettleAfter:
		case w.copies && (st.filling >= v.set.FillsMax || !st.takes(w.bytes)):
			if busy == nil || further(st, busy) < 0 {
				busy = st
			}
		case best == nil || better(st, best) < 0:
			best = st
		}
	}
	if busy != nil && best != nil && further(busy, best) < 0 {
		return nil, false // the copy would be moved out of the zone that it shares later, and rows be copied twice
	}
	return best, best != nil
}

// wait is how far behind the turn a server comes, on the circle of all servers in the table's order; without a turn, in an order of the partition's own.
func (w *where) wait(s topology.ServerID) uint64 {
	if w.turn == 0 {
		return rendezvous(s, w.part.Table, strconv.FormatUint(uint64(w.part.ID), 10))
	}
	return rendezvous(s, w.part.Table) - w.turn
}

// last is 1 for the server that leads the partition before.
func (w *where) last(s topology.ServerID) int {
	if w.wait(s) == math.MaxUint64 {
		return 1
	}
	return 0
}

// places chooses servers for a new partition: as many as the table wants, or as there are. They are in chain order: the
// one that should lead first, which is the one whose turn comes first.
func (v *view) places(w where, replicas int) []topology.ServerID {
	for range max(replicas, 1) {
		st, ok := v.choose(w)
		if !ok {
			break
		}
		w.has = append(w.has, st.ID)
	}
	if w.turn == 0 {
		return w.has
	}
	slices.SortStableFunc(w.has, func(a, b topology.ServerID) int { return cmp.Compare(w.wait(a), w.wait(b)) })
	return w.has
}

// narrow partitions go round the servers, whatever else lies on them.
func narrow(p *topology.Partition) bool { return point.Narrow(p.TimeLo, p.TimeHi) }

// at returns the requirements of a new partition of a table. made are partitions of the same change, not yet in the map.
func (v *view) at(m *topology.Map, part *topology.Partition, made []topology.Partition) where {
	if p := before(m, part, made); p != nil {
		return v.after(m, part, p)
	}
	w := v.where(m, part)
	// The first of a column: columns of a moment lie on servers that are far apart.
	circle := make([]uint64, 0, len(v.order))
	for _, st := range v.order {
		circle = append(circle, rendezvous(st.ID, m.Table))
	}
	slices.Sort(circle)
	columns := columnsAt(m, part.TimeLo)
	if i := slices.IndexFunc(columns, func(c column) bool { return c.has(part.PointLo) }); i >= 0 && len(circle) > 0 {
		w.turn = circle[i*len(circle)/len(columns)]
	}
	return w
}

// where returns the requirements of a new partition, at any point of the circle.
func (v *view) where(m *topology.Map, part *topology.Partition) where {
	return where{part: lease.Partition{Table: m.Table, ID: part.ID}, narrow: narrow(part), weight: v.weight(m.Table, part), past: v.past(part)}
}

// after returns the requirements of a partition to which writes move on from another one.
func (v *view) after(m *topology.Map, part, before *topology.Partition) where {
	w := v.where(m, part)
	if len(before.Placements) > 0 { // where no server is usable there is none
		w.turn = rendezvous(before.Placements[0].Server, m.Table) + 1
	}
	return w
}

// before gives the partition that lies before another one in time, or nil; of one that is being split the half.
func before(m *topology.Map, part *topology.Partition, made []topology.Partition) *topology.Partition {
	for i := len(made) - 1; i >= 0; i-- {
		if made[i].TimeHi == part.TimeLo && made[i].PointLo == part.PointLo {
			return &made[i]
		}
	}
	old, ok := m.Find(part.PointLo, part.TimeLo-1)
	if !ok {
		return nil
	}
	for _, half := range old.Children() {
		if half.Contains(part.PointLo, part.TimeLo-1) {
			return half
		}
	}
	return old
}

// rendezvous is a server's place on a circle with a name: tables that begin together do not all begin on one server.
func rendezvous(s topology.ServerID, name ...string) uint64 {
	h := fnv.New64a()
	for _, part := range append([]string{string(s)}, name...) {
		_, _ = h.Write([]byte(part)) // a hash accepts everything
		_, _ = h.Write([]byte{0})
	}
	return mix(h.Sum64())
}

// mix spreads FNV's last bytes over all bits.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
