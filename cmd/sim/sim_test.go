package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestMain has the heap grow as main does.
func TestMain(m *testing.M) {
	debug.SetGCPercent(gcPercent)
	os.Exit(m.Run())
}

func options(seed uint64, events int) Options {
	return Options{Seed: seed, Events: events, Faults: allFaults, Servers: defaultServers, Gateways: defaultGateways, Tables: defaultTables}
}

// report prints the line that reproduces it.
func report(t *testing.T, r Result) {
	t.Helper()
	if r.Broken != "" {
		t.Fatalf("%s\n\n%s\n%s\nagain: %s", strings.Join(r.Tail, "\n"), r.Broken, r, r.Again())
	}
	t.Log(r)
}

// TestSeeds plays a few fixed runs and one with a new seed; SIM_EVENTS=1000000 for longer ones.
func TestSeeds(t *testing.T) {
	t.Parallel()
	events := 12_000
	if s := os.Getenv("SIM_EVENTS"); s != "" {
		var err error
		if events, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	var sum counts
	for _, seed := range []uint64{1, 2, 3, 0x2f9c31, rand.Uint64() & 0xffffffff} {
		r := Run(options(seed, events), nil)
		report(t, r)
		sum.acked += r.n.acked
		sum.txns += r.n.txns
		sum.takes += r.n.takes
		sum.crashes += r.n.crashes
		sum.moved += r.n.moved
	}
	if sum.moved < 1 || sum.acked < 200 || sum.txns < 40 || sum.takes < 40 || sum.crashes < 1 {
		t.Errorf("not much happened: %+v", sum)
	}
}

// branchSeeds are tried first: on 2026-12-01 the runs of these 19 seeds met all marks. The seeds from 1000 on, in their order, needed 193 runs, 50 s of a
// processor. A passing test prints the seeds that suffice now: they change with what the simulated processes do.
var branchSeeds = []uint64{1019, 1000, 1059, 1001, 1008, 1024, 1045, 1033, 1075, 1005, 1011, 1020, 1029, 1122, 1004, 1092, 1099, 1105, 1192}

// TestEveryBranchIsMet: a branch that no run comes through is not tested. Runs go on until every mark was met.
func TestEveryBranchIsMet(t *testing.T) {
	t.Parallel()
	var met marks
	var useful []uint64
	seeds := slices.Clone(branchSeeds)
	for seed := uint64(1000); seed < 1600; seed++ {
		if !slices.Contains(branchSeeds, seed) {
			seeds = append(seeds, seed)
		}
	}
	for i, seed := range seeds {
		r := Run(options(seed, 12_000), nil)
		if r.Broken != "" {
			report(t, r)
		}
		missing := len(met.missing())
		if met.add(&r.marks); len(met.missing()) < missing {
			useful = append(useful, seed)
		}
		if len(met.missing()) == 0 {
			t.Logf("%d runs; these met all marks: %v", i+1, useful)
			return
		}
	}
	t.Errorf("never met: %s\n%s", strings.Join(met.missing(), "; "), &met)
}

// TestEachFaultAlone: a run with one kind of fault is whole in the end too, and so is one with none.
func TestEachFaultAlone(t *testing.T) {
	t.Parallel()
	for i, f := range append([]faults{0}, eachFault()...) {
		o := options(uint64(100+i), 4000)
		o.Faults = f
		report(t, Run(o, nil))
	}
}

func eachFault() (all []faults) {
	for i := range faultNames {
		all = append(all, 1<<i)
	}
	return all
}

// TestFewServers: clusters of one and of two servers.
func TestFewServers(t *testing.T) {
	for n := 1; n <= 3; n++ {
		o := options(uint64(200+n), 5000)
		o.Servers = n
		if n < 3 {
			o.Faults &^= lost
		}
		report(t, Run(o, nil))
	}
}

// TestSkewedLoadsAreSpread: leads of busy partitions are handed over while servers crash and masters come and go, and in the end none is left that the master would hand over: else
// the run is not whole. Few are needed, so none goes to and fro.
func TestSkewedLoadsAreSpread(t *testing.T) {
	t.Parallel()
	handed := 0
	for _, seed := range []uint64{100, 102, 107, 108, 115} {
		o := options(seed, 20_000)
		o.Copies = 3
		r := Run(o, nil)
		report(t, r)
		if r.marks[stepLead] > 20 {
			t.Errorf("seed %d: %d leads were handed over for their loads", seed, r.marks[stepLead])
		}
		handed += r.marks[stepLead]
	}
	if handed == 0 {
		t.Error("no lead was handed over for its load")
	}
}

// TestCopiesOfBusyPartitionsMove: where leads are not enough, copies of busy partitions move while servers crash and masters come and go. A run is not whole before loads have been known for
// a while, no copy is being moved, and none is left that the master would move; and none goes to and fro.
func TestCopiesOfBusyPartitionsMove(t *testing.T) {
	t.Parallel()
	moved := 0
	for _, seed := range []uint64{1003, 2002, 2003, 3002, 3003, 4002, 4003, 5002, 5003} {
		if moved > 0 {
			break // one that moves copies is enough, since any change of the machines changes which do
		}
		o := options(seed, 8000)
		o.Copies, o.Crowded = 2, true
		r := Run(o, nil)
		report(t, r)
		moved += r.n.reliefs
	}
	if moved == 0 {
		t.Error("no copy was moved for load")
	}
}

// TestCopiesThatGoToAndFroAreSeen: the world fails where copies of one partition leave servers again and again after all was well, and not where those of many do once.
func TestCopiesThatGoToAndFroAreSeen(t *testing.T) {
	w := newWorld(options(1, 1))
	w.healed = true
	leaves := func(id point.PartitionID) {
		w.noToAndFro(master.Step{Table: "cpu", Partition: id, Ops: []topology.Op{topology.Unjoin{Partition: id, Placement: 1}}, What: "take it off s1"})
	}
	for id := range point.PartitionID(turnsMax) {
		leaves(id + 1)
		leaves(100)
	}
	if w.broken != "" {
		t.Fatalf("with %d of each at most: %s", turnsMax, w.broken)
	}
	if leaves(100); !strings.Contains(w.broken, "to and fro") {
		t.Errorf("with one more: %q", w.broken)
	}
}

// TestSameSeedSameRun: a run is made of its options alone, event for event and line for line.
func TestSameSeedSameRun(t *testing.T) {
	var lines [2][]string
	var results [2]Result
	for i := range lines {
		results[i] = Run(options(0x5eed, 6000), func(line string) { lines[i] = append(lines[i], line) })
	}
	if results[0].Hash != results[1].Hash || results[0].Events != results[1].Events {
		t.Errorf("%s\n%s", results[0], results[1])
	}
	for i, line := range lines[0] {
		if i >= len(lines[1]) || lines[1][i] != line {
			t.Fatalf("line %d differs:\n%s\n%s", i, line, strings.Join(lines[1][i:min(i+1, len(lines[1]))], ""))
		}
	}
	if other := Run(options(0x5eee, 6000), nil); other.Hash == results[0].Hash {
		t.Error("another seed gave the same run")
	}
}

// brokenRule is a rule that is removed from the glue, the faults under which that is soonest seen, and the message a checker must
// give then.
type brokenRule struct {
	rule   rule
	faults faults
	says   string // how the broken promise begins; one of several, after |
	runs   int    // how many are played at most
	from   uint64 // the seed of the first run. A passing test prints the seed at which the break was seen; most rules begin there, so that no run is played in vain
	copies int
}

var broken = []brokenRule{
	{rule: brickEpochOff, faults: slow | people | pause | rogue, says: "", runs: 400, from: 8}, // I3, or H where a read comes first
	{rule: validFromAnswer, faults: allFaults, says: "I3", runs: 100, from: 12},
	{rule: casWithoutMajority, faults: allFaults, says: "I7", runs: 10, from: 1},
	{rule: sweepCommitted, faults: allFaults, says: "I7", runs: 10, from: 1},
	{rule: heartbeatNotCompared, faults: compact | people, says: "I", runs: 400, from: 74},
	{rule: storeBeforeSync, faults: allFaults, says: "I7", runs: 100, from: 1},
	{rule: ackBeforeSync, faults: crash | slow, says: "I1", runs: 100, from: 2},
	{rule: noHold, faults: allFaults, says: "I1", runs: 100, from: 1},
	{rule: markStays, faults: allFaults, says: "I1", runs: 100, from: 10},
	{rule: moveBlind, faults: allFaults, says: "I", runs: 100, from: 32},
	{rule: alarmRemoves, faults: allFaults, says: "I1", runs: 100, from: 13},
	{rule: plansLate, faults: allFaults, says: "I2", runs: 400, from: 13},
	{rule: notRuledOut, faults: allFaults, says: "I2", runs: 400, from: 16},
	{rule: planByOthers, faults: allFaults, says: "not whole", runs: 200, from: 4}, // lease.Guard refuses what would be I1, again and again
	{rule: repairFromOne, faults: allFaults | restore, says: "I", runs: 200, from: 20136},
	{rule: actedIgnored, faults: allFaults | restore, says: "", runs: 400, from: 52}, // I2, or I1
	{rule: leasesLost, faults: allFaults | restore, says: "I", runs: 200, from: 19},
	{rule: rankNotGiven, faults: versions, says: "H", runs: 400, from: 16},
	{rule: fsyncIgnored, faults: fsync | crash, says: "I", runs: 100, from: 2},
	{rule: lateTaken, faults: allFaults, says: "H", runs: 200, from: 11},
	{rule: lateTryLogged, faults: allFaults, says: "H", runs: 200, from: 16},
	{rule: ranksNotRaised, faults: allFaults, says: "I1|H", runs: 100, from: 2},
	{rule: oldMapsAnswered, faults: partition | clocks, says: "H", runs: 1500, from: 142},
	{rule: oneOfTwoLayers, faults: allFaults, says: "H", runs: 100, from: 3},
	{rule: ageNotSaid, faults: allFaults, says: "H", runs: 100, from: 20},
	{rule: dropUnemptied, faults: drops | crash, says: "I1", runs: 100, from: 2},
	{rule: otherFile, faults: allFaults, says: "I4", runs: 100, from: 1},
	{rule: nextIgnored, faults: allFaults, says: "H", runs: 100, from: 36},
	{rule: readUnled, faults: allFaults, says: "I1", runs: 100, from: 2},
	{rule: incompleteNotSaid, faults: rot | crash, says: "I1", runs: 100, from: 1},
	{rule: damageCut, faults: rot | crash, says: "I1", runs: 100, from: 1},
	{rule: unknownIsYes, faults: loss | outage, says: "I1", runs: 100, from: 4},
	{rule: renewalsAssumed, faults: allFaults, says: "I3", runs: 200, from: 30},
	{rule: lowestRank, faults: allFaults, says: "H", runs: 100, from: 3},
	{rule: sweepUntouched, faults: allFaults, says: "I7", runs: 200, from: 2},
	{rule: movedUnacked, faults: loss | crash, says: "I1", runs: 100, from: 2},
	{rule: inheritedWins, faults: allFaults, says: "", runs: 100, from: 4},
	{rule: sumsIgnored, faults: rot | crash, says: "", runs: 100, from: 2}, // H, or I1 where a damaged row is missing first
}

// brokenStaging are the rules of staging, each with the promise that its runs break.
var brokenStaging = []brokenRule{
	{rule: forgottenUnacked, faults: allFaults, says: "I1|H", runs: 100, from: 1},
	{rule: notAnnounced, faults: allFaults, says: "H", runs: 200, from: 10071},
	{rule: stagedOnOne, faults: allFaults, says: "H", runs: 200, from: 13, copies: 3},
	{rule: silentStagers, faults: allFaults, says: "H", runs: 100, from: 2},
	{rule: directoryIgnored, faults: allFaults, says: "I1|H", runs: 1000, from: 6831},
	{rule: stagersNotProven, faults: partition, says: "H", runs: 300, from: 332},
}

// brokenEndings are the rules of deletions in partitions that unload.
var brokenEndings = []brokenRule{
	{rule: endedInserted, faults: pause | crash | slow, says: "H: ", runs: 200, from: 704, copies: 3},
	{rule: insideNotAwaited, faults: pause | crash | slow, says: "H: ", runs: 200, from: 702, copies: 3},
	{rule: leaseNotCompared, faults: pause | crash | slow, says: "H: ", runs: 200, from: 716, copies: 3},
	{rule: leaseReadLate, faults: pause | crash | slow, says: "H: ", runs: 200, from: 704, copies: 3},
}

// TestBrokenRulesOfEndingsAreSeen does the same for them, in longer runs: most of a short run comes after the faults.
func TestBrokenRulesOfEndingsAreSeen(t *testing.T) {
	for _, b := range brokenEndings {
		t.Run(string(b.rule), func(t *testing.T) { t.Parallel(); b.seen(t, 50_000) })
	}
}

// TestBrokenRulesOfStagingAreSeen does the same for staged rows.
func TestBrokenRulesOfStagingAreSeen(t *testing.T) {
	for _, b := range brokenStaging {
		t.Run(string(b.rule), func(t *testing.T) { t.Parallel(); b.seen(t, 20_000) })
	}
}

// TestBrokenRulesAreSeen removes one rule after the other: without it some run breaks the promise that it keeps. A
// checker that never reports anything would prove nothing.
func TestBrokenRulesAreSeen(t *testing.T) {
	for _, b := range broken {
		t.Run(string(b.rule), func(t *testing.T) { t.Parallel(); b.seen(t, 12_000) })
	}
}

// seen plays runs without the rule until a checker reports it.
func (b brokenRule) seen(t *testing.T, events int) {
	for seed := b.from; seed < b.from+uint64(b.runs); seed++ {
		o := options(seed, events)
		o.broken, o.Faults, o.Copies = b.rule, b.faults, b.copies
		r := Run(o, nil)
		if r.Broken == "" {
			continue
		}
		if !slices.ContainsFunc(strings.Split(b.says, "|"), func(says string) bool { return strings.HasPrefix(r.Broken, says) }) {
			t.Errorf("seed %d: %s, but not as %s", seed, r.Broken, b.says)
		}
		t.Logf("seed %d, event %d: %s", seed, r.Events, r.Broken)
		return
	}
	t.Errorf("%d runs, and no checker noticed", b.runs)
}

// parseAgain reads the output of again.
func parseAgain(line string) (o Options, err error) {
	fs := optionFlags(&o, flag.NewFlagSet("again", flag.ContinueOnError))
	var args []string
	line, rest, _ := strings.Cut(line, " ARGS=")
	for _, word := range strings.Fields(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			args = append(args, "-"+strings.ToLower(name), value)
		}
	}
	args = append(args, strings.Fields(strings.Trim(strings.TrimSpace(rest), `"`))...)
	return o, errors.Join(fs.Parse(args), o.check())
}

