package master

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// held is a partition with rows whose placements change: because servers die or are drained, or because its table has another number of replicas now. The map,
// the lease row and the servers alone decide each step, so that any master goes on where another stopped, and a target that dies is replaced:
//
//	a placement is wanted elsewhere   it joins: its server follows the leader and fetches the segments
//	a joining one is listed           it has every row: it is made live
//	more are live than wanted         one joins again, so that it may not lead: one that must leave first; never the leader (its server hands the lease over, or is dead)
//	a person moves the leader away    it joins again, too, while others can lead: its server releases the lease, and another acquires it
//	a joining one is not wanted       it leaves the map, if others as many as the table has replicas are listed and live, and one of these leads; the leader
//	                                  then removes it from the list, and only after that its server deletes the copy
type held struct {
	*planner
	m    *topology.Map
	part *topology.Partition
	key  lease.Partition
	hold []topology.ServerID

	live []topology.Placement // as of the ops so far
	ops  []topology.Op

	came, went, ready []topology.ServerID
	to                []topology.ServerID // wanted by persons
	reliefs           []topology.ServerID // the targets of reliefs
	why               string
	kind              Kind
}

// repairHeld plans the next step for a partition that holds rows on at least one live server. A joining placement that it removes from the map may still be
// listed: the leader removes a placement from the list after the map has (chain.Unmapped), never before. Until then the copy stays (lease.MayDelete), so that
// no row is lost if the other copies are lost first (DESIGN.md, A listed copy leaves the map first).
func (p *planner) repairHeld(m *topology.Map, part *topology.Partition, key lease.Partition, hold []topology.ServerID) {
	if p.moves >= p.set.MovesMax {
		return
	}
	h := held{planner: p, m: m, part: part, key: key, hold: hold, live: slices.Clone(part.Placements), kind: Repair}
	for _, pl := range append(slices.Clone(part.Placements), part.Joining...) {
		if !h.leaves(pl) {
			continue
		}
		kind := p.kindFor(pl.Server)
		switch to, asked := p.moveOf(key.Table, pl); {
		case asked && isRelief(to):
			kind, h.reliefs = Balance, append(h.reliefs, to.To)
		case asked:
			if kind = Drain; to.Note.Who == "" {
				kind = Balance
			}
			h.to = append(h.to, to.To)
		}
		if h.why == "" || h.kind == Balance { // balance is the last reason that is named
			h.why, h.kind = p.whyLeaves(key.Table, pl), kind
		}
	}
	if h.why == "" {
		h.why = fmt.Sprintf("%d of %d placements", len(part.Placements), m.Config.Replicas)
	}
	h.join(h.ripen())
	h.leave()
	if len(h.ops) == 0 {
		return
	}
	for _, s := range h.went {
		p.count(key.Table, part, s, -1)
	}
	p.moves++
	p.touched[key] = true
	p.add(Step{Kind: h.kind, Table: key.Table, Partition: part.ID, Ops: h.ops, What: describeHeld(part.ID, h.came, h.went, h.ready),
		Why: h.why + "; its rows are on " + list(hold)})
}

// finishJoins makes the joining placements of a partition that unloads live once they have every row. Else none of them could lead if the other copies are
// lost, and rows that only they have would never reach the heirs. Such a partition gets no further placements.
func (p *planner) finishJoins(m *topology.Map, part *topology.Partition, key lease.Partition) {
	var ops []topology.Op
	var ready []topology.ServerID
	for _, pl := range part.Joining {
		if p.lists(key, pl) {
			ops, ready = append(ops, topology.JoinFinalize{Partition: part.ID, Placement: pl.ID}), append(ready, pl.Server)
		}
	}
	if len(ops) == 0 || p.moves >= p.set.MovesMax {
		return
	}
	p.moves++
	p.touched[key] = true
	p.add(Step{Kind: Repair, Table: key.Table, Partition: part.ID, Ops: ops, What: describeHeld(part.ID, nil, nil, ready), Why: "it was being copied when others took over from it"})
}

// leaves reports whether a placement must leave its server.
func (h *held) leaves(pl topology.Placement) bool {
	_, asked := h.moveOf(h.key.Table, pl)
	return asked || h.bad(pl.Server, h.set.DeadAfter)
}

// moveOf returns the move of a placement that its server's registry row has: a person asked for it, or it is a relief.
func (v *view) moveOf(table string, pl topology.Placement) (registry.Move, bool) {
	st := v.servers[pl.Server]
	if st == nil || v.ending[placementOf{table, pl.ID}] {
		return registry.Move{}, false
	}
	return st.MoveOf(table, pl.ID)
}

