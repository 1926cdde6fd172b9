package master

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// State holds all inputs of a plan. Plan changes nothing here.
type State struct {
	// Now is the wall clock: it decides which partitions are past, and which are needed soon. Retention trusts it only as far
	// as newer data came in.
	Now    point.Nanos
	Tables []*topology.Map
	// Servers are the registered servers, in any order.
	Servers []Server
	// Leases are the existing lease rows. A row that cannot be read has the zero Lease: it counts as holding rows.
	Leases map[lease.Partition]lease.Lease
	// Born are the partitions that ever had a lease row.
	Born map[lease.Partition]bool
	// No are the prohibitions: which partition must not be led where.
	No map[lease.Partition][]topology.ServerID
	// Dropped are tables without a map that were certainly dropped. A map may also be missing because
	// no copy is at hand: then nothing is concluded.
	Dropped map[string]bool
	// JustSwept are the tables of which lease rows were swept a moment ago: the next sweep waits.
	JustSwept map[string]bool
	// Dropping are the tables that are being dropped: no new work is begun for these, and begun work must be ended.
	Dropping map[string]bool
	// Metadata are the servers that keep the METADATA files of each table; nil: nothing is decided about them.
	Metadata map[string][]topology.ServerID
	// Handed are the leads that were handed over lately, each for as long as it counts.
	Handed map[lease.Partition]Handed
	// Moved are the partitions of which a copy was moved for load lately, each with the time since the move was last seen under way. A new master knows none.
	Moved map[lease.Partition]time.Duration
	// Moving are the placements that leave their servers because of load, each with the time since that was first seen.
	Moving map[placementOf]time.Duration
	// Unfilled are the moves for load in the rows of servers that ended because their targets did not get every row, each with the time since this master first saw that.
	Unfilled map[unfilledMove]time.Duration
	// Sizes holds the reported sizes; a partition may be missing.
	Sizes map[lease.Partition]Size
	// Growth holds the recorded growth of tables; a table may be missing: its partitions are not cut ahead of their time.
	Growth map[string]*Growth
}

// Server is a registered server and the state its heartbeat shows.
type Server struct {
	registry.Server
	// Live: its heartbeat changed lately. For is how long it has been so, or how long it has been silent, by the clock of
	// the observer, since it began to look.
	Live bool
	For  time.Duration
	// Beat is its newest heartbeat row; zero: none was seen.
	Beat lease.Beat
}

// Size is the size of a partition, as its leader reported it.
type Size struct {
	Bytes int64  `json:"bytes"`
	Rows  uint64 `json:"rows"`
	// MinTime and MaxTime are of the rows; they mean nothing where Rows is 0.
	MinTime point.Nanos `json:"min_time"`
	MaxTime point.Nanos `json:"max_time"`
}

// Step is one decision: a transaction on one table's map, rows to sweep, or a change of its metadata servers; or, without any of these, an alarm that only a
// person or time can resolve.
type Step struct {
	Kind      Kind
	Table     string
	Partition point.PartitionID // of the step, or 0
	Ops       []topology.Op
	// Fences keep an empty partition from being acquired, and from getting rows, while Ops are under way; see Work.
	Fences []Fence
	// Sweep are lease rows of partitions that are no more.
	Sweep []lease.Partition
	// Hand hands a lead over; nil: none.
	Hand *Hand
	// Relief begins or ends the move of a copy for load; nil: none.
	Relief *Relief
	// Drop ends the drop of the table, which has no partitions any more.
	Drop bool
	// MapServer is the change of the table's metadata servers; nil: none.
	MapServer *MapServer
	What      string // "move p7 from s1 to s2"
	Why       string // "s1 is silent for 12m0s, and p7 has no rows"
}

// Hand says that the holder of a lease, in this epoch, is to hand it over to another server.
type Hand struct {
	Partition lease.Partition
	From, To  topology.ServerID
	Epoch     point.Epoch
}

// Handed is a lead that was handed over for its load, or is being so.
type Handed struct {
	From, To topology.ServerID
	For      time.Duration // since it was asked for, or was last acquired
}

// Fence says that a partition must be empty, and must not be acquired by any of the servers.
type Fence struct {
	Partition lease.Partition
	Servers   []topology.ServerID
}

// Kind sorts steps, for metrics.
type Kind uint8

// The order is the one in which steps are planned and carried out.
const (
	Alarm Kind = iota
	Drop
	Retention
	Presplit
	Ahead
	Repair
	Drain
	Split
	Merge
	Balance
	Lead
	Metadata
	Sweep
)

var kindNames = [...]string{
	Alarm: "alarm", Drop: "drop", Retention: "retention", Presplit: "presplit", Ahead: "ahead", Repair: "repair", Drain: "drain", Split: "split",
	Merge: "merge", Balance: "balance", Lead: "lead", Metadata: "metadata", Sweep: "sweep",
}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// MarshalText gives String's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// view is a State with indexes for frequent lookups.
type view struct {
	State
	set     Settings
	servers map[topology.ServerID]*standing
	order   []*standing // by id
	// expected estimates how much load a partition will bring.
	expected expected
	// ending are the placements whose relief ends in this plan: they stay.
	ending map[placementOf]bool
}

// standing is a server with the partitions and bytes on it, including the decisions of the plan so far.
type standing struct {
	Server
	active int   // placements of partitions that are not past: they accept writes now or soon
	load   int64 // that these are expected to bring
	all    int
	bytes  int64
	// filling are its placements that join, and do not have every row yet.
	filling int
	// coming are the bytes of their partitions.
	coming int64
}

