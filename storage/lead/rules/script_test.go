package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/gate"
)

// TestScripts plays histories in testdata/scripts on the machine of server s1: each command draws the committed map, the state of s1,
// its partitions and their gates, and then the machine's effects. Questions stay open until they are answered.
//
//	table [copies]                      a table "cpu", seq 1, with its map at s1; copies: of three replicas, with lists kept by chains
//	in-sync-min 3                       a person sets how many must keep each row; 0: as follows from the replicas
//	create s1 s2 … | begin 1 | abort 1 | drop 1 | place 1 s3 | take 1   transactions: partition N of 100 s; its split into the next two ids; …
//	know [full] | gone                  s1 gets the newest map; the row of the table is deleted
//	hold 1 [empty]                      placement of partition 1 lies on s1
//	leads 1 epoch=5 [alone] [empty] [seq=7] | stops 1 [lapsed] | in-sync 1 [alone] [no]      inputs of the lease machine; no: it was not changed
//	want 1 epoch=5 [placed=2]           a first row waits; so many of the placements are on live servers
//	servers s1 s2/off s3/leaves         those that are registered, each on a host of its own; off: it keeps no copies, leaves: it is drained
//	unloaded 1 epoch=5                  the heirs of partition 1 have all its rows
//	relist 1 epoch=5 size=2             the chain wants a list of that many
//	answer <question> [yes|no] …        ready, quiet [empty], ruled-out, recorded, removed, guarded,
//	                                    lease-read [none|free|held|listed] [seq=7]: by the row s2 leads, in sync alone or, listed, with s1
//	answer recorded no read-only        the disk is full
//	answer proposed [yes|no]            no: without an outcome; base=0: nothing was proposed
//	swap                                the newest proposal that s1 made reaches the coordination store
//	plan                                the plan of the newest proposal, on the committed map
//	good | busy                         a second is over: the heartbeat is good; the server is overloaded, too
//	wait 500ms                          time goes by
//	clock 40                            the servers' clocks show second 40; from then on the machine gets the time every second
//	early 1 | ever-led 1 | forgotten 1  a request comes for partition 1; a lease row shows that it was led once; its rows are gone
//	presplit 0 250                      at second 0, partitions to come are cut at second 250
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "table" {
				w = newWorld(d.HasArg("copies"))
			}
			w.trace = nil
			if err := w.command(d); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return w.draw() + strings.Join(append(w.trace, ""), "\n")
		})
	})
}

type world struct {
	*Machine
	m     *topology.Map // committed
	round uint64        // of proposals
	known *topology.Map
	held  map[point.PartitionID]Held
	gates map[point.PartitionID]*gate.Gate
	clock bool     // the machine gets the time
	open  []Effect // questions
	made  []made
	trace []string
}

// made is a proposal that was sent.
type made struct {
	Propose
	base, round uint64
}

func newWorld(copies bool) *world {
	c := topology.Config{PartitionWidth: 100 * time.Second}
	if copies {
		c.Replicas = 3
	}
	m, err := topology.New("cpu", c)
	if err != nil {
		panic(err)
	}
	w := &world{Machine: New("s1", "dir1", Settings{Copies: copies, Unload: true}, nil, nil), m: m, known: m, held: map[point.PartitionID]Held{}, gates: map[point.PartitionID]*gate.Gate{}}
	return w
}

// part1 reads a partition; words are none.
func part1(s string) lease.Partition {
	n, _ := strconv.ParseUint(s, 10, 64)
	return lease.Partition{Table: "cpu", ID: point.PartitionID(n)}
}

// registered reads servers.
func registered(args []string) (all []Server) {
	for _, arg := range args {
		id, note, _ := strings.Cut(arg, "/")
		all = append(all, Server{ID: topology.ServerID(id), Host: id, Copies: note != "off", Leaves: note == "leaves"})
	}
	return all
}

func (w *world) apply(ops ...topology.Op) error {
	m, err := w.m.Apply(ops...)
	if err == nil {
		w.m = m
	}
	return err
}