// TestReplayLineIsWhatMakeTakes: the line of a failure names seed, events and faults as they are read back.
func TestReplayLineIsWhatMakeTakes(t *testing.T) {
	o := options(0x2f9c31, 500)
	o.Faults = loss | crash
	o.Only, o.Shade, o.Servers = []int{3, 17}, 2, 4
	line := (Result{Options: o}).Again()
	if back, err := parseAgain(line); err != nil || fmt.Sprint(back) != fmt.Sprint(o) {
		t.Errorf("%s is read as %+v, %v", line, back, err)
	}
	o.Only, o.Shade, o.Servers = nil, 0, defaultServers
	if got, want := (Result{Options: o}).Again(), "make sim SEED=0x2f9c31 EVENTS=500 FAULTS=loss,crash"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	all := []faults{0, allFaults}
	for _, one := range eachFault() {
		all = append(all, one, allFaults&^one, allFaults|one)
	}
	for _, f := range all {
		if back, err := parseFaults(f.String()); err != nil || back != f {
			t.Fatalf("%s is read as %s, %v", f, back, err)
		}
	}
	if _, err := parseFaults("loss,rain"); err == nil || !strings.Contains(err.Error(), `"rain"`) {
		t.Errorf("rain: %v", err)
	}
}

// TestOnceFailed plays the runs that once failed, each for a reason that is mended: testdata/failed.txt.
func TestOnceFailed(t *testing.T) {
	b, err := os.ReadFile("testdata/failed.txt")
	if err != nil {
		t.Fatal(err)
	}
	played := 0
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if line == "" {
			continue
		}
		o, err := parseAgain(line)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		played++
		report(t, Run(o, nil))
	}
	if played == 0 {
		t.Error("no runs there")
	}
}

// TestAFailureShrinks: a failing run is reduced to few faults by itself, and the result is a line that fails in the same way.
func TestAFailureShrinks(t *testing.T) {
	o := options(1, 12_000)
	o.broken = sweepCommitted
	r := Run(o, nil)
	for ; r.Broken == "" || len(r.done) < 3; r = Run(o, nil) {
		o.Seed++
	}
	least, runs := shrink(r, 100)
	t.Logf("seed %d, %d decisions: %s\n%d runs later %d:\n%s\n%s\n%s", o.Seed, len(r.done), r.Broken, runs, len(least.done), least.Schedule(), least.Broken, least.Again())
	if promise(least.Broken) != promise(r.Broken) || len(least.done) >= len(r.done) {
		t.Errorf("%d decisions became %d, %q became %q", len(r.done), len(least.done), r.Broken, least.Broken)
	}
	if again := Run(least.Options, nil); again.Hash != least.Hash || again.Broken != least.Broken {
		t.Errorf("played again it is another run: %q", again.Broken)
	}
}

func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		r := Run(options(7, 100_000), nil)
		b.ReportMetric(float64(r.Events)/b.Elapsed().Seconds()*float64(b.N), "events/s")
	}
}
