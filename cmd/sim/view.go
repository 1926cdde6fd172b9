package main

import (
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// views are a process's views of the tables.
type views struct {
	p    *proc
	self *server // nil at a gateway, which keeps no files
	of   map[string]*view
	made func(*view)
}

// at gives the view of a table, making it.
func (x *views) at(table string) *view {
	v := x.of[table]
	if v == nil {
		v = &view{p: x.p, self: x.self, table: table, last: map[peer.TxnID]*stored{}, changed: func() {}}
		x.of[table] = v
		x.made(v)
	}
	return v
}

// follow watches all tables' rows.
func (x *views) follow() {
	if x.self == nil {
		x.prove()
		x.p.every(time.Second, "prove maps", x.prove)
	}
	x.p.follow(mapstore.Prefix, x.learn, func(events []coord.Event) {
		for _, e := range events {
			if !e.Deleted {
				x.at(mapstore.TableOf(e.Key)).learn(e.Row)
			}
		}
	})
}

func (x *views) learn(l listed) {
	for _, row := range l.rows {
		x.at(mapstore.TableOf(row.Key)).learn(row)
	}
}

// prove asks for all tables' rows, as metadata/tables does for a gateway.
func (x *views) prove() {
	asked := time.Unix(0, int64(x.p.clock()))
	x.p.list(mapstore.Prefix, storeTimeout, func(l listed, ok bool) {
		if !ok || x.p.lags {
			return
		}
		x.learn(l)
		for _, table := range x.p.w.tables {
			x.at(table).know(tables.Proven{Asked: asked})
		}
	})
}

// refresh brings all maps to the state of the rows.
func (x *views) refresh() {
	for _, table := range x.p.w.tables {
		x.at(table).refresh()
	}
}

// view is a process's view of a table. The product's machine makes its decisions (metadata/tables).
type view struct {
	p       *proc
	self    *server // nil at a gateway
	table   string
	known   tables.Machine
	starts  int    // how often its process was started again
	changed func() // the map is another one
	rowSeen func() // the row is another one
	last    map[peer.TxnID]*stored

	// As the machine shows them.
	row    mapstore.Row // the newest
	rev    coord.Revision
	m      *topology.Map
	mapRev coord.Revision // of the row that named m
}

const (
	peerTimeout   = 3 * time.Second
	changeTimeout = 15 * time.Second
	txnStore      = 2 * time.Second
)

func (v *view) part(id point.PartitionID) lease.Partition {
	return lease.Partition{Table: v.table, ID: id}
}

func (v *view) learn(row coord.Row) {
	if row.Revision <= v.rev {
		return
	}
	r, err := mapstore.DecodeRow(row)
	if err != nil {
		v.p.w.fail("the table's row cannot be read: %v", err)
		return
	}
	v.know(tables.RowRead{Row: r, Revision: row.Revision})
	if v.rowSeen != nil {
		v.rowSeen()
	}
}

// refresh looks for the newest map now.
func (v *view) refresh() { v.know(tables.Wanted{}) }

func (v *view) know(in tables.Input) {
	start := v.starts
	effects := v.known.Step(in, nil)
	v.row, v.rev = v.known.Newest()
	v.m, v.mapRev = v.known.At()
	for _, e := range effects {
		switch e := e.(type) {
		case tables.Fetch:
			w := mapstore.Wanted{Table: v.table, Txn: e.Want.Txn, Seq: e.Want.Seq, Servers: e.Want.Servers}
			v.load(w, func(s *stored) {
				if v.starts != start {
					return
				}
				in := tables.Fetched{ID: e.ID, Err: errSilent}
				if s != nil {
					in.Map, in.Err = s.m, nil
					clear(v.last)
					v.last[w.Txn] = s
				}
				v.know(in)
			})
		case tables.Publish:
			v.changed()
		case tables.Retry:
			v.p.after(v.p.w.spread(e.After), "fetch again", func() {
				if v.starts == start {
					v.know(tables.RetryDue{})
				}
			})
		}
	}
}

// fetched answers a request for a file.
type fetched struct{ s *stored }

// load finds a file: on its own disk, else at the servers. done gets nil if no server has it.
func (v *view) load(w mapstore.Wanted, done func(*stored)) {
	if s := v.last[w.Txn]; s != nil {
		done(s)
		return
	}
	if v.self != nil {
		if s := v.self.file(v.table, w.Txn); s != nil {
			done(s)
			return
		}
	}
	servers := slices.DeleteFunc(slices.Clone(w.Servers), func(s topology.ServerID) bool { return v.p.w.indexOf(s) == v.p.node })
	v.p.w.rng.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	x := &search{v: v, w: w, machine: mapstore.NewFetch(v.table, servers), done: done}
	x.step(mapstore.FetchTick{})
}

// search performs the effects of a fetch, as mapstore.Coordinator does.
type search struct {
	v       *view
	w       mapstore.Wanted
	machine *mapstore.Fetch
	found   *stored // the newest answer's
	done    func(*stored)
}

func (x *search) step(in mapstore.FetchInput) {
	for _, e := range x.machine.Step(time.Unix(0, int64(x.v.p.clock())), in, nil) {
		switch e := e.(type) {
		case mapstore.FetchAsk:
			x.ask(e.Server)
			if e.After > 0 {
				x.v.p.after(e.After, "ask another", func() { x.step(mapstore.FetchTick{}) })
			}
		case mapstore.FetchFound:
			x.done(x.found)
		case mapstore.FetchLost:
			x.done(nil)
		}
	}
}

func (x *search) ask(server topology.ServerID) {
	v, at := x.v, x.v.p.w.indexOf(server)
	ask(v.p, at, peerTimeout, "fetch", func(answer func(fetched)) {
		s := v.p.w.servers[at]
		if v.p.w.opt.broken == otherFile {
			answer(fetched{s.file(v.table, s.on(v.table).row.Txn)})
			return
		}
		answer(fetched{s.file(v.table, x.w.Txn)})
	}, func(f fetched, ok bool) {
		in := mapstore.FetchAnswer{Server: server, Err: errSilent}
		if !ok || f.s == nil {
			v.p.w.mark(fetchFailed)
		} else {
			v.p.w.mark(fetchedFromPeer)
			seq := x.w.Seq
			if seq == 0 { // only earlier transactions are asked for
				seq = f.s.f.Seq
			}
			in.Err = mapstore.Answers(&peer.FileQuery{Table: x.w.Table, Txn: x.w.Txn}, seq, f.s.f)
			if in.Err == nil {
				in.Err = mapstore.Check(f.s.f, f.s.m)
			}
			if in.Err != nil {
				v.p.w.fail("I4: %s answers another file than was asked for: %v", server, in.Err)
			}
			x.found = f.s
		}
		x.step(in)
	})
}

func (w *world) indexOf(s topology.ServerID) int {
	return slices.IndexFunc(w.servers, func(x *server) bool { return x.id == s })
}

// runTxn performs the effects of a transaction, as mapstore.Coordinator does.
type runTxn struct {
	v    *view
	t    *mapstore.Txn
	done func(mapstore.Done)
	over bool
}

func (v *view) run(t *mapstore.Txn, done func(mapstore.Done)) {
	r := &runTxn{v: v, t: t, done: done}
	v.p.after(changeTimeout, "a transaction expires", func() {
		if !r.over {
			r.step(mapstore.Expired{})
		}
	})
	r.step(mapstore.Begin{})
}

func (r *runTxn) step(in mapstore.Input) {
	for _, e := range r.t.Step(in, nil) {
		r.perform(e)
	}
}

var errStalled = fault.Errorf(fault.Unavailable, "a copy is away")

var errSilent = fault.Errorf(fault.Unavailable, "no answer")

func (r *runTxn) perform(e mapstore.Effect) {
	v, w := r.v, r.v.p.w
	switch e := e.(type) {
	case mapstore.ReadRow:
		pause := time.Duration(0)
		if e.Failed > 0 {
			pause = w.spread(20 * time.Millisecond << min(e.Failed, 6))
		}
		v.p.after(pause, "read the row", func() {
			v.p.get(mapstore.Key(v.table), txnStore, func(g got, ok bool) {
				if !ok {
					r.step(mapstore.RowRead{Err: errSilent})
					return
				}
				r.step(mapstore.RowRead{Row: g.row, OK: g.ok})
			})
		})
	case mapstore.Load:
		v.load(mapstore.Wanted{Table: v.table, Txn: e.Txn, Seq: e.Seq, Servers: e.Servers}, func(s *stored) {
			if s == nil {
				r.step(mapstore.Loaded{Err: errSilent})
				return
			}
			r.step(mapstore.Loaded{File: s.f, Map: s.m})
		})
	case mapstore.Store:
		r.store(e)
	case mapstore.Swap:
		if w.opt.broken == guardsOff {
			e.Conditions, e.Writes = ofTable(e.Conditions, e.Writes)
		}
		v.p.commit(e.Conditions, e.Writes, txnStore, func(c committed, ok bool) {
			if !ok {
				w.mark(swapUnknown)
				if w.opt.broken == unknownIsYes {
					r.step(mapstore.Swapped{OK: true, Revision: w.store.rev})
					return
				}
				r.step(mapstore.Swapped{Err: errSilent})
				return
			}
			r.step(mapstore.Swapped{OK: c.ok, Revision: c.rev})
		})
	case mapstore.ReadGuards:
		r.readGuards(e, e.Keys, map[string]coord.Row{})
	case mapstore.MarkRows:
		v.p.commit(e.Conditions, e.Writes, txnStore, func(c committed, ok bool) {
			if !ok {
				r.step(mapstore.RowsMarked{Round: e.Round, Err: errSilent})
				return
			}
			r.step(mapstore.RowsMarked{Round: e.Round, OK: c.ok})
		})
	case mapstore.Look:
		w.mark(historyLooked)
		v.look(e, e.Txn, nil, func(links []mapstore.Link) { r.step(mapstore.History{Links: links}) })
	case mapstore.Alarm:
		w.fail("METADATA alarm at %s about %s: %s", v.p.name, e.Server, e.Text)
	case mapstore.Done:
		r.over = true
		r.done(e)
	}
}

// ofTable leaves the lease rows out of a swap: for a broken rule.
func ofTable(conditions []coord.Condition, writes []coord.Write) ([]coord.Condition, []coord.Write) {
	return slices.DeleteFunc(conditions, func(c coord.Condition) bool { return !strings.HasPrefix(c.Key, mapstore.Prefix) }),
		slices.DeleteFunc(writes, func(w coord.Write) bool { return !strings.HasPrefix(w.Key, mapstore.Prefix) })
}

// asLed has every lease row say that its partition was led: for a broken rule, the one by which a presplit needed that there is none.
func asLed(rows map[string]coord.Row) {
	for key, row := range rows { // each by itself: the order does not matter
		if l, err := lease.DecodeLease(row.Value); err == nil && strings.HasPrefix(key, lease.Prefix+"p/") {
			l.Epoch, l.Empty = max(l.Epoch, 1), false
			row.Value = l.Encode()
			rows[key] = row
		}
	}
}

// readGuards reads rows one after the other.
func (r *runTxn) readGuards(e mapstore.ReadGuards, keys []string, rows map[string]coord.Row) {
	if len(keys) == 0 {
		if r.v.p.w.opt.broken == rowIsLed {
			asLed(rows)
		}
		r.step(mapstore.GuardsRead{Round: e.Round, Rows: rows})
		return
	}
	r.v.p.get(keys[0], txnStore, func(g got, ok bool) {
		if !ok {
			r.step(mapstore.GuardsRead{Round: e.Round, Err: errSilent})
			return
		}
		if g.ok {
			rows[keys[0]] = g.row
		}
		r.readGuards(e, keys[1:], rows)
	})
}

// stored answers a request to keep a file.
type storedAnswer struct{ err error }

func (r *runTxn) store(e mapstore.Store) {
	v, w := r.v, r.v.p.w
	answer := func(err error) { r.step(mapstore.Stored{Round: e.Round, Server: e.Server, Err: err}) }
	at := w.indexOf(e.Server)
	if w.opt.broken == casWithoutMajority {
		v.p.after(time.Millisecond, "pretends to store", func() { answer(nil) })
		if at != v.p.node {
			return
		}
		answer = func(error) {}
	}
	if at == v.p.node {
		v.self.take(e.Whole, e.Map, answer)
		return
	}
	if e.File.Map != nil {
		w.mark(sentWhole)
	}
	ask(v.p, at, peerTimeout, "store", func(answer func(storedAnswer)) {
		w.servers[at].take(e.File, nil, func(err error) { answer(storedAnswer{err}) })
	}, func(a storedAnswer, ok bool) {
		if !ok {
			a.err = errSilent
		}
		answer(a.err)
	})
}

const lookMax = 64

// look gives a transaction and those before it, as far as they are kept or until it finds the one sought.
func (v *view) look(e mapstore.Look, txn peer.TxnID, links []mapstore.Link, done func([]mapstore.Link)) {
	if txn == (peer.TxnID{}) || len(links) >= lookMax {
		done(links)
		return
	}
	v.load(mapstore.Wanted{Table: v.table, Txn: txn, Servers: e.Servers}, func(s *stored) {
		if s == nil {
			done(links)
			return
		}
		links = append(links, mapstore.Link{Txn: s.f.Txn, Base: s.f.Base, Seq: s.f.Seq})
		if s.f.Txn == e.Sought || s.f.Base == e.Base {
			done(links)
			return
		}
		v.look(e, s.f.Base, links, done)
	})
}

// The part of a metadata server.

const (
	keepFiles    = 16
	sweepEvery   = 10 * time.Second
	catchUpGrace = 250 * time.Millisecond
)

// take stores a file durably before it answers. m is its map, if it is at hand.
func (s *server) take(f *peer.File, m *topology.Map, answer func(error)) {
	here, err := s.shelf.Take(f)
	if err != nil {
		answer(err)
		return
	}
	if here {
		i, _ := s.shelf.Get(f.Table, f.Txn)
		s.shelf.Put(i) // it is being counted again
		// Where the same file is on its way to the disk, this waits for it.
		s.disk.sync(s.proc, nil, func() { answer(nil) })
		return
	}
	h := s.on(f.Table)
	row := h.row
	row.Seq = max(row.Seq, f.Seq-1)
	if f.Seq > row.Seq && s.shelf.Undecided(f.Table, row) >= s.w.limits.undecided {
		s.w.mark(tooMuchUndecided)
		h.sweep()
		answer(fault.Errorf(fault.Throttled, "too many files that no transaction decided about"))
		return
	}
	whole, err := s.whole(f, m)
	if err != nil {
		answer(err)
		return
	}
	if s.disk.isFull(s.w) || s.disk.fenced {
		answer(fault.Errorf(fault.Unavailable, "the disk is full"))
		return
	}
	s.disk.putFile(whole)
	finish := func() {
		if s.disk.files[f.Txn] != whole && s.disk.files[f.Txn] == nil { // swept meanwhile
			answer(fault.Errorf(fault.Unavailable, "it was swept"))
			return
		}
		s.shelf.Put(infoOf(whole.f))
		answer(nil)
	}
	disk, id := s.disk, s.id
	durable := func() { s.w.check.fileDurable(id, disk, whole) }
	if s.w.opt.broken == storeBeforeSync {
		s.disk.sync(s.proc, durable, func() {})
		finish()
		return
	}
	s.disk.sync(s.proc, durable, finish)
}

// whole gives a file with its map: the one at hand, the one sent, or the base with the ops applied.
func (s *server) whole(f *peer.File, m *topology.Map) (*stored, error) {
	own := *f
	own.Ops = nil
	switch {
	case m != nil:
	case f.Map != nil:
		var err error
		if m, err = mapstore.Decode(f); err != nil {
			return nil, err
		}
	default:
		base := s.file(f.Table, f.Base)
		if base == nil || f.Base == f.Txn {
			return nil, fault.Errorf(fault.Stale, "its base is not here: send it whole")
		}
		ops, err := topology.DecodeOps(f.Ops)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "ops")
		}
		if m, err = base.m.Apply(ops...); err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "the ops are refused here")
		}
		if err := mapstore.Check(f, m); err != nil {
			return nil, err
		}
	}
	own.Map = m.Encode()
	own.Sum = xxhash.Sum64(own.Map)
	return &stored{&own, m}, nil
}

