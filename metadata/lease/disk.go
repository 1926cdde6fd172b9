package lease

import (
	"fmt"
	"slices"
	"time"
)

// A server whose disk is slow, and not dead, delays every writer of the partitions that it has a copy of. Each server says in its heartbeat how long an fsync of its log lasts of late
// (Beat.Fsync), and judges itself by what the others say: one server decides, so that all act by the same answer.
//
//	for slowFor fsyncs are slow, and much slower than those of most others ─▶ SlowDisk in our heartbeat ─▶ heads: it leaves the in-sync lists that are long enough without it
//	                                                                       └▶ we hand over the partitions that others can lead, one after the other, and acquire none of those
//	for rest neither slow nor much slower ─▶ as before
//
// Servers that are all equally slow compare with each other, and nothing happens. A build that does not say how long its fsyncs last is never slow, and does not count.
//
// One in four live servers is slow at most, at least one: each costs a copy of what it has, and what it leads goes to the others. Where more seem slow at once, those whose names
// come first begin, and each next one after it would have seen that:
//
//	8 servers, room for 2     s3 seems slow ─ 4 s ─▶ slow      s5 seems slow ─ 4 s ─▶ slow      s6 seems slow ─ 4 s ─ 3 s ─ two are slow: stays as it is

// disk is the log's disk of this server.
type disk struct {
	fsync time.Duration // how long an fsync of the log lasts of late; 0: not known
	slow  bool
	over  Time // while it is not slow: since when it seems to be; 0: it does not
	well  Time // while it is slow: since when it is well again; 0: it is not
	rest  Time // how long it must be well
	ended Time // when it was slow last
}

const (
	// fsyncSlow is how long fsyncs of a slow disk last at least, and fsyncTimes how much longer than those of the others. It counts as well below half of either.
	fsyncSlow  = 250 * time.Millisecond
	fsyncTimes = 4
	// slowFor is how long it must seem slow, and fsyncHeld for how long the slowest figure of another server counts: where all disks turn slow, or well, at once, those to which less
	// is written notice it some seconds later.
	slowFor   = 4 * time.Second
	fsyncHeld = 15 * time.Second
	// slowShare is how many live servers there are for each that is slow at once. Smaller: where a second of seven is slow, too, writers need not wait for it, while all of its copies
	// are missing to lists that the first one has left.
	slowShare = 4
	// slowTurn is how much longer than slowFor a server waits where others seem slow whose turn is before its own: their figure is published within a second, and so is that they are
	// slow; a heartbeat may be a second late.
	slowTurn = 3 * time.Second
	// othersMin is how many others must say how long their fsyncs last: of two servers, both of which have every row, neither can do without the other.
	othersMin = 2
	// diskRestMin is how long a slow disk must be well; twice as long each time, up to diskRestMax, until it has been well for diskWellFor times as long. A disk may be slow because
	// of what is written to it, and is well while it leads nothing.
	diskRestMin = time.Minute
	diskRestMax = time.Hour
	diskWellFor = 5
)

// judgeDisk decides whether our disk is slow. It is called about once a second. While the store does not answer, what the others say is old, and nothing changes.
func (m *Machine) judgeDisk(fsync time.Duration) {
	d := &m.disk
	d.fsync = fsync
	if !m.good(m.now) {
		d.over, d.well = 0, 0
		return
	}
	others, known := m.othersFsync()
	over := known && isSlow(fsync, others)
	wait := slowFor
	if over && !d.slow {
		room, before := m.slowRoom(others)
		over, wait = room > 0, slowFor+Time(before/max(room, 1))*slowTurn
	}
	switch {
	case !d.slow && !over:
		d.over = 0
	case !d.slow && d.over == 0:
		d.over = max(m.now, 1)
	case !d.slow && m.now-d.over < wait:
	case !d.slow:
		if m.now-d.ended > diskWellFor*d.rest {
			d.rest = 0
		}
		d.rest, d.over, d.well = min(max(2*d.rest, diskRestMin), diskRestMax), 0, 0
		m.setDiskSlow(true)
	case fsync >= fsyncSlow/2 && fsync >= fsyncTimes/2*others:
		d.well = 0
	case d.well == 0:
		d.well = max(m.now, 1)
	case m.now-d.well >= d.rest:
		d.ended = m.now
		m.setDiskSlow(false)
	}
}

func (m *Machine) setDiskSlow(slow bool) {
	m.disk.slow = slow
	m.beat.next = m.now // notify the others
	m.touchAll()
}

// othersFsync is the median of the other live servers' fsyncs, of an even number the slower one; false: too few say it.
func (m *Machine) othersFsync() (median time.Duration, known bool) {
	var all []time.Duration
	for s, b := range m.beats {
		if s != m.self.Server && b.beat.Fsync > 0 && m.alive(s) {
			all = append(all, max(b.beat.Fsync, b.fsync))
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return all[len(all)/2], len(all) >= othersMin
}

// holdFsync keeps the slowest figure of a server's heartbeats.
func (m *Machine) holdFsync(b *beatRow) {
	if b.beat.Fsync >= b.fsync || m.now-b.fsyncAt > fsyncHeld {
		b.fsync, b.fsyncAt = b.beat.Fsync, m.now
	}
}

// isSlow compares how long fsyncs of one server last with the median of others.
func isSlow(fsync, others time.Duration) bool {
	return fsync >= fsyncSlow && fsync >= fsyncTimes*others
}

// slowRoom returns how many more servers may be slow, and how many of those that seem slow now, and are not yet, have their turn before us: by name, so that all agree. One whose
// figures seem slow to us alone only has us wait.
func (m *Machine) slowRoom(others time.Duration) (room, before int) {
	live, slow := 1, 0
	for s, b := range m.beats {
		switch {
		case s == m.self.Server || !m.alive(s):
			continue
		case m.slowDisk(Member{Server: s}):
			slow++
		case s < m.self.Server && isSlow(b.beat.Fsync, others):
			before++
		}
		live++
	}
	return max(live/slowShare, 1) - slow, before
}

func (m *Machine) slowDisk(x Member) bool {
	if x.Server == m.self.Server {
		return m.disk.slow
	}
	b := m.beats[x.Server]
	return b != nil && b.beat.SlowDisk && m.alive(x.Server)
}

// Slow returns those of the members that are on servers with slow disks.
func (m *Machine) Slow(all []Member) (slow []Member) {
	for _, x := range all {
		if m.slowDisk(x) {
			slow = append(slow, x)
		}
	}
	return slow
}

func (m *Machine) diskWhy() string {
	return fmt.Sprintf("the disk of this server is slow: an fsync of the log lasts %v", m.disk.fsync.Round(time.Millisecond))
}
