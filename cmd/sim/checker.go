package main

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// checker sees all that happens, as nobody in the world can, and holds it against the promises.
type checker struct {
	w *world

	// METADATA.
	proposed map[peer.TxnID][]topology.Op
	row      files.Row
	m        *topology.Map // the committed map, made here from the one before
	history  map[peer.TxnID]uint64
	not      map[peer.TxnID]bool // somebody was told that it is not committed
	has      map[topology.ServerID]map[peer.TxnID]*stored
	wiped    map[peer.TxnID]map[topology.ServerID]bool // had it, and lost its disk

	// Leases.
	listed map[point.PartitionID]lease.Lease // as last written, also after they were deleted

	// Rows.
	highest  map[placementOn]point.Epoch // raised durably
	accepted map[point.PartitionID]point.Epoch
	rows     map[point.PartitionID]map[rowID]lease.StoreID // acked, and on which store
	dropped  map[point.PartitionID]bool
	dead     map[lease.StoreID]bool // wiped stores
}

type placementOn struct {
	store     lease.StoreID
	placement point.PlacementID
}

type ack struct {
	partition point.PartitionID
	row       rowID
}

func newChecker(w *world) *checker {
	return &checker{w: w,
		proposed: map[peer.TxnID][]topology.Op{}, history: map[peer.TxnID]uint64{}, not: map[peer.TxnID]bool{},
		has: map[topology.ServerID]map[peer.TxnID]*stored{}, wiped: map[peer.TxnID]map[topology.ServerID]bool{},
		listed: map[point.PartitionID]lease.Lease{}, highest: map[placementOn]point.Epoch{}, accepted: map[point.PartitionID]point.Epoch{},
		rows: map[point.PartitionID]map[rowID]lease.StoreID{}, dropped: map[point.PartitionID]bool{}, dead: map[lease.StoreID]bool{}}
}

// written hears of every row that the store changes, in order.
func (c *checker) written(wr coord.Write, rev coord.Revision) {
	switch {
	case wr.Key == files.Key(table):
		c.tableWritten(wr, rev)
	case !wr.Delete:
		if p, ok := lease.ParseRowKey(wr.Key); ok {
			c.leaseWritten(p.ID, wr)
		}
	}
}

// tableWritten holds every committed transaction: it is Apply of the one before, its partitions cover once, and its file
// is on a majority (I2).
func (c *checker) tableWritten(wr coord.Write, rev coord.Revision) {
	w := c.w
	row, err := files.DecodeRow(coord.Row{Key: wr.Key, Value: wr.Value, Revision: rev})
	if err != nil {
		w.fail("METADATA: the table's row cannot be read: %v", err)
		return
	}
	was := c.row
	c.row = row
	if row.Txn != was.Txn {
		c.committed(was, row)
	}
	c.onMajority("it was committed")
}

func (c *checker) committed(was, row files.Row) {
	w := c.w
	w.n.txns++
	w.say("METADATA transaction %d is committed, servers %v", row.Seq, row.Servers)
	if row.Seq != was.Seq+1 {
		w.fail("I2: transaction %d follows %d", row.Seq, was.Seq)
	}
	if _, twice := c.history[row.Txn]; twice {
		w.fail("I2: transaction %d was committed twice", row.Seq)
	}
	if c.not[row.Txn] {
		w.fail("I2: transaction %d was committed after its proposer was told that it is not", row.Seq)
	}
	c.history[row.Txn] = row.Seq
	var next *topology.Map
	if was.Seq > 0 {
		var err error
		if next, err = c.m.Apply(c.proposed[row.Txn]...); err != nil {
			w.fail("I2: transaction %d does not follow from the one before: %v", row.Seq, err)
			return
		}
	} else {
		next = c.first(row)
	}
	if next == nil {
		return // nobody has it: onMajority says so
	}
	if err := next.Check(); err != nil {
		w.fail("I2: transaction %d: %v", row.Seq, err)
	}
	if err := c.coversOnce(c.m, next, c.proposed[row.Txn]); err != "" {
		w.fail("I2: transaction %d: %s", row.Seq, err)
	}
	// Every file of that name is that map: the chain is one, on all disks.
	want := next.Encode()
	for _, s := range w.servers {
		if s.disk == nil {
			continue
		}
		if f := s.disk.files[row.Txn]; f != nil && (!bytes.Equal(f.f.Map, want) || f.f.Base != was.Txn || f.f.Seq != row.Seq) {
			w.fail("I2: %s holds another map as transaction %d", s.id, row.Seq)
		}
	}
	c.gone(c.m, next, c.proposed[row.Txn])
	c.m = next
}

