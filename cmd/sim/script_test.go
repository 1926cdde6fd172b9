package main

import (
	"fmt"
	"maps"
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
)

// TestScripts plays histories in testdata/scripts on the simulated cluster: only faults of a script happen, and only servers act by
// themselves: they lead where they may. Each command draws the newest map, with its lease rows, the servers that may act, and the messages
// that the master and the clients got.
//
//	cluster servers=3 gateways=1 [broken=…]  table cpu, without partitions; a rule is left out (leftOut); seed=14: delays and choices by another seed
//	cover 0h 1h on=s1                          partitions of one hour, as g1 proposes them
//	presplit 2h30m on=s2                       partitions to come are cut there
//	split 1 at=30m on=s2                       g1 proposes a split at that time; on=s2+s1: both halves lie on both, s2 first
//	split 1 at=30m on=s2 deaf=s1 for=20s       from when s1 proposes the hand-over, no message of another server reaches it for so long
//	merge 1 2 on=s2                            g1 proposes that they become one
//	merge 1 2 on=s2 deaf=s1 for=20s            no message of another server reaches s1 from before that, for so long
//	prohibit 1 s1 | allow 1 s1                 actions of operators
//	lag s1 g1 | catch-up s1                    a process gets no events of the tables' rows, so that its map grows old
//	master s3 now=9h                           s3 becomes master, and plans by that clock
//	write g1 0h | read g1 0h                   a client writes the first key of that hour; reads it
//	run 3s | pause s1 3s
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cluster" {
				s = newScript(t, d)
				return s.draw()
			}
			s.lines = nil
			s.command(t, d)
			return s.draw() + strings.Join(s.lines, "")
		})
	})
}

// leftOut are the rules that a script may leave out.
var leftOut = map[string]rule{"guards": guardsOff, "empty-rows": rowIsLed, "old-maps": oldMapsAnswered, "higher-rank": lowestRank, "two-layers": oneOfTwoLayers}

// script is a world that is driven by hand.
type script struct {
	*world
	lines  []string
	writes map[uint64]string
	broke  bool // said already
}

func newScript(t *testing.T, d *datadriven.TestData) *script {
	o := Options{Seed: 7, Events: 1, Servers: 3, Gateways: 1, Tables: 1, scripted: true}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "servers":
			d.ScanArgs(t, "servers", &o.Servers)
		case "gateways":
			d.ScanArgs(t, "gateways", &o.Gateways)
		case "seed":
			d.ScanArgs(t, "seed", &o.Seed)
		case "broken":
			o.broken = leftOut[a.Vals[0]]
		}
	}
	s := &script{world: newWorld(o), writes: map[uint64]string{}}
	s.limits, s.replicas, s.zones, s.dataFrom, s.pace = defaultLimits, 1, false, 0, 0
	s.master.SetDefaults()
	s.master.ClosedAfter, s.master.SettleAfter, s.master.EmptyAfter = time.Hour, time.Second, 20*time.Second
	s.master.MovesMax, s.master.RoomFrom, s.master.SplitBytes, s.master.BalanceBytes = 64, 2, -1, -1
	s.master.BalanceRows = -1
	s.trace.all = func(line string) {
		if _, text, ok := strings.Cut(line, "  the master "); ok {
			s.tell("the master %s", text)
		}
	}
	for i := range s.servers {
		s.boot(i, true)
	}
	s.makeTable("cpu")
	for _, g := range s.clients {
		g.start()
	}
	s.run(3 * time.Second)
	return s
}

func (s *script) tell(form string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(form+"\n", args...))
}

func (s *script) run(d time.Duration) {
	until := s.now + d
	for s.step(until) {
	}
	s.now = until
}

func (s *script) proc(name string) *proc {
	return s.nodes[slices.IndexFunc(s.nodes, func(p *proc) bool { return p.name == name })]
}

func (s *script) gateway(name string) *gateway {
	return s.clients[slices.IndexFunc(s.clients, func(g *gateway) bool { return g.name == name })]
}

func when(t *testing.T, text string) point.Nanos {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return int64(d)
}

