package api

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// readGates give places to remote reads and exports by readRules. A client that reads its answers slowly keeps its place for
// as long as query.timeout lets it. Safe for concurrent use.
type readGates struct {
	mu    sync.Mutex
	rules readRules
}

func newReadGates(running int) *readGates { return &readGates{rules: newReadRules(running)} }

// enter waits for a place for a table. The caller then calls leave. The error is Throttled when too many wait already, and
// Canceled when ctx ended first.
func (g *readGates) enter(ctx context.Context, table string) (leave func(), err error) {
	r := &reading{table: table, wake: make(chan struct{}, 1)}
	g.mu.Lock()
	out := g.rules.ask(r)
	running, waiting := g.rules.running, g.rules.waiting
	g.mu.Unlock()
	out.tell()
	select {
	case <-r.wake:
	case <-ctx.Done():
		g.leave(r)
		return nil, fault.Wrap(ctx.Err(), fault.Canceled, "waiting for other remote reads and exports to end")
	}
	if r.state == readRefused {
		return nil, fault.Errorf(fault.Throttled, "%d remote reads and exports run and %d wait already; try again later", running, waiting)
	}
	return func() { g.leave(r) }, nil
}

// leave ends a read, or its wait.
func (g *readGates) leave(r *reading) {
	g.mu.Lock()
	next := g.rules.leave(r)
	g.mu.Unlock()
	next.tell()
}

// tell wakes a read that has a place now, or is refused; nil: none.
func (r *reading) tell() {
	if r != nil {
		r.wake <- struct{}{} // once: it has room
	}
}

// readRules say which remote reads and exports run and which wait. They are pure.
//
//	places   ┌────────── each ──────────┐┌── half of it ──┐
//	a        first ─────── more ────────                     one table alone
//	a and b  first ─────── more ────────  first              b waits for more until a leaves some
//	c                                           first        whatever a and b hold
//
// Each table has a first place while there are any. Places beyond the first come out of one share, which is as large as one table
// may use alone: so half as many tables, and one more, have a first place for sure, however slowly the clients of others read. A
// place that becomes free goes to the table with the fewest. All places together leave some to look-ups, which share theirs with
// these reads.
type readRules struct {
	each, all int // places of one table, and of all

	tables  map[string]*readTable // with reads that run or wait
	running int
	active  int // tables with reads that run
	waiting int
	asked   uint64
}

type readTable struct {
	running int
	waiting []*reading // as they came
}

// reading is one remote read or export.
type reading struct {
	table string
	wake  chan struct{} // of the runner

	came  uint64
	state readState
}

type readState uint8

const (
	readWaits readState = iota
	readRuns
	readRefused
)

// waitersPerPlace is how many reads may wait for each place.
const waitersPerPlace = 10

func newReadRules(running int) readRules {
	return readRules{each: running, all: running + max(1, running/2), tables: map[string]*readTable{}}
}

// ask adds a read, which then runs, waits or is refused. It returns the read to wake: this one if it runs or is refused, another
// one that is refused to make room for it, or nil.
func (g *readRules) ask(r *reading) (over *reading) {
	t := g.tables[r.table]
	if t == nil {
		t = &readTable{}
		g.tables[r.table] = t
	}
	g.asked++
	r.came = g.asked
	switch {
	case len(t.waiting) == 0 && g.room(t):
		g.run(t, r)
		return r
	case len(t.waiting) >= waitersPerPlace*g.each:
		over = r
	case g.waiting >= waitersPerPlace*g.all:
		over = g.crowdedOut(t, r)
	}
	if over != nil {
		over.state = readRefused
	}
	if over != r {
		t.waiting = append(t.waiting, r)
		g.waiting++
	}
	g.forget(r.table)
	return over
}

// crowdedOut takes the newest read out of the longest queue, if that is longer than t's with r, and returns it; else r.
func (g *readRules) crowdedOut(t *readTable, r *reading) *reading {
	longest := t
	for _, other := range g.tables {
		if len(other.waiting) > len(longest.waiting) {
			longest = other
		}
	}
	n := len(longest.waiting) - 1
	if n <= len(t.waiting) {
		return r
	}
	out := longest.waiting[n]
	longest.waiting = longest.waiting[:n]
	g.waiting--
	return out
}

// leave ends a read that runs, or its wait, and returns the one that runs in its place; nil: none.
func (g *readRules) leave(r *reading) (next *reading) {
	t := g.tables[r.table]
	switch r.state {
	case readRefused:
		return nil
	case readWaits:
		for i, w := range t.waiting {
			if w == r {
				t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
				break
			}
		}
		g.waiting--
	case readRuns:
		g.running--
		if t.running--; t.running == 0 {
			g.active--
		}
		next = g.next()
	}
	g.forget(r.table)
	return next
}

// next runs the read that has waited longest of the table with the fewest that run.
func (g *readRules) next() *reading {
	var best *readTable
	for _, t := range g.tables {
		if len(t.waiting) == 0 || !g.room(t) {
			continue
		}
		if best == nil || t.running < best.running || t.running == best.running && t.waiting[0].came < best.waiting[0].came {
			best = t
		}
	}
	if best == nil {
		return nil
	}
	r := best.waiting[0]
	best.waiting = best.waiting[1:]
	g.waiting--
	g.run(best, r)
	return r
}

// room reports whether there is a place for one read more of a table.
func (g *readRules) room(t *readTable) bool {
	if t.running == 0 {
		return g.running < g.all
	}
	return t.running < g.each && g.running-g.active < g.each-1 && g.running < g.all
}

func (g *readRules) run(t *readTable, r *reading) {
	r.state = readRuns
	if t.running++; t.running == 1 {
		g.active++
	}
	g.running++
}

// forget drops a table without reads.
func (g *readRules) forget(table string) {
	if t := g.tables[table]; t.running == 0 && len(t.waiting) == 0 {
		delete(g.tables, table)
	}
}
