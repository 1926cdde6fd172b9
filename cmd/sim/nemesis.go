package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// faults are the kinds of faults in a run.
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
	versions
	restore
	faultsEnd
)

// allFaults are all but restore, after which a partition may wait for an operator (DESIGN.md, Found).
const allFaults = restore - 1

// faultNames are ordered as the bits are.
var faultNames = [...]string{"loss", "dup", "reorder", "partition", "crash", "lost", "slow", "pause", "clocks", "outage", "compact", "rogue", "people", "drops", "rot", "torn", "fsync", "full", "versions", "restore"}

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

// rule is a rule that the glue may leave out, to see whether a checker notices.
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
	planByOthers         rule = "the master takes servers for holders that are not in sync"
	repairFromOne        rule = "a repaired table's map is the newest that any server has"
	actedIgnored         rule = "a repaired table's map is one that no server acted by"
	leasesLost           rule = "a restored store has no lease rows"
	rankNotGiven         rule = "a row without a rank gets none"
	rowIsLed             rule = "a lease row that a move wrote counts as one of a partition that was led"
	guardsOff            rule = "a map changes without a word in the lease rows"
	fsyncIgnored         rule = "a failed fsync is taken for a good one"
	lateTryLogged        rule = "a try is logged after a later one of the same row"
	lateTaken            rule = "an insert is taken long after it was given up"
	ranksNotRaised       rule = "ranks are as the gateways' clocks say"
	oldMapsAnswered      rule = "readers are answered that do not know that others took over, or may have"
	ageNotSaid           rule = "a reader cut off from the store does not say so"
	oneOfTwoLayers       rule = "a reader asks no partition that unloads"
	sumsIgnored          rule = "sums and names are not compared"
	plansLate            rule = "a change is planned after its proposer gave it up"
	notRuledOut          rule = "what got no answer is not ruled out"
	dropUnemptied        rule = "a table is dropped while it has partitions"
	otherFile            rule = "a server answers another file than was asked for"
	nextIgnored          rule = "readers are answered that do not know a partition"
	readUnled            rule = "who does not lead answers readers"
	incompleteNotSaid    rule = "that rows were set aside is not said"
	damageCut            rule = "a start takes damage for a torn end"
	unknownIsYes         rule = "a swap that is not answered is taken for done"
	renewalsAssumed      rule = "a renewal that is not answered is taken for done"
	lowestRank           rule = "of two partitions the lower rank wins"
	sweepUntouched       rule = "undecided files are swept without touching the row"
	alarmRemoves         rule = "what the map does not want is deleted"
	movedUnacked         rule = "rows that no leader acked count as moved"
	inheritedWins        rule = "a parent's row replaces a newer one"

	// Of deletions in partitions that unload, ending.go.
	endedInserted    rule = "a slice is inserted that a later leader ended"
	insideNotAwaited rule = "slices count as ended while one is being inserted"
	leaseNotCompared rule = "a slice is inserted under another lease than it names"
	leaseReadLate    rule = "a sender reads the heir's lease after it found its own good"
	olderTrusted     rule = "slices count as ended beside servers that do not name theirs"

	// Of chains, chains.go and parcel.go.
	ackedByHead      rule = "a row is acked once its head has it"
	reportsUnsynced  rule = "a member reports a frame before it is synced"
	epochNotRaised   rule = "a member follows an epoch without raising it durably"
	surplusStays     rule = "surplus frames stay in the log"
	surplusWins      rule = "surplus that is handed over counts as new"
	gapsTaken        rule = "a member takes a frame that does not follow its last one"
	listUnanswered   rule = "a head takes a list for changed that it asked for"
	shrinksToOne     rule = "a list shrinks below the minimum in sync"
	lowersAtOnce     rule = "a lower minimum in sync counts at once"
	sameDirectory    rule = "an emptied directory keeps its name"
	flushesUnacked   rule = "a leader flushes frames that not all have"
	segmentsTakeAway rule = "a segment is adopted that lacks frames of those here"
	damageAdopted    rule = "a segment is adopted whatever its bytes"
	tornTaken        rule = "a start takes a torn frame for a whole one"
)

// struck are the faults that come one by one.
var struck = []faults{partition, crash, lost, slow, pause, outage, compact, rogue, rot, fsync, full}

