package master

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Rows are the lease table's rows as one process sees them, with how long each server has been live or silent. All methods
// are safe for concurrent use. It implements coord.Follower for lease.Prefix.
type Rows struct {
	// Constant after NewRows.
	clock     func() time.Duration
	takeAfter time.Duration

	mu struct {
		sync.Mutex
		leases    map[lease.Partition]lease.Lease
		revs      map[lease.Partition]coord.Revision
		born      map[lease.Partition]coord.Revision
		no        map[string]prohibition
		swept     map[string]sweep // by table
		handed    map[lease.Partition]handed
		moved     map[lease.Partition]time.Duration // in reachable time: when a relief of it was last seen under way
		moving    map[placementOf]time.Duration     // in reachable time: when a relief under way was first seen
		unfilled  map[unfilledMove]time.Duration    // in reachable time: when it was first seen
		bad       map[string]error
		beats     map[topology.ServerID]*pulse
		reachable time.Duration // time in which the store answered without a gap
		last      time.Duration // of the clock: the last answer
		beatAt    time.Duration // of the clock: the last heartbeat that was seen
		asked     time.Duration // of the clock: when Quiet last returned true
		listed    bool          // the rows were read at least once
		// changes counts changes of rows that are not heartbeats.
		changes uint64
	}
}

type prohibition struct {
	partition lease.Partition
	server    topology.ServerID
	note      lease.Note
	rev       coord.Revision
	since     time.Duration // in reachable time: when it was first seen
}

// after returns the successor of a prohibition: as old as its predecessor if it is the same, or the same written again.
func (n prohibition) after(old prohibition) prohibition {
	if old.rev != 0 && (old.rev == n.rev || old.note.Who == n.note.Who && old.note.When.Equal(n.note.When)) {
		n.since = old.since
	}
	return n
}

// handed is a lead that was handed over for its load. It is remembered for handedMax.
type handed struct {
	from, to topology.ServerID
	at       time.Duration // in reachable time: when it was asked for, or acquired
}

// sweep is a table's Swept row.
type sweep struct {
	rev   coord.Revision
	since time.Duration // in reachable time: when it was first seen
}

// pulse is one server's heartbeat.
type pulse struct {
	signs   signs
	beat    lease.Beat
	changed time.Duration // in reachable time: the last sign of life
	liveAt  time.Duration // in reachable time: since when it is live, if it is
	moved   bool          // another sign of life came since the first
}

// NewRows starts without rows. takeAfter is how long a heartbeat may stay unchanged before its server counts as silent.
// clock never jumps; only differences mean something.
func NewRows(clock func() time.Duration, takeAfter time.Duration) *Rows {
	r := &Rows{clock: clock, takeAfter: takeAfter}
	r.mu.leases, r.mu.revs = map[lease.Partition]lease.Lease{}, map[lease.Partition]coord.Revision{}
	r.mu.born, r.mu.no = map[lease.Partition]coord.Revision{}, map[string]prohibition{}
	r.mu.swept, r.mu.handed, r.mu.moved = map[string]sweep{}, map[lease.Partition]handed{}, map[lease.Partition]time.Duration{}
	r.mu.bad, r.mu.beats = map[string]error{}, map[topology.ServerID]*pulse{}
	r.mu.last = clock()
	return r
}

// answeredLocked notes that the store answered. Silence of a server counts only while the store answers.
func (r *Rows) answeredLocked() {
	now := r.clock()
	if gap := now - r.mu.last; gap > 0 && gap <= answerGap {
		r.mu.reachable += gap
	}
	r.mu.last = now
}

// Listed implements coord.Follower.
func (r *Rows) Listed(rows []coord.Row, _ coord.Revision) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answeredLocked()
	r.mu.listed = true
	r.mu.changes++
	clear(r.mu.leases)
	clear(r.mu.revs)
	clear(r.mu.born)
	clear(r.mu.bad)
	swept := maps.Clone(r.mu.swept)
	clear(r.mu.swept)
	fences := maps.Clone(r.mu.no)
	clear(r.mu.no)
	for _, row := range rows {
		r.learnLocked(row)
		if table, ok := lease.ParseSweptKey(row.Key); ok && swept[table].rev == row.Revision {
			r.mu.swept[table] = swept[table]
		}
		if n, ok := r.mu.no[row.Key]; ok {
			r.mu.no[row.Key] = n.after(fences[row.Key])
		}
	}
	return nil
}

