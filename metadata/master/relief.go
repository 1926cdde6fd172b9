package master

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Relief is a move of one copy of a busy partition to a less busy server, where no hand-over of a lead would make loads more even (load.go).
//
//	busiest server leads p, and no server with a copy of p is less busy
//	  ─▶ the move stands in the registry row of the server that a copy of p is to leave, as that of a person does
//	  ─▶ join, live, leaves (copy.go) ─▶ the move is deleted from the row
//	  ─▶ the lead of p is handed over to the server that has the copy now (load.go); of a table of one replica the lease went with the copy
//
// From the row any master knows the purpose of each step. As a rule only one relief of the cluster is under way at a time; DESIGN.md shows that reliefs come to
// an end.
type Relief struct {
	// From is the server whose registry row has the move.
	From topology.ServerID
	Move registry.Move
	// Over are moves in the row that ended: the row is written without them when the relief begins.
	Over []registry.Move
	// End deletes the move from the row: the copy has left, or need not leave any more. Unfilled makes the row remember that the target did not get every row.
	End, Unfilled bool
	// Servers are all registered servers: none of their rows may have a relief when another begins.
	Servers []topology.ServerID
}

const (
	// movedMax is how long a move of a copy for load is remembered.
	movedMax = time.Hour
	// reliefPays is for how long a partition must go on accepting rows, at least, and reliefPaysTimes how many times as long as its rows need to be copied.
	reliefPays      = 10 * time.Minute
	reliefPaysTimes = 4
	// A relief waits for its copy for reliefMax, or reliefMaxTimes the time that its rows need to be copied if that is longer; then it ends.
	reliefMax      = 30 * time.Minute
	reliefMaxTimes = 10
	// reliefMaxUnknown is that limit while the size of the partition is not known.
	reliefMaxUnknown = 24 * time.Hour
	// overAfter is how old a move must be, by the wall clock, before its end follows from the map at hand: a person may have seen a newer one.
	overAfter = 10 * time.Minute
)

// isRelief reports whether a master moves the placement for load.
func isRelief(m registry.Move) bool { return m.Note.Who == Fencer }

// endReliefs ends the reliefs without a purpose, and notes whether one is under way. The rest of the plan does not go by those that end: their copies stay.
func (p *planner) endReliefs() {
	for _, st := range p.order {
		for _, m := range st.Moves {
			if !isRelief(m) {
				continue
			}
			p.relieving = true
			tooLong := p.reliefLasts(m)
			if why := p.reliefEnds(st, m, tooLong); why != "" && p.moves < p.set.MovesMax {
				p.moves++
				p.ending[placementOf{m.Table, m.Placement}] = true
				row := p.Leases[lease.Partition{Table: m.Table, ID: m.Partition}]
				unfilled := why == tooLong && !slices.ContainsFunc(row.InSync, func(x lease.Member) bool { return x.Server == m.To && !p.replaced(x) })
				p.add(Step{Kind: Balance, Table: m.Table, Partition: m.Partition, Relief: &Relief{From: st.ID, Move: m, End: true, Unfilled: unfilled},
					What: fmt.Sprintf("end the move of p%d away from %s", m.Partition, st.ID), Why: why})
			}
		}
	}
}

// reliefLasts returns the reason to end a relief that lasts too long; "": it does not.
func (p *planner) reliefLasts(m registry.Move) string {
	key := lease.Partition{Table: m.Table, ID: m.Partition}
	age, limit := p.Moving[placementOf{m.Table, m.Placement}], reliefMaxUnknown
	if _, known := p.Sizes[key]; known {
		limit = max(reliefMax, reliefMaxTimes*p.copying(key))
	}
	if age <= limit {
		return ""
	}
	return fmt.Sprintf("%s or a copy that stays does not have every row after %v", m.To, age.Round(time.Second))
}

