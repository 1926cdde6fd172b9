package rules

import (
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// table is the state of one table.
type table struct {
	name     string
	newest   Table
	looked   looked
	seen     uint64 // the highest transaction, as recorded
	seenTxn  peer.TxnID
	carried  uint64                      // the highest transaction that was carried out
	assigned map[point.PartitionID]*part // assigned here, as given to the lease machine
	alarms   map[point.PartitionID]string
	// ahead are partitions with a lease row that names a newer map than carried.
	ahead map[point.PartitionID]*part

	// heirs are the partitions that get the rows of others, each with those others, by that map.
	heirs map[point.PartitionID][]point.PartitionID

	// carriedMap is the map on which assigned is based. odd are the partitions here that this map does not list.
	carriedMap looked
	odd        []point.PartitionID
	// everLed are the partitions of any server that were once led; armed is the time up to which arm has looked.
	everLed map[point.PartitionID]struct{}

	least least
	armed point.Nanos

	round *round // under way
	again bool   // a change arrived since it began
	full  bool
}

// looked identifies the newest state of a table that was carried out.
type looked struct {
	m   *topology.Map
	row coord.Revision
}

// round is discovery of one table:
//
//	record the highest transaction ─▶┐ (where that fails, nothing is removed)
//	read the lease rows of unwanted  ├─▶ Plan ─▶ seal, open ─▶ assign ─▶ unassign ─▶ remove · hand over · finish
//	placements, and have             │
//	them bar older maps ────────────▶┘
type round struct {
	Table
	full bool
	// unrecorded: the transaction is not recorded, because the disk is full or fails. Leading and reading need no record; removing does.
	unrecorded, readOnly bool

	waits   int
	covered map[point.PartitionID]bool
}

// Wants reports whether a table must be looked at: it changed since it was carried out, or it could not be carried out.
func (m *Machine) Wants(name string, tm *topology.Map, row coord.Revision) bool {
	t := m.tables[name]
	return t == nil || t.looked != looked{tm, row}
}

// round begins discovery of all tables given; tables in the midst of a round begin again after it.
func (m *Machine) round(in Round) {
	var higher []Seen
	var began []*table
	slices.SortFunc(in.Tables, func(a, b Table) int { return compareNames(a.Name, b.Name) })
	for _, x := range in.Tables {
		t := m.table(x.Name)
		t.newest = x
		if t.round != nil {
			t.again, t.full = true, t.full || in.Full
			continue
		}
		m.start(t, in.Full)
		began = append(began, t)
		if t.records(&x) {
			higher = append(higher, Seen{x.Name, x.Map.Seq, x.Txn})
		}
	}
	m.record(higher)
	for _, t := range began {
		m.carryOut(t)
	}
	if in.Full {
		m.unsee(in)
		m.sweep()
	}
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (m *Machine) start(t *table, full bool) {
	r := &round{Table: t.newest, full: full, covered: map[point.PartitionID]bool{}}
	t.round, t.again, t.full = r, false, false
	for _, h := range r.Held {
		if r.Map == nil || h.Empty {
			continue
		}
		at, ok := r.Map.ByID(h.Partition)
		if !ok {
			continue
		}
		if pl, on := at.On(m.server); on && pl.ID == h.Placement {
			continue
		}
		if pl, on := at.JoiningOn(m.server); on && pl.ID == h.Placement {
			continue
		}
		p := m.part(lease.Partition{Table: t.name, ID: h.Partition})
		r.waits++
		m.do(ReadLease{ID: m.ask(question{about: aboutCovered, p: p, t: t, round: r}), Partition: p.id})
	}
}

// record requests that higher transactions be recorded; no placement is removed by them before, and their tables wait for it.
func (m *Machine) record(higher []Seen) {
	if len(higher) == 0 {
		return
	}
	q := question{about: aboutSeen}
	for _, s := range higher {
		m.tables[s.Table].round.waits++
	}
	m.do(Record{ID: m.ask(q), Seqs: higher})
	m.recording = append(m.recording, recording{m.nextID, higher})
}

// records reports whether a map's transaction must be recorded before the server acts by that map: its number is higher than the recorded one, or the same with
// another transaction, as after a restore of the coordination store. A record of an earlier build names no transaction.
func (t *table) records(x *Table) bool {
	return x.Map != nil && (x.Map.Seq > t.seen || x.Map.Seq == t.seen && x.Txn != t.seenTxn && x.Txn != (peer.TxnID{}))
}

// recording is the content of a Record.
type recording struct {
	id   uint64
	seqs []Seen
}

func (m *Machine) recorded(q question, in Recorded) {
	i := slices.IndexFunc(m.recording, func(r recording) bool { return r.id == in.ID })
	seqs := m.recording[i].seqs
	m.recording = slices.Delete(m.recording, i, i+1)
	for _, s := range seqs {
		t := m.tables[s.Table]
		switch {
		case q.about == aboutUnseen:
			if in.OK && t.newest.Map == nil {
				t.seen, t.seenTxn, t.looked = 0, peer.TxnID{}, looked{}
			}
			continue
		case in.OK && s.Seq >= t.seen:
			t.seen, t.seenTxn = s.Seq, s.Txn
		case in.OK:
		default:
			t.round.unrecorded, t.round.readOnly = true, in.ReadOnly
		}
		t.round.waits--
		m.carryOut(t)
	}
}

func (m *Machine) leaseRead(q question, in LeaseRead) {
	if q.about == aboutGarbage {
		m.readGarbage(q.p, in)
		return
	}
	var led lease.Lease
	if in.OK && in.Found {
		led, _ = lease.DecodeLease(in.Row.Value) // an unreadable row lists none
	}
	r, seq := q.round, q.round.Map.Seq
	here := func(x lease.Member) bool { return x.Server == m.server }
	switch {
	case len(led.InSync) == 0 || slices.ContainsFunc(led.InSync, here) || seq < q.t.seen:
	case r.mayDelete(q.p.id.ID, &led):
		r.covered[q.p.id.ID] = true
	case led.Seq < seq && q.tries < guardTriesMax:
		q.about, q.tries = aboutGuard, q.tries+1
		m.do(GuardLease{ID: m.ask(q), Partition: q.p.id, Revision: in.Row.Revision, Lease: led.Barring(seq)})
		return
	}
	r.waits--
	m.carryOut(q.t)
}

// mayDelete reports whether, by the lease row, no leader can list this server's copy of a partition.
func (r *round) mayDelete(id point.PartitionID, led *lease.Lease) bool {
	return !slices.ContainsFunc(r.Held, func(h Held) bool { return h.Partition == id && !led.MayDelete(h.Placement, r.Map.Seq) })
}

// guardTriesMax bounds how often a round guards a lease row that changes at every try. The next full round tries again.
const guardTriesMax = 3

// leaseGuarded reads the row again, whether the write succeeded or not: a leader with an older map may have changed it before, and
// after it none can.
func (m *Machine) leaseGuarded(q question) {
	q.about = aboutCovered
	m.do(ReadLease{ID: m.ask(q), Partition: q.p.id})
}

// carryOut carries out the table's map, once all required answers are there.
func (m *Machine) carryOut(t *table) {
	r := t.round
	if r == nil || r.waits > 0 {
		return
	}
	t.round = nil
	t.looked = looked{r.Map, r.Row}
	m.carry(t, r)
	if r.unrecorded && !r.readOnly {
		t.looked = looked{} // look again
		m.do(Note{Partition: lease.Partition{Table: t.name}, What: RoundFailed, Why: "its highest transaction could not be recorded: nothing is removed by it"})
	}
	if t.again {
		m.start(t, t.full)
		if x := &t.newest; t.records(x) {
			m.record([]Seen{{t.name, x.Map.Seq, x.Txn}})
		}
		m.carryOut(t)
	}
}

func (m *Machine) carry(t *table, r *round) {
	v := View{Map: r.Map, Seen: t.seen, Server: m.server, Held: slices.Clone(r.Held)}
	for i := range v.Held {
		v.Held[i].Covered = r.covered[v.Held[i].Partition]
	}
	if r.Map == nil || r.Map.Seq < t.seen {
		m.raise(t, v.doubt())
		if r.Map == nil {
			t.carriedMap = looked{} // a table that is gone has no future partitions
		}
		return // an unbelievable map begins and ends nothing
	}
	actions, here := v.judge()
	m.raise(t, actions)
	serve := m.serving(t, r, &v, here, actions)
	t.carried, t.carriedMap = r.Map.Seq, looked{r.Map, r.Row}
	t.odd = nil
	for _, a := range actions {
		t.odd = append(t.odd, a.Partition)
	}
	m.assign(t, r.Map, r.Row, serve, r.full)
	m.do(LeaseInput{lease.MapIs{Table: t.name, Seq: r.Map.Seq, TableRow: r.Row}}) // unchanged assignments need not be repeated
	for _, id := range slices.Sorted(maps.Keys(t.ahead)) {
		if p := t.ahead[id]; p.seq <= t.carried {
			delete(t.ahead, id)
			m.do(Changed{p.id}) // the map is new enough now
		}
	}
	for _, a := range actions {
		if a.Kind == Remove && !r.unrecorded {
			id := lease.Partition{Table: t.name, ID: a.Partition}
			m.do(RemovePlacement{ID: m.ask(question{about: aboutRemoval, p: m.part(id), t: t}), Partition: id, Placement: a.Placement, IfEmpty: a.IfEmpty, Why: a.Why})
		}
	}
	m.beginAll(t, serve)
	for _, a := range actions {
		if p := m.parts[lease.Partition{Table: t.name, ID: a.Partition}]; p != nil && a.Kind == Alarm {
			m.offerUnplaced(p)
		}
	}
}

// beginAll begins to finish the splits and unloads that this server has to finish.
func (m *Machine) beginAll(t *table, serve []Action) {
	for _, a := range serve {
		if a.Kind == Split || a.Kind == Final {
			m.begin(m.part(lease.Partition{Table: t.name, ID: a.Partition}))
		}
	}
}

// serving assigns the partitions that the server serves by a new map, and unassigns those that it no longer serves. It looks at the partitions that changed
// since the map before, and at the odd ones; the first time, and in a full round, at all but those of the future.
func (m *Machine) serving(t *table, r *round, v *View, here map[point.PartitionID]Held, judged []Action) (serve []Action) {
	look := func(at *topology.Partition) {
		t.inherit(at)
		if a, ok := v.serve(at, here); ok && m.awake(t, at, here) {
			serve = append(serve, a)
		} else if p := t.assigned[at.ID]; p != nil {
			m.unassign(t, p, r.Map)
		}
	}
	ids := map[point.PartitionID]struct{}{}
	all := r.full || t.carriedMap.m == nil
	if all {
		clear(t.heirs)
		maps.Copy(ids, t.everLed)
		for id := range t.assigned {
			ids[id] = struct{}{}
		}
		for id := range here {
			ids[id] = struct{}{}
		}
		t.armed = m.wall()
		horizon := after(t.armed, aheadMax)
		for at := range r.Map.All() {
			if at.TimeLo > horizon && at.State == topology.Live {
				continue
			}
			delete(ids, at.ID)
			look(at)
		}
	} else {
		for _, c := range topology.Changes(t.carriedMap.m, r.Map) {
			ids[c.ID] = struct{}{}
			for _, at := range []*topology.Partition{c.Was, c.Is} {
				if at == nil {
					continue
				}
				for _, heir := range at.Into { // halves do not change with their parent: the map has had them since the split began
					ids[heir] = struct{}{}
				}
			}
		}
		for _, id := range t.odd {
			ids[id] = struct{}{}
		}
		for _, a := range judged {
			ids[a.Partition] = struct{}{}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if at, ok := r.Map.ByID(id); ok {
			look(at)
			continue
		}
		t.disinherit(id)
		if p := t.assigned[id]; p != nil {
			m.unassign(t, p, r.Map)
		}
	}
	return serve
}

// inherit records the partitions to which the rows of one go by the map.
func (t *table) inherit(at *topology.Partition) {
	if at.State != topology.Unload {
		return
	}
	for _, heir := range at.Into {
		if !slices.Contains(t.heirs[heir], at.ID) {
			t.heirs[heir] = append(t.heirs[heir], at.ID)
		}
	}
}

// disinherit forgets a partition that is in the map no more.
func (t *table) disinherit(id point.PartitionID) {
	delete(t.heirs, id)
	for heir, parents := range t.heirs {
		if parents = slices.DeleteFunc(parents, func(p point.PartitionID) bool { return p == id }); len(parents) == 0 {
			delete(t.heirs, heir)
		} else {
			t.heirs[heir] = parents
		}
	}
}

// raise raises new alarms and forgets the ones that are over.
func (m *Machine) raise(t *table, actions []Action) {
	now := map[point.PartitionID]string{}
	for _, a := range actions {
		if a.Kind == Alarm {
			now[a.Partition] = a.Why
			if t.alarms[a.Partition] == "" {
				m.do(Alarmed{lease.Partition{Table: t.name, ID: a.Partition}, a.Why})
			}
		}
	}
	t.alarms = now
}

// Alarms is the number of alarms that are not over.
func (m *Machine) Alarms() (n int) {
	for _, t := range m.tables {
		n += len(t.alarms)
	}
	return n
}

// assign seals the placements that unload, then gives the lease machine all placements of the table that may lead, in one step.
func (m *Machine) assign(t *table, tm *topology.Map, row coord.Revision, serve []Action, full bool) {
	var all []lease.Assigned
	m.setMinInSync(t, &tm.Config)
	for _, a := range serve {
		p := m.part(lease.Partition{Table: t.name, ID: a.Partition})
		at, _ := tm.ByID(a.Partition)
		m.seal(p, a.Kind == Unloading || a.Kind == Final)
		p.kind, p.low, p.unloads = a.Kind, 0, at.State == topology.Unload
		if p.unloaded = p.unloaded && p.unloads; p.unloaded {
			p.kind = Final
		}
		if a.Kind == Split {
			p.low = at.Split.Low.ID
		}
		if p.placement != a.Placement {
			p.placement, p.alone, p.listed = a.Placement, false, false
		}
		m.setLeast(p, t.least.now, tm.Chained(at))
		m.unload(p)
		x := lease.Assigned{Partition: p.id, Placement: a.Placement, Placements: at.Placements, Joining: at.Joining, Parents: slices.Sorted(slices.Values(t.heirs[a.Partition])), Seq: tm.Seq, TableRow: row, MinInSync: p.least}
		if full || !sameAssigned(&p.assigned, &x) {
			all = append(all, x)
		}
		p.assigned = x
		t.assigned[a.Partition] = p
	}
	if len(all) > 0 {
		m.do(Assign{all})
	}
}

func sameAssigned(a, b *lease.Assigned) bool {
	return a.Placement == b.Placement && a.MinInSync == b.MinInSync && slices.Equal(a.Placements, b.Placements) && slices.Equal(a.Joining, b.Joining) && slices.Equal(a.Parents, b.Parents)
}

// seal closes a partition's gate if by the map its heirs accept the rows, and opens it if they do not any more.
func (m *Machine) seal(p *part, closed bool) {
	switch {
	case closed && !p.sealed:
		m.do(Seal{p.id})
	case !closed && p.sealed:
		m.do(Open{p.id})
	}
	p.sealed = closed
}

func (m *Machine) unassign(t *table, p *part, tm *topology.Map) {
	m.do(LeaseInput{lease.Unassigned{Partition: p.id}})
	delete(t.assigned, p.id.ID)
	if p.epoch > 0 {
		m.seal(p, true) // by the map its rows belong elsewhere
	}
	p.placement, p.kind, p.assigned, p.unloads = 0, Serve, lease.Assigned{}, false
	m.unload(p)
	if _, ok := tm.ByID(p.id.ID); !ok {
		m.garbage[p.id] = true
	}
}

func (m *Machine) removed(q question, ok bool) {
	if !ok {
		q.t.looked = looked{} // look again
		return
	}
	q.p.sealed = false // the gate is gone too
	if q.p.kind == Unloading || q.p.kind == Final {
		m.seal(q.p, true)
	}
}

// unsee forgets tables that are gone and have nothing left here: a table that is made again under the name is another.
func (m *Machine) unsee(in Round) {
	known := map[string]bool{}
	for _, x := range in.Tables {
		known[x.Name] = x.Map != nil || len(x.Held) > 0
	}
	var gone []Seen
	for _, name := range slices.Sorted(maps.Keys(m.tables)) {
		t := m.tables[name]
		if known[name] || t.round != nil {
			continue
		}
		t.newest = Table{Name: name}
		m.forgetTable(name)
		if t.seen > 0 {
			gone = append(gone, Seen{Table: name})
		}
	}
	if len(gone) > 0 {
		m.do(Record{ID: m.ask(question{about: aboutUnseen}), Seqs: gone})
		m.recording = append(m.recording, recording{m.nextID, gone})
	}
}

// forgetTable forgets the partitions of a table that is gone and has nothing left here.
func (m *Machine) forgetTable(name string) {
	for _, id := range slices.SortedFunc(maps.Keys(m.parts), compare) {
		if id.Table == name {
			m.garbage[id] = true
			m.forgotten(m.parts[id])
		}
	}
}

// sweep forgets partitions that were dropped, once no server holds their leases. Some were never assigned here: their copies were removed, or a late
// answer was about them.
func (m *Machine) sweep() {
	for id, p := range m.parts { // each by itself: the order does not matter
		t := m.table(id.Table)
		if tm := t.newest.Map; tm != nil && p.placement == 0 && !p.leading && id.ID < tm.NextID && tm.Seq >= t.seen {
			if _, there := tm.ByID(id.ID); !there {
				m.garbage[id] = true
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.garbage), compare) {
		t := m.table(id.Table)
		switch tm := t.newest.Map; {
		case tm == nil || tm.Seq < t.seen || len(m.asked) >= questionsMax:
			continue // with a later round
		default:
			if _, there := tm.ByID(id.ID); there || id.ID >= tm.NextID {
				delete(m.garbage, id)
				continue
			}
		}
		p := m.part(id)
		m.do(ReadLease{ID: m.ask(question{about: aboutGarbage, p: p}), Partition: id})
	}
}

// questionsMax bounds the questions under way while lease rows are swept.
const questionsMax = 256

func (m *Machine) readGarbage(p *part, in LeaseRead) {
	if !in.OK {
		return
	}
	led, err := lease.DecodeLease(in.Row.Value)
	switch {
	case in.Found && err != nil:
		m.forgotten(p) // a person must look at it; this server may not delete it
		return
	case in.Found && led.State == lease.Held:
		return
	}
	m.forgotten(p) // the master sweeps the rows: births wait for each sweep
}

func (m *Machine) forgotten(p *part) {
	if !m.garbage[p.id] {
		return
	}
	delete(m.garbage, p.id)
	if p.placement != 0 || p.leading {
		return
	}
	m.do(Forget{p.id})
	m.setLapsed(p, false)
	delete(m.active, p.id)
	delete(m.parts, p.id)
}