func (w *world) command(d *datadriven.TestData) error {
	args, has, number := []string{}, map[string]bool{}, map[string]uint64{}
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 1 {
			number[a.Key], _ = strconv.ParseUint(a.Vals[0], 10, 64)
			continue
		}
		args = append(args, a.Key)
		has[a.Key] = true
	}
	var p lease.Partition
	if len(args) > 0 {
		p = part1(args[0])
	}
	members := []lease.Member{{Placement: point.PlacementID(10*p.ID + 1), Server: "s1", Store: "dir1"}, {Placement: point.PlacementID(10*p.ID + 2), Server: "s2", Store: "dir2"}}
	row := lease.Lease{State: lease.Held, Holder: "s1", Boot: "b1", Epoch: point.Epoch(number["epoch"]), InSync: members, Seq: number["seq"]}
	if has["alone"] {
		row.InSync = members[:1]
	}
	row.Empty = has["empty"]
	switch d.Cmd {
	case "table":
		return nil
	case "in-sync-min":
		c := w.m.Config
		c.InSyncMin, _ = strconv.Atoi(args[0])
		return w.apply(topology.SetConfig{Config: c})
	case "create":
		x := topology.Partition{ID: w.m.NextID, TimeLo: int64(w.m.NextID) * 100e9, TimeHi: int64(w.m.NextID+1) * 100e9}
		for i, s := range args {
			x.Placements = append(x.Placements, topology.Placement{ID: point.PlacementID(10*int(x.ID) + i + 1), Server: topology.ServerID(s)})
		}
		return w.apply(topology.Create{Partitions: []topology.Partition{x}})
	case "begin":
		child := func(id point.PartitionID) topology.Child {
			return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(10*id + 2), Server: "s2"}}}
		}
		return w.apply(topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: topology.AtTime(int64(p.ID)*100e9 + 50e9), Low: child(w.m.NextID), High: child(w.m.NextID + 1)}})
	case "abort":
		at, _ := w.m.ByID(p.ID)
		return w.apply(topology.SplitAbort{Partition: p.ID, Low: at.Split.Low.ID})
	case "unload": // its split begins and ends
		if err := w.command(&datadriven.TestData{Cmd: "begin", CmdArgs: d.CmdArgs}); err != nil {
			return err
		}
		at, _ := w.m.ByID(p.ID)
		return w.apply(topology.SplitFinalize{Partition: p.ID, Low: at.Split.Low.ID})
	case "drop":
		return w.apply(topology.Drop{IDs: []point.PartitionID{p.ID}})
	case "place":
		pl := topology.Placement{ID: point.PlacementID(10*p.ID + 9), Server: topology.ServerID(args[1])}
		return w.apply(topology.Join{Partition: p.ID, Placement: pl}, topology.JoinFinalize{Partition: p.ID, Placement: pl.ID})
	case "take":
		return w.apply(topology.Remove{Partition: p.ID, Placement: point.PlacementID(10*p.ID + 1)})
	case "know":
		w.known = w.m
		var held []Held
		for _, id := range slices.Sorted(keys(w.held)) {
			held = append(held, w.held[id])
		}
		w.step(Round{Tables: []Table{{Name: "cpu", Map: w.known, Row: coord.Revision(w.known.Seq), Held: held}}, Full: has["full"]})
	case "gone": // the row of the table is deleted
		w.step(Round{Tables: []Table{{Name: "cpu"}}})
	case "hold":
		w.held[p.ID] = Held{Partition: p.ID, Placement: point.PlacementID(10*p.ID + 1), Empty: has["empty"]}
	case "leads":
		w.step(LeaseBegan{lease.Leads{Partition: p, Epoch: row.Epoch, Lease: row}})
	case "stops":
		w.step(LeaseEnded{lease.Stops{Partition: p, Why: "the heartbeat was not renewed in time", Lapsed: has["lapsed"]}})
	case "in-sync":
		row.Epoch = w.part(p).epoch
		w.step(InSyncAnswered{lease.InSyncSet{Partition: p, OK: !has["no"], Lease: row}})
	case "want":
		w.step(Want{p, row.Epoch, members[:min(number["placed"], 2)]})
		held, over := w.Holding(p, row.Epoch)
		w.say("held %t, over %t", held, over)
	case "servers":
		w.step(Servers{registered(args)})
	case "unloaded":
		w.step(Unloaded{p, row.Epoch})
	case "relist":
		w.step(Relist{p, row.Epoch, 1, members[:number["size"]]})
	case "good":
		w.step(Published{Good: true})
	case "busy":
		w.step(Published{Good: true, Load: 1})
	case "wait":
		return w.wait(args[0])
	case "clock":
		seconds, err := strconv.ParseInt(args[0], 10, 64)
		w.clock = true
		w.step(Clock{Now: seconds * 1e9})
		return err
	case "early":
		w.step(Early{p})
		w.say("%s", w.Why(p))
	case "ever-led":
		w.step(EverLed{lease.EverLed{Led: []lease.Partition{p}}})
	case "forgotten":
		w.step(EverLed{lease.EverLed{Forgotten: []lease.Partition{p}}})
	case "presplit":
		return w.presplit(args)
	case "answer":
		return w.reply(args[0], has, number)
	case "swap":
		return w.swap()
	case "plan":
		x := w.made[len(w.made)-1]
		ops, err := x.Plan(w.m, true)
		w.say("plan: %v, %v", ops, err)
	default:
		return fmt.Errorf("no command %q", d.Cmd)
	}
	return nil
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (w *world) wait(s string) error {
	d, err := time.ParseDuration(s)
	for until := w.now + d; err == nil && w.now < until; {
		if w.clock {
			w.now = min(w.now+armEvery, until)
			w.step(Clock{Now: w.wall()})
			continue
		}
		w.now = min(max(w.Wake(), w.now+1), until)
		w.step(Tick{})
	}
	return err
}