// reliefEnds returns why a relief ends; "": it goes on. A server that is silent for less than EmptyAfter, such as one that starts again, ends none. A relief
// that waits for its copy ends when that lasts too long.
func (p *planner) reliefEnds(from *standing, m registry.Move, tooLong string) string {
	key := lease.Partition{Table: m.Table, ID: m.Partition}
	i := slices.IndexFunc(p.all, func(t *topology.Map) bool { return t.Table == m.Table })
	switch {
	case p.Dropping[m.Table] || p.Dropped[m.Table]:
		return "the table is dropped"
	case i < 0:
		return tooLong // its map is not known now
	}
	row := p.Leases[key]
	hold, known := p.holders(key)
	part, there := p.all[i].ByID(m.Partition)
	to := p.servers[m.To]
	switch {
	case !there || !slices.Contains(slices.Concat(part.Placements, part.Joining), topology.Placement{ID: m.Placement, Server: from.ID}):
		return "it has left"
	case part.State != topology.Live:
		return fmt.Sprintf("p%d is %v", m.Partition, part.State)
	case !known:
		return "its lease row is gone or cannot be read"
	case p.all[i].Config.Replicas > 1 && p.leads(key, from.ID):
		return fmt.Sprintf("%s leads it now", from.ID)
	case row.Offline != nil:
		return "a person took the partition offline"
	case row.State == lease.Held && p.silent(row.Holder, p.set.EmptyAfter):
		return "its leader is away: " + p.state(row.Holder)
	case p.bad(from.ID, p.set.EmptyAfter):
		return p.state(from.ID)
	case to == nil || p.bad(m.To, p.set.EmptyAfter) || to.Beat.ReadOnly != "":
		return p.state(m.To)
	case slices.Contains(p.No[key], m.To):
		return fmt.Sprintf("it is prohibited on %s", m.To)
	case p.full(m.To, key) != "":
		return p.full(m.To, key)
	}
	for _, s := range append(slices.Clone(hold), m.To) {
		if st := p.servers[s]; st != nil && st.Live && !st.copies() {
			return "storage.copies is off on " + string(s)
		}
	}
	// Without this a relief would wait for ever for a live server whose copy does not catch up, such as one without room.
	joined := false
	for _, pl := range slices.Concat(part.Placements, part.Joining) {
		if pl.ID != m.Placement && !p.lists(key, pl) {
			return tooLong
		}
		joined = joined || pl.Server == m.To
	}
	if !joined {
		return tooLong
	}
	return ""
}

// unfilledMove is a move for load that ended because its target did not get every row.
type unfilledMove struct {
	placementOf
	when int64 // by the wall clock of the master that ended it
}

func unfilledOf(m registry.Move) unfilledMove {
	return unfilledMove{placementOf{m.Table, m.Placement}, m.Note.When.UnixNano()}
}

// unfilledLately reports whether one of the moves that asked accepts ended lately because its target did not get every row. Such a move is forgotten after
// MovedFor, by the wall clock or since this master first saw it, whichever is over sooner: so a wrong clock makes none last.
func (p *planner) unfilledLately(asked func(registry.Move) bool) bool {
	return slices.ContainsFunc(p.order, func(st *standing) bool {
		return slices.ContainsFunc(st.Unfilled, func(m registry.Move) bool {
			return asked(m) && max(p.Unfilled[unfilledOf(m)], time.Duration(p.Now-m.Note.When.UnixNano())) < p.set.MovedFor
		})
	})
}

// copying is how long the rows of a partition need to be copied.
func (p *planner) copying(key lease.Partition) time.Duration {
	return time.Duration(float64(p.Sizes[key].Bytes) / float64(p.set.CopyRate) * float64(time.Second))
}

// relieveByCopy begins the relief after which the busier of its two servers has the least load.
func (l *leading) relieveByCopy(busiest []topology.ServerID, parts map[topology.ServerID][]hotPart) {
	if l.relieving || l.moves >= l.set.MovesMax {
		return
	}
	for _, age := range l.Moved {
		if age < l.set.RestFor {
			return // loads are not known anew yet
		}
	}
	for _, from := range busiest {
		if !l.beyond(from) {
			return
		}
		var best *reliefOf
		for _, x := range parts[from] {
			if l.rests[from] || !l.settledHot(x) || l.leadHelps(from, x) {
				continue
			}
			for _, st := range l.order {
				if r := l.reliefTo(from, x, st); r != nil && (best == nil || r.compare(best) < 0) {
					best = r
				}
			}
		}
		if best != nil {
			l.passed = nil
			l.begin(from, best)
			return
		}
	}
}

