package server

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The capacity of a server is measured while it is busy: the rows of its last busy minutes ÷ the CPU time of its process in them, queries, flushes and
// compactions included.

const (
	measurePeriod = time.Minute
	// capacityMinutes are the busy minutes that count, and capacityLeast how many there must be: one flush or query does not decide.
	capacityMinutes, capacityLeast = 60, 5
	// busyShare of the processors must be used in a minute that counts: below it, the load of an idle process is no small part.
	busyShare = 0.1
	// usableShare is the part of the processors that rows may use: the rest is for peaks, and for the copies and queries of a server that is away.
	// busyShare and usableShare are fractions. The figure is the mean of the last 5 to 60 busy minutes, however long ago they were: a server at
	// rest keeps it.
	usableShare = 0.7
	// copyCost is the CPU time of a row that comes as a copy, as a part of one that is accepted as its leader.
	copyCost = 0.5
)

// taken are the rows and the processor time of a process since its start.
type taken struct {
	led, copied float64       // rows
	cpu         time.Duration // of the whole process
}

// work is led rows, and copies as the part of one that they cost.
func (t taken) work() float64 { return t.led + copyCost*t.copied }

// capacity measures how many rows a server accepts. Its methods are not concurrent.
type capacity struct {
	processors int
	last       taken
	at         time.Time // of last; zero: none
	busy       []taken   // of the last minutes that count, oldest first
}

// step accounts for the time since the step before. A busy time of half a measurePeriod or more counts as a minute.
// A shorter one would be a timer that fired twice in a row, and its quotient mostly noise.
func (c *capacity) step(now time.Time, all taken) {
	d := taken{all.led - c.last.led, all.copied - c.last.copied, all.cpu - c.last.cpu}
	took := now.Sub(c.at)
	first := c.at.IsZero()
	c.last, c.at = all, now
	if first || took < measurePeriod/2 || d.work() <= 0 || float64(d.cpu) < busyShare*float64(c.processors)*float64(took) {
		return
	}
	if c.busy = append(c.busy, d); len(c.busy) > capacityMinutes {
		c.busy = c.busy[1:]
	}
}

// of returns the rows a second that the server can accept; zero while too few minutes were busy.
func (c *capacity) of() peer.Capacity {
	if len(c.busy) < capacityLeast {
		return peer.Capacity{}
	}
	var sum taken
	for _, m := range c.busy {
		sum.led, sum.copied, sum.cpu = sum.led+m.led, sum.copied+m.copied, sum.cpu+m.cpu
	}
	return peer.Capacity{RowsPerSecond: usableShare * float64(c.processors) * sum.work() / sum.cpu.Seconds(), Minutes: len(c.busy)}
}

// accepted counts rows that were accepted here as the leader of a partition.
func (s *Server) accepted(pa pass, n int) {
	s.ledRows.Add(uint64(n))
	pa.gate.rows.Add(uint64(n))
}

// Accepted returns how many rows each partition accepted here, as its leader, since the process began, by table; those without any are left out.
func (s *Server) Accepted() map[string]map[point.PartitionID]uint64 {
	all := map[string]map[point.PartitionID]uint64{}
	for _, t := range s.tables() {
		if rows := t.accepted(); len(rows) > 0 {
			all[t.name] = rows
		}
	}
	return all
}

func (t *table) accepted() map[point.PartitionID]uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	rows := map[point.PartitionID]uint64{}
	for id, g := range t.mu.gates {
		if n := g.rows.Load(); n > 0 {
			rows[id] = n
		}
	}
	return rows
}

// measure accounts for the last minute.
func (s *Server) measure(context.Context) {
	if s.deps.CPU == nil {
		return
	}
	all := taken{led: float64(s.ledRows.Load()), copied: float64(s.partition.Copied()), cpu: s.deps.CPU()}
	s.capacity.Lock()
	defer s.capacity.Unlock()
	s.capacity.step(time.Now(), all)
}

// Capacity returns what this server can accept, as measured; zero: not known.
func (s *Server) Capacity() peer.Capacity {
	s.capacity.Lock()
	defer s.capacity.Unlock()
	return s.capacity.of()
}