// presplit cuts partitions that begin after the first second at the others, into partitions on s1.
func (w *world) presplit(args []string) error {
	var edges []topology.Edge
	for _, a := range args {
		at, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return err
		}
		edges = append(edges, topology.Edge{At: at * 1e9})
	}
	return w.apply(w.m.Presplitting(edges[0].At, edges[1:], func(id point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(10*id + 1), Server: "s1"}}
	}))
}

// swap sends the newest proposal to the store: it is committed if it is based on the committed map and was not ruled out.
func (w *world) swap() error {
	x := w.made[len(w.made)-1]
	if x.base != w.m.Seq || x.round != w.round {
		w.say("swap: refused; it was proposed on map %d in round %d", x.base, x.round)
		return nil
	}
	before, err := w.m, error(nil)
	ops, err := x.Plan(before, true)
	if err == nil {
		err = w.apply(ops...)
	}
	w.say("swap: map %d is committed", w.m.Seq)
	return err
}

func (w *world) reply(what string, has map[string]bool, number map[string]uint64) error {
	i := slices.IndexFunc(w.open, func(e Effect) bool { return question1(e) == what })
	if i < 0 {
		return fmt.Errorf("no question %q is open", what)
	}
	e, yes := w.open[i], !has["no"]
	w.open = slices.Delete(w.open, i, i+1)
	switch e := e.(type) {
	case Ready:
		w.step(Answered{e.ID, yes})
	case Quiesce:
		w.step(Quiet{ID: e.ID, OK: yes, Empty: has["empty"]})
	case Propose:
		base, ok := number["base"]
		if !ok {
			base = w.made[len(w.made)-1].base
		}
		w.step(Proposed{e.ID, yes, base})
	case RuleOut:
		if yes {
			w.round++
		}
		w.step(RuledOut{e.ID, yes, w.m.Seq})
	case Record:
		w.step(Recorded{e.ID, yes, has["read-only"]})
	case RemovePlacement:
		if yes {
			delete(w.held, e.Partition.ID)
		}
		w.step(Removed{e.ID, yes})
	case GuardLease:
		w.step(LeaseGuarded{e.ID})
	case ReadLease:
		l := lease.Lease{State: lease.Held, Holder: "s2", Boot: "b2", Epoch: 3, InSync: []lease.Member{{Placement: 99, Server: "s2", Store: "dir2"}}}
		if has["free"] {
			l.State = lease.Free
		}
		if has["listed"] {
			l.InSync = append(l.InSync, lease.Member{Placement: point.PlacementID(10*e.Partition.ID + 1), Server: "s1", Store: "dir1"})
		}
		l.Seq = number["seq"]
		w.step(LeaseRead{ID: e.ID, OK: yes, Found: !has["none"], Row: coord.Row{Value: l.Encode(), Revision: 9}})
	}
	return nil
}

func (w *world) step(in Input) {
	chains := w.Chains()
	effects := w.Step(w.now, in, nil)
	if !MayChangeChains(in) && !reflect.DeepEqual(chains, w.Chains()) {
		panic(fmt.Sprintf("%T changed what is led, and nobody looks: %v, before %v", in, w.Chains(), chains))
	}
	for _, e := range effects {
		w.perform(e)
	}
}

func (w *world) gate(p lease.Partition) *gate.Gate {
	if w.gates[p.ID] == nil {
		w.gates[p.ID] = &gate.Gate{}
	}
	return w.gates[p.ID]
}

