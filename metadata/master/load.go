package master

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// leading decides which leads are handed over because their server accepts more rows than others. The number of leads does not show that: one server may lead
// three partitions of now, and each of the others three of last week.
//
//	busiest server, beyond 1.25 × the mean ── one of its busy partitions ──▶ a server that has every row of it, and has less with it than the first one has now
//
// No row is copied: the lease goes to another placement of the in-sync list. The load of the busier server becomes less, by at least BalanceRows and a
// twentieth of the mean. So the sum of the squares of the loads falls with each step, and no step is undone while the loads stay as they are. A server has part
// in one step at a time, and rests until heartbeats have its new load; a partition stays on its new server for HandedFor, whatever its load. Earlier rules of a
// plan go first: a partition that they changed stays, and no lead is handed over in a plan that repairs or drains.
type leading struct {
	*planner
	rows  map[topology.ServerID]int64 // a second, of the servers that report theirs
	mean  int64
	least int64 // by how much the busier of two servers must have less
	rests map[topology.ServerID]bool
	tied  map[lease.Partition]bool
}

const (
	// busyPercent of the mean is what the busiest server may have.
	busyPercent = 125
	// handedMax is how long a hand-over is remembered.
	handedMax = 10 * time.Minute
	// measuredFor is how long a partition must have been measured on its server, and hotFor how long its time must still go on: for a burst, or a partition
	// that is about to end, writers should not wait for a new leader.
	measuredFor = 30 * time.Second
	hotFor      = 2 * time.Minute
)

// spreadLeads computes the hand-overs.
func (p *planner) spreadLeads() {
	l := leading{planner: p, rows: map[topology.ServerID]int64{}, rests: map[topology.ServerID]bool{}, tied: map[lease.Partition]bool{}}
	if p.set.BalanceRows < 0 || p.manySilent() || slices.ContainsFunc(p.steps, func(s Step) bool { return s.Kind == Repair || s.Kind == Drain }) {
		return
	}
	total := int64(0)
	for _, st := range p.order {
		if st.usable() && !st.Beat.Draining && st.Beat.Writes != nil && st.For >= p.set.SettleAfter {
			l.rows[st.ID] = st.Beat.Writes.All()
			total += l.rows[st.ID]
		}
	}
	if len(l.rows) < 2 {
		return
	}
	l.mean = total / int64(len(l.rows))
	l.least = max(p.set.BalanceRows, l.mean/20)
	for _, h := range p.Handed {
		if h.For < p.set.RestFor {
			l.rests[h.From], l.rests[h.To] = true, true
		}
	}
	busiest := sortedServers(l.rows)
	slices.SortStableFunc(busiest, func(a, b topology.ServerID) int { return cmp.Compare(l.rows[b], l.rows[a]) })
	if !l.beyond(busiest[0]) {
		return
	}
	parts, before := l.hot(), len(l.steps)
	for _, from := range busiest {
		if l.beyond(from) && !l.rests[from] {
			l.relieve(from, parts[from])
		}
	}
	if len(l.steps) == before {
		l.relieveByCopy(busiest, parts)
	}
}

// beyond reports whether a server has more than it may have.
func (l *leading) beyond(s topology.ServerID) bool { return l.rows[s]*100 > l.mean*busyPercent }

// hotPart is a busy partition that may be handed over.
type hotPart struct {
	table *topology.Map
	part  *topology.Partition
	rows  int64
}

func (x hotPart) key() lease.Partition { return lease.Partition{Table: x.table.Table, ID: x.part.ID} }

// hot are the busy partitions by their leaders. A server rests whose heartbeat names one that, by the lease rows, it does not lead any more: that heartbeat is
// old.
func (l *leading) hot() map[topology.ServerID][]hotPart {
	tables, out := map[string]*topology.Map{}, map[topology.ServerID][]hotPart{}
	for _, m := range l.Tables {
		tables[m.Table] = m
		l.tie(m)
	}
	for s := range l.rows {
		for _, h := range l.servers[s].Beat.Writes.Hot {
			key, ok := lease.ParsePartition(h.Partition)
			if m := tables[key.Table]; !ok || m == nil {
				continue
			} else if part, there := m.ByID(key.ID); !there || !l.leads(key, s) {
				l.rests[s] = true
			} else if l.tied[key] {
				continue
			} else if was, lately := l.Handed[key]; (!lately || was.For >= l.set.HandedFor) && h.Seconds >= int64(measuredFor/time.Second) && l.stays(m, part, key) {
				out[s] = append(out[s], hotPart{m, part, h.Rows})
			}
		}
	}
	return out
}

// tie notes the partitions whose leader gets rows of another one: the holder would not hand them over, since the transfer would begin anew (metadata/lease, tied).
func (l *leading) tie(m *topology.Map) {
	for part := range m.All() {
		if part.State == topology.Unload && l.Leases[lease.Partition{Table: m.Table, ID: part.ID}].State == lease.Held {
			for _, id := range part.Into {
				l.tied[lease.Partition{Table: m.Table, ID: id}] = true
			}
		}
	}
}

// stays reports whether no other change of a partition is due, and rows will come to it for a while: its time goes on, or has ended long ago and it gets late
// rows.
func (l *leading) stays(m *topology.Map, part *topology.Partition, key lease.Partition) bool {
	row := l.Leases[key]
	left := part.TimeHi - l.Now
	return part.State == topology.Live && !l.touched[key] && row.Offline == nil && row.Bump == nil && len(part.Joining) == 0 &&
		len(part.Placements) == m.Config.Replicas && (left >= int64(hotFor) || left <= -int64(hotFor))
}

// relieve plans the hand-over away from a server after which the busier of the two has the least load.
func (l *leading) relieve(from topology.ServerID, parts []hotPart) {
	best, after, to := hotPart{}, l.rows[from]-l.least, topology.ServerID("")
	for _, x := range parts {
		for _, pl := range x.part.Placements {
			rows, ok := l.rows[pl.Server]
			if !ok || pl.Server == from || l.rests[pl.Server] || l.servers[pl.Server].Beat.Load >= lease.LoadMaxDefault || !l.mayLead(x, pl) {
				continue
			}
			if busier := max(l.rows[from]-x.rows, rows+x.rows); busier < after || busier == after && (to == "" || rows < l.rows[to]) {
				best, after, to = x, busier, pl.Server
			}
		}
	}
	if to == "" {
		return
	}
	key := best.key()
	l.add(Step{Kind: Lead, Table: key.Table, Partition: key.ID, Hand: &Hand{key, from, to, l.Leases[key].Epoch},
		What: fmt.Sprintf("hand the lead of p%d from %s to %s", key.ID, from, to),
		Why:  fmt.Sprintf("%s accepts %d rows/s, %s %d, and the mean of %d servers is %d; p%d has %d", from, l.rows[from], to, l.rows[to], len(l.rows), l.mean, key.ID, best.rows)})
	l.rows[from] -= best.rows
	l.rows[to] += best.rows
	l.rests[from], l.rests[to], l.touched[key] = true, true, true
}

// mayLead reports whether a placement has every row of a partition, and its server may lead it.
func (l *leading) mayLead(x hotPart, pl topology.Placement) bool {
	key := x.key()
	return l.lists(key, pl) && !slices.Contains(l.No[key], pl.Server) && !slices.Contains(l.servers[pl.Server].Beat.Damaged, key.String())
}