// nemesis causes one fault every few seconds. How bad it gets changes every minute, so that none hides another and the
// cluster comes to work now and then. Each decision is drawn from the seed and its number alone, when it comes too: so
// any of them can be left out, and the others stay the same (shrink.go).
func (w *world) nemesis() {
	if w.opt.Faults == 0 {
		return
	}
	gap := 3 * time.Second
	var mood, strike func()
	mood = func() {
		if w.healed {
			return
		}
		n, on, rng := w.decide()
		gap = []time.Duration{1500 * time.Millisecond, 4 * time.Second, 15 * time.Second}[rng.IntN(3)]
		if on {
			w.mood(n, rng)
		}
		w.after(spread(rng, 40*time.Second), "mood", mood)
	}
	mood()
	var strikes []faults
	for _, f := range struck {
		if w.opt.Faults.has(f) {
			strikes = append(strikes, f)
		}
	}
	strike = func() {
		if w.healed {
			return
		}
		n, on, rng := w.decide()
		f := strikes[rng.IntN(len(strikes))]
		if on {
			w.events++
			w.did(n, "%s", f)
			w.strike(f, rng)
		}
		w.after(spread(rng, gap), "strike", strike)
	}
	if len(strikes) > 0 {
		w.after(5*time.Second, "strike", strike)
	}
}

// decide gives the next decision: its number, whether it is to be carried out, and its random source.
func (w *world) decide() (n int, on bool, rng *rand.Rand) {
	n = w.decisions
	w.decisions++
	return n, w.opt.Only == nil || slices.Contains(w.opt.Only, n), rand.New(rand.NewPCG(w.opt.Seed, 0xdec1de+uint64(n)))
}

// did notes a decision that was carried out.
func (w *world) did(n int, form string, args ...any) {
	w.done = append(w.done, decision{n, fmt.Sprintf("%10.3f  %3d  ", w.now.Seconds(), n) + fmt.Sprintf(form, args...)})
}

// decision is one that was carried out.
type decision struct {
	n    int
	text string
}

func (w *world) mood(n int, rng *rand.Rand) {
	net := &w.net
	net.lossPct, net.dupPct, net.slowPct, net.slowMax = 0, 0, 0, 0
	if w.opt.Faults.has(loss) {
		net.lossPct = []int{0, 0, 2, 8, 25}[rng.IntN(5)]
	}
	if w.opt.Faults.has(dup) {
		net.dupPct = []int{0, 5, 20}[rng.IntN(3)]
	}
	if w.opt.Faults.has(reorder) {
		net.slowPct = []int{0, 3, 15}[rng.IntN(3)]
		net.slowMax = []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second}[rng.IntN(3)]
	}
	if net.lossPct+net.dupPct+net.slowPct > 0 {
		w.did(n, "the network loses %d %%, doubles %d %%, holds %d %% up for %v at most", net.lossPct, net.dupPct, net.slowPct, net.slowMax)
	}
}

func (w *world) strike(f faults, rng *rand.Rand) {
	i := rng.IntN(len(w.servers))
	s := w.servers[i]
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	switch f {
	case partition:
		w.n.cuts++
		w.cut(i, upTo(12*time.Second), rng)
		if len(w.clients) > 0 && rng.IntN(3) == 0 {
			w.n.cuts++
			w.cut(len(w.servers)+rng.IntN(len(w.clients)), upTo(gatewayCutMax), rng)
		}
	case crash:
		w.n.crashes++
		w.say("%s is killed", s.id)
		w.kill(i)
		w.after(upTo(9*time.Second), "starts", func() {
			if w.servers[i].dead && s.id != w.without {
				w.boot(i, false)
			}
		})
	case lost:
		if rng.IntN(3) > 0 || s.dead || !w.check.mayLose(s) {
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
		if rng.IntN(3) == 0 {
			w.n.outages++
			w.store.away = w.now + upTo(12*time.Second)
			w.say("the store is away until %v", w.store.away)
		}
	case compact:
		w.n.compactions++
		for _, x := range w.store.watches {
			if rng.IntN(100) < 30 {
				x.stalled = w.now + upTo(8*time.Second)
			}
		}
		w.after(upTo(8*time.Second), "compact", func() { w.store.compact(len(w.store.history)) })
	case rot:
		if w.rot(s, rng); rng.IntN(4) == 0 {
			w.kill(i)
			w.boot(i, false)
		}
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

// gatewayCutMax is how long a gateway may be cut off: far beyond follow.DoubtAge and youngMax, or no answer by its map would
// be too old.
const gatewayCutMax = 40 * time.Second

// cut severs a server or a gateway: from all or from some, both ways or one.
func (w *world) cut(i int, d time.Duration, rng *rand.Rand) {
	way := rng.IntN(3)
	some := rng.IntN(100) < 50
	until := w.now + d
	w.say("%s is cut off for %v, ways %d", w.nodes[i].name, d, way)
	for j := range w.nodes {
		if j == i || some && rng.IntN(100) < 50 {
			continue
		}
		if way != 1 {
			w.net.cut[i][j] = max(w.net.cut[i][j], until)
		}
		if way != 2 {
			w.net.cut[j][i] = max(w.net.cut[j][i], until)
		}
	}
}
