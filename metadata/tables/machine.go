package tables

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Machine is a process's state of one table, and the rules by which it gets the newest map: Step(input) effects. It has no
// clock, lock, I/O or goroutine; the runner of a process (Tables) and the simulator drive it. Each table has its own, so that
// one that cannot be fetched delays no other.
//
//	watch, list ──RowRead──▶ is it newer? ──▶ does it name a map that is not here? ──▶ Fetch ──▶ Fetched
//	own change ───Known────▶ is it newer? ──▶ Publish        ▲                                  │ an error: Retry, later
//	                                                         └──────────── newer again ◀────────┘
//
// Invariants: the map's sequence number never goes down, also not after a table was dropped and made again; the revision that
// At gives is of a row that named the map, or older; at most two fetches are under way, two only where the newer row
// names other servers.
//
// A row with a newer revision and the same sequence number replaces the one here (restored): the coordination store was restored from an
// older backup, and the table repaired. So a process that runs on through a restore need not be restarted for its maps.
type Machine struct {
	m      *topology.Map  // nil: there is none, or the table was dropped
	row    mapstore.Row   // as of m
	rev    coord.Revision // of the newest row that named m; 0: only a cache did, or a change from here
	want   mapstore.Row   // the newest row
	at     coord.Revision // of want
	proven time.Time      // want was the newest row then, or had not been written yet
	newest time.Time      // m was the newest map then, or had not been made yet

	fetches []Fetch
	lastID  int
	failed  int  // fetches, in a row
	resting bool // until Retry
	waiting bool // for Settled

	dirty bool // the cache has something older, and Save will come
}

// Input is an input of a Machine.
type Input interface{ input() }

// RowRead is the table's row, from a watch, a list or a read, in any order.
type RowRead struct {
	Row      mapstore.Row
	Revision coord.Revision
}

// RowGone reports that there was no row at a revision: a list did not have it, or a person deleted it.
type RowGone struct{ Revision coord.Revision }

// Known is a map that came without a row's revision: this process committed it, a server named it, or, with Revision, this
// process made the table. Row.Servers may be nil: then the servers of the row here stay.
type Known struct {
	Map      *topology.Map
	Row      mapstore.Row
	Revision coord.Revision
}

// FromCache is a map that an earlier process had cached, as of a time. It comes first.
type FromCache struct {
	Map *topology.Map
	Row mapstore.Row
	At  time.Time
}

// Proven reports that at a time there was no row newer than those that were read: the coordination store was asked then for this table's row, or all
// tables' rows, and its answer was taken in. A watch proves nothing: its changes may be on their way.
type Proven struct{ Asked time.Time }

// Fetched answers Fetch.
type Fetched struct {
	ID  int
	Map *topology.Map
	Err error
}

// Wanted reports that a caller waits for the map that the newest row names: it is fetched now, and Settled follows.
type Wanted struct{}

// RetryDue and SaveDue answer Retry and SaveLater.
type (
	RetryDue struct{}
	SaveDue  struct{}
)

func (RowRead) input()   {}
func (RowGone) input()   {}
func (Known) input()     {}
func (FromCache) input() {}
func (Proven) input()    {}
func (Fetched) input()   {}
func (Wanted) input()    {}
func (RetryDue) input()  {}
func (SaveDue) input()   {}

// Effect is an effect of a Machine.
type Effect interface{ effect() }

// Fetch gets the map of a transaction from the row's servers (mapstore.Coordinator.Fetch). Since and Have are the map that is here.
type Fetch struct {
	ID    int
	Want  mapstore.Row
	Since peer.TxnID
	Have  *topology.Map

	at coord.Revision
}

// Publish reports that the map or its row changed.
type Publish struct{}

// Forget ends the machine: there is no such table.
type Forget struct{}

// Retry asks for RetryDue after a time, give or take a half.
type Retry struct{ After time.Duration }

// Settled answers Wanted: the map of the newest row is here, or cannot be had.
type Settled struct{ Err error }

// SaveLater asks for SaveDue after a time, Save writes the table to the cache.
type (
	SaveLater struct{ After time.Duration }
	Save      struct{}
)

func (Fetch) effect()     {}
func (Publish) effect()   {}
func (Forget) effect()    {}
func (Retry) effect()     {}
func (Settled) effect()   {}
func (SaveLater) effect() {}
func (Save) effect()      {}

const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second

	// Changes are collected before the cache is written, for longer where the map is large: it is written whole.
	saveMin         = time.Second
	saveMax         = time.Minute
	saveBytesSecond = 256 << 10
)

// Step takes an input and appends the effects to perform.
func (t *Machine) Step(in Input, out []Effect) []Effect {
	out = t.step(in, out)
	if !t.lacks() {
		t.newest = t.proven
	}
	return out
}

func (t *Machine) step(in Input, out []Effect) []Effect {
	switch in := in.(type) {
	case RowRead:
		return t.rowRead(in, out)
	case RowGone:
		if t.at > in.Revision { // it was made after that
			return out
		}
		return append(out, Forget{}, Publish{})
	case Known:
		return t.next(t.publish(in.Map, in.Row, in.Revision, out))
	case FromCache:
		t.m, t.row, t.want, t.proven = in.Map, in.Row, in.Row, in.At
	case Proven:
		if in.Asked.After(t.proven) {
			t.proven = in.Asked
		}
	case Fetched:
		return t.fetched(in, out)
	case Wanted:
		t.waiting, t.resting = true, false
		return t.next(out)
	case RetryDue:
		if t.resting {
			t.resting = false
			return t.next(out)
		}
	case SaveDue:
		if t.dirty {
			t.dirty = false
			return append(out, Save{})
		}
	}
	return out
}