// whyLeaves describes why a placement leaves its server.
func (p *planner) whyLeaves(table string, pl topology.Placement) string {
	switch move, asked := p.moveOf(table, pl); {
	case !asked:
		return p.state(pl.Server)
	case move.Note.Who == "":
		return move.Note.Reason
	default:
		return fmt.Sprintf("%s moves it from %s to %s: %s", move.Note.Who, pl.Server, move.To, move.Note.Reason)
	}
}

// waits reports whether a server that stays has to catch up first: until then no copy leaves because of load.
func (h *held) waits() bool {
	return len(h.reliefs) > 0 && slices.ContainsFunc(h.part.Placements, func(pl topology.Placement) bool { return !h.leaves(pl) && !h.lists(h.key, pl) })
}

// good counts the live placements that stay.
func (h *held) good() (n int) {
	for _, pl := range h.live {
		if !h.leaves(pl) {
			n++
		}
	}
	return n
}

func (h *held) remove(pl topology.Placement) {
	h.ops, h.went = append(h.ops, topology.Remove{Partition: h.part.ID, Placement: pl.ID}), append(h.went, pl.Server)
}

// ripen makes joining placements with every row live, and removes the unwanted ones. It returns the number of those that are still being filled.
func (h *held) ripen() (filling int) {
	want := h.m.Config.Replicas
	for _, pl := range h.part.Joining {
		listed := h.lists(h.key, pl)
		switch {
		case listed && slices.Contains(h.reliefs, pl.Server) && h.heldByOthers(pl.Server) > 0 && h.waits():
			filling++
		case listed && (!h.leaves(pl) && h.good() < want || h.heldByOthers(pl.Server) == 0 && !h.silent(pl.Server, h.set.EmptyAfter)): // without this it may not lead, although others may be lost
			h.ops, h.ready = append(h.ops, topology.JoinFinalize{Partition: h.part.ID, Placement: pl.ID}), append(h.ready, pl.Server)
			h.live = append(h.live, pl)
		case listed:
			if h.heldByOthers(pl.Server) >= want && h.ledByOthers(pl.Server) {
				h.remove(pl)
			}
		case h.leaves(pl) || h.good() >= want:
			h.remove(pl)
		case h.full(pl.Server, h.key) != "":
			h.why = h.full(pl.Server, h.key) + "; " + h.why
			h.remove(pl)
		default:
			filling++
		}
	}
	return filling
}

// join adds joining placements until there will be enough live ones.
func (h *held) join(filling int) {
	w := where{part: h.key, not: append(on(h.part.Placements), on(h.part.Joining)...), copies: true, bytes: h.Sizes[h.key].Bytes, past: h.past(h.part)}
	missing := h.m.Config.Replicas - h.good() - filling
	for _, s := range h.reliefs {
		switch st := h.servers[s]; {
		case slices.Contains(w.not, s):
		case st == nil || h.unsuitable(&w, st) || st.filling >= h.set.FillsMax || !st.takes(w.bytes):
			missing-- // it waits, and holds up nothing else
		default:
			h.to = append(h.to, s)
		}
	}
	if missing <= 0 {
		return
	}
	if s, off := h.keepsNoCopies(); off {
		h.cannotCopy(s, h.key)
		return
	}
	w.has = slices.DeleteFunc(slices.Clone(w.not), func(s topology.ServerID) bool { return h.bad(s, h.set.DeadAfter) })
	for ; missing > 0; missing-- {
		w.takeNext(&h.to)
		st, ok := h.choose(w)
		if !ok {
			h.roomless(w)
			return
		}
		if why := h.lacksRoom(w.to, w.bytes); why != "" && st.ID != w.to {
			h.why = why + "; " + h.why
		}
		h.ops = append(h.ops, topology.Join{Partition: h.part.ID, Placement: h.placement(st.ID)})
		h.came = append(h.came, st.ID)
		w.has = append(w.has, st.ID)
		st.filling++
		st.coming += w.bytes
		h.count(h.key.Table, h.part, st.ID, 1)
	}
}

// keepsNoCopies returns a live server that has every row and keeps no copies, so that it cannot fill another.
func (h *held) keepsNoCopies() (topology.ServerID, bool) {
	for _, s := range h.hold {
		if st := h.servers[s]; st != nil && st.Live && !st.copies() {
			return s, true
		}
	}
	return "", false
}

