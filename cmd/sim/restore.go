package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// The coordination store is lost, and restored from an older backup, as documented: all processes are stopped, the rows are put back, the
// operator runs `table repair` for every table, then the servers start. Some gateways run on.
//
//	backup ──▶ maps, leases, rows go on ──▶ store := backup ──▶ table repair: the newest file that a majority holds ──▶ all start
//
// Promised: the maps, and the rows of partitions that the backup's lease rows give to the placement that has them. Not promised: rows
// acked in partitions that are empty in the backup, or missing, or another's.

// backup is an operator's backup of the coordination store.
type backup struct{ rows []coord.Row }

// restoreFrom plays it, given the store's content before.
func (w *world) restoreFrom(b *backup) {
	w.mark(storeRestored)
	w.say("the coordination store is restored from a backup")
	for i := range w.servers {
		w.kill(i)
	}
	w.store.putBackAll(b)
	w.check.restored(b)
	for _, table := range w.tables {
		w.repairTable(table)
	}
	for i := range w.servers {
		w.boot(i, false)
	}
	for _, g := range w.clients {
		if w.rng.IntN(2) == 0 { // it runs on
			w.mark(ranThroughRestore)
			continue
		}
		g.proc.starts++
		for _, v := range g.views.of { // each by itself: the order does not matter
			v.forget()
		}
	}
}

// forget leaves a gateway with the knowledge of a fresh start about a table. Its clients bring their rows again.
func (v *view) forget() {
	v.starts++
	v.known, v.row, v.rev, v.m, v.mapRev = tables.Machine{}, mapstore.Row{}, 0, nil, 0
	clear(v.last)
}

// putBackAll has the store hold the rows of a backup, and no others. The operators put no prohibition back, and neither drain a
// server nor set a partition offline again.
func (s *store) putBackAll(b *backup) {
	var writes []coord.Write
	old := map[string]bool{}
	for _, row := range b.rows {
		if _, _, no := lease.ParseProhibitKey(row.Key); no || s.w.opt.broken == leasesLost && strings.HasPrefix(row.Key, lease.Prefix) {
			continue
		}
		value := row.Value
		if srv, err := registry.Decode(row); err == nil && strings.HasPrefix(row.Key, registry.Prefix) {
			srv.Drain = nil
			value = srv.Encode()
		}
		if _, ok := lease.ParseRowKey(row.Key); ok {
			if l, err := lease.DecodeLease(value); err == nil && l.Offline != nil {
				value = l.TakenOnline().Encode()
			}
		}
		old[row.Key] = true
		writes = append(writes, coord.Write{Key: row.Key, Value: value})
	}
	for _, row := range s.list("") {
		if !old[row.Key] {
			writes = append(writes, coord.Write{Key: row.Key, Delete: true})
		}
	}
	rev, _, err := s.rows.Commit(context.Background(), nil, writes)
	if err != nil {
		fault.Bug("the store in memory failed: %v", err)
	}
	s.rev, s.history, s.forgotten = rev, nil, rev
	for _, x := range s.watches { // they list again
		s.schedule(x, s.w.delay())
	}
}