func (t *Machine) rowRead(in RowRead, out []Effect) []Effect {
	if in.Revision <= t.at {
		return out
	}
	if in.Row.Txn != t.want.Txn {
		t.resting, t.failed = false, 0
	}
	t.want, t.at = in.Row, in.Revision
	switch {
	case in.Row.Dropped && in.Row.Seq >= t.row.Seq:
		t.m, t.row, t.rev = nil, in.Row, in.Revision
		out = t.changed(out)
	case t.m != nil && in.Row.Txn == t.row.Txn:
		t.row, t.rev = in.Row, in.Revision
		out = t.changed(out)
	}
	return t.next(out)
}

// publish takes a map in unless a newer one is here.
func (t *Machine) publish(m *topology.Map, row mapstore.Row, rev coord.Revision, out []Effect) []Effect {
	if row.Seq < t.row.Seq || row.Seq == t.row.Seq && (t.m != nil || t.row.Dropped) && !(t.restored() && row.Txn == t.want.Txn) {
		return out
	}
	if row.Txn == t.want.Txn {
		row, rev = t.want, t.at
	}
	row.Round = max(row.Round, t.row.Round, t.want.Round)
	if row.Servers == nil {
		row.Servers, row.Dropping = t.row.Servers, t.Dropping()
		if t.at > t.rev { // the newest row is of a transaction in between, and its list is the newer one
			row.Servers = t.want.Servers
		}
	}
	if row.Begun == 0 && t.m != nil {
		row.Begun = t.row.Begun // a table that was dropped meanwhile has its row from the store
	}
	t.m, t.row, t.rev = m, row, max(rev, t.rev)
	if rev > t.at {
		t.want, t.at = row, rev
	}
	return t.changed(out)
}

// changed publishes, and asks for the cache to be written.
func (t *Machine) changed(out []Effect) []Effect {
	out = append(out, Publish{})
	if t.dirty {
		return out
	}
	t.dirty = true
	after := saveMin
	if t.m != nil {
		after = min(max(after, time.Duration(t.m.EncodedBytes())*time.Second/saveBytesSecond), saveMax)
	}
	return append(out, SaveLater{after})
}

// next fetches the missing map, and answers waiting callers.
func (t *Machine) next(out []Effect) []Effect {
	if !t.lacks() {
		t.resting, t.failed = false, 0
		return t.settle(nil, out)
	}
	if t.resting || len(t.fetches) > 1 || len(t.fetches) == 1 && slices.Equal(t.fetches[0].Want.Servers, t.want.Servers) {
		return out
	}
	t.lastID++
	f := Fetch{ID: t.lastID, Want: t.want, at: t.at}
	if t.m != nil {
		f.Since, f.Have = t.row.Txn, t.m
	}
	t.fetches = append(t.fetches, f)
	return append(out, f)
}

func (t *Machine) settle(err error, out []Effect) []Effect {
	if !t.waiting {
		return out
	}
	t.waiting = false
	return append(out, Settled{err})
}

func (t *Machine) fetched(in Fetched, out []Effect) []Effect {
	i := slices.IndexFunc(t.fetches, func(f Fetch) bool { return f.ID == in.ID })
	if i < 0 {
		return out
	}
	f := t.fetches[i]
	t.fetches = slices.Delete(t.fetches, i, i+1)
	switch {
	case in.Err == nil:
		out = t.publish(in.Map, f.Want, f.at, out)
	case f.Want.Txn == t.want.Txn && len(t.fetches) == 0 && t.lacks():
		out = append(t.settle(in.Err, out), Retry{min(retryMin<<min(t.failed, 10), retryMax)})
		t.resting = true
		t.failed++
	}
	return t.next(out)
}

// lacks reports whether the newest row names a map that is not here.
func (t *Machine) lacks() bool {
	return t.at > 0 && !t.want.Dropped && (t.want.Seq > t.row.Seq || t.restored())
}

// restored reports whether the newest row takes back the map here: it has the table where it was dropped, or another transaction of the
// same number. Only a coordination store that was restored from an older backup does so.
func (t *Machine) restored() bool {
	return t.at > t.rev && !t.want.Dropped && t.want.Seq == t.row.Seq && (t.row.Dropped || t.want.Txn != t.row.Txn)
}

// At returns the newest map here, nil if there is none, and the revision of the row that named it.
func (t *Machine) At() (*topology.Map, coord.Revision) { return t.m, t.rev }

// Newest is the newest row that was read, and its revision; 0: none was.
func (t *Machine) Newest() (mapstore.Row, coord.Revision) { return t.want, t.at }

// Row is the row as of the map here, or as of when the table was dropped.
func (t *Machine) Row() mapstore.Row { return t.row }

// Dropping reports whether the newest row says that the table is being dropped.
func (t *Machine) Dropping() bool {
	if t.at > t.rev {
		return t.want.Dropping
	}
	return t.row.Dropping
}

// NewestAt is the last time at which the map here is proven to have been the newest, or newer than the newest of then; zero: there is none. Later
// commits may be missing from it.
func (t *Machine) NewestAt() time.Time { return t.newest }
