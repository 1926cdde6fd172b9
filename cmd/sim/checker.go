package main

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// checker sees all events, as no process can, and checks them against the promises.
type checker struct {
	w *world

	// METADATA.
	tables   map[string]*truth
	proposed map[peer.TxnID][]topology.Op
	handing  map[peer.TxnID]handing         // ends of splits that leaders proposed
	byMaster map[peer.TxnID]bool            // that a master proposed
	made     map[peer.TxnID]topology.Config // transactions that make a table
	history  map[peer.TxnID]uint64
	not      map[peer.TxnID]bool // some process was informed that it is not committed
	has      map[topology.ServerID]map[peer.TxnID]*stored
	wiped    map[peer.TxnID]map[topology.ServerID]bool // had it, and lost its disk

	// Leases.
	listed map[lease.Partition]lease.Lease // as last written, also after they were deleted

	// Rows.
	highest  map[placementOn]point.Epoch // raised durably
	accepted map[lease.Partition]point.Epoch
	rows     map[lease.Partition]map[keyID]ackedRow // the newest that was acked
	damaged  map[uint64]bool                        // values that may be missing: a disk damaged their record, or one that was logged over it
	born     map[lease.Partition]time.Duration      // when it came into the map
	dropped  map[lease.Partition]bool
	emptied  map[lease.Partition]bool // gone, with all rows in its heirs
	ended    map[lease.Partition]endedSlices
	dead     map[lease.StoreID]bool // wiped stores
	copies   copiesChecker

	held        map[uint64]map[lease.StoreID]map[staging.ID]bool // staged values, the stores that have them, and in which frames
	burntStaged map[uint64]bool                                  // all stores that had them were lost
	heldLess    map[uint64]time.Duration                         // when one of them was
}

type placementOn struct {
	store     lease.StoreID
	placement point.PlacementID
}

// ackedRow is where the newest acked row of a key lies.
type ackedRow struct {
	store lease.StoreID
	row
}

// truth is the committed state of a table.
type truth struct {
	name string
	row  mapstore.Row
	m    *topology.Map // made here from the one before

	former []formerly // maps of the last seconds, insync.go
}

// at gives the committed state of a table.
func (c *checker) at(table string) *truth {
	t := c.tables[table]
	if t == nil {
		t = &truth{name: table}
		c.tables[table] = t
	}
	return t
}

func (t *truth) part(id point.PartitionID) lease.Partition {
	return lease.Partition{Table: t.name, ID: id}
}

func newChecker(w *world) *checker {
	return &checker{w: w,
		tables: map[string]*truth{}, made: map[peer.TxnID]topology.Config{}, damaged: map[uint64]bool{},
		proposed: map[peer.TxnID][]topology.Op{}, handing: map[peer.TxnID]handing{}, byMaster: map[peer.TxnID]bool{}, history: map[peer.TxnID]uint64{}, not: map[peer.TxnID]bool{},
		has: map[topology.ServerID]map[peer.TxnID]*stored{}, wiped: map[peer.TxnID]map[topology.ServerID]bool{},
		listed: map[lease.Partition]lease.Lease{}, highest: map[placementOn]point.Epoch{}, accepted: map[lease.Partition]point.Epoch{},
		rows: map[lease.Partition]map[keyID]ackedRow{}, born: map[lease.Partition]time.Duration{}, dropped: map[lease.Partition]bool{}, emptied: map[lease.Partition]bool{}, ended: map[lease.Partition]endedSlices{}, dead: map[lease.StoreID]bool{}, copies: newCopiesChecker(),
		held: map[uint64]map[lease.StoreID]map[staging.ID]bool{}, burntStaged: map[uint64]bool{}, heldLess: map[uint64]time.Duration{}}
}

// written is called with every row that the store changes, in order.
func (c *checker) written(wr coord.Write, rev coord.Revision) {
	switch {
	case strings.HasPrefix(wr.Key, mapstore.Prefix):
		c.tableWritten(c.at(mapstore.TableOf(wr.Key)), wr, rev)
	default:
		p, ok := lease.ParseRowKey(wr.Key)
		switch {
		case ok && wr.Delete:
			c.w.mark(forgotten)
		case ok:
			c.leaseWritten(p, wr)
		}
	}
}

