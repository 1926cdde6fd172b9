package mapstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays stories in testdata/scripts: each command draws the row and the disks as they are then, the waiting
// effects, and the events. A * marks the committed transaction.
//
//	cluster servers=4 listed=3       a table "cpu" on the first three; its first transaction is "first"
//	propose t2 on=s1                 a day more, on the committed map, by coordinator s1; nothing is done yet
//	again t2 on=s2                   the same proposal elsewhere
//	join s4 on=s1 | remove s2 on=s1 | touch on=s1 | rule-out on=s1
//	begin-drop on=s1 | clear on=s1 | drop on=s1   the table is being dropped; its partitions go; it is dropped
//	run                              performs every waiting effect, in order, with its consequences
//	do store on s2                   the first waiting effect of that description; t2 may stand before it
//	lose … | lose-answer … | late …  its request is lost; its answer is; its answer comes when it is done again
//	expire t2                        its time runs out
//	crash s1 | wipe s2 | away s3 | back s3 | catch-up | sweep s1
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cluster" {
				var servers, listed int
				d.ScanArgs(t, "servers", &servers)
				d.ScanArgs(t, "listed", &listed)
				w = newWorld(servers, listed)
				return w.draw()
			}
			w.trace = nil
			if err := w.command(d); err != nil {
				d.Fatalf(t, "%v", err)
			}
			if w.broken != "" {
				return "BROKEN: " + w.broken
			}
			return w.draw() + strings.Join(append(w.trace, ""), "\n")
		})
	})
}

func (w *world) command(d *datadriven.TestData) error {
	var args []string
	at := w.servers[0]
	for _, a := range d.CmdArgs {
		if a.Key == "on" && len(a.Vals) == 1 {
			at = w.node(topology.ServerID(a.Vals[0]))
		} else {
			args = append(args, a.Key)
		}
	}
	server := func() topology.ServerID { return topology.ServerID(args[0]) }
	switch d.Cmd {
	case "propose":
		w.begin(args[0], at, w.cover(args[0], w.row().Txn, len(w.txns)))
	case "again":
		i := slices.IndexFunc(w.txns, func(r *running) bool { return r.name == args[0] })
		old := w.txns[i].t
		w.begin(args[0]+"'", at, NewChange(&peer.Change{Table: cpu, Base: old.base, Txn: old.id, Ops: old.ops, Round: old.inRound}))
	case "join":
		w.begin("join of "+args[0], at, NewJoin(cpu, server()))
	case "remove":
		w.begin("removal of "+args[0], at, NewRemove(cpu, server()))
	case "begin-drop":
		w.begin("begin-drop", at, NewBeginDrop(cpu))
	case "clear": // all partitions go
		var ids []point.PartitionID
		for p := range w.mapOf(w.row().Txn).All() {
			ids = append(ids, p.ID)
		}
		w.begin("clear", at, NewChange(&peer.Change{Table: cpu, Base: w.row().Txn, Txn: w.id("clear"), Round: w.row().Round + 1, Ops: topology.EncodeOps([]topology.Op{topology.Drop{IDs: ids}})}))
	case "drop":
		w.begin("drop", at, NewDrop(cpu, w.row().Txn))
	case "touch":
		w.begin("touch", at, NewTouch(cpu))
	case "rule-out":
		w.begin("rule-out", at, NewRuleOut(cpu))
	case "run":
		w.run()
	case "do", "lose", "lose-answer", "late":
		f := map[string]fate{"do": performed, "lose": lost, "lose-answer": answerLost, "late": answerLate}[d.Cmd]
		return w.one(strings.Join(args, " "), f)
	case "expire":
		for _, r := range w.txns {
			if r.name == args[0] {
				w.step(r, Expired{})
			}
		}
	case "crash":
		w.crash(w.node(server()), func() bool { return false })
	case "wipe":
		n := w.node(server())
		n.disk, n.shelf, w.wiped = map[peer.TxnID]*peer.File{}, NewShelf(nil), true
	case "away", "back":
		w.node(server()).away = d.Cmd == "away"
	case "catch-up":
		w.catchUp()
	case "sweep":
		w.sweep(w.node(server()), func() {})
	default:
		return fmt.Errorf("no command %q", d.Cmd)
	}
	return nil
}

func (w *world) one(what string, f fate) error {
	for i, p := range w.pending {
		if d := describe(p.e); d == what || p.r.name+" "+d == what {
			w.perform(i, f)
			return nil
		}
	}
	return fmt.Errorf("nothing waits that is %q", what)
}