// leave has one surplus placement join again: the map must not name it as live when its server removes it. One that is not listed leaves at once.
func (h *held) leave() {
	if len(h.live) <= h.m.Config.Replicas || h.waits() {
		return
	}
	pl, ok := h.nextToGo()
	switch {
	case !ok:
	case !slices.Contains(h.hold, pl.Server):
		h.remove(pl)
	default:
		h.ops, h.went = append(h.ops, topology.Unjoin{Partition: h.part.ID, Placement: pl.ID}), append(h.went, pl.Server)
	}
}

// nextToGo chooses the surplus placement, of those that may go: one that must leave; else one without every row; else the one that shares its host or zone with
// most, and among equals the one on the fullest server.
func (h *held) nextToGo() (topology.Placement, bool) {
	may := slices.DeleteFunc(slices.Clone(h.part.Placements), func(pl topology.Placement) bool {
		switch others := h.heldByOthers(pl.Server); {
		case !slices.Contains(h.hold, pl.Server):
			return false
		case h.planner.leads(h.key, pl.Server) && h.canRelease(pl):
			return false
		case h.planner.leads(h.key, pl.Server): // it hands the lease over, or others acquire it when it is silent: then the placement may go
			return true
		case h.leaves(pl):
			return others == 0
		default:
			return others < h.m.Config.Replicas
		}
	})
	if len(may) == 0 {
		return topology.Placement{}, false
	}
	servers := on(h.live)
	rank := func(pl topology.Placement) (leaves, unlisted int, bytes int64) {
		st := h.servers[pl.Server]
		if st == nil {
			return 1, 1, 0
		}
		return number(h.leaves(pl)), number(!slices.Contains(h.hold, pl.Server)), st.bytes
	}
	return slices.MaxFunc(may, func(a, b topology.Placement) int {
		al, au, ab := rank(a)
		bl, bu, bb := rank(b)
		return cmp.Or(cmp.Compare(al, bl), cmp.Compare(au, bu), h.compareSharing(servers, a.Server, b.Server), cmp.Compare(ab, bb), cmp.Compare(b.Server, a.Server))
	}), true
}

// canRelease reports whether the leading placement may join again, so that its server releases the lease: a move has it leave, its server is live and not
// drained, and as many other live placements as the table has replicas have every row and may lead.
func (h *held) canRelease(pl topology.Placement) bool {
	_, asked := h.moveOf(h.key.Table, pl)
	st, n := h.servers[pl.Server], 0
	for _, other := range h.part.Placements {
		if o := h.servers[other.Server]; other != pl && o != nil && o.Live && h.lists(h.key, other) && !h.leaves(other) && !slices.Contains(h.No[h.key], other.Server) {
			n++
		}
	}
	return asked && st.Live && st.Drain == nil && n >= h.m.Config.Replicas
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// heldByOthers counts the live placements on other servers that stay and have every row.
func (h *held) heldByOthers(s topology.ServerID) (n int) {
	for _, pl := range h.live {
		if pl.Server != s && slices.Contains(h.hold, pl.Server) && !h.leaves(pl) && !h.silent(pl.Server, h.set.EmptyAfter) {
			n++
		}
	}
	return n
}

// ledByOthers reports whether one of them leads now: only a leader removes a placement from the list, and a server that was to lead may have died a moment ago.
func (h *held) ledByOthers(s topology.ServerID) bool {
	row := h.Leases[h.key]
	return row.State == lease.Held && row.Holder != s && slices.ContainsFunc(h.live, func(pl topology.Placement) bool {
		st := h.servers[pl.Server]
		return pl.Server == row.Holder && h.lists(h.key, pl) && !h.leaves(pl) && st != nil && st.Live
	})
}

// cannotCopy notes a partition that should be copied, but whose rows are on a server that keeps no copies.
func (p *planner) cannotCopy(s topology.ServerID, key lease.Partition) {
	if p.uncopied == nil {
		p.uncopied = map[topology.ServerID][]lease.Partition{}
	}
	p.uncopied[s] = append(p.uncopied[s], key)
}

// uncopiedAlarms adds alarms for the partitions with rows that cannot be copied.
func (p *planner) uncopiedAlarms() {
	for _, s := range sortedServers(p.uncopied) {
		keys := p.uncopied[s]
		p.alarm(keys[0].Table, keys[0].ID, fmt.Sprintf("%d partitions with rows cannot be copied from %s", len(keys), s), "storage.copies is off there: turn it on at all storage servers and restart them one by one; the first is %s", keys[0])
	}
}