func (c *checker) first(row files.Row) *topology.Map {
	for _, s := range row.Servers {
		if f := c.has[s][row.Txn]; f != nil {
			return f.m
		}
	}
	return nil
}

// gone notes the partitions that a transaction dropped with their rows, and catches those that went with rows though
// nobody dropped them.
func (c *checker) gone(before, after *topology.Map, ops []topology.Op) {
	if before == nil {
		return
	}
	dropped := droppedBy(ops)
	for p := range before.All() {
		if _, ok := after.ByID(p.ID); ok {
			continue
		}
		if slices.Contains(dropped, p.ID) {
			c.dropped[p.ID] = true
			delete(c.rows, p.ID)
		} else if c.hasLiving(p.ID) {
			c.w.fail("I1: p%d is taken out of the map with acked rows in it", p.ID)
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
func (c *checker) coversOnce(before, after *topology.Map, ops []topology.Op) string {
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
				return "p" + itoa(a.p.ID) + " and p" + itoa(b.p.ID) + " both accept writes of the same keys"
			}
		}
	}
	for _, a := range then {
		if i := slices.IndexFunc(now, func(b rect) bool { return b.p.ID == a.p.ID }); i >= 0 {
			continue
		}
		// It is another's now: what overlaps it must fill it. Points are counted by halves, which float64 holds exactly enough.
		var have float64
		for _, b := range now {
			if a.timeLo < b.timeHi && b.timeLo < a.timeHi && a.pointLo <= b.pointLa && b.pointLo <= a.pointLa {
				have += float64(min(a.timeHi, b.timeHi)-max(a.timeLo, b.timeLo)) * (float64(min(a.pointLa, b.pointLa)-max(a.pointLo, b.pointLo)) + 1)
			}
		}
		want := float64(a.timeHi-a.timeLo) * (float64(a.pointLa-a.pointLo) + 1)
		if have < want*(1-1e-9) {
			return "keys of p" + itoa(a.p.ID) + " are accepted by nobody any more"
		}
	}
	return ""
}

// onMajority holds that the committed file is durable on a majority of the row's servers, but for disks that were lost.
func (c *checker) onMajority(when string) {
	have := 0
	for _, s := range c.row.Servers {
		if c.has[s][c.row.Txn] != nil || c.wiped[c.row.Txn][s] {
			have++
		}
	}
	if 2*have <= len(c.row.Servers) {
		c.w.fail("I7: the file of transaction %d is on %d of %d metadata servers when %s", c.row.Seq, have, len(c.row.Servers), when)
	}
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
	if txn == c.row.Txn {
		c.onMajority("it was swept on " + string(s))
	}
}

// crashed takes stock of a directory after a crash: what survived is durable.
func (c *checker) crashed(s *server) {
	c.has[s.id] = map[peer.TxnID]*stored{}
	for txn, f := range s.disk.files {
		c.has[s.id][txn] = f
	}
	if c.row.Seq > 0 {
		c.onMajority(string(s.id) + " crashed")
	}
}

// lost notes that a directory is emptied.
func (c *checker) lost(s *server) {
	for txn := range c.has[s.id] {
		if c.wiped[txn] == nil {
			c.wiped[txn] = map[topology.ServerID]bool{}
		}
		c.wiped[txn][s.id] = true
	}
	delete(c.has, s.id)
	c.dead[s.disk.id] = true
	for _, rows := range c.rows { // counted: the order does not matter
		for _, store := range rows {
			if store == s.disk.id {
				c.w.n.lost++
			}
		}
	}
}

// mayLose reports whether a server's disk may be lost without the table being lost: somebody careful would not, else.
func (c *checker) mayLose(s *server) bool {
	others := 0
	for _, x := range c.row.Servers {
		if x != s.id && c.has[x][c.row.Txn] != nil {
			others++
		}
	}
	return 2*others >= len(c.row.Servers)-1 && others > 0
}

func (c *checker) toldCommitted(txn peer.TxnID, a peer.Changed) {
	if a.Txn != txn { // nothing was to change
		c.w.n.resolved++
		return
	}
	if seq, ok := c.history[txn]; !ok || seq != a.Seq {
		c.w.fail("I1: a proposer was told that its transaction is committed as %d, and it is not", a.Seq)
	}
	c.w.n.resolved++
}