func id(t *testing.T, text string) lease.Partition {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return lease.Partition{Table: "cpu", ID: point.PartitionID(n)}
}

func (s *script) command(t *testing.T, d *datadriven.TestData) {
	args, named := []string(nil), map[string]string{}
	for _, a := range d.CmdArgs {
		if len(a.Vals) > 0 {
			named[a.Key] = a.Vals[0]
		} else {
			args = append(args, a.Key)
		}
	}
	g := s.clients[0]
	v := g.views.at("cpu")
	place := func(point.PartitionID) []topology.Placement {
		var out []topology.Placement
		for on := range strings.SplitSeq(named["on"], "+") {
			out = append(out, g.placement(topology.ServerID(on)))
		}
		return out
	}
	note := lease.Note{Who: "ann", Reason: "she said so"}
	switch d.Cmd {
	case "cover":
		var times []point.Nanos
		for _, a := range args {
			times = append(times, when(t, a))
		}
		s.propose(v, v.m.Covering(times, place))
	case "presplit":
		s.propose(v, v.m.Presplitting(0, []topology.Edge{{At: when(t, args[0])}}, place))
	case "split":
		s.propose(v, topology.SplitBegin{Partition: id(t, args[0]).ID, Split: topology.Split{At: topology.AtTime(when(t, named["at"])),
			Low: topology.Child{ID: v.m.NextID, Placements: place(0)}, High: topology.Child{ID: v.m.NextID + 1, Placements: place(0)}}},
			func() { s.deafen(t, named["deaf"], named["for"]) })
	case "merge":
		if named["deaf"] != "" {
			s.cutOff(t, named["deaf"], named["for"])
		}
		op := topology.Merge{Into: topology.Child{ID: v.m.NextID, Placements: place(0)}, ClosedBefore: when(t, "24h")}
		for _, a := range args {
			op.Partitions = append(op.Partitions, id(t, a).ID)
		}
		s.propose(v, op)
	case "prohibit":
		s.store.commit(nil, []coord.Write{lease.Prohibit(id(t, args[0]), topology.ServerID(args[1]), note)})
	case "allow":
		s.store.commit(nil, []coord.Write{lease.Allow(id(t, args[0]), topology.ServerID(args[1]))})
	case "lag", "catch-up":
		for _, a := range args {
			s.proc(a).lags = d.Cmd == "lag"
		}
		s.run(time.Second)
	case "master":
		s.dataFrom, s.pace = when(t, named["now"]), 0
		s.servers[s.indexOf(topology.ServerID(args[0]))].candidate.stand()
	case "write":
		s.writeTo(s.gateway(args[0]), when(t, args[1]), args[1])
	case "read":
		s.readFrom(s.gateway(args[0]), when(t, args[1]))
	case "pause":
		s.proc(args[0]).pause(time.Duration(when(t, args[1])))
	case "run":
		s.run(time.Duration(when(t, args[0])))
	default:
		t.Fatalf("no command %s", d.Cmd)
	}
}

// propose has the first gateway propose a change, and reports the result.
func (s *script) propose(v *view, op topology.Op, then ...func()) {
	s.clients[0].changeAnd(v, []topology.Op{op}, func(err error) {
		if err != nil {
			s.tell("refused: %v", err)
		}
	})
	for _, f := range then {
		f()
	}
	s.run(300 * time.Millisecond)
}

// deafen goes on until a server proposes a hand-over. From then on no message of another server reaches it.
func (s *script) deafen(t *testing.T, name, span string) {
	if name == "" {
		return
	}
	before := s.now
	for len(s.check.handing) == 0 && s.step(before+time.Second) {
	}
	if len(s.check.handing) == 0 {
		t.Fatalf("%s proposes no hand-over", name)
	}
	s.cutOff(t, name, span)
}

// cutOff lets no message of another server reach one.
func (s *script) cutOff(t *testing.T, name, span string) {
	to := s.indexOf(topology.ServerID(name))
	until := s.now + time.Duration(when(t, span))
	for from := range s.servers {
		if from != to {
			s.net.cut[from][to] = until
		}
	}
}