// reliefOf is a relief that may begin.
type reliefOf struct {
	hotPart
	bytes  int64 // that are copied
	leaves topology.Placement
	to     *standing
	before int64 // rows a second on the target
	after  int64 // on the busier of the two
}

func (r *reliefOf) compare(o *reliefOf) int {
	return cmp.Or(cmp.Compare(r.after, o.after), cmp.Compare(r.bytes, o.bytes), cmp.Compare(r.before, o.before), comparePartitions(r.key(), o.key()), cmp.Compare(r.to.ID, o.to.ID))
}

// settledHot reports whether no other change of a partition is due, all its servers are well and their loads known, and it accepts rows for long enough.
func (l *leading) settledHot(x hotPart) bool {
	key, row := x.key(), l.Leases[x.key()]
	if age, lately := l.Moved[key]; lately && age < l.set.MovedFor || l.unfilledLately(func(m registry.Move) bool { return m.Table == key.Table && m.Partition == key.ID }) || l.empty(key) || len(row.InSync) != len(x.part.Placements) {
		return false
	}
	return l.paysOff(x) && !slices.ContainsFunc(x.part.Placements, func(pl topology.Placement) bool {
		_, measured := l.rows[pl.Server] // those that drain, or came a moment ago, are not
		_, moves := l.moveOf(key.Table, pl)
		return !measured || moves || l.rests[pl.Server] || !l.lists(key, pl) || !l.servers[pl.Server].copies() || !l.mayLead(x, pl)
	})
}

// paysOff reports whether a partition accepts rows for long enough after its rows have been copied: until it ends, or is split for its size.
func (l *leading) paysOff(x hotPart) bool {
	size, known := l.Sizes[x.key()]
	left := float64(x.part.TimeHi - l.Now)
	if perRow := float64(size.Bytes) / float64(max(size.Rows, 1)); l.set.SplitBytes > 0 && perRow > 0 {
		left = min(left, float64(l.splitFrom(x.table)-size.Bytes)/(perRow*float64(max(x.rows, 1)))*float64(time.Second))
	}
	return known && left >= float64(max(reliefPays, reliefPaysTimes*l.copying(x.key())))
}

// leadHelps reports whether handing over the lead to a server with a copy would help: then no copy moves, even while the hand-over has to wait.
func (l *leading) leadHelps(from topology.ServerID, x hotPart) bool {
	return slices.ContainsFunc(x.part.Placements, func(pl topology.Placement) bool {
		return pl.Server != from && max(l.rows[from]-x.rows, l.rows[pl.Server]+x.rows) <= l.rows[from]-l.least && l.servers[pl.Server].Beat.Load < lease.LoadMaxDefault
	})
}

// reliefTo returns the relief of a server by a copy of a partition on another one; nil: that one may not have a copy, or the gain is too small. The gain must
// be at least twice that of a hand-over, so that the lead is still worth handing over when the copy is there.
func (l *leading) reliefTo(from topology.ServerID, x hotPart, st *standing) *reliefOf {
	bytes, rows, measured := l.Sizes[x.key()].Bytes, l.rows[st.ID], false
	_, measured = l.rows[st.ID]
	here, there := l.rows[from]-x.rows, rows+x.rows
	w := where{part: x.key(), has: on(x.part.Placements), copies: true, bytes: bytes}
	switch {
	case !measured || l.rests[st.ID] || l.unsuitable(&w, st) || st.filling >= l.set.FillsMax || !st.takes(bytes):
		return nil
	case st.Beat.Load >= lease.LoadMaxDefault || slices.Contains(st.Beat.Damaged, x.key().String()) || l.unfilledLately(func(m registry.Move) bool { return m.To == st.ID }):
		return nil
	case max(here, there) > l.rows[from]-2*l.least:
		return nil
	case there*100 > l.mean*busyPercent && there > here:
		return nil // it would be the one beyond the band
	case !l.set.ShareHosts && slices.ContainsFunc(w.has, func(s topology.ServerID) bool { return l.servers[s].Host == st.Host }):
		return nil
	}
	var leaves []topology.Placement
	var full []MoveByLoad
	for _, pl := range x.part.Placements {
		stay := slices.DeleteFunc(slices.Clone(w.has), func(s topology.ServerID) bool { return s == pl.Server })
		if leader := pl.Server == from; leader == (len(w.has) == 1) && l.compareSharing(stay, st.ID, pl.Server) <= 0 {
			if m, err := l.rowTakes(from, x, pl, st); err != nil {
				full = append(full, MoveByLoad{Move: m, From: pl.Server, PassedOver: err.Error()})
			} else {
				leaves = append(leaves, pl)
			}
		}
	}
	if len(leaves) == 0 {
		l.passed = append(l.passed, full...)
		return nil
	}
	return &reliefOf{hotPart: x, bytes: bytes, to: st, before: rows, after: max(here, there), leaves: slices.MaxFunc(leaves, func(a, b topology.Placement) int {
		return cmp.Or(cmp.Compare(l.rows[a.Server], l.rows[b.Server]), cmp.Compare(l.servers[a.Server].bytes, l.servers[b.Server].bytes), cmp.Compare(b.Server, a.Server))
	})}
}