// tableWritten holds every committed transaction: it is Apply of the one before, its partitions cover once, and its file
// is on a majority (I2).
func (c *checker) tableWritten(t *truth, wr coord.Write, rev coord.Revision) {
	row, err := mapstore.DecodeRow(coord.Row{Key: wr.Key, Value: wr.Value, Revision: rev})
	if err != nil || wr.Delete {
		c.w.fail("I2: the row of %s cannot be read: %v", t.name, err)
		return
	}
	was := t.row
	t.row = row
	if row.Txn != was.Txn {
		c.commits(t, was)
	} else {
		c.w.markServers(was.Servers, row.Servers)
	}
	if row.Dropped && !was.Dropped {
		c.w.n.drops++
		c.w.mark(droppedTable)
		c.w.say("%s is dropped", t.name)
		if t.m.Len() > 0 {
			c.w.fail("I1: %s is dropped with %d partitions", t.name, t.m.Len())
		}
	}
	c.onMajority(t, "it was committed")
}

func (c *checker) commits(t *truth, was mapstore.Row) {
	w, row := c.w, t.row
	w.n.txns++
	w.say("METADATA transaction %d of %s is committed, servers %v: %v", row.Seq, t.name, row.Servers, c.proposed[row.Txn])
	if row.Seq != was.Seq+1 {
		w.fail("I2: transaction %d of %s follows %d", row.Seq, t.name, was.Seq)
	}
	if _, twice := c.history[row.Txn]; twice {
		w.fail("I2: transaction %d of %s was committed twice", row.Seq, t.name)
	}
	if c.not[row.Txn] {
		w.fail("I2: transaction %d of %s was committed after its proposer was notified that it is not", row.Seq, t.name)
	}
	c.history[row.Txn] = row.Seq
	w.markOps(c.proposed[row.Txn])
	c.notLate(row.Txn)
	next := c.follows(t, was)
	if next == nil {
		return
	}
	if err := next.Check(); err != nil {
		w.fail("I2: transaction %d of %s: %v", row.Seq, t.name, err)
	}
	if err := coversOnce(t.m, next, c.proposed[row.Txn]); err != "" {
		w.fail("I2: transaction %d of %s: %s", row.Seq, t.name, err)
	}
	// Every file of that name is that map: the chain is one, on all disks.
	want := next.Encode()
	for _, s := range w.servers {
		if s.disk == nil || c.has[s.id][row.Txn] == nil { // or it is damaged: reading it fails, and that is checked elsewhere
			continue
		}
		if f := s.disk.files[row.Txn]; f != nil && (!bytes.Equal(f.f.Map, want) || f.f.Base != was.Txn || f.f.Seq != row.Seq) {
			w.fail("I2: %s holds another map as transaction %d of %s", s.id, row.Seq, t.name)
		}
	}
	c.gone(t, next, c.proposed[row.Txn])
	for p := range next.All() {
		if id := t.part(p.ID); c.born[id] == 0 {
			c.born[id] = w.now
		}
	}
	c.onlyCopyStays(t, next)
	t.replaced(w.now)
	t.m = next
	c.settled(row.Txn)
	if !w.opt.Faults.has(restore) { // else it may be the newest again
		delete(c.wiped, was.Txn)
	}
}

// onlyCopyStays checks that no master removes the placement that alone has a partition's acked rows.
func (c *checker) onlyCopyStays(t *truth, next *topology.Map) {
	if !c.byMaster[t.row.Txn] || t.m == nil {
		return
	}
	for p := range next.All() {
		was, ok := t.m.ByID(p.ID)
		id := t.part(p.ID)
		if !ok || len(c.rows[id]) == 0 || c.w.isCopied(id) { // a listed copy stays, and may lead, until its leader removes it from the list
			continue
		}
		for _, pl := range was.Placements {
			if _, stays := p.On(pl.Server); !stays && c.onlyOn(id, pl.Server) {
				c.w.fail("I1: the master takes %s off %s, which alone has its acked rows", id, pl.Server)
			}
		}
	}
}

