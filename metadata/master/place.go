package master

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// where holds the requirements for one more placement of a partition.
type where struct {
	part lease.Partition
	// has are the servers that the partition keeps: neither they nor, without ShareHosts, their hosts are chosen again.
	has []topology.ServerID
	// not are unsuitable servers, though their hosts may be suitable.
	not []topology.ServerID
	// near are servers of the neighbour in time: writes move on from them, so others are better.
	near []topology.ServerID
	// settled demands servers that have lived for a while.
	settled bool
}

// choose returns the best server for one more placement: in a zone that the partition uses least, with the fewest
// placements that take writes, then the fewest placements, then the fewest bytes. Rendezvous hashing decides between equals, so that
// tables that begin together do not all begin on one server. ok is false if no server may take it.
func (v *view) choose(w where) (best *standing, ok bool) {
	hosts, zones := map[string]int{}, map[string]int{}
	for _, id := range w.has {
		if st := v.servers[id]; st != nil {
			hosts[st.Host]++
			zones[st.Zone]++
		}
	}
	better := func(a, b *standing) int {
		return cmp.Or(
			cmp.Compare(hosts[a.Host], hosts[b.Host]),
			cmp.Compare(zones[a.Zone], zones[b.Zone]),
			cmp.Compare(a.active, b.active),
			cmp.Compare(contains(w.near, a.ID), contains(w.near, b.ID)),
			cmp.Compare(a.all, b.all),
			cmp.Compare(a.bytes, b.bytes),
			cmp.Compare(rendezvous(a.ID, w.part), rendezvous(b.ID, w.part)),
			cmp.Compare(a.ID, b.ID),
		)
	}
	for _, st := range v.order {
		switch {
		case !st.usable(), slices.Contains(w.has, st.ID), slices.Contains(w.not, st.ID), slices.Contains(v.No[w.part], st.ID):
		case hosts[st.Host] > 0 && !v.set.ShareHosts:
		case w.settled && st.For < v.set.SettleAfter:
		case best == nil || better(st, best) < 0:
			best = st
		}
	}
	return best, best != nil
}

// places chooses servers for a new partition: as many as the table wants, or as there are. They are in chain order: the
// one that should lead first.
func (v *view) places(part lease.Partition, replicas int, near []topology.ServerID) []topology.ServerID {
	w := where{part: part, near: near}
	for range max(replicas, 1) {
		st, ok := v.choose(w)
		if !ok {
			break
		}
		w.has = append(w.has, st.ID)
	}
	return w.has
}

func contains(list []topology.ServerID, s topology.ServerID) int {
	if slices.Contains(list, s) {
		return 1
	}
	return 0
}

func rendezvous(s topology.ServerID, p lease.Partition) uint64 {
	h := fnv.New64a()
	for _, part := range []string{string(s), p.Table, strconv.FormatUint(uint64(p.ID), 10)} {
		_, _ = h.Write([]byte(part)) // a hash takes everything
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
