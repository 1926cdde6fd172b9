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

// evening decides which placements with rows leave a server because it has more bytes than others. It is computed again in each round. A move that has begun shows in
// the map: a server joins a partition that has enough placements, or a partition has one more than it should. It goes on as long as it makes the servers more
// even, by the same steps as a move that a person asked for (copy.go).
//
//	fullest server ── a closed partition, at most half of the difference ──▶ the emptiest server that may have it
//
// A move begins where the two differ by more than BalanceBytes and a fifth of the mean, and by twice the partition at least, and goes on while the one is not
// emptier than the other: so none goes to and fro. Partitions that accept writes stay: new ones are laid out on the servers of which the least load is expected.
type evening struct {
	*planner
	// least is the rows on a server when all moves that leave it have ended, most those while nothing has left yet: a server gives by the one and receives by the
	// other, so that what has begun goes on whichever of the moves ends first.
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
	if p.evens = map[placementOf]registry.Move{}; p.set.BalanceBytes < 0 {
		return
	}
	movable := map[topology.ServerID][]candidate{}
	for _, m := range p.Tables {
		for part := range m.All() {
			switch key := (lease.Partition{Table: m.Table, ID: part.ID}); {
			case part.State != topology.Live || p.touched[key] || p.empty(key) || p.Sizes[key].Bytes <= 0 || !e.fits(part, key, p.set.DeadAfter):
			case len(part.Placements)+len(part.Joining) > m.Config.Replicas:
				e.goOn(m, part, key)
			case e.fits(part, key, 0) && e.settled(m, part, key):
				for _, pl := range part.Placements {
					movable[pl.Server] = append(movable[pl.Server], candidate{m, part, pl})
				}
			}
		}
	}
	if !p.manySilent() {
		for e.begin(movable) {
		}
	}
}

// fits reports whether nothing else is to be done with a partition: its servers stay, none is silent for longer than patience, they may lead, and its registry rows name no
// move of one of its placements. A move that has begun is as patient as a repair (DeadAfter): what has been copied is kept while a server starts again.
func (e *evening) fits(part *topology.Partition, key lease.Partition, patience time.Duration) bool {
	return part.TimeHi <= e.closed() && !slices.ContainsFunc(append(slices.Clone(part.Placements), part.Joining...), func(pl topology.Placement) bool {
		_, asked := e.view.moveOf(key.Table, pl)
		return asked || e.bad(pl.Server, patience) || slices.Contains(e.No[key], pl.Server)
	})
}

// settled reports whether a partition is led, and all its placements have every row.
func (e *evening) settled(m *topology.Map, part *topology.Partition, key lease.Partition) bool {
	row := e.Leases[key]
	return row.State == lease.Held && row.Offline == nil && len(part.Placements) == m.Config.Replicas && len(part.Joining) == 0 && len(row.InSync) == len(part.Placements) &&
		!slices.ContainsFunc(part.Placements, func(pl topology.Placement) bool { return !e.lists(key, pl) || !e.servers[pl.Server].copies() })
}

// goOn continues the move of a partition that has a placement more than it should. Which one leaves follows from the rows on the servers as the map has them: one that
// joins and is emptier is being filled, and one that is fuller leaves. Both stay so until the move has ended, since a move begins only where the server that is left has
// more rows afterwards, too.
func (e *evening) goOn(m *topology.Map, part *topology.Partition, key lease.Partition) {
	unlisted := func(pl topology.Placement) bool { return !e.lists(key, pl) }
	filling := slices.ContainsFunc(part.Joining, unlisted) // it is kept while another one has to catch up
	if len(part.Placements) < m.Config.Replicas || len(part.Placements)+len(part.Joining) > m.Config.Replicas+1 || !filling && slices.ContainsFunc(part.Placements, unlisted) {
		return // there is more to mend than a move (copy.go)
	}
	servers := append(on(part.Placements), on(part.Joining)...)
	rank := func(pl topology.Placement) (together int, bytes int64, follows int) {
		st := e.servers[pl.Server]
		return e.zoneUse(servers, st.Zone), st.bytes, number(!e.leads(key, pl.Server))
	}
	from := slices.MaxFunc(part.Placements, func(a, b topology.Placement) int {
		at, ab, af := rank(a)
		bt, bb, bf := rank(b)
		return cmp.Or(cmp.Compare(at, bt), cmp.Compare(ab, bb), cmp.Compare(af, bf), cmp.Compare(b.Server, a.Server))
	})
	to := topology.ServerID("")
	switch {
	case len(part.Joining) == 0 && !slices.ContainsFunc(part.Placements, func(pl topology.Placement) bool { return e.servers[pl.Server].bytes < e.servers[from.Server].bytes }):
		return // it had one more for another reason
	case len(part.Joining) == 1:
		if to = part.Joining[0].Server; e.servers[from.Server].bytes <= e.servers[to].bytes || !e.lists(key, part.Joining[0]) && e.full(to, key) != "" {
			e.least[to] -= e.Sizes[key].Bytes
			return
		}
	}
	e.move(key, from, to)
	e.least[from.Server] -= e.Sizes[key].Bytes
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
				key := lease.Partition{Table: c.table.Table, ID: c.part.ID}
				e.move(key, c.from, to)
				e.least[from.ID] -= e.size(c)
				e.least[to] += e.size(c)
				e.most[to] += e.size(c)
				e.filling[to]++
				e.coming[to] += e.size(c)
				return true
			}
		}
	}
	return false
}

func (e *evening) size(c candidate) int64 {
	return e.Sizes[lease.Partition{Table: c.table.Table, ID: c.part.ID}].Bytes
}

// target chooses the emptiest server that may have the placement in the place of the one that leaves.
func (e *evening) target(c candidate, slack int64) (topology.ServerID, bool) {
	w := where{part: lease.Partition{Table: c.table.Table, ID: c.part.ID}, has: on(c.part.Placements), copies: true, bytes: e.size(c)}
	stay := slices.DeleteFunc(on(c.part.Placements), func(s topology.ServerID) bool { return s == c.from.Server })
	hosts := map[string]bool{}
	for _, s := range w.has {
		hosts[e.servers[s].Host] = true // its own, too: both are there for a while
	}
	var best *standing
	for _, st := range e.order {
		switch {
		case e.unsuitable(&w, st) || st.For < e.set.SettleAfter || e.filling[st.ID] >= e.set.FillsMax:
		case st.Beat.Room != 0 && st.Beat.Room-e.coming[st.ID] < withSpare(w.bytes):
		case hosts[st.Host] && !e.set.ShareHosts || e.zoneUse(stay, st.Zone) > e.zoneUse(stay, e.servers[c.from.Server].Zone):
		case best == nil || e.most[st.ID] < e.most[best.ID]:
			best = st
		}
	}
	if best == nil {
		return "", false
	}
	differ := e.least[c.from.Server] - e.most[best.ID]
	return best.ID, differ > slack && differ >= 2*e.size(c)
}

func (e *evening) move(key lease.Partition, from topology.Placement, to topology.ServerID) {
	m := registry.Move{Table: key.Table, Partition: key.ID, Placement: from.ID, To: to}
	m.Note.Reason = fmt.Sprintf("%s has %s of rows, %s has %s", from.Server, Bytes(e.servers[from.Server].bytes), cmp.Or(to, "another"), Bytes(e.rows(to)))
	e.evens[placementOf{key.Table, from.ID}], e.begun[key] = m, true
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