// onlyOn reports whether all acked rows of a partition lie on the disk of one server.
func (c *checker) onlyOn(id lease.Partition, s topology.ServerID) bool {
	store := c.w.servers[c.w.indexOf(s)].disk.id
	for _, r := range c.rows[id] {
		if r.store != store {
			return false
		}
	}
	return true
}

// follows gives the map that the newest transaction must have made; nil: no server has its file, which onMajority reports.
func (c *checker) follows(t *truth, was mapstore.Row) *topology.Map {
	if was.Seq == 0 {
		for _, s := range t.row.Servers {
			if f := c.has[s][t.row.Txn]; f != nil {
				return f.m
			}
		}
		return nil
	}
	next, err := (*topology.Map)(nil), error(nil)
	if config, again := c.made[t.row.Txn]; again {
		if !was.Dropped {
			c.w.fail("I2: transaction %d makes %s, which was not dropped", t.row.Seq, t.name)
		}
		c.w.n.remade++
		c.w.mark(remadeTable)
		fresh, ferr := topology.New(t.name, config)
		if next, err = fresh, ferr; err == nil {
			next.Seq, next.NextID = t.m.Seq+1, t.m.NextID
			if was.NextID == 0 { // no source shows the ids that were given out: it may have begun above all
				next.NextID = c.begins(t, next.NextID)
			}
		}
	} else {
		if was.Dropped {
			c.w.fail("I2: transaction %d changes %s, which was dropped", t.row.Seq, t.name)
		}
		next, err = t.m.Apply(c.proposed[t.row.Txn]...)
	}
	if err != nil {
		c.w.fail("I2: transaction %d of %s does not follow from the one before: %v", t.row.Seq, t.name, err)
		return nil
	}
	return next
}

// begins gives the first partition id of a table that was made again, which is at least the given one.
func (c *checker) begins(t *truth, least point.PartitionID) point.PartitionID {
	for _, s := range t.row.Servers {
		if f := c.has[s][t.row.Txn]; f != nil {
			return max(least, f.m.NextID)
		}
	}
	return least
}

// gone notes the partitions that a transaction dropped with their rows, and catches those that went with rows though
// no change dropped them.
func (c *checker) gone(t *truth, after *topology.Map, ops []topology.Op) {
	if t.m == nil {
		return
	}
	dropped := droppedBy(ops)
	for p := range t.m.All() {
		if _, ok := after.ByID(p.ID); ok {
			continue
		}
		id := t.part(p.ID)
		if slices.Contains(dropped, p.ID) {
			c.dropped[id] = true
			delete(c.rows, id)
			c.copies.forget(id)
			c.w.history.dropped(id)
		} else if p.State == topology.Unload && len(c.rows[id]) > 0 {
			c.inherited(id, after)
		} else if c.hasLiving(id) {
			c.w.fail("I1: %s is taken out of the map with acked rows in it", id)
		}
	}
}

func droppedBy(ops []topology.Op) (ids []point.PartitionID) {
	for _, op := range ops {
		if d, ok := op.(topology.Drop); ok {
			ids = append(ids, d.IDs...)
		}
	}
	return ids
}

