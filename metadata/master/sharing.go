package master

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Copies that share a host or a zone, although another server would share less, are moved apart: one failure must not cost several copies. Such copies were
// placed while that server was not there or was down, or the host or zone of a server was changed since.
//
//	p on s1 (zone a), s2 (a), s3 (b), and s4 (c) comes: s4 joins, is filled, is live; of s1 and s2 one leaves
//
// What servers share is counted, hosts before zones. Each such move lowers the count, and no other move raises it, so it comes to an end (DESIGN.md, Copies that share). A zone
// without a name is not known to be shared: while some servers of a partition name none, as where zones are set one server after the other, only hosts count. Rows are copied for it only
// when all these servers lived for DeadAfter: one that started on another host for a moment costs nothing.

// compareSharing compares two servers by how many of others share their hosts, then their zones. An unregistered one shares nothing.
func (v *view) compareSharing(others []topology.ServerID, a, b topology.ServerID) int {
	x, y := v.servers[a], v.servers[b]
	if x == nil || y == nil {
		return number(x != nil) - number(y != nil)
	}
	return cmp.Or(v.sharing(others, x, y))
}

// sharing counts how many more of others share the host of a than that of b, and how many more its zone.
func (v *view) sharing(others []topology.ServerID, a, b *standing) (hosts, zones int) {
	for _, s := range others {
		if st := v.servers[s]; st != nil {
			hosts += number(st.Host == a.Host) - number(st.Host == b.Host)
			zones += number(st.Zone == a.Zone) - number(st.Zone == b.Zone)
		}
	}
	return hosts, zones
}

// shares reports whether two placements of a partition are on one host, or in one zone that has a name.
func (v *view) shares(part *topology.Partition) bool {
	for i, a := range part.Placements {
		for _, b := range part.Placements[:i] {
			if x, y := v.servers[a.Server], v.servers[b.Server]; x.Host == y.Host || x.Zone == y.Zone && x.Zone != "" {
				return true
			}
		}
	}
	return false
}

// partedBy reports whether a server in the place of another one shares less with the rest of a partition.
func (v *view) partedBy(part *topology.Partition, from, to topology.ServerID) bool {
	servers := on(part.Placements)
	hosts, zones := v.sharing(without(servers, from), v.servers[from], v.servers[to])
	named := !slices.ContainsFunc(append(servers, to), func(s topology.ServerID) bool { return v.servers[s].Zone == "" })
	return hosts > 0 || hosts == 0 && zones > 0 && named
}

// separate begins moves of placements that share more than they need.
func (e *evening) separate(together []candidate) {
	empty := 0 // these need one change each
	for _, c := range together {
		key := lease.Partition{Table: c.table.Table, ID: c.part.ID}
		held := !e.empty(key)
		if held && len(e.evens)-empty >= e.set.MovesMax || !held && empty >= e.set.MovesMax {
			continue
		}
		w := where{part: key, has: on(c.part.Placements), copies: held, bytes: e.Sizes[key].Bytes}
		if held && slices.ContainsFunc(w.has, func(s topology.ServerID) bool { return e.servers[s].For < e.set.DeadAfter }) {
			continue
		}
		c.from = e.leaver(c.part, key, w.has)
		stay := without(w.has, c.from.Server)
		var to *standing
		for _, st := range e.order {
			if e.partedBy(c.part, c.from.Server, st.ID) && e.mayHave(&w, st) && (!held || st.For >= e.set.DeadAfter) && (to == nil || e.better(c.part, stay, st, to)) {
				to = st
			}
		}
		switch {
		case to == nil:
		case held:
			e.beginsTo(c, to.ID, e.whyMoves(w.has, c.from.Server, to.ID))
		default:
			e.move(key, c.from, to.ID, e.whyMoves(w.has, c.from.Server, to.ID))
			empty++
		}
	}
}

// better reports whether a server is better than another one for a partition: it shares less, or has less to do.
func (e *evening) better(part *topology.Partition, stay []topology.ServerID, a, b *standing) bool {
	apart := e.compareSharing(stay, a.ID, b.ID)
	if !e.past(part) {
		apart = cmp.Or(apart, busier(a, b))
	}
	return cmp.Or(apart, cmp.Compare(e.most[a.ID], e.most[b.ID]), cmp.Compare(a.all, b.all)) < 0
}

// whyMoves describes what the server that loses the copy shares with others and the new one does not; if sharing is not the reason, the bytes on both servers.
func (e *evening) whyMoves(servers []topology.ServerID, from, to topology.ServerID) string {
	less := e.servers[to]
	for _, what := range [...]struct {
		name string
		of   func(*standing) string
	}{{"on host", func(st *standing) string { return st.Host }}, {"in zone", func(st *standing) string { return st.Zone }}} {
		it := what.of(e.servers[from])
		beside := slices.DeleteFunc(without(servers, from), func(s topology.ServerID) bool { return what.of(e.servers[s]) != it })
		switch {
		case len(beside) == 0 || it == "" || less != nil && what.of(less) == it:
		case less == nil:
			return fmt.Sprintf("%s and %s are %s %s", from, list(beside), what.name, it)
		default:
			return fmt.Sprintf("%s and %s are %s %s, %s is %s %s", from, list(beside), what.name, it, to, what.name, what.of(less))
		}
	}
	return e.whyEven(from, to)
}

// without gives servers but one.
func without(servers []topology.ServerID, one topology.ServerID) []topology.ServerID {
	return slices.DeleteFunc(slices.Clone(servers), func(s topology.ServerID) bool { return s == one })
}
