package master

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// evening decides which placements with rows leave a server because it has more bytes than others. Each round computes it anew: the map shows a move that has
// begun, since a server joins a partition that has enough placements, or a partition has one more than it should. The move goes on as long as it makes the
// servers more even, by the same steps as a move by a person (copy.go).
//
//	fullest server ── a closed partition, at most half of the difference ──▶ the emptiest server that may have it
//
// A move begins where the two servers differ by more than BalanceBytes and a fifth of the mean, and by at least twice the partition. It goes on while the
// source is not emptier than the target, so that no partition goes to and fro. Partitions that accept writes stay: new ones are placed where the least load is
// expected.
//
// Before that it moves copies apart that share a host or a zone (sharing.go), of all partitions.
type evening struct {
	*planner
	// least are the bytes on a server once all moves away from it have ended, most those while none has. A server gives by least and receives by most, so that
	// a move which has begun goes on whichever of the moves ends first.
	least, most map[topology.ServerID]int64
	filling     map[topology.ServerID]int
	coming      map[topology.ServerID]int64
	begun       map[lease.Partition]bool
}

// placementOf is a placement of a table.
type placementOf struct {
	table string
	id    point.PlacementID
}

// even computes the moves.
func (p *planner) even() {
	e := evening{planner: p, least: map[topology.ServerID]int64{}, most: map[topology.ServerID]int64{}, filling: map[topology.ServerID]int{}, coming: map[topology.ServerID]int64{}, begun: map[lease.Partition]bool{}}
	for _, st := range p.order {
		e.least[st.ID], e.most[st.ID], e.filling[st.ID], e.coming[st.ID] = st.bytes, st.bytes, st.filling, st.coming
	}
	p.evens = map[placementOf]registry.Move{}
	movable := map[topology.ServerID][]candidate{}
	var together []candidate
	for _, m := range p.Tables {
		for part := range m.All() {
			switch key := (lease.Partition{Table: m.Table, ID: part.ID}); {
			case part.State != topology.Live || p.touched[key]:
			case p.empty(key):
				if !p.past(part) && len(part.Placements) == m.Config.Replicas && len(part.Joining) == 0 && e.fits(part, key, 0) && e.shares(part) {
					together = append(together, candidate{table: m, part: part})
				}
			case !e.fits(part, key, p.set.DeadAfter):
			case len(part.Placements)+len(part.Joining) > m.Config.Replicas:
				e.goOn(m, part, key)
			case e.fits(part, key, 0) && e.settled(m, part, key):
				if _, known := p.Sizes[key]; known && e.shares(part) {
					together = append(together, candidate{table: m, part: part})
				}
				for _, pl := range part.Placements {
					if e.byBytes(part, key) {
						movable[pl.Server] = append(movable[pl.Server], candidate{m, part, pl})
					}
				}
			}
		}
	}
	if p.manySilent() {
		return
	}
	e.separate(together)
	for e.begin(movable) {
	}
}

// byBytes reports whether copies of a partition may be moved because of their bytes.
func (e *evening) byBytes(part *topology.Partition, key lease.Partition) bool {
	return e.set.BalanceBytes >= 0 && part.TimeHi <= e.closed() && e.Sizes[key].Bytes > 0
}

// fits reports whether no other change of a partition is due: its servers stay, none is silent for longer than patience, they may lead, and no registry row has
// a move of one of its placements. A move that has begun waits for a silent server as long as a repair does (DeadAfter): copied rows are kept while a server
// restarts.
func (e *evening) fits(part *topology.Partition, key lease.Partition, patience time.Duration) bool {
	stays := func(pl topology.Placement) bool {
		_, asked := e.view.moveOf(key.Table, pl)
		return !asked && !e.bad(pl.Server, patience) && !slices.Contains(e.No[key], pl.Server)
	}
	for _, pl := range part.Placements {
		if !stays(pl) {
			return false
		}
	}
	for _, pl := range part.Joining {
		if !stays(pl) {
			return false
		}
	}
	return true
}

// settled reports whether a partition is led, and all its placements have every row.
func (e *evening) settled(m *topology.Map, part *topology.Partition, key lease.Partition) bool {
	row := e.Leases[key]
	return row.State == lease.Held && row.Offline == nil && len(part.Placements) == m.Config.Replicas && len(part.Joining) == 0 && len(row.InSync) == len(part.Placements) &&
		!slices.ContainsFunc(part.Placements, func(pl topology.Placement) bool { return !e.lists(key, pl) || !e.servers[pl.Server].copies() })
}