// reliefMove is the move of a relief, as yet without a note.
func reliefMove(x hotPart, leaves topology.Placement, to topology.ServerID) registry.Move {
	return registry.Move{Table: x.key().Table, Partition: x.key().ID, Placement: leaves.ID, To: to}
}

// whyRelief is the reason of a relief, for the note of its move.
func (l *leading) whyRelief(from topology.ServerID, x hotPart, to *standing) string {
	return fmt.Sprintf("%s accepts %d rows/s, %s %d, and the mean of %d servers is %d; p%d has %d, and no server with a copy of it is less busy",
		from, l.rows[from], to.ID, l.rows[to.ID], len(l.rows), l.mean, x.part.ID, x.rows)
}

// rowTakes returns the move to write into the registry row of the server that a copy is to leave, and an error if the row has no room for it. Moves that have
// ended make room. Without this check a move that does not fit would be refused, planned anew in each round, and hold up all others.
func (l *leading) rowTakes(from topology.ServerID, x hotPart, leaves topology.Placement, to *standing) (registry.Move, error) {
	row, m := l.servers[leaves.Server].Server.Server, reliefMove(x, leaves, to.ID)
	longest := time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 3600)) // no time has a longer form in a row
	m.Note = lease.Note{Who: Fencer, When: longest, Reason: l.whyRelief(from, x, to)}
	return m, row.Add(m, func(old registry.Move) bool { return !l.over(leaves.Server, old) })
}

// over reports whether a move away from a server has certainly ended: the table was dropped, or the map has the placement no more. A move that was noted a
// moment ago may be of a newer map than the one at hand.
func (p *planner) over(from topology.ServerID, m registry.Move) bool {
	if time.Duration(p.Now-m.Note.When.UnixNano()) < overAfter {
		return false
	}
	i := slices.IndexFunc(p.all, func(t *topology.Map) bool { return t.Table == m.Table })
	if i < 0 {
		return p.Dropped[m.Table] // else its map is not known now
	}
	part, ok := p.all[i].ByID(m.Partition)
	if !ok {
		return m.Partition < p.all[i].NextID && !children(p.all[i])[m.Partition]
	}
	return !slices.Contains(slices.Concat(part.Placements, part.Joining), topology.Placement{ID: m.Placement, Server: from})
}

func (l *leading) begin(from topology.ServerID, r *reliefOf) {
	key, all := r.key(), []topology.ServerID{}
	for _, st := range l.order {
		all = append(all, st.ID)
	}
	over := slices.DeleteFunc(slices.Clone(l.servers[r.leaves.Server].Moves), func(m registry.Move) bool { return !l.over(r.leaves.Server, m) })
	l.moves++
	l.touched[key] = true
	l.add(Step{Kind: Balance, Table: key.Table, Partition: key.ID,
		Relief: &Relief{From: r.leaves.Server, Servers: all, Move: reliefMove(r.hotPart, r.leaves, r.to.ID), Over: over},
		What:   fmt.Sprintf("have p%d move from %s to %s", key.ID, r.leaves.Server, r.to.ID),
		Why:    l.whyRelief(from, r.hotPart, r.to)})
}