// coversOnce counts, with arithmetic of its own, how many partitions accept writes of each piece of the keyspace: one at
// most, and one where there was one before, unless it was dropped.
func coversOnce(before, after *topology.Map, ops []topology.Op) string {
	type rect struct {
		p                *topology.Partition
		timeLo, timeHi   int64
		pointLo, pointLa uint64 // both included
	}
	collect := func(m *topology.Map, not []point.PartitionID) (out []rect) {
		if m == nil {
			return nil
		}
		for p := range m.All() {
			if p.State != topology.Unload && !slices.Contains(not, p.ID) {
				out = append(out, rect{p, p.TimeLo, p.TimeHi, p.PointLo, p.PointHi - 1})
			}
		}
		return out
	}
	now, then := collect(after, nil), collect(before, droppedBy(ops))
	for i, a := range now {
		for _, b := range now[:i] {
			if a.timeLo < b.timeHi && b.timeLo < a.timeHi && a.pointLo <= b.pointLa && b.pointLo <= a.pointLa {
				return a.p.String() + " and " + b.p.String() + " both accept writes of the same keys"
			}
		}
	}
	for _, a := range then {
		if i := slices.IndexFunc(now, func(b rect) bool { return b.p.ID == a.p.ID }); i >= 0 {
			continue
		}
		// It is another's now: the partitions that overlap it must fill it. Points are counted by halves, which float64 holds exactly
		// enough.
		var have float64
		for _, b := range now {
			if a.timeLo < b.timeHi && b.timeLo < a.timeHi && a.pointLo <= b.pointLa && b.pointLo <= a.pointLa {
				have += float64(min(a.timeHi, b.timeHi)-max(a.timeLo, b.timeLo)) * (float64(min(a.pointLa, b.pointLa)-max(a.pointLo, b.pointLo)) + 1)
			}
		}
		want := float64(a.timeHi-a.timeLo) * (float64(a.pointLa-a.pointLo) + 1)
		if have < want*(1-1e-9) {
			return "keys of " + a.p.String() + " are accepted by no server any more"
		}
	}
	return ""
}

// onMajority checks that the committed file is durable on a majority of the row's servers, but for disks that were lost
// or damaged it.
func (c *checker) onMajority(t *truth, when string) {
	have := 0
	for _, s := range t.row.Servers {
		if c.has[s][t.row.Txn] != nil || c.wiped[t.row.Txn][s] {
			have++
		}
	}
	if 2*have <= len(t.row.Servers) {
		c.w.fail("I7: the file of transaction %d of %s is on %d of %d metadata servers when %s", t.row.Seq, t.name, have, len(t.row.Servers), when)
	}
}

// allOnMajority is onMajority of every table.
func (c *checker) allOnMajority(when string) {
	for _, table := range c.w.tables {
		if t := c.at(table); t.row.Seq > 0 {
			c.onMajority(t, when)
		}
	}
}

// isCommitted reports whether a transaction is a table's committed one.
func (c *checker) isCommitted(txn peer.TxnID) bool {
	return slices.ContainsFunc(c.w.tables, func(table string) bool { return c.at(table).row.Txn == txn })
}

func (c *checker) fileDurable(s topology.ServerID, d *disk, f *stored) {
	if d.files[f.f.Txn] == nil { // swept before it was synced
		return
	}
	if c.has[s] == nil {
		c.has[s] = map[peer.TxnID]*stored{}
	}
	c.has[s][f.f.Txn] = f
}

func (c *checker) fileGone(s topology.ServerID, txn peer.TxnID) {
	delete(c.has[s], txn)
	if c.isCommitted(txn) {
		c.allOnMajority("it was swept on " + string(s))
	}
}

// fileLost notes that a disk damaged a file.
func (c *checker) fileLost(s topology.ServerID, txn peer.TxnID) {
	delete(c.has[s], txn)
	c.wipe(s, txn)
}

func (c *checker) wipe(s topology.ServerID, txn peer.TxnID) {
	if c.wiped[txn] == nil {
		c.wiped[txn] = map[topology.ServerID]bool{}
	}
	c.wiped[txn][s] = true
}

// rowLost notes that a disk damaged a row, and that an acked value below it may be gone too: an administrator sets the whole record
// aside, and with it the older value.
//
//	1aa acked ─▶ 1e7 logged over it, durably, not acked ─▶ 1e7 damaged, set aside ─▶ neither, and answers say so
func (c *checker) rowLost(store lease.StoreID, id lease.Partition, lost row) {
	c.damaged[lost.value] = true
	if below, ok := c.rows[id][lost.key]; ok && below.store == store && below.rank <= lost.rank {
		c.damaged[below.value] = true
	}
}

