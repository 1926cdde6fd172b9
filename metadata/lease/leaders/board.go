package leaders

import (
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// board holds the content of the rows. It has no clock and no lock.
type board struct {
	takeAfter time.Duration
	rows      map[lease.Partition]row
	// lost are partitions that were led, and have no rows now: a person deleted them, or they were dropped.
	lost      map[lease.Partition]struct{}
	beats     map[topology.ServerID]beat
	reachable reachable
}

type row struct {
	lease lease.Lease
	err   error         // the row cannot be read
	since time.Duration // in reachable time: when this epoch was first seen
}

type beat struct {
	rev  coord.Revision
	boot lease.Boot // "": the row is gone
	// renewed: this boot was seen to write another revision since all rows were listed last.
	renewed bool
	since   time.Duration // in reachable time: when this revision was first seen
	load    float64
	// readOnly is the reason why it accepts no rows; "": it accepts them.
	readOnly string
	room     int64 // 0: not known
}

func newBoard(takeAfter time.Duration) *board {
	return &board{takeAfter: takeAfter, rows: map[lease.Partition]row{}, lost: map[lease.Partition]struct{}{}, beats: map[topology.ServerID]beat{}}
}

// reachable counts the time in which the store answered.
type reachable struct {
	total time.Duration
	last  time.Time // of the last answer
}

// gapMax is the longest silence that counts as time in which nothing changed: Run reads when it gets no answer for a second.
const gapMax = 3 * time.Second

func (r *reachable) answer(now time.Time) {
	if gap := now.Sub(r.last); gap > 0 && gap <= gapMax {
		r.total += gap
	}
	r.last = now
}

// list replaces all rows by a complete list. A row that did not change keeps the time when it was first seen (since): else each new list, as after a break of the watch,
// would make servers look alive that have been silent. No heartbeat in it counts as renewed: the store may have been restored from a backup, which ends the watches.
func (b *board) list(now time.Time, rows []coord.Row) {
	b.reachable.answer(now)
	leases := b.rows
	b.rows = make(map[lease.Partition]row, len(leases))
	b.lost = map[lease.Partition]struct{}{}
	old := b.beats
	b.beats = map[topology.ServerID]beat{}
	for _, r := range rows {
		if s, ok := lease.ParseBeatKey(r.Key); ok {
			if known, ok := old[s]; ok {
				b.beats[s] = known
			}
		}
		if p, ok := lease.ParseRowKey(r.Key); ok {
			if known, ok := leases[p]; ok {
				b.rows[p] = known
			}
		}
		b.learn(r)
	}
	for s, hb := range b.beats {
		hb.renewed = false
		b.beats[s] = hb
	}
	for _, r := range rows {
		if p, ok := lease.ParseBornKey(r.Key); ok {
			if _, ok := b.rows[p]; !ok {
				b.lost[p] = struct{}{}
			}
		}
	}
}

// change applies changes; it reports whether the set of servers that may lead changed.
func (b *board) change(now time.Time, events []coord.Event) (changed bool) {
	b.reachable.answer(now)
	for _, e := range events {
		if !e.Deleted {
			changed = b.learn(e.Row) || changed
			continue
		}
		if p, ok := lease.ParseRowKey(e.Key); ok {
			if b.rows[p].led() {
				b.lost[p] = struct{}{}
			}
			delete(b.rows, p)
			changed = true
		} else if p, ok := lease.ParseBornKey(e.Key); ok {
			delete(b.lost, p)
		} else if s, ok := lease.ParseBeatKey(e.Key); ok {
			b.beats[s] = beat{rev: e.Revision, since: b.reachable.total}
		}
	}
	return changed
}

// beatsRead applies heartbeat rows that were read beside the watch, and may be older than the watch's.
func (b *board) beatsRead(now time.Time, rows []coord.Row) (changed bool) {
	b.reachable.answer(now)
	for _, r := range rows {
		changed = b.learn(r) || changed
	}
	return changed
}

func (b *board) learn(r coord.Row) (changed bool) {
	if p, ok := lease.ParseRowKey(r.Key); ok {
		l, err := lease.DecodeLease(r.Value)
		since := b.reachable.total
		if was, ok := b.rows[p]; ok && err == nil && was.lease.Epoch == l.Epoch {
			since = was.since
		}
		b.rows[p] = row{l, err, since}
		delete(b.lost, p)
		return true
	}
	s, ok := lease.ParseBeatKey(r.Key)
	if !ok {
		return false
	}
	was := b.beats[s]
	if r.Revision <= was.rev {
		return false
	}
	wasLive := b.live(s)
	hb, _ := lease.DecodeBeat(r.Value) // an unreadable row names no boot: the server counts as not alive
	if hb.Missing {
		// Another server wrote it in the place of a deleted one.
		b.beats[s] = beat{rev: r.Revision, since: b.reachable.total}
		return false
	}
	b.beats[s] = beat{rev: r.Revision, boot: hb.Boot, renewed: was.rev != 0 && was.boot == hb.Boot, since: b.reachable.total, load: hb.Load, readOnly: hb.ReadOnly, room: hb.Room}
	return was.boot != hb.Boot || !wasLive
}

// led reports whether the row is of a partition that was once led. For an unreadable row it cannot say.
func (r row) led() bool { return r.err != nil || r.lease.Epoch > 0 }

// empty reports whether the row says that no row of the partition was acked.
func (r row) empty() bool { return r.err == nil && r.lease.Empty && r.lease.Offline == nil }

// neverLed reports whether no server ever led a partition.
func (b *board) neverLed(p lease.Partition) bool {
	r, ok := b.rows[p]
	_, lost := b.lost[p]
	return !lost && (!ok || !r.led())
}

func (b *board) live(s topology.ServerID) bool {
	hb, ok := b.beats[s]
	return ok && hb.boot != "" && b.reachable.total-hb.since < b.takeAfter
}

// find returns the server to ask.
func (b *board) find(table string, p *topology.Partition, try int) (Lead, error) {
	r, ok := b.rows[lease.Partition{Table: table, ID: p.ID}]
	switch {
	case !ok || r.err == nil && r.lease.Epoch == 0 && r.lease.Offline == nil:
		return b.guess(table, p, try)
	case r.err != nil:
		return Lead{}, fault.Wrap(r.err, fault.Unavailable, "the leader of partition %s/%d cannot be read", table, p.ID)
	case r.lease.Offline != nil:
		n := r.lease.Offline
		return Lead{}, fault.Errorf(fault.Unavailable, "partition %s/%d was taken offline by %s at %s: %s",
			table, p.ID, n.Who, n.When.UTC().Format(time.RFC3339), n.Reason)
	case r.lease.State != lease.Held:
		return Lead{}, fault.Errorf(fault.Unavailable, "partition %s/%d has no leader now; %s let it go (epoch %d) and another takes it soon",
			table, p.ID, r.lease.Holder, r.lease.Epoch)
	}
	return Lead{Server: r.lease.Holder, Epoch: r.lease.Epoch}, nil
}

// holders is View.Holders.
func (b *board) holders(p lease.Partition, by topology.ServerID, epoch point.Epoch, may func(point.PartitionID) bool) (servers []topology.ServerID, known bool) {
	own, ok := b.rows[p]
	if !ok || own.err != nil || own.lease.State != lease.Held || own.lease.Holder != by || own.lease.Epoch != epoch {
		return nil, false
	}
	for o := range b.lost {
		if o.Table == p.Table && may(o.ID) {
			return nil, false
		}
	}
	found := map[topology.ServerID]bool{}
	for o, r := range b.rows {
		switch {
		case o.Table != p.Table || o == p || !may(o.ID):
		case r.err != nil:
			return nil, false
		case r.lease.State == lease.Held && !found[r.lease.Holder]:
			found[r.lease.Holder] = true
			servers = append(servers, r.lease.Holder)
		}
	}
	return servers, true
}

// guess returns a placement of a partition that no server ever led: one of those with live servers, another at each try.
// If no heartbeat was ever seen, as before the store answered, every placement may be the answer.
func (b *board) guess(table string, p *topology.Partition, try int) (Lead, error) {
	able := func(s topology.ServerID) bool { return len(b.beats) == 0 || b.live(s) }
	n := 0
	for _, pl := range p.Placements {
		if able(pl.Server) {
			n++
		}
	}
	if n == 0 {
		return Lead{}, fault.Errorf(fault.Unavailable, "no server leads partition %s/%d, and of the servers it is placed on (%s) none shows a heartbeat",
			table, p.ID, servers(p.Placements))
	}
	skip := try % n
	for _, pl := range p.Placements {
		if !able(pl.Server) {
			continue
		}
		if skip == 0 {
			return Lead{Server: pl.Server, Guess: true}, nil
		}
		skip--
	}
	return Lead{}, fault.Errorf(fault.Unavailable, "no server leads partition %s/%d", table, p.ID)
}

func servers(ps []topology.Placement) string {
	names := make([]string, len(ps))
	for i, p := range ps {
		names[i] = string(p.Server)
	}
	return strings.Join(names, ", ")
}

// Lead is the server to ask for a partition.
type Lead struct {
	Server topology.ServerID
	Epoch  point.Epoch // 0: not seen yet
	Guess  bool        // no server ever led it: any placement may be about to
}