func (w *world) perform(e Effect) {
	switch e := e.(type) {
	case Seal:
		w.gate(e.Partition).Seal()
	case Open:
		w.gate(e.Partition).Open()
	case HandOver:
		w.gate(e.Partition).HandOver()
	case TakeBack:
		w.gate(e.Partition).TakeBack()
	case Doubt:
		w.gate(e.Partition).Doubt(e.Seq)
	case Settle:
		w.gate(e.Partition).Settle(e.Seq)
	case Propose:
		if ops, err := e.Plan(w.known, true); err == nil && len(ops) > 0 {
			w.made = append(w.made, made{e, w.known.Seq, w.round})
		}
	case Changed:
		return
	}
	if question1(e) != "" {
		w.open = append(w.open, e)
	}
	w.say("%s", describe(e))
}

func (w *world) say(form string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%5v  ", w.now)+fmt.Sprintf(form, args...))
}

func question1(e Effect) string {
	switch e.(type) {
	case Ready:
		return "ready"
	case Quiesce:
		return "quiet"
	case Propose:
		return "proposed"
	case RuleOut:
		return "ruled-out"
	case Record:
		return "recorded"
	case RemovePlacement:
		return "removed"
	case ReadLease:
		return "lease-read"
	case GuardLease:
		return "guarded"
	}
	return ""
}

func describe(e Effect) string {
	switch e := e.(type) {
	case Assign:
		var ids []string
		for _, a := range e.All {
			ids = append(ids, fmt.Sprintf("%d by placement %d", a.Partition.ID, a.Placement))
		}
		return "assign " + strings.Join(ids, ", ")
	case Listed:
		return fmt.Sprintf("listed %d: ok %t, epoch %d, %d in sync", e.Partition.ID, e.OK, e.Epoch, len(e.List))
	case LeaseInput:
		return fmt.Sprintf("tell %T%+v", e.Input, e.Input)
	case Seal:
		return fmt.Sprintf("seal %d", e.Partition.ID)
	case Open:
		return fmt.Sprintf("open %d", e.Partition.ID)
	case HandOver:
		return fmt.Sprintf("hand %d over", e.Partition.ID)
	case TakeBack:
		return fmt.Sprintf("take %d back", e.Partition.ID)
	case Doubt:
		return fmt.Sprintf("doubt %d up to map %d", e.Partition.ID, e.Seq)
	case Settle:
		return fmt.Sprintf("settle %d up to map %d", e.Partition.ID, e.Seq)
	case Quiesce:
		return fmt.Sprintf("quiesce %d within %v?", e.Partition.ID, e.Within)
	case Ready:
		return fmt.Sprintf("ready within %v?", e.Within)
	case Propose:
		if e.Low == 0 {
			return fmt.Sprintf("propose that %d is unloaded, within %v?", e.Partition.ID, e.Within)
		}
		return fmt.Sprintf("propose that %d is split into %d and %d, within %v?", e.Partition.ID, e.Low, e.Low+1, e.Within)
	case RuleOut:
		return fmt.Sprintf("rule out within %v?", e.Within)
	case ReadLease:
		return fmt.Sprintf("read the lease row of %d?", e.Partition.ID)
	case GuardLease:
		return fmt.Sprintf("guard the lease row of %d at revision %d: map %d?", e.Partition.ID, e.Revision, e.Lease.Seq)
	case Record:
		return fmt.Sprintf("record %v?", e.Seqs)
	case RemovePlacement:
		return fmt.Sprintf("remove placement %d of %d: %s?", e.Placement, e.Partition.ID, e.Why)
	case Unload:
		return fmt.Sprintf("%s of %d under epoch %d%s", map[bool]string{true: "move the rows", false: "move no more rows"}[e.On], e.Partition.ID, e.Epoch, map[bool]string{true: ", the first to do so"}[e.First])
	case Forget:
		return fmt.Sprintf("forget %d", e.Partition.ID)
	case Alarmed:
		return fmt.Sprintf("ALARM %d: %s", e.Partition.ID, e.Why)
	case Note:
		return fmt.Sprintf("note %d: %s%s", e.Partition.ID, [...]string{"the halves have taken over", "it is unloaded", "tried again: ", "", "not done: "}[e.What], e.Why)
	}
	return fmt.Sprintf("%T%+v", e, e)
}

var phases = [...]string{"", ", waits", ", asks", ", closing", ", holding", ", proposing", ", ruling out", ", learning", ", committed"}