// crashed examines a directory after a crash: rows that survived are durable.
func (c *checker) crashed(s *server) {
	c.has[s.id] = map[peer.TxnID]*stored{}
	for txn, f := range s.disk.files {
		if f.m != nil {
			c.has[s.id][txn] = f
		}
	}
	c.allOnMajority(string(s.id) + " crashed")
}

// lost notes that a directory is emptied.
func (c *checker) lost(s *server) {
	for txn := range c.has[s.id] {
		c.wipe(s.id, txn)
	}
	delete(c.has, s.id)
	c.dead[s.disk.id] = true
	c.burn()
	c.burnStaged(s.disk.id)
	for _, rows := range c.rows { // counted: the order does not matter
		for _, r := range rows {
			if r.store == s.disk.id {
				c.w.n.lost++
			}
		}
	}
}

// mayLose reports whether a server's disk may be lost without losing a table. The nemesis removes no other disk.
func (c *checker) mayLose(s *server) bool {
	for _, table := range c.w.tables {
		t, others := c.at(table), 0
		for _, x := range t.row.Servers {
			if x != s.id && c.has[x][t.row.Txn] != nil {
				others++
			}
		}
		if 2*others < len(t.row.Servers)-1 || others == 0 {
			return false
		}
	}
	return true
}

func (c *checker) reportedCommitted(txn peer.TxnID, a peer.Changed) {
	if a.Txn != txn { // nothing was to change
		c.w.n.resolved++
		return
	}
	if seq, ok := c.history[txn]; !ok || seq != a.Seq {
		c.w.fail("I1: a proposer was notified that its transaction is committed as %d, and it is not", a.Seq)
	}
	c.w.n.resolved++
}

// handsOver notes the server that proposes to hand a partition over.
func (c *checker) handsOver(txn peer.TxnID, s *server, id lease.Partition) {
	epoch, _ := s.lead.Led(id)
	c.handing[txn] = handing{s, id, epoch, s.older}
}

// handing is a leader's proposal.
type handing struct {
	s     *server
	id    lease.Partition
	epoch point.Epoch
	older bool // of the version before: it cannot rule its proposals out
}

// notLate checks that no partition is handed over after its leader opened it again, unless readers wait for the result.
func (c *checker) notLate(txn peer.TxnID) {
	h, ok := c.handing[txn]
	if !ok || h.older || h.s.dead || h.s.on(h.id.Table).m == nil {
		return
	}
	if epoch, ok := h.s.machine.MayAct(h.id, h.s.clock()); ok && epoch == h.epoch && !h.s.gate(h.id).Doubtful(h.s.on(h.id.Table).m.Seq) {
		c.w.fail("I2: %s is handed over after its leader %s opened it again", h.id, h.s.id)
	}
}

func (c *checker) reportedAborted(txn peer.TxnID) {
	c.w.n.resolved++
	if seq, ok := c.history[txn]; ok {
		c.w.fail("I1: a proposer was notified that its transaction is not committed, and it is, as %d", seq)
	}
	c.not[txn] = true
	c.settled(txn)
}

// settled deletes the records of a transaction that is committed or refused by now, and the hand-overs of processes that ended: each refers to
// the whole memory of its process.
func (c *checker) settled(txn peer.TxnID) {
	delete(c.proposed, txn)
	delete(c.byMaster, txn)
	maps.DeleteFunc(c.handing, func(t peer.TxnID, h handing) bool { return t == txn || h.s.dead })
}