// newIndex makes a view that counts nothing on servers and expects no load.
func newIndex(s State, set Settings) *view {
	v := &view{State: s, set: set, servers: map[topology.ServerID]*standing{}, ending: map[placementOf]bool{}}
	v.Tables = slices.SortedFunc(slices.Values(s.Tables), func(a, b *topology.Map) int { return strings.Compare(a.Table, b.Table) })
	for _, srv := range s.Servers {
		st := &standing{Server: srv}
		v.servers[srv.ID] = st
		v.order = append(v.order, st)
	}
	slices.SortFunc(v.order, func(a, b *standing) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return v
}

func newView(s State, set Settings) *view {
	v := newIndex(s, set)
	v.expected = newExpected(&s, set)
	v.learn()
	for _, m := range v.Tables {
		for p := range m.All() {
			one := v.share(m.Table, p)
			for _, pl := range p.Placements {
				v.put(pl.Server, one, 1)
			}
			for _, pl := range p.Joining {
				v.put(pl.Server, one, 1)
				if st := v.servers[pl.Server]; st != nil && !v.lists(lease.Partition{Table: m.Table, ID: p.ID}, pl) {
					st.filling++
					st.coming += one.bytes
				}
			}
			for _, c := range p.Children() {
				for _, pl := range c.Placements {
					v.count(m.Table, c, pl.Server, 1)
				}
			}
		}
	}
	return v
}

// share is what a placement of a partition adds to a server.
type share struct {
	active      int
	load, bytes int64
}

func (v *view) share(table string, p *topology.Partition) (one share) {
	one.bytes = v.Sizes[lease.Partition{Table: table, ID: p.ID}].Bytes
	if !v.past(p) {
		one.active = 1
		if p.Split == nil { // else its children bring the load
			one.load = v.weight(table, p)
		}
	}
	return one
}

// put notes that so many more placements of a partition lie on a server.
func (v *view) put(s topology.ServerID, one share, by int) {
	if st := v.servers[s]; st != nil {
		st.all += by
		st.active += by * one.active
		st.load += int64(by) * one.load
		st.bytes += int64(by) * one.bytes
	}
}

// count notes that a partition lies on a server, or does no longer (by = -1).
func (v *view) count(table string, p *topology.Partition, s topology.ServerID, by int) {
	v.put(s, v.share(table, p), by)
}

// busier compares servers by the expected load of their partitions, then by the number of those partitions.
func busier(a, b *standing) int {
	return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.active, b.active))
}

// past reports whether a partition gets few writes or none.
func (v *view) past(p *topology.Partition) bool { return p.TimeHi <= v.Now || !p.Accepts() }

// Empty reports whether it is certain that no row of the partition was ever acked: it was never led, or its lease row
// says so. Its leader writes the opposite there before the first row is acked.
func (s *State) Empty(p lease.Partition) bool {
	row, ok := s.Leases[p]
	if !ok {
		return !s.Born[p]
	}
	return row.Empty
}

// led reports whether any server ever led the partition.
func (v *view) led(p lease.Partition) bool {
	return v.Leases[p].Epoch > 0 || v.Born[p] // a row of epoch 0 is a map's note: there was no leader
}

// empty reports whether the partition may be changed as one that has no rows. A partition that a person set offline stays as it is.
func (v *view) empty(p lease.Partition) bool { return v.Empty(p) && v.Leases[p].Offline == nil }

// holders are the servers that hold every acked row; if the directories of all were replaced, the servers of the list. An empty partition has none. known is
// false if the lease row was lost or cannot be read: then any server may be a holder.
func (v *view) holders(p lease.Partition) (hold []topology.ServerID, known bool) {
	if v.Empty(p) {
		return nil, true
	}
	row, ok := v.Leases[p]
	if !ok || row.State == "" {
		return nil, false
	}
	for _, m := range row.InSync {
		if !v.replaced(m) {
			hold = append(hold, m.Server)
		}
	}
	if len(hold) > 0 {
		return hold, true
	}
	for _, m := range row.InSync {
		hold = append(hold, m.Server)
	}
	return hold, len(hold) > 0
}

// replaced reports whether the store directory of a listed placement is gone: its server has another one, and must get every row again.
func (v *view) replaced(m lease.Member) bool {
	st := v.servers[m.Server]
	return st != nil && st.Store != "" && m.Store != "" && st.Store != m.Store
}

// silent reports whether a server is silent for at least d; an unregistered one is silent for ever.
func (v *view) silent(s topology.ServerID, d time.Duration) bool {
	st := v.servers[s]
	return st == nil || !st.Live && st.For >= d
}

// held reports whether the process that a lease row names may still act: its server has not been silent for d, and was not
// started again since. If an earlier process held a partition that is in no map any more, no other process releases it.
func (v *view) held(l lease.Lease, d time.Duration) bool {
	st := v.servers[l.Holder]
	again := st != nil && st.Live && st.Beat.Boot != "" && st.Beat.Boot != l.Boot
	return l.State == lease.Held && !v.silent(l.Holder, d) && !again
}

// copies reports whether a server keeps copies of partitions that others lead: only such servers fill others, and are filled.
func (st *standing) copies() bool { return st.Copies == registry.CopiesOn }

// usable servers may get placements.
func (st *standing) usable() bool { return st.Live && st.Takes() && st.Beat.ReadOnly == "" }