func (c *checker) toldNot(txn peer.TxnID) {
	c.w.n.resolved++
	if seq, ok := c.history[txn]; ok {
		c.w.fail("I1: a proposer was told that its transaction is not committed, and it is, as %d", seq)
	}
	c.not[txn] = true
}

// leaseWritten checks every new holder: it is listed by the row that was there, with the store that was listed, and epochs rise.
func (c *checker) leaseWritten(id point.PartitionID, wr coord.Write) {
	row, err := lease.DecodeLease(wr.Value)
	if err != nil {
		c.w.fail("I3: a lease row cannot be read: %v", err)
		return
	}
	was, ever := c.listed[id]
	c.listed[id] = row
	if row.Empty && c.hasRows(id) {
		c.w.fail("I1: the lease row of p%d says that no row was acked, and %d were", id, len(c.rows[id]))
	}
	if row.State != lease.Held || was.State == lease.Held && was.Boot == row.Boot && was.Epoch == row.Epoch {
		return
	}
	c.w.n.takes++
	c.w.say("%s/%s takes p%d at epoch %d", row.Holder, row.Boot, id, row.Epoch)
	if ever && was.Epoch > 0 && !was.Vacant() && !slices.ContainsFunc(was.InSync, func(m lease.Member) bool { return m.Server == row.Holder && m.Store == row.Store }) {
		c.w.fail("I3: %s took p%d with %s, which is not in sync: %v", row.Holder, id, row.Store, was.InSync)
	}
	if row.Epoch <= was.Epoch {
		c.w.fail("I3: %s took p%d at epoch %d after %d", row.Holder, id, row.Epoch, was.Epoch)
	}
}

// leads finds two that may act at one moment: what begins to hold begins here.
func (c *checker) leads(s *server, id point.PartitionID) {
	epoch, ok := s.mayAct(id)
	if !ok {
		return
	}
	for _, o := range c.w.servers {
		if o == s || o.dead || c.w.now < o.rogue {
			continue
		}
		if other, ok := o.mayAct(id); ok {
			c.w.fail("I3: %s at epoch %d and %s at epoch %d may both act for p%d", o.id, other, s.id, epoch, id)
		}
	}
}

func (c *checker) raised(store lease.StoreID, pl point.PlacementID, epoch point.Epoch) {
	k := placementOn{store, pl}
	c.highest[k] = max(c.highest[k], epoch)
}

// accepts holds that epochs never fall: on one brick, and for one partition on all of them.
func (c *checker) accepts(s *server, id point.PartitionID, r *replica, epoch point.Epoch) {
	if high := c.highest[placementOn{s.disk.id, r.placement}]; epoch < high {
		c.w.fail("I3: the brick of %s accepted a frame of p%d at epoch %d after it saw %d", s.id, id, epoch, high)
	}
	if epoch < c.accepted[id] {
		c.w.fail("I3: %s accepted a frame of p%d at epoch %d after epoch %d was accepted", s.id, id, epoch, c.accepted[id])
	}
	c.accepted[id] = epoch
}

func (c *checker) acked(s *server, id point.PartitionID, _ *replica, row rowID) {
	if c.dropped[id] {
		return // dropped with all its rows, by somebody who wanted that
	}
	if c.rows[id] == nil {
		c.rows[id] = map[rowID]lease.StoreID{}
	}
	c.rows[id][row] = s.disk.id
}

// read holds that whoever may answer has every acked row, but for stores that were lost.
func (c *checker) read(s *server, id point.PartitionID, row rowID, has bool) {
	if store, ok := c.rows[id][row]; ok && !has && !c.dead[store] {
		c.w.fail("I1: %s leads p%d and does not have row %x, which was acked", s.id, id, uint64(row))
	}
}

func (c *checker) hasRows(id point.PartitionID) bool { return len(c.rows[id]) > 0 }

// hasLiving reports whether a partition has acked rows on a store that was not lost.
func (c *checker) hasLiving(id point.PartitionID) bool {
	for _, store := range c.rows[id] {
		if !c.dead[store] {
			return true
		}
	}
	return false
}

// ids lists the partitions with acked rows, in order.
func (c *checker) ids() []point.PartitionID {
	var ids []point.PartitionID
	for id := range c.rows {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, cmp.Compare)
	return ids
}

func itoa(id point.PartitionID) string { return strings.TrimPrefix(part(id).String(), table+"/") }