// changedAnswer answers a proposal.
type changedAnswer struct {
	changed peer.Changed
	err     error
}

// file reads a file on the own disk; one that is damaged counts as absent, and is fetched if it is needed.
func (s *server) file(table string, txn peer.TxnID) *stored {
	f, err := s.disk.file(s.w, txn)
	if err == nil {
		return f
	}
	if fault.Is(err, fault.Corrupt) {
		s.w.n.found++
		s.w.mark(fileDamageRead)
		s.w.say("%s loses a damaged file of %s: %v", s.id, table, err)
		s.shelf.Remove(table, txn)
		s.disk.deleteFile(txn)
		s.after(catchUpGrace, "catch up", s.on(table).catchUp)
	}
	return nil
}

// change coordinates a proposed transaction; those of one table run one after another.
func (s *server) change(c *peer.Change, answer func(changedAnswer)) { s.on(c.Table).change(c, answer) }

func (s *hosted) change(c *peer.Change, answer func(changedAnswer)) {
	if len(s.turns) >= s.w.limits.changes {
		answer(changedAnswer{err: fault.Errorf(fault.Throttled, "many changes wait")})
		return
	}
	s.turns = append(s.turns, func() {
		s.view.run(mapstore.NewChange(c), func(d mapstore.Done) {
			answer(changedAnswer{d.Changed, d.Err})
			s.turns = s.turns[1:]
			if len(s.turns) > 0 {
				s.turns[0]()
			}
		})
	})
	if len(s.turns) == 1 {
		s.turns[0]()
	}
}