// goOn continues the move of a partition that has a placement more than it should. Map and bytes alone decide which one leaves: a joining one that
// shares less, or whose server is emptier, is being filled; one that shares more, or whose server is fuller, is leaving. This does not change until the move
// has ended, since a move for bytes begins only where the server that loses the placement still has more bytes afterwards.
func (e *evening) goOn(m *topology.Map, part *topology.Partition, key lease.Partition) {
	unlisted := func(pl topology.Placement) bool { return !e.lists(key, pl) }
	filling := slices.ContainsFunc(part.Joining, unlisted) // it is kept while another one has to catch up
	if len(part.Placements) < m.Config.Replicas || len(part.Placements)+len(part.Joining) > m.Config.Replicas+1 || !filling && slices.ContainsFunc(part.Placements, unlisted) {
		return // there is more to mend than a move (copy.go)
	}
	servers := append(on(part.Placements), on(part.Joining)...)
	from := e.leaver(part, key, servers)
	if len(part.Joining) == 0 {
		if slices.ContainsFunc(part.Placements, func(pl topology.Placement) bool {
			return e.compareSharing(servers, pl.Server, from.Server) < 0 || e.emptier(part, key, pl.Server, from.Server)
		}) { // else it had one more for another reason
			e.move(key, from, "", e.whyMoves(servers, from.Server, ""))
			e.least[from.Server] -= e.Sizes[key].Bytes
		}
		return
	}
	to := part.Joining[0]
	evens := e.emptier(part, key, to.Server, from.Server) && (unlisted(to) || e.differBy(from.Server, to.Server, e.Sizes[key].Bytes)) &&
		e.compareSharing(without(on(part.Placements), from.Server), to.Server, from.Server) <= 0
	if !evens && !e.partedBy(part, from.Server, to.Server) || unlisted(to) && e.full(to.Server, key) != "" {
		e.least[to.Server] -= e.Sizes[key].Bytes
		return
	}
	e.move(key, from, to.Server, e.whyMoves(on(part.Placements), from.Server, to.Server))
	e.least[from.Server] -= e.Sizes[key].Bytes
}

// leaver returns the placement that leaves if a partition loses one: the one that shares most hosts and zones with servers; among equals, where copies move for
// their bytes too, the one on the fullest server; then a follower before the leader. The choice does not change when the placement that replaces it has come.
func (e *evening) leaver(part *topology.Partition, key lease.Partition, servers []topology.ServerID) topology.Placement {
	return slices.MaxFunc(part.Placements, func(a, b topology.Placement) int {
		bytes := number(e.emptier(part, key, b.Server, a.Server)) - number(e.emptier(part, key, a.Server, b.Server))
		return cmp.Or(e.compareSharing(servers, a.Server, b.Server), bytes,
			cmp.Compare(number(!e.leads(key, a.Server)), number(!e.leads(key, b.Server))), cmp.Compare(b.Server, a.Server))
	})
}

// differBy reports whether a server has so many more bytes than another one; both have the partition. A joining placement with every row is either new, or it
// led and is leaving. If it is new, they differ by the partition's size at least (begin). If it is leaving, a smaller difference would reverse the two as soon
// as another move has ended: it would stay, and the other one leave.
func (e *evening) differBy(s, than topology.ServerID, bytes int64) bool {
	return e.servers[s].bytes-e.servers[than].bytes >= bytes
}

// emptier reports whether a server has fewer bytes than another one, and the partition may be moved for that.
func (e *evening) emptier(part *topology.Partition, key lease.Partition, s, than topology.ServerID) bool {
	return e.byBytes(part, key) && e.servers[s].bytes < e.servers[than].bytes
}

// begin begins one more move; false: none is worth it.
func (e *evening) begin(movable map[topology.ServerID][]candidate) bool {
	if len(e.evens) >= e.set.MovesMax {
		return false
	}
	servers := slices.DeleteFunc(slices.Clone(e.order), func(st *standing) bool { return !st.usable() })
	slices.SortStableFunc(servers, func(a, b *standing) int { return cmp.Compare(e.least[b.ID], e.least[a.ID]) })
	total, emptiest := int64(0), int64(math.MaxInt64)
	for _, st := range servers {
		total, emptiest = total+e.most[st.ID], min(emptiest, e.most[st.ID])
	}
	slack := max(e.set.BalanceBytes, total/int64(max(len(servers), 1))/5)
	for _, from := range servers {
		differ := e.least[from.ID] - emptiest
		if differ <= slack {
			return false
		}
		all := slices.DeleteFunc(slices.Clone(movable[from.ID]), func(c candidate) bool {
			return e.begun[lease.Partition{Table: c.table.Table, ID: c.part.ID}] || e.size(c) > differ/2
		})
		slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(e.size(b), e.size(a)) }) // the largest: the fewest moves
		for _, c := range all {
			if to, ok := e.target(c, slack); ok {
				e.beginsTo(c, to, e.whyEven(from.ID, to))
				return true
			}
		}
	}
	return false
}