// TestThousandsAtOneEdgeAreArmedInBatches: partitions that begin at one moment are assigned over half a minute, all half a minute before,
// and none of those that begin later.
func TestThousandsAtOneEdgeAreArmedInBatches(t *testing.T) {
	const edge, many = 3600e9, 3000
	tm, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var ps []topology.Partition
	for i := range 2 * many {
		ps = append(ps, topology.Partition{ID: point.PartitionID(i + 1), TimeLo: edge * int64(1+i/many), TimeHi: edge * int64(2+i/many), PointLo: uint64(i%many) << 52, PointHi: uint64(i%many+1) << 52,
			Placements: []topology.Placement{{ID: point.PlacementID(i + 1), Server: "s1"}}})
	}
	if tm, err = tm.Apply(topology.Create{Partitions: ps}); err != nil {
		t.Fatal(err)
	}
	m := New("s1", "dir1", Settings{}, nil, nil)
	armed, first, most := 0, 0, 0
	for second := range 3600 + 60 {
		var out []Effect
		now := Time(second) * time.Second
		out = m.Step(now, Clock{Now: int64(second) * 1e9}, out)
		if second == 0 {
			out = m.Step(now, Round{Tables: []Table{{Name: "cpu", Map: tm, Row: 1}}}, out)
			out = m.Step(now, Recorded{ID: 1, OK: true}, out)
		}
		for _, e := range out {
			if a, ok := e.(Assign); ok {
				if armed == 0 {
					first = second
				}
				armed, most = armed+len(a.All), max(most, len(a.All))
			}
		}
		if second == 3600-30 && armed != many {
			t.Errorf("%d of %d are armed half a minute before their time", armed, many)
		}
	}
	if armed != many || first < 3600-60 || most > 2*many/30 || len(m.parts) != many {
		t.Errorf("%d armed from second %d on, at most %d at once; %d are remembered", armed, first, most, len(m.parts))
	}
}

// draw shows the committed map, the state of s1, and its partitions.
func (w *world) draw() string {
	var b strings.Builder
	var all []string
	for at := range w.m.All() {
		all = append(all, fmt.Sprintf("%d %s", at.ID, at.State))
	}
	fmt.Fprintf(&b, "map %d: %s; s1 knows %d\n", w.m.Seq, strings.Join(all, ", "), w.known.Seq)
	for _, id := range slices.SortedFunc(keys(w.parts), compare) {
		p := w.parts[id]
		leads := "not led"
		switch {
		case p.leading && p.least > 0:
			leads = fmt.Sprintf("led at %d, %d in sync", p.epoch, p.members)
		case p.leading && p.alone:
			leads = fmt.Sprintf("led alone at %d", p.epoch)
		case p.leading:
			leads = fmt.Sprintf("led at %d", p.epoch)
		case p.lapsed:
			leads = fmt.Sprintf("lapsed at %d", p.epoch)
		}
		g, is := w.gate(id), "closed"
		if g.Enter() {
			g.Leave()
			is = "open"
		}
		if at, ok := w.known.ByID(id.ID); ok && at.Accepts() && g.Doubtful(w.known.Seq) {
			is += fmt.Sprintf(", readers by map %d wait", w.known.Seq)
		}
		fmt.Fprintf(&b, "  %d  %s, gate %s%s\n", id.ID, leads, is, phases[p.attempt.phase])
	}
	return b.String()
}

// TestPartitionsToComeOfADroppedTableAreNotArmed: this server missed the map without partitions that came before the table's end.
func TestPartitionsToComeOfADroppedTableAreNotArmed(t *testing.T) {
	w := newWorld(false)
	if err := w.apply(topology.Create{Partitions: []topology.Partition{{ID: 1, TimeLo: 200e9, TimeHi: 300e9, Placements: []topology.Placement{{ID: 11, Server: "s1"}}}}}); err != nil {
		t.Fatal(err)
	}
	assigned := func(out []Effect) bool {
		return slices.ContainsFunc(out, func(e Effect) bool { _, ok := e.(Assign); return ok })
	}
	w.Step(0, Clock{Now: 0}, nil)
	w.Step(0, Round{Tables: []Table{{Name: "cpu", Map: w.m, Row: 2}}}, nil)
	w.Step(0, Recorded{ID: 1, OK: true}, nil)
	if out := w.Step(1, Round{Tables: []Table{{Name: "cpu"}}, Full: true}, nil); assigned(out) {
		t.Fatal("assigned at once")
	}
	if out := w.Step(2, Clock{Now: 250e9}, nil); assigned(out) {
		t.Error("a partition of a dropped table is armed")
	}
	if out := w.Step(3, Early{lease.Partition{Table: "cpu", ID: 1}}, nil); assigned(out) {
		t.Error("a partition of a dropped table is assigned to whoever asks")
	}
}
