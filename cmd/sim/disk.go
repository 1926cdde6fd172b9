package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// disk is a server's store directory. Every write is in a log until it is synced, with how to undo it: a crash undoes the
// newest of them, back to some moment after the last sync.
//
//	writes   1 2 3 4 5 6 │7 8 9 10
//	                synced│   └─ a crash may cut here
type disk struct {
	id     lease.StoreID
	files  map[peer.TxnID]*stored
	copies map[point.PartitionID]*replica
	seen   uint64 // the highest seq of the table's map (see storage/lead)

	log    []func()      // undo, of what is not synced
	synced uint64        // writes before the log
	busy   bool          // a sync is under way
	next   *syncing      // the one after it
	slow   time.Duration // until when syncs are slow
}

// stored is a METADATA file and its map, decoded once.
type stored struct {
	f *peer.File
	m *topology.Map
}

// replica is a placement in the brick: its log and its entry in the catalogue.
type replica struct {
	placement point.PlacementID
	epoch     point.Epoch // the highest seen
	rows      map[rowID]point.Epoch
}

func newDisk(id lease.StoreID) *disk {
	return &disk{id: id, files: map[peer.TxnID]*stored{}, copies: map[point.PartitionID]*replica{}}
}

// wrote notes how to undo a write that was just made.
func (d *disk) wrote(undo func()) { d.log = append(d.log, undo) }

// syncing is what waits for one sync: those that come while one is under way share the next (C84).
type syncing struct {
	upTo uint64
	done []func()
}

// sync makes all that was written until now durable, then calls always, and f in the process if it is not paused.
func (d *disk) sync(p *proc, always, f func()) {
	if d.next == nil {
		d.next = &syncing{}
	}
	d.next.upTo = d.synced + uint64(len(d.log))
	d.next.done = append(d.next.done, func() {
		if always != nil {
			always()
		}
		p.do(f)
	})
	if !d.busy {
		d.begin(p)
	}
}

func (d *disk) begin(p *proc) {
	w, s := p.w, d.next
	d.busy, d.next = true, nil
	cost := time.Duration(300+w.rng.IntN(4000)) * time.Microsecond
	if w.now < d.slow {
		cost += time.Duration(w.rng.Int64N(int64(3 * time.Second)))
	}
	w.after(cost, "sync", func() {
		if p.dead {
			return // the machine lost power before
		}
		if s.upTo > d.synced {
			d.log = slices.Delete(d.log, 0, int(s.upTo-d.synced))
			d.synced = s.upTo
		}
		d.busy = false
		if d.next != nil {
			d.begin(p)
		}
		for _, f := range s.done {
			f()
		}
	})
}

// crash loses what was not synced, or some of it, or nothing.
func (d *disk) crash(w *world) {
	keep := len(d.log)
	switch w.rng.IntN(3) {
	case 0:
		keep = 0
	case 1:
		keep = w.rng.IntN(len(d.log) + 1)
	}
	for i := len(d.log) - 1; i >= keep; i-- {
		d.log[i]()
	}
	d.synced += uint64(len(d.log))
	d.log, d.busy, d.next = nil, false, nil
}

func (d *disk) putFile(s *stored) {
	old := d.files[s.f.Txn]
	d.files[s.f.Txn] = s
	d.wrote(func() {
		if old == nil {
			delete(d.files, s.f.Txn)
		} else {
			d.files[s.f.Txn] = old
		}
	})
}

// deleteFile takes a file away; after a crash it may be back.
func (d *disk) deleteFile(txn peer.TxnID) {
	if old := d.files[txn]; old != nil {
		delete(d.files, txn)
		d.wrote(func() { d.files[txn] = old })
	}
}

// infos lists the files, in an order that does not depend on the map's.
func (d *disk) infos() []files.Info {
	var out []files.Info
	for _, s := range d.files {
		out = append(out, infoOf(s.f))
	}
	slices.SortFunc(out, func(a, b files.Info) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), slices.Compare(a.Txn[:], b.Txn[:]))
	})
	return out
}

func infoOf(f *peer.File) files.Info {
	return files.Info{Table: f.Table, Txn: f.Txn, Base: f.Base, Seq: f.Seq, Sum: f.Sum, Bytes: len(f.Map)}
}

// raise raises a placement's epoch, making the placement if it is new.
func (d *disk) raise(id point.PartitionID, placement point.PlacementID, epoch point.Epoch) *replica {
	r := d.copies[id]
	if r == nil {
		r = &replica{placement: placement, rows: map[rowID]point.Epoch{}}
		d.copies[id] = r
		d.wrote(func() { delete(d.copies, id) })
	}
	if old := r.epoch; epoch > old {
		r.epoch = epoch
		d.wrote(func() { r.epoch = old })
	}
	return r
}

func (d *disk) append(r *replica, row rowID, epoch point.Epoch) {
	if _, ok := r.rows[row]; ok {
		return // it came twice
	}
	r.rows[row] = epoch
	d.wrote(func() { delete(r.rows, row) })
}

func (d *disk) remove(id point.PartitionID) {
	old := d.copies[id]
	delete(d.copies, id)
	d.wrote(func() { d.copies[id] = old })
}

func (d *disk) see(seq uint64) {
	if old := d.seen; seq > old {
		d.seen = seq
		d.wrote(func() { d.seen = old })
	}
}

// held lists the partitions that are here, in order.
func (d *disk) held() []point.PartitionID { return slices.Sorted(maps.Keys(d.copies)) }
