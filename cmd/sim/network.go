package main

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// network holds the faults of messages. Delays are drawn for each, so that messages overtake one another.
type network struct {
	lossPct, dupPct, slowPct int
	slowMax                  time.Duration
	cut                      [][]time.Duration // from, to: nothing arrives until then
}

// calm ends all faults of a network of so many nodes.
func (n *network) calm(nodes int) {
	*n = network{cut: make([][]time.Duration, nodes)}
	for from := range n.cut {
		n.cut[from] = make([]time.Duration, nodes)
	}
}

func (w *world) delay() time.Duration {
	d := time.Duration(200+w.rng.IntN(3000)) * time.Microsecond
	if w.net.slowPct > 0 && w.chance(w.net.slowPct) {
		d += time.Duration(w.rng.Int64N(int64(w.net.slowMax)))
	}
	return d
}

func (w *world) severed(from, to int) bool { return w.now < w.net.cut[from][to] }

// send runs f at the other end, unless the message is lost; twice if it is doubled. A connection that is cut loses the
// messages on their way.
func (w *world) send(from, to int, twice bool, what string, f func()) {
	if from == to {
		w.after(50*time.Microsecond, what, f) // no message
		return
	}
	if w.severed(from, to) || w.net.lossPct > 0 && w.chance(w.net.lossPct) {
		return
	}
	arrive := func() {
		if !w.severed(from, to) {
			f()
		}
	}
	w.deliver(w.delay(), what, arrive)
	if twice && w.net.dupPct > 0 && w.chance(w.net.dupPct) {
		w.deliver(w.delay()+w.delay(), what, arrive)
	}
}

// ask sends a request to another process, whichever runs there when it arrives. done receives the answer, or ok false
// when none came within timeout by the asker's clock; never both, never twice.
func ask[T any](p *proc, to int, timeout time.Duration, what string, handle func(answer func(T)), done func(v T, ok bool)) {
	w, over, start := p.w, false, p.starts
	limit := p.after(timeout, "no answer", func() {
		if !over {
			over = true
			var none T
			done(none, false)
		}
	})
	answer := func(v T) {
		w.send(to, p.node, true, "answer", func() {
			p.do(func() {
				if !over && p.starts == start {
					over = true
					limit.stop()
					done(v, true)
				}
			})
		})
	}
	// The coordination store executes each request once: its clients repeat questions only. Nor does the wire repeat
	// rows: a gateway sends them again itself.
	w.send(p.node, to, to != w.store.node() && what != "insert", what, func() { w.nodes[to].do(func() { handle(answer) }) })
}

// store is the coordination store: the rows of coord/mem, with watches that are late and forget.
type store struct {
	w         *world
	rows      coord.Store
	rev       coord.Revision
	history   []coord.Event
	forgotten coord.Revision // changes up to here are no longer in history
	away      time.Duration  // until when it answers no request
	watches   []*watch

	// By key, of lease rows and heartbeat rows.
	leases map[string]decoded[lease.Lease]
	beats  map[string]decoded[lease.Beat]
}

func (s *store) node() int { return s.w.opt.Servers + s.w.opt.Gateways }

// watch is one process's watch of a prefix.
type watch struct {
	p       *proc
	prefix  string
	after   coord.Revision
	stalled time.Duration
	due     bool
	changed func([]coord.Event)
	again   func()
	wanted  func() bool // nil: always
	over    bool
}