// leaseWritten checks every new holder: it is listed by the row that was there, with the store that was listed, and epochs rise.
func (c *checker) leaseWritten(id lease.Partition, wr coord.Write) {
	row, err := c.w.store.lease(wr.Key, wr.Value)
	if err != nil {
		c.w.fail("I3: a lease row cannot be read: %v", err)
		return
	}
	was, ever := c.listed[id]
	c.listed[id] = row
	c.w.markLease(was, ever, row)
	c.listWritten(id, was, row)
	if row.Empty && c.hasRows(id) {
		c.w.fail("I1: the lease row of %s says that no row was acked, and %d were", id, len(c.rows[id]))
	}
	if row.State != lease.Held || was.State == lease.Held && was.Boot == row.Boot && was.Epoch == row.Epoch {
		return
	}
	c.w.n.takes++
	c.w.say("%s/%s takes %s at epoch %d", row.Holder, row.Boot, id, row.Epoch)
	if ever && was.Epoch > 0 && !was.Empty && !slices.ContainsFunc(was.InSync, func(m lease.Member) bool { return m.Server == row.Holder && m.Store == row.Store }) {
		c.w.fail("I3: %s took %s with %s, which is not in sync: %v", row.Holder, id, row.Store, was.InSync)
	}
	if row.Epoch <= was.Epoch {
		c.w.fail("I3: %s took %s at epoch %d after %d", row.Holder, id, row.Epoch, was.Epoch)
	}
}

// leads finds two that may act at one moment: intervals of holding begin here.
func (c *checker) leads(s *server, id lease.Partition) {
	epoch, ok := s.mayAct(id)
	if !ok {
		return
	}
	for _, o := range c.w.servers {
		if o == s || o.dead || c.w.now < o.rogue {
			continue
		}
		if other, ok := o.mayAct(id); ok {
			c.w.fail("I3: %s at epoch %d and %s at epoch %d may both act for %s", o.id, other, s.id, epoch, id)
		}
	}
}

func (c *checker) raised(store lease.StoreID, pl point.PlacementID, epoch point.Epoch) {
	k := placementOn{store, pl}
	c.highest[k] = max(c.highest[k], epoch)
}

// accepts checks that epochs never fall: on one brick, and for one partition on all of them.
func (c *checker) accepts(s *server, id lease.Partition, r *replica, epoch point.Epoch) {
	if high := c.highest[placementOn{s.disk.id, r.placement}]; epoch < high {
		c.w.fail("I3: the brick of %s accepted a frame of %s at epoch %d after it saw %d", s.id, id, epoch, high)
	}
	if epoch < c.accepted[id] {
		c.w.fail("I3: %s accepted a frame of %s at epoch %d after epoch %d was accepted", s.id, id, epoch, c.accepted[id])
	}
	c.accepted[id] = epoch
}

func (c *checker) acked(s *server, id lease.Partition, in row, rank point.Stamp) {
	if c.dropped[id] {
		return // dropped with all its rows, on purpose
	}
	if c.emptied[id] {
		c.w.fail("I1: %s acks a row of %s, which is out of the map since all its rows were moved", s.id, id)
	}
	if c.rows[id] == nil {
		c.rows[id] = map[keyID]ackedRow{}
	}
	if was := c.rows[id][in.key]; rank >= was.rank {
		c.rows[id][in.key] = ackedRow{s.disk.id, row{in.key, in.value, rank}}
	}
}

// read checks an answer: it must have every acked row, or a newer one. Rows of lost stores are excused, and rows that a disk damaged
// if the answer says that it is incomplete.
func (c *checker) read(s *server, q question, f found) {
	for i, key := range q.keys {
		a, ok := c.rows[q.id][key]
		switch {
		case !ok || f.rows[i].rank >= a.rank || c.isLost(q.id, a.store):
		case !c.damaged[a.value]:
			c.w.fail("I1: %s leads %s and does not have value %x of key %d, which was acked, but %x", s.id, q.id, a.value, key, f.rows[i].value)
		case !f.incomplete:
			c.w.fail("I1: %s answers without key %d of %s, which its disk damaged, and does not say so", s.id, key, q.id)
		}
	}
}

func (c *checker) hasRows(id lease.Partition) bool { return len(c.rows[id]) > 0 }

// hasLiving reports whether a partition has acked rows on a store that was not lost.
func (c *checker) hasLiving(id lease.Partition) bool {
	for _, r := range c.rows[id] {
		if !c.isLost(id, r.store) {
			return true
		}
	}
	return false
}

// ids lists the partitions with acked rows, in order.
func (c *checker) ids() []lease.Partition {
	return slices.SortedFunc(maps.Keys(c.rows), comparePartitions)
}
