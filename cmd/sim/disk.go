package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// disk is a server's store directory. Every write is in a log until it is synced, with how to undo it: a crash undoes the
// newest of them, back to some moment after the last sync.
//
//	writes   1 2 3 4 5 6 │7 8 9 10
//	                synced│   └─ a crash may cut here; the write at the cut may be torn
type disk struct {
	id     lease.StoreID
	files  map[peer.TxnID]*stored
	copies map[lease.Partition]*replica
	seen   map[string]peer.Acted // the highest transaction of each table's map (see storage/lead)
	staged map[staging.ID]stagedRow

	log     []logged // writes that are not synced yet
	dropped []func() // undo, of writes that a failed fsync dropped though they were believed synced: for a broken rule
	synced  uint64   // writes before the log; a witness outside of the log vouches for them
	busy    bool     // a sync is under way
	next    *syncing // the one after it

	slow   time.Duration // until when syncs are slow
	full   time.Duration // until when nothing can be written
	fails  bool          // the next fsync fails
	fenced bool          // one failed: nothing is written any more
}

// logged is a write that was not synced yet. tear is the remainder after a crash in its midst; nil: nothing, as if it had not begun.
type logged struct{ undo, tear func() }

// stored is a METADATA file and its map, decoded once. m is nil where the disk damaged it: it is decoded again, and its
// sum shows the damage.
type stored struct {
	f *peer.File
	m *topology.Map
}

// replica is a placement in the brick: its log and its entry in the catalogue.
type replica struct {
	placement  point.PlacementID
	epoch      point.Epoch // the highest seen
	high       point.Stamp // the highest rank
	rows       map[keyID]cell
	suspect    int      // cells that the disk changed; 0: verifying them finds nothing
	closed     bool     // damage was found: nothing of it is read
	incomplete bool     // damaged rows were set aside by the operator: reads report it
	surplus    []row    // set aside, and not handed over yet
	log        *journal // of a partition with copies; nil: this placement alone has its rows
}

// cell is the newest record of a key: where it was written, its own key and value, its sum.
type cell struct {
	row
	epoch  point.Epoch
	at     uint64
	sum    uint64
	before *cell        // of a torn one: the record below it in the log
	serial point.Serial // of its frame, where there are copies
}

func (c *cell) sumNow() (sum uint64) {
	for _, v := range [...]uint64{uint64(c.key), uint64(c.epoch), c.value, uint64(c.rank)} {
		sum = (sum ^ v) * 0x9e3779b97f4a7c15
		sum ^= sum >> 29
	}
	return sum
}

// whole reports whether a cell is the one of that key, and undamaged.
func (c *cell) whole(key keyID) bool { return c.key == key && c.sum == c.sumNow() }

func newDisk(id lease.StoreID) *disk {
	return &disk{id: id, files: map[peer.TxnID]*stored{}, copies: map[lease.Partition]*replica{}, seen: map[string]peer.Acted{}, staged: map[staging.ID]stagedRow{}}
}

// wrote notes how to undo a write that was just made.
func (d *disk) wrote(undo func()) { d.log = append(d.log, logged{undo: undo}) }

// isFull reports whether there is no room for writes.
func (d *disk) isFull(w *world) bool { return w.now < d.full }

// syncing is the writes that wait for one sync: those that come while one is under way share the next (C84).
type syncing struct {
	upTo uint64
	done []func()
}

