package master

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// repair brings every partition to its number of good placements, and removes those on servers that are
// dead or drained.
//
//	no row was ever acked moved at once, in one transaction behind a fence: there is nothing to lose
//	rows, held elsewhere  another server joins, and is live once the leader lists it; once enough are live, the bad one joins again, so that it
//	                      cannot acquire the lease, and leaves the map; then its leader removes it from the list, and only then may its server delete the copy
//	rows, held only there nothing may be done: an alarm (I1)
//
// The later stages need the leader (it fills the joining server, it lists the servers in sync), so a repair may need many rounds.
func (p *planner) repair() {
	massive := p.massive()
	only := map[topology.ServerID]map[string][]point.PartitionID{} // partitions held only by a silent server
	for _, m := range p.Tables {
		for part := range m.All() {
			key := lease.Partition{Table: m.Table, ID: part.ID}
			if p.touched[key] {
				continue
			}
			if p.empty(key) {
				if part.State == topology.Live {
					p.repairEmpty(m, part, key)
				}
				continue
			}
			if p.Empty(key) {
				continue // a person set it offline
			}
			hold, known := p.holders(key)
			if !known {
				p.alarm(m.Table, part.ID, names([]point.PartitionID{part.ID})+" cannot be led", "its lease row is gone or cannot be read, and it had one: it is not known which servers hold its rows; look at `spillway partition show`, then restore")
				continue
			}
			if !slices.ContainsFunc(hold, func(s topology.ServerID) bool { return !p.silent(s, p.set.EmptyAfter) }) {
				if only[hold[0]] == nil {
					only[hold[0]] = map[string][]point.PartitionID{}
				}
				only[hold[0]][m.Table] = append(only[hold[0]][m.Table], part.ID)
				continue
			}
			if part.State == topology.Unload {
				p.finishJoins(m, part, key)
			}
			if part.State == topology.Live && !massive {
				p.repairHeld(m, part, key, hold)
			}
		}
	}
	p.uncopiedAlarms()
	p.roomAlarm()
	for _, s := range sortedServers(only) {
		for _, table := range sortedKeys(only[s]) {
			ids := only[s][table]
			p.alarm(table, ids[0], "only "+string(s)+" has the rows of "+names(ids), "%s: nothing can be done until it is back", p.state(s))
		}
	}
}

// massive reports whether so many servers are silent that the fault is likelier in our view than in all servers. Then
// no repair that copies rows is begun.
func (p *planner) massive() bool {
	silent := p.silentServers()
	if !p.manySilent() {
		return false
	}
	p.alarm("", 0, "no rows are copied", "%d of %d servers are silent (%s): more likely something between them and the coordination store is broken", len(silent), len(p.order), list(silent))
	return true
}

func (p *planner) silentServers() (silent []topology.ServerID) {
	for _, st := range p.order {
		if p.silent(st.ID, p.set.EmptyAfter) {
			silent = append(silent, st.ID)
		}
	}
	return silent
}

// manySilent reports whether more than half of several servers are silent.
func (p *planner) manySilent() bool {
	n := len(p.silentServers())
	return n >= 2 && n*2 > len(p.order)
}

// bad reports whether a placement should leave a server: the server is drained, or silent for longer than patience.
func (p *planner) bad(s topology.ServerID, patience time.Duration) bool {
	st := p.servers[s]
	return st == nil || st.Drain != nil || p.silent(s, patience)
}

// unfit reports whether a partition without rows should go elsewhere: its server is bad, or accepts no rows.
func (p *planner) unfit(s topology.ServerID) bool {
	return p.bad(s, p.set.EmptyAfter) || p.servers[s].Beat.ReadOnly != ""
}

// state describes the condition of a server.
func (p *planner) state(s topology.ServerID) string {
	st := p.servers[s]
	switch {
	case st == nil:
		return string(s) + " is not registered"
	case !st.Live:
		return fmt.Sprintf("%s is silent for %v", s, st.For.Round(time.Second))
	case st.Drain != nil:
		return fmt.Sprintf("%s is drained by %s: %s", s, st.Drain.Who, st.Drain.Reason)
	case st.Unreached != "":
		return fmt.Sprintf("%s is reached by no process at %s: %s", s, st.Addr, st.Unreached)
	case st.Beat.ReadOnly != "":
		return fmt.Sprintf("%s takes no rows: %s", s, st.Beat.ReadOnly)
	}
	return string(s) + " lives"
}

func (p *planner) kindFor(s topology.ServerID) Kind {
	if st := p.servers[s]; st != nil && st.Live && st.Drain != nil {
		return Drain
	}
	return Repair
}

// kindOf is the kind of a step after which some placements of a partition are gone, for which servers went.
func (p *planner) kindOf(table string, gone []topology.Placement, went []topology.ServerID) Kind {
	switch {
	case slices.ContainsFunc(gone, func(pl topology.Placement) bool { _, evens := p.evens[placementOf{table, pl.ID}]; return evens }):
		return Balance
	case len(went) > 0:
		return p.kindFor(went[0])
	}
	return Repair
}