// keyAt is the first key at a time.
func (s *script) keyAt(at point.Nanos) keyID {
	for _, k := range s.history.of["cpu"] {
		if s.history.keys[k].t >= at {
			return k
		}
	}
	return 0
}

func (s *script) writeTo(g *gateway, at point.Nanos, name string) {
	s.history.next++
	k := s.keyAt(at)
	in := row{key: k, value: s.history.next}
	s.history.past[k] = append(s.history.past[k], &written{value: in.value, began: s.now})
	g.open++
	g.unacked[in.value] = in
	s.writes[in.value] = fmt.Sprintf("%s's row %d at %s", g.name, in.value, name)
	g.write(g.views.at("cpu"), in)
}

func (s *script) readFrom(g *gateway, at point.Nanos) {
	k := s.keyAt(at)
	t := s.history.keys[k].t
	v := g.views.at("cpu")
	x := &selection{following: following{g: g, v: v, request: g.reads.Request(g.now())}, lo: t, hi: t}
	x.send, x.giveUp = x.ask, func() { s.tell("%s's read fails", g.name) }
	x.by, x.began = g.name, s.now
	x.seen = func() {
		for i, key := range x.keys {
			if key == k {
				s.tell("%s reads row %d by map %d; it says that its map may be old: %v", g.name, x.rows[i].value, x.m.Seq, x.old)
			}
		}
	}
	x.ask()
}

// draw shows the newest map, the lease rows, the servers that may act, and the messages that clients got since the last command.
func (s *script) draw() string {
	var b strings.Builder
	t := s.check.at("cpu")
	for p := range t.m.All() {
		id := t.part(p.ID)
		fmt.Fprintf(&b, "%s: %s%s\n", p, s.leaseOf(id), s.actsFor(id))
	}
	for _, row := range s.store.list(lease.Prefix) {
		if id, ok := lease.ParseRowKey(row.Key); ok {
			if _, there := t.m.ByID(id.ID); !there {
				fmt.Fprintf(&b, "p%d in no map, %s%s\n", id.ID, s.leaseOf(id), s.actsFor(id))
			}
		}
	}
	for _, p := range s.nodes {
		if p.lags {
			fmt.Fprintf(&b, "%s goes by map %d of %d\n", p.name, s.mapOf(p), t.m.Seq)
		}
	}
	for _, g := range s.clients {
		for _, value := range slices.Sorted(maps.Keys(s.writes)) {
			if _, open := g.unacked[value]; !open && strings.HasPrefix(s.writes[value], g.name+"'s") {
				fmt.Fprintf(&b, "%s is acked\n", s.writes[value])
				delete(s.writes, value)
			} else if open {
				fmt.Fprintf(&b, "%s waits\n", s.writes[value])
			}
		}
	}
	if s.broken != "" && !s.broke {
		s.broke = true
		fmt.Fprintf(&b, "BROKEN: %s\n", s.broken)
	}
	return b.String()
}

func (s *script) leaseOf(id lease.Partition) string {
	row, ok := s.store.get(lease.RowKey(id))
	if !ok {
		return "no lease row"
	}
	l, err := lease.DecodeLease(row.Value)
	if err != nil {
		return err.Error()
	}
	text := string(l.State)
	switch {
	case l.Epoch == 0:
		text += ", never led"
	case l.State == lease.Held:
		text += " by " + string(l.Holder)
	}
	if l.Empty {
		text += ", empty"
	}
	return text
}

func (s *script) actsFor(id lease.Partition) string {
	for _, o := range s.servers {
		if _, ok := o.mayAct(id); ok && !o.dead {
			return ", " + string(o.id) + " acts"
		}
	}
	return ""
}

// mapOf is the number of the map that a process goes by.
func (s *script) mapOf(p *proc) uint64 {
	if i := s.indexOf(topology.ServerID(p.name)); i >= 0 {
		return s.servers[i].on("cpu").m.Seq
	}
	return s.gateway(p.name).views.at("cpu").m.Seq
}