// sync makes all that was written until now durable, then calls always, and f in the process if it is not paused. Where
// the fsync fails neither is called, and the process ends.
func (d *disk) sync(p *proc, always, f func()) {
	if d.fenced {
		return
	}
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
		if d.fails && d.failed(p, s) {
			return
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

// failed is an fsync that returns an error: its writes are gone with the next crash, whatever later ones return. So the
// brick is fenced for good, and the process ends.
func (d *disk) failed(p *proc, s *syncing) (ends bool) {
	w := p.w
	d.fails = false
	if w.opt.broken == fsyncIgnored {
		for _, l := range d.log[:max(0, int(s.upTo-d.synced))] {
			d.dropped = append(d.dropped, l.undo)
		}
		return false
	}
	w.mark(fsyncFailed)
	w.say("an fsync of %s fails: it is fenced", p.name)
	d.fenced, d.next = true, nil
	i := p.node
	w.after(time.Duration(w.rng.Int64N(int64(time.Second))), "fenced", func() {
		if w.servers[i].proc != p || p.dead {
			return
		}
		w.kill(i)
		w.after(w.spread(3*time.Second), "starts", func() {
			if w.servers[i].dead && w.servers[i].id != w.without {
				w.boot(i, false)
			}
		})
	})
	return true
}

// crash loses all unsynced writes, or some of them, or none. The write at the cut may be torn.
func (d *disk) crash(w *world) {
	keep := len(d.log)
	switch w.rng.IntN(3) {
	case 0:
		keep = 0
	case 1:
		keep = w.rng.IntN(len(d.log) + 1)
		if i := slices.IndexFunc(d.log, func(l logged) bool { return l.tear != nil }); i >= 0 && w.chance(50) {
			keep = i
		}
	}
	for i := len(d.log) - 1; i >= keep; i-- {
		if l := d.log[i]; i == keep && l.tear != nil && w.opt.Faults.has(torn) && w.chance(50) {
			w.n.torn++
			l.tear()
		} else {
			l.undo()
		}
	}
	for i := len(d.dropped) - 1; i >= 0; i-- {
		d.dropped[i]()
	}
	if n := uint64(keep); n > 0 {
		d.synced += n // the start after it writes all that it keeps anew
	}
	d.log, d.dropped, d.busy, d.next, d.fenced = nil, nil, false, nil, false
}

// replay reads the log at a start: a bad record beyond the part that a witness vouches for is a torn end, and is cut;
// one before is damage.
func (d *disk) replay(w *world) {
	for _, id := range d.held() {
		r := d.copies[id]
		if r.log != nil {
			r.cutTorn(w)
			continue
		}
		for _, key := range r.bad() {
			if c := r.rows[key]; c.at < d.synced && w.opt.broken != damageCut || !r.cut(w, key) {
				w.damaged(d, id, r, rowDamageAtStart)
			}
		}
		r.high = 0
		for _, c := range r.rows {
			r.high = max(r.high, c.rank)
		}
	}
}

// cut removes a torn cell from the log. It reports whether the record below it in the log is whole.
func (r *replica) cut(w *world, key keyID) bool {
	w.mark(tornCut)
	below := r.rows[key].before
	if below == nil {
		delete(r.rows, key)
	} else if r.rows[key] = *below; !below.whole(key) {
		return false
	}
	r.suspect--
	return true
}

// bad lists the cells that do not verify, in order.
func (r *replica) bad() (keys []keyID) {
	if r.suspect == 0 {
		return nil
	}
	for key, c := range r.rows {
		if !c.whole(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// damaged closes a partition after damage was found in it.
func (w *world) damaged(d *disk, id lease.Partition, r *replica, by mark) {
	if !r.closed {
		w.mark(by)
		r.closed = true
		w.n.found++
		w.say("%s on %s is damaged: it is closed", id, d.id)
		w.after(w.spread(10*time.Second), "repair", func() {
			w.mark(rowsRepaired)
			d.repair(r)
		})
	}
}

// repair is the operator's repair of a damaged partition: the damaged parts are set aside, and reads report that from then on.
func (d *disk) repair(r *replica) {
	for _, key := range r.bad() {
		delete(r.rows, key)
	}
	r.suspect, r.closed, r.incomplete = 0, false, true
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

// file reads a file. Errors are NotFound and Corrupt.
func (d *disk) file(w *world, txn peer.TxnID) (*stored, error) {
	s := d.files[txn]
	switch {
	case s == nil:
		return nil, fault.Errorf(fault.NotFound, "not here")
	case s.m != nil:
		return s, nil
	case w.opt.broken == sumsIgnored:
	case s.f.Txn != txn:
		return nil, fault.Errorf(fault.Corrupt, "another file lies in its place")
	case xxhash.Sum64(s.f.Map) != s.f.Sum:
		return nil, fault.Errorf(fault.Corrupt, "its sum is another one")
	}
	m, err := topology.Decode(s.f.Map)
	if err != nil {
		return nil, err
	}
	return &stored{s.f, m}, nil
}

// deleteFile deletes a file; after a crash it may be back.
func (d *disk) deleteFile(txn peer.TxnID) {
	if old := d.files[txn]; old != nil {
		delete(d.files, txn)
		d.wrote(func() { d.files[txn] = old })
	}
}

// infos lists the files, in an order that does not depend on the map's.
func (d *disk) infos() []mapstore.Info {
	var out []mapstore.Info
	for txn, s := range d.files {
		i := infoOf(s.f)
		i.Txn = txn
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b mapstore.Info) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Seq, b.Seq), slices.Compare(a.Txn[:], b.Txn[:]))
	})
	return out
}

func infoOf(f *peer.File) mapstore.Info {
	return mapstore.Info{Table: f.Table, Txn: f.Txn, Base: f.Base, Seq: f.Seq, Digest: f.Digest, Sum: f.Sum, Bytes: len(f.Map)}
}

// raise raises a placement's epoch, making the placement if it is new.
func (d *disk) raise(id lease.Partition, placement point.PlacementID, epoch point.Epoch) *replica {
	r := d.copies[id]
	if r == nil {
		r = &replica{placement: placement, rows: map[keyID]cell{}}
		d.copies[id] = r
		d.wrote(func() { delete(d.copies, id) })
	}
	if old := r.epoch; epoch > old {
		r.epoch = epoch
		d.wrote(func() { r.epoch = old })
	}
	return r
}

// append logs a row, and returns its rank: for a row that came before, the rank it got then.
func (d *disk) append(r *replica, in row, epoch point.Epoch) point.Stamp {
	old, had := r.rows[in.key]
	good := old.whole(in.key)
	if had && good && old.value == in.value {
		return old.rank
	}
	c := cell{row: in, epoch: epoch, at: d.synced + uint64(len(d.log))}
	c.sum = c.sumNow()
	high := r.high
	r.rows[in.key], r.high = c, max(high, in.rank)
	if had && !good {
		r.suspect--
	}
	undo := func() {
		if r.high = high; !had {
			delete(r.rows, in.key)
			return
		}
		if r.rows[in.key] = old; !good {
			r.suspect++
		}
	}
	d.log = append(d.log, logged{undo: undo, tear: func() {
		undo()
		c.sum++
		if had {
			c.before = &old
		}
		if !had || good {
			r.suspect++
		}
		r.rows[in.key] = c
	}})
	return in.rank
}

func (d *disk) remove(id lease.Partition) {
	old := d.copies[id]
	delete(d.copies, id)
	d.wrote(func() { d.copies[id] = old })
}

// see keeps the highest transaction of a table; number 0 forgets it.
func (d *disk) see(table string, at peer.Acted) {
	switch old := d.seen[table]; {
	case at.Seq == 0:
		delete(d.seen, table)
		d.wrote(func() { d.seen[table] = old })
	case at.Seq >= old.Seq:
		d.seen[table] = at
		d.wrote(func() { d.seen[table] = old })
	}
}

// held lists the partitions that are here, in order.
func (d *disk) held() []lease.Partition {
	return slices.SortedFunc(maps.Keys(d.copies), comparePartitions)
}

func comparePartitions(a, b lease.Partition) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.ID, b.ID))
}

// start reads the directory: the log is replayed, and a damaged file counts as absent.
func (d *disk) start(w *world) {
	d.replay(w)
	for _, i := range d.infos() {
		if _, err := d.file(w, i.Txn); fault.Is(err, fault.Corrupt) {
			w.n.found++
			w.mark(fileDamageAtStart)
			delete(d.files, i.Txn)
		}
	}
}