func (e *evening) size(c candidate) int64 {
	return e.Sizes[lease.Partition{Table: c.table.Table, ID: c.part.ID}].Bytes
}

// beginsTo notes a move that begins.
func (e *evening) beginsTo(c candidate, to topology.ServerID, why string) {
	e.move(lease.Partition{Table: c.table.Table, ID: c.part.ID}, c.from, to, why)
	e.least[c.from.Server] -= e.size(c)
	e.least[to] += e.size(c)
	e.most[to] += e.size(c)
	e.filling[to]++
	e.coming[to] += e.size(c)
}

// mayHave reports whether a server may have one more placement of a partition, in the place of one that leaves.
func (e *evening) mayHave(w *where, st *standing) bool {
	if e.unsuitable(w, st) || st.For < e.set.SettleAfter || w.copies && e.filling[st.ID] >= e.set.FillsMax || w.copies && st.Beat.Room != 0 && st.Beat.Room-e.coming[st.ID] < withSpare(w.bytes) {
		return false
	}
	return e.set.ShareHosts || !slices.ContainsFunc(w.has, func(s topology.ServerID) bool { return e.servers[s].Host == st.Host }) // also the host of the one that leaves: both are there for a while
}

// target chooses the emptiest server that may have the placement in the place of the one that leaves.
func (e *evening) target(c candidate, slack int64) (topology.ServerID, bool) {
	w := where{part: lease.Partition{Table: c.table.Table, ID: c.part.ID}, has: on(c.part.Placements), copies: true, bytes: e.size(c)}
	stay := without(w.has, c.from.Server)
	var best *standing
	for _, st := range e.order {
		if (best == nil || e.most[st.ID] < e.most[best.ID]) && e.mayHave(&w, st) && e.compareSharing(stay, st.ID, c.from.Server) <= 0 && e.leavesFor(c, st.ID) {
			best = st
		}
	}
	if best == nil {
		return "", false
	}
	differ := e.least[c.from.Server] - e.most[best.ID]
	return best.ID, differ > slack && differ >= 2*e.size(c)
}

// leavesFor reports whether the placement is the one that leaves once another server joins, or one on a fuller server is: else the move would be reversed.
func (e *evening) leavesFor(c candidate, to topology.ServerID) bool {
	key := lease.Partition{Table: c.table.Table, ID: c.part.ID}
	first := e.leaver(c.part, key, append(on(c.part.Placements), to))
	return first == c.from || e.emptier(c.part, key, c.from.Server, first.Server)
}

func (e *evening) move(key lease.Partition, from topology.Placement, to topology.ServerID, why string) {
	m := registry.Move{Table: key.Table, Partition: key.ID, Placement: from.ID, To: to}
	m.Note.Reason = why
	e.evens[placementOf{key.Table, from.ID}], e.begun[key] = m, true
}

func (e *evening) whyEven(from, to topology.ServerID) string {
	return fmt.Sprintf("%s has %s of rows, %s has %s", from, Bytes(e.servers[from].bytes), cmp.Or(to, "another"), Bytes(e.rows(to)))
}

// rows is the bytes on a server; of none, those on the emptiest.
func (e *evening) rows(s topology.ServerID) int64 {
	if st := e.servers[s]; st != nil {
		return st.bytes
	}
	st := slices.MinFunc(e.order, func(a, b *standing) int { return cmp.Compare(a.bytes, b.bytes) })
	return st.bytes
}

// moveOf returns the move of a placement: its server's registry row has it, or it makes the bytes on the servers more even; then the note names no person.
func (p *planner) moveOf(table string, pl topology.Placement) (registry.Move, bool) {
	if move, asked := p.view.moveOf(table, pl); asked {
		return move, true
	}
	move, ok := p.evens[placementOf{table, pl.ID}]
	return move, ok
}