// rowChanged fetches the committed file if it should be here and is not, once it had time to come by itself.
func (s *hosted) rowChanged() {
	s.after(catchUpGrace, "catch up", s.catchUp)
}

func (s *hosted) catchUp() {
	row := s.row
	if s.catching || !slices.Contains(row.Servers, s.id) || s.disk.files[row.Txn] != nil {
		return
	}
	s.catching = true
	s.view.load(mapstore.Wanted{Table: s.table, Txn: row.Txn, Seq: row.Seq, Servers: row.Servers}, func(f *stored) {
		if f == nil {
			s.catching = false
			s.after(s.w.spread(time.Second), "catch up", s.catchUp)
			return
		}
		s.take(f.f, f.m, func(err error) {
			s.catching = false
			if err != nil {
				s.after(s.w.spread(time.Second), "catch up", s.catchUp)
				return
			}
			s.catchUp()
		})
	})
}

// sweep deletes files that are not needed: by a row that is read after a mark was made, and touched if there is much
// that no transaction decided about.
func (s *hosted) sweep() {
	if s.sweeping {
		return
	}
	s.sweeping = true
	before := s.shelf.Mark()
	s.get(mapstore.Key(s.table), txnStore, func(g got, ok bool) {
		row, err := mapstore.DecodeRow(g.row)
		if !ok || !g.ok || err != nil {
			s.sweeping = false
			return
		}
		if s.shelf.Undecided(s.table, row) < s.w.limits.undecided {
			s.clear(row, before, false)
			return
		}
		if s.w.opt.broken == sweepUntouched {
			s.clear(row, before, true)
			return
		}
		s.view.run(mapstore.NewTouch(s.table), func(d mapstore.Done) {
			if d.Err != nil {
				s.sweeping = false
				return
			}
			s.clear(d.Row, before, true)
		})
	})
}

func (s *hosted) clear(row mapstore.Row, before mapstore.Mark, touched bool) {
	s.sweeping = false
	if s.w.opt.broken == sweepCommitted && row.Seq > 2 {
		row.Txn, row.Seq = peer.TxnID{1}, row.Seq+keepFiles
	}
	gone := s.shelf.Decided(s.table, row, keepFiles)
	if touched {
		if undecided := s.shelf.Abandoned(s.table, row, before); len(undecided) > 0 {
			s.w.mark(sweptAbandoned)
			gone = append(gone, undecided...)
		}
	}
	for _, i := range gone {
		s.shelf.Remove(s.table, i.Txn)
		s.disk.deleteFile(i.Txn)
		s.w.n.sweeps++
		s.w.check.fileGone(s.id, i.Txn)
	}
}
