package main

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Two versions of the program run side by side in a third of the runs: some servers and gateways are of the version before, and are upgraded
// one by one. A field that the older version lacks is missing on the wire for this one:
//
//	a proposer names no round          its proposal is not ruled out, and may be committed after it was given up (peer.Change.Round)
//	a gateway gives rows no rank       the leader stamps them, and cannot distinguish a late try of one from a new row (point.Stamp 0)
//	a server names no map with Stale   a gateway finds the newest by the table's row alone (peer.WithMap)
//
// Not promised meanwhile: that a hand-over which such a leader gave up stays undone, and that a row which such a gateway sent twice does not
// come again above a later one.

// drawVersions chooses the older processes.
func (w *world) drawVersions() {
	if !w.opt.Faults.has(versions) || w.rng.IntN(3) > 0 {
		return
	}
	for _, p := range w.nodes {
		p.older = w.rng.IntN(2) == 0
	}
}

// upgrades starts the older ones as newer ones, one after the other.
func (w *world) upgrades() {
	w.after(w.spread(15*time.Second), "upgrade", func() {
		for i, p := range w.nodes {
			if !p.older || w.healed {
				continue
			}
			w.mark(upgraded)
			w.say("%s is upgraded", p.name)
			p.older = false
			if i < len(w.servers) {
				w.boot(i, false)
			}
			w.upgrades()
			return
		}
	})
}

// allNew has all be of the newer version: when all is well.
func (w *world) allNew() {
	for _, p := range w.nodes {
		p.older = false
	}
}

// round gives the round that a proposal names.
func (v *view) round() uint64 {
	if v.p.older {
		v.p.w.mark(roundMissing)
		return 0
	}
	return v.row.Round + 1
}

// stampOf gives the rank of a row as it comes: that of its gateway, or, where that gave none, one of the server's own clock.
func (s *server) stampOf(in row) row {
	if in.rank == 0 && s.w.opt.broken != rankNotGiven {
		s.w.mark(rankMissing)
		in.rank = point.Stamp(uint64(s.w.wall().UnixNano())) &^ (rankStep - 1)
	}
	return in
}