// repairEmpty replaces placements of a partition without rows, in one transaction. Its leader releases it.
func (p *planner) repairEmpty(m *topology.Map, part *topology.Partition, key lease.Partition) {
	var good, gone []topology.Placement
	var to []topology.ServerID
	for _, pl := range part.Placements {
		if move, asked := p.moveOf(key.Table, pl); asked {
			gone, to = append(gone, pl), append(to, move.To)
		} else if p.unfit(pl.Server) {
			gone = append(gone, pl)
		} else {
			good = append(good, pl)
		}
	}
	missing := m.Config.Replicas - len(good)
	if missing <= 0 && len(gone) == 0 && len(part.Joining) == 0 && len(good) <= m.Config.Replicas || p.moves >= p.set.MovesMax {
		return
	}
	var ops []topology.Op
	var came, went []topology.ServerID
	w := where{part: key, not: append(on(part.Placements), on(part.Joining)...), past: p.past(part)}
	for _, pl := range part.Joining { // there is nothing to fill them with: they are live, or of no use
		if missing > 0 && !p.unfit(pl.Server) {
			ops = append(ops, topology.JoinFinalize{Partition: part.ID, Placement: pl.ID})
			good = append(good, pl)
			missing--
		} else {
			ops = append(ops, topology.Remove{Partition: part.ID, Placement: pl.ID})
			went = append(went, pl.Server)
		}
	}
	w.has = on(good) // hosts of leaving servers are free again, the servers are not
	for ; missing > 0; missing-- {
		w.takeNext(&to)
		st, ok := p.choose(w)
		if !ok {
			break
		}
		pl := p.placement(st.ID)
		ops = append(ops, topology.Join{Partition: part.ID, Placement: pl}, topology.JoinFinalize{Partition: part.ID, Placement: pl.ID})
		good, came = append(good, pl), append(came, st.ID)
		w.has = append(w.has, st.ID)
		p.count(key.Table, part, st.ID, 1)
	}
	why := ""
	for _, pl := range p.leaving(good, gone, m.Config.Replicas) {
		ops, went = append(ops, topology.Remove{Partition: part.ID, Placement: pl.ID}), append(went, pl.Server)
		if why == "" && slices.Contains(gone, pl) {
			why = p.whyLeaves(key.Table, pl)
		}
	}
	for _, s := range went {
		p.count(key.Table, part, s, -1)
	}
	if len(ops) == 0 {
		if len(good) == 0 {
			p.alarm(key.Table, part.ID, fmt.Sprintf("no server can lead p%d", part.ID), "%s, and no other server may take it", p.whyLeaves(key.Table, gone[0]))
		}
		return
	}
	if why == "" {
		why = fmt.Sprintf("%d of %d placements", len(part.Placements), m.Config.Replicas)
	}
	p.moves++
	p.touched[key] = true
	p.add(Step{Kind: p.kindOf(key.Table, gone, went), Table: key.Table, Partition: part.ID, Ops: ops, Fences: []Fence{{key, on(part.Placements)}},
		What: describe(part.ID, came, went), Why: why + "; it never had rows"})
}

// leaving returns the placements that go, while enough stay: those of servers that are gone, then live ones beyond the number of replicas.
func (p *planner) leaving(good, gone []topology.Placement, replicas int) []topology.Placement {
	all := append(slices.Clone(gone), p.surplus(good, replicas)...)
	return all[:min(len(all), max(0, len(good)+len(gone)-replicas))]
}

// surplus returns the live placements beyond the table's number of replicas, those on the busiest servers first; never the first of
// the chain.
func (p *planner) surplus(good []topology.Placement, replicas int) []topology.Placement {
	if len(good) <= replicas {
		return nil
	}
	rest := slices.Clone(good[1:])
	slices.SortStableFunc(rest, func(a, b topology.Placement) int {
		return busier(p.servers[b.Server], p.servers[a.Server])
	})
	return rest[:len(good)-replicas]
}

// describeHeld is describe, with the servers whose placements become live.
func describeHeld(id point.PartitionID, came, went, ready []topology.ServerID) string {
	switch {
	case len(ready) == 0:
		return describe(id, came, went)
	case len(came)+len(went) == 0:
		return fmt.Sprintf("let %s lead p%d", list(ready), id)
	}
	return describe(id, came, went) + ", and let " + list(ready) + " lead it"
}

// lists reports whether the lease row names a placement as in sync.
func (v *view) lists(key lease.Partition, pl topology.Placement) bool {
	return slices.ContainsFunc(v.Leases[key].InSync, func(m lease.Member) bool { return m.Placement == pl.ID && m.Server == pl.Server && !v.replaced(m) })
}

// leads reports whether the lease row names the server as its holder.
func (p *planner) leads(key lease.Partition, s topology.ServerID) bool {
	row := p.Leases[key]
	return row.State == lease.Held && row.Holder == s
}

func describe(id point.PartitionID, came, went []topology.ServerID) string {
	switch {
	case len(came) == 0:
		return fmt.Sprintf("take p%d off %s", id, list(went))
	case len(went) == 0:
		return fmt.Sprintf("let %s join p%d", list(came), id)
	}
	return fmt.Sprintf("move p%d from %s to %s", id, list(went), list(came))
}

func sortedServers[V any](m map[topology.ServerID]V) []topology.ServerID {
	var out []topology.ServerID
	for s := range m {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}