// Changed implements coord.Follower.
func (r *Rows) Changed(events []coord.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answeredLocked()
	for _, e := range events {
		if !e.Deleted {
			r.learnLocked(e.Row)
			continue
		}
		r.mu.changes++
		delete(r.mu.bad, e.Key)
		delete(r.mu.no, e.Key)
		if p, ok := lease.ParseRowKey(e.Key); ok {
			delete(r.mu.leases, p)
			delete(r.mu.revs, p)
		} else if p, ok := lease.ParseBornKey(e.Key); ok {
			delete(r.mu.born, p)
		}
		// A heartbeat row that is deleted is no sign of death, as for leases: a person may have deleted the row of a server that lives, which writes it
		// anew within a second. It counts as silent when nothing came for takeAfter, as with a row that is there.
	}
	return nil
}

func (r *Rows) learnLocked(row coord.Row) {
	delete(r.mu.bad, row.Key)
	if _, beat := lease.ParseBeatKey(row.Key); !beat {
		r.mu.changes++
	}
	if p, ok := lease.ParseRowKey(row.Key); ok {
		l, err := lease.DecodeLease(row.Value)
		if err != nil {
			r.mu.bad[row.Key] = err
			l = lease.Lease{} // counts as holding rows on unnamed servers
		}
		r.handLocked(p, r.mu.leases[p].Next, l)
		r.mu.leases[p], r.mu.revs[p] = l, row.Revision
		return
	}
	if p, ok := lease.ParseBornKey(row.Key); ok {
		r.mu.born[p] = row.Revision
		return
	}
	if p, s, ok := lease.ParseProhibitKey(row.Key); ok {
		n := prohibition{partition: p, server: s, rev: row.Revision, since: r.mu.reachable}
		if err := json.Unmarshal(row.Value, &n.note); err != nil {
			r.mu.bad[row.Key] = err // it prohibits all the same
		}
		r.mu.no[row.Key] = n.after(r.mu.no[row.Key])
		return
	}
	if s, ok := lease.ParseBeatKey(row.Key); ok {
		r.beatLocked(s, row)
	}
	if table, ok := lease.ParseSweptKey(row.Key); ok {
		r.mu.swept[table] = sweep{rev: row.Revision, since: r.mu.reachable}
	}
}

// handLocked notes that a lead is to be handed over, or was.
func (r *Rows) handLocked(p lease.Partition, was *lease.Next, l lease.Lease) {
	switch h := r.mu.handed[p]; {
	case l.Next != nil && (was == nil || *was != *l.Next):
		r.mu.handed[p] = handed{from: l.Holder, to: l.Next.Server, at: r.mu.reachable}
	case was != nil && l.Next == nil && h.to != "":
		h.at = r.mu.reachable
		r.mu.handed[p] = h
	}
}

func (r *Rows) beatLocked(s topology.ServerID, row coord.Row) {
	beat, err := lease.DecodeBeat(row.Value)
	if err == nil && beat.Missing {
		return // another server wrote it in the place of a missing one
	}
	b := r.mu.beats[s]
	first := b == nil
	if first { // a change cannot be seen yet
		b = &pulse{changed: r.mu.reachable, liveAt: r.mu.reachable}
		r.mu.beats[s] = b
	}
	if err != nil {
		b.beat, r.mu.bad[row.Key] = beat, err
		return // a server that writes unreadable heartbeats is silent
	}
	if !b.signs.news(beat) {
		return
	}
	if !first {
		b.moved = true
		if r.mu.reachable-b.changed >= r.takeAfter || b.beat.Boot != beat.Boot { // one that started again leads nothing yet
			b.liveAt = r.mu.reachable
		}
	}
	b.beat, b.changed = beat, r.mu.reachable
	r.mu.beatAt = r.clock()
}

// Ready reports whether the rows were read.
func (r *Rows) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.listed
}

// sweepEvery is how far apart the sweeps of one table's lease rows are: the first acquisitions of its new partitions that are under way at
// that moment conflict, and come a tenth of a second later.
const sweepEvery = 30 * time.Second

// quietFor is how long no heartbeat may arrive before the store is asked whether there was one. It is less than answerGap: time
// without any heartbeat does not count as silence of a server.
const quietFor = 1200 * time.Millisecond

// Quiet reports whether no heartbeat at all arrived for a while: then the watch may be stuck, and must be opened again.
// It returns true at most once in half that time.
func (r *Rows) Quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	if now-r.mu.beatAt < quietFor || r.mu.asked != 0 && now-r.mu.asked < quietFor/2 {
		return false
	}
	r.mu.asked = now
	return true
}

