package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// faults are what may go wrong in a run.
type faults uint32

const (
	loss faults = 1 << iota
	dup
	reorder
	partition
	crash
	lost
	slow
	pause
	clocks
	outage
	compact
	rogue
	people
	drops
	rot
	torn
	fsync
	full
	faultsEnd
)

const allFaults = faultsEnd - 1

// faultNames are ordered as the bits are.
var faultNames = [...]string{"loss", "dup", "reorder", "partition", "crash", "lost", "slow", "pause", "clocks", "outage", "compact", "rogue", "people", "drops", "rot", "torn", "fsync", "full"}

func (f faults) has(x faults) bool { return f&x != 0 }

// String names the faults as parseFaults reads them.
func (f faults) String() string {
	if f == allFaults {
		return "all"
	}
	var names []string
	for i, name := range faultNames {
		if f.has(1 << i) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

func parseFaults(s string) (f faults, err error) {
	for name := range strings.SplitSeq(s, ",") {
		switch i := slices.Index(faultNames[:], strings.TrimSpace(name)); {
		case name == "all":
			f = allFaults
		case name == "none":
		case i < 0:
			return 0, fmt.Errorf("no fault is called %q; there are all, none, %s", name, strings.Join(faultNames[:], ", "))
		default:
			f |= 1 << i
		}
	}
	return f, nil
}

// rule is one that the glue may leave out, to see whether a checker notices.
type rule string

const (
	brickEpochOff        rule = "the brick does not compare epochs"
	validFromAnswer      rule = "a lease is counted from the answer of the renewal"
	casWithoutMajority   rule = "the row is swapped before a majority has the file"
	sweepCommitted       rule = "the sweep deletes the committed file"
	heartbeatNotCompared rule = "a taker does not compare the heartbeat"
	storeBeforeSync      rule = "a file counts before it is synced"
	ackBeforeSync        rule = "a row is acked before it is synced"
	noHold               rule = "rows are taken while others are in sync"
	markStays            rule = "rows are taken while the lease row says that there are none"
	moveBlind            rule = "an empty partition is moved without comparing its lease row"
	fsyncIgnored         rule = "a failed fsync is taken for a good one"
	lateTryLogged        rule = "a try is logged after a later one of the same row"
	ranksNotRaised       rule = "ranks are as the gateways' clocks say"
	oldMapsAnswered      rule = "readers by old maps are answered"
	ageNotSaid           rule = "a reader cut off from the store does not say so"
	oneOfTwoLayers       rule = "a reader asks no partition that unloads"
	sumsIgnored          rule = "sums and names are not compared"
	alarmRemoves         rule = "what the map does not want is deleted"
)

// nemesis does one thing that goes wrong, every few seconds. How bad it gets changes every minute, so that none hides
// another and the cluster comes to work now and then.
func (w *world) nemesis() {
	if w.opt.Faults == 0 {
		return
	}
	var mood func()
	gap := 3 * time.Second
	mood = func() {
		if w.healed {
			return
		}
		gap = []time.Duration{1500 * time.Millisecond, 4 * time.Second, 15 * time.Second}[w.rng.IntN(3)]
		n := &w.net
		n.lossPct, n.dupPct, n.slowPct, n.slowMax = 0, 0, 0, 0
		if w.opt.Faults.has(loss) {
			n.lossPct = []int{0, 0, 2, 8, 25}[w.rng.IntN(5)]
		}
		if w.opt.Faults.has(dup) {
			n.dupPct = []int{0, 5, 20}[w.rng.IntN(3)]
		}
		if w.opt.Faults.has(reorder) {
			n.slowPct = []int{0, 3, 15}[w.rng.IntN(3)]
			n.slowMax = []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second}[w.rng.IntN(3)]
		}
		w.after(w.spread(40*time.Second), "mood", mood)
	}
	mood()
	var strikes []faults
	for _, f := range []faults{partition, crash, lost, slow, pause, outage, compact, rogue, rot, fsync, full} {
		if w.opt.Faults.has(f) {
			strikes = append(strikes, f)
		}
	}
	var strike func()
	strike = func() {
		if w.healed {
			return
		}
		w.strike(strikes[w.rng.IntN(len(strikes))])
		w.after(w.spread(gap), "strike", strike)
	}
	if len(strikes) > 0 {
		w.after(5*time.Second, "strike", strike)
	}
}

func (w *world) strike(f faults) {
	i := w.rng.IntN(len(w.servers))
	s := w.servers[i]
	upTo := func(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }
	switch f {
	case partition:
		w.n.cuts++
		w.cut(i, upTo(12*time.Second))
	case crash:
		w.n.crashes++
		w.say("%s is killed", s.id)
		w.kill(i)
		w.after(upTo(9*time.Second), "starts", func() {
			if w.servers[i].dead {
				w.boot(i, false)
			}
		})
	case lost:
		if w.rng.IntN(3) > 0 || s.dead || !w.check.mayLose(s) {
			return
		}
		w.n.wipes++
		w.say("%s loses its disk %s", s.id, s.disk.id)
		w.kill(i)
		w.check.lost(w.servers[i])
		w.boot(i, true)
	case slow:
		w.n.slows++
		s.disk.slow = w.now + upTo(20*time.Second)
	case pause:
		w.n.pauses++
		d := upTo(9 * time.Second)
		w.say("%s is paused for %v", s.id, d)
		s.pause(d)
	case outage:
		if w.rng.IntN(3) == 0 {
			w.n.outages++
			w.store.away = w.now + upTo(12*time.Second)
			w.say("the store is away until %v", w.store.away)
		}
	case compact:
		w.n.compactions++
		for _, x := range w.store.watches {
			if w.chance(30) {
				x.stalled = w.now + upTo(8*time.Second)
			}
		}
		w.after(upTo(8*time.Second), "compact", func() { w.store.compact(len(w.store.history)) })
	case rot:
		w.rot(s)
	case fsync:
		w.n.fsyncs++
		s.disk.fails = true
	case full:
		w.n.fulls++
		s.disk.full = w.now + upTo(15*time.Second)
		w.say("the disk of %s is full until %v", s.id, s.disk.full)
	case rogue:
		w.n.rogues++
		s.rogue = w.now + upTo(20*time.Second)
		w.say("%s believes that it leads, until %v", s.id, s.rogue)
	}
}

// cut severs a server: from everybody or from some, both ways or one.
func (w *world) cut(i int, d time.Duration) {
	way := w.rng.IntN(3)
	some := w.chance(50)
	until := w.now + d
	w.say("s%d is cut off for %v, ways %d", i+1, d, way)
	for j := range w.nodes {
		if j == i || some && w.chance(50) {
			continue
		}
		if way != 1 {
			w.net.cut[[2]int{i, j}] = max(w.net.cut[[2]int{i, j}], until)
		}
		if way != 2 {
			w.net.cut[[2]int{j, i}] = max(w.net.cut[[2]int{j, i}], until)
		}
	}
}