// repairTable is `spillway table repair`: the newest METADATA file that a majority of the table's metadata servers hold is the table's again.
func (w *world) repairTable(table string) {
	stored, there := w.store.get(mapstore.Key(table))
	var row mapstore.Row
	if there {
		var err error
		if row, err = mapstore.DecodeRow(stored); err != nil {
			w.fail("the row of %s in the backup: %v", table, err)
			return
		}
	}
	var all []topology.ServerID
	for _, s := range w.servers {
		all = append(all, s.id)
	}
	keep := len(row.Servers)
	if keep == 0 {
		keep = metadataServers
	}
	need := keep/2 + 1
	if w.opt.broken == repairFromOne {
		need = 1
	}
	n, err := mapstore.FindNewest(context.Background(), table, all, need, func(id topology.ServerID) (peer.Metadata, bool) {
		return onDisk{w: w, s: w.servers[w.indexOf(id)]}, true
	})
	t := w.check.at(table)
	next := t.row
	next.Round = row.Round + 1
	switch {
	case row.Txn == t.row.Txn && w.check.hold(row) > len(row.Servers)/2: // no repair is needed
		t.row = row
		return
	case err == nil && (n.File.Txn == t.row.Txn || w.opt.broken == repairFromOne || w.opt.broken == actedIgnored):
		w.mark(tableRepaired)
		next = n.Row(row)
	default: // no server acted by the committed one, or not all of them can say so: here the operator names it
		w.mark(repairedByHand)
		w.say("table repair of %s at %d (%x) from %d: %v; finds %s", table, t.row.Seq, t.row.Txn[:4], row.Seq, err, n.String())
	}
	w.store.commit(nil, []coord.Write{{Key: mapstore.Key(table), Value: next.Encode()}})
}

// onDisk answers questions about METADATA files from a server's directory, as the server would.
type onDisk struct {
	peer.Metadata
	w *world
	s *server
}

// Fetch gives a file, or for the zero transaction the newest of its table, with the transaction that the server acted by.
func (d onDisk) Fetch(_ context.Context, q *peer.FileQuery) (*peer.File, error) {
	if q.Txn != (peer.TxnID{}) {
		if f, err := d.s.disk.file(d.w, q.Txn); err == nil && f != nil {
			return f.f, nil
		}
		return nil, fault.Errorf(fault.NotFound, "not here")
	}
	answer := peer.File{Table: q.Table}
	for _, f := range d.s.disk.files { // the newest, of equal ones the least: the order does not matter
		if f.m == nil || f.f.Table != q.Table {
			continue
		}
		if f.f.Seq > answer.Seq || f.f.Seq == answer.Seq && slices.Compare(f.f.Txn[:], answer.Txn[:]) < 0 {
			answer = *f.f
		}
	}
	if acted := d.s.disk.seen[q.Table]; acted.Txn != (peer.TxnID{}) && d.w.opt.broken != actedIgnored {
		answer.Acted = acted
	}
	if answer.Txn == (peer.TxnID{}) && answer.Acted == (peer.Acted{}) {
		return nil, fault.Errorf(fault.NotFound, "not here")
	}
	return &answer, nil
}

// hold counts the servers of a table's row that hold its file.
func (c *checker) hold(row mapstore.Row) (n int) {
	for _, s := range row.Servers {
		if c.has[s][row.Txn] != nil {
			n++
		}
	}
	return n
}

// restored notes the rows that are not promised any more: rows in partitions that the backup's lease row does not give to the placement that
// has them.
func (c *checker) restored(b *backup) {
	was := c.listed
	c.listed = map[lease.Partition]lease.Lease{}
	for _, row := range b.rows {
		if p, ok := lease.ParseRowKey(row.Key); ok {
			if l, err := lease.DecodeLease(row.Value); err == nil {
				c.listed[p] = l
			}
		}
	}
	for _, id := range c.ids() {
		l, ok := c.listed[id]
		now := was[id]
		if ok && !l.Empty && slices.Equal(l.InSync, now.InSync) {
			continue
		}
		delete(c.rows, id)
		c.w.history.dropped(id)
		c.w.history.forgone[id] = c.w.now
		c.w.n.forgone++
	}
}

// plansRestore has the store restored once, in some runs: the backup is made at one time, and put back later.
func (w *world) plansRestore() {
	if !w.opt.Faults.has(restore) || w.rng.IntN(4) > 0 {
		return
	}
	w.after(w.spread(25*time.Second), "backup", func() {
		var b *backup
		for _, row := range w.store.list("") {
			if b == nil {
				b = &backup{}
			}
			if !strings.HasPrefix(row.Key, "master") {
				b.rows = append(b.rows, row)
			}
		}
		w.after(w.spread(30*time.Second), "restore", func() {
			if !w.healed && b != nil {
				w.restoreFrom(b)
			}
		})
	})
}