// BeatsRead records a list of the heartbeats alone.
func (r *Rows) BeatsRead(rows []coord.Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answeredLocked()
	for _, row := range rows {
		if s, ok := lease.ParseBeatKey(row.Key); ok {
			r.beatLocked(s, row)
		}
	}
}

// Fill puts the rows into a state: leases, born and prohibited partitions, and whether each registered server is live.
func (r *Rows) Fill(s *State, servers []registry.Server) {
	r.FillServers(s, servers)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Leases, s.Born = maps.Clone(r.mu.leases), make(map[lease.Partition]bool, len(r.mu.born))
	for p := range r.mu.born {
		s.Born[p] = true
	}
	s.No = map[lease.Partition][]topology.ServerID{}
	for _, n := range r.mu.no {
		s.No[n.partition] = append(s.No[n.partition], n.server)
	}
}

// FillServers is Fill without leases, births and prohibitions, which are many; changes counts how often those did change.
func (r *Rows) FillServers(s *State, servers []registry.Server) (changes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.JustSwept = map[string]bool{}
	for table, last := range r.mu.swept {
		s.JustSwept[table] = r.mu.reachable-last.since < sweepEvery
	}
	s.Handed = map[lease.Partition]Handed{}
	for p, h := range r.mu.handed {
		if age := r.mu.reachable - h.at; age < handedMax {
			s.Handed[p] = Handed{h.from, h.to, age}
		} else {
			delete(r.mu.handed, p)
		}
	}
	r.movedLocked(s, servers)
	s.Servers = nil
	for _, srv := range servers {
		one := Server{Server: srv, For: r.mu.reachable}
		if b := r.mu.beats[srv.ID]; b != nil {
			one.Beat = b.beat
			silent := r.mu.reachable - b.changed
			if one.Live = silent < r.takeAfter; one.Live {
				one.For = r.mu.reachable - b.liveAt
			} else {
				one.For = silent
			}
		}
		s.Servers = append(s.Servers, one)
	}
	return r.mu.changes
}

// movedLocked notes the reliefs that are under way, and forgets those that ended long ago.
func (r *Rows) movedLocked(s *State, servers []registry.Server) {
	was, ended := r.mu.moving, r.mu.unfilled
	r.mu.unfilled, s.Unfilled = map[unfilledMove]time.Duration{}, map[unfilledMove]time.Duration{}
	r.mu.moving, s.Moving = map[placementOf]time.Duration{}, map[placementOf]time.Duration{}
	for _, srv := range servers {
		for _, m := range srv.Unfilled {
			one := unfilledOf(m)
			since, known := ended[one]
			if !known {
				since = r.mu.reachable
			}
			r.mu.unfilled[one], s.Unfilled[one] = since, r.mu.reachable-since
		}
		for _, m := range srv.Moves {
			if isRelief(m) {
				r.mu.moved[lease.Partition{Table: m.Table, ID: m.Partition}] = r.mu.reachable
				one := placementOf{m.Table, m.Placement}
				since, known := was[one]
				if !known {
					since = r.mu.reachable
				}
				r.mu.moving[one], s.Moving[one] = since, r.mu.reachable-since
			}
		}
	}
	s.Moved = map[lease.Partition]time.Duration{}
	for p, at := range r.mu.moved {
		if age := r.mu.reachable - at; age < movedMax {
			s.Moved[p] = age
		} else {
			delete(r.mu.moved, p)
		}
	}
}

// Unreadable are the keys of rows that cannot be read, with the reason.
func (r *Rows) Unreadable() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.bad)
}

// OldFences are the prohibitions that a master left behind when it died, in order: fences older than any transaction of it that could be under way.
func (r *Rows) OldFences() []coord.Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []coord.Row
	for key, n := range r.mu.no {
		if n.note.Who == Fencer && r.mu.reachable-n.since >= fenceAge {
			out = append(out, coord.Row{Key: key, Revision: n.rev})
		}
	}
	slices.SortFunc(out, func(a, b coord.Row) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Sweepable gives the rows of a partition that is no more, with their revisions: the lease row, the born row, prohibitions in order.
func (r *Rows) Sweepable(p lease.Partition) []coord.Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := []coord.Row{{Key: lease.RowKey(p), Revision: r.mu.revs[p]}, {Key: lease.BornKey(p), Revision: r.mu.born[p]}}
	for key, n := range r.mu.no {
		if n.partition == p && strings.HasPrefix(key, lease.Prefix) {
			rows = append(rows, coord.Row{Key: key, Revision: n.rev})
		}
	}
	slices.SortFunc(rows[2:], func(a, b coord.Row) int { return strings.Compare(a.Key, b.Key) })
	return rows
}
