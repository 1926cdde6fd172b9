package master

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// desk is a Work in a script, and the coordination store that it works on.
type desk struct {
	t     *testing.T
	rev   coord.Revision
	rows  map[string]coord.Row
	seq   uint64
	steps []Step
	work  *Work
	todo  []Effect
	log   strings.Builder
}

// TestWork plays testdata/work: the effects of a Work, and its reaction to each answer.
//
//	rows    puts rows into the store: lease p1 held s1 [empty] [offline] · born p1 · no p1 s1 ann · table [dropped] · swept 6 · server s1 · moved p3 s1 ann · gone p1 · clear
//	steps   a table's plan: move p1 fences=s1,s2 · sweep p1 p2 · keep s3 · drop · hand p1 s1 s2 · relief p1 s1 s2 servers=s1,s2 · relief-ends p1 s1 · relief-unfilled p1 s1 s2; then the first effect. unmapped: it has no map
//	do      performs the effect under way and answers; lost: without an answer; fails: it does not happen; refused=invalid or stale
//	lost    the process is master no more; expired: there is no more time
func TestWork(t *testing.T) {
	datadriven.Walk(t, "testdata/work", func(t *testing.T, path string) {
		d := &desk{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			d.log.Reset()
			switch td.Cmd {
			case "rows":
				for _, line := range strings.Split(td.Input, "\n") {
					d.row(strings.Fields(line))
				}
				return d.draw()
			case "steps":
				d.begin(td)
			case "do":
				d.do(td)
			case "lost":
				d.step(Lost{})
			case "expired":
				d.step(Expired{})
			default:
				t.Fatalf("unknown command %s", td.Cmd)
			}
			return d.log.String()
		})
	})
}

func (d *desk) partition(id string) lease.Partition {
	n, err := strconv.ParseUint(strings.TrimPrefix(id, "p"), 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return lease.Partition{Table: "cpu", ID: point.PartitionID(n)}
}

func (d *desk) put(key string, value []byte) {
	if d.rows == nil {
		d.rows = map[string]coord.Row{}
	}
	d.rev++
	d.rows[key] = coord.Row{Key: key, Value: value, Revision: d.rev}
}

// row reads one row.
func (d *desk) row(f []string) {
	if len(f) == 0 {
		return
	}
	switch f[0] {
	case "clear":
		d.rows, d.rev = nil, 0
	case "lease":
		l := lease.Lease{State: lease.State(f[2]), Holder: topology.ServerID(f[3]), Boot: "b", Epoch: 3, Empty: slices.Contains(f, "empty"),
			InSync: []lease.Member{{Placement: 1, Server: topology.ServerID(f[3]), Store: "d"}}}
		if slices.Contains(f, "offline") {
			l.Offline = &lease.Note{Who: "ann"}
		}
		d.put(lease.RowKey(d.partition(f[1])), l.Encode())
	case "born":
		d.put(lease.BornKey(d.partition(f[1])), []byte(`{"v":1}`))
	case "no":
		w := lease.Prohibit(d.partition(f[1]), topology.ServerID(f[2]), lease.Note{Who: f[3]})
		d.put(w.Key, w.Value)
	case "server":
		id := topology.ServerID(f[1])
		d.put(registry.Key(id), registry.Server{ID: id, Addr: "a:1", Host: f[1]}.Encode())
	case "moved": // by a person
		srv, err := registry.Decode(d.get(registry.Key(topology.ServerID(f[2]))))
		if err != nil {
			d.t.Fatal(err)
		}
		p := d.partition(f[1])
		srv.Moves = append(srv.Moves, registry.Move{Table: p.Table, Partition: p.ID, Placement: point.PlacementID(p.ID), Note: lease.Note{Who: f[3]}})
		d.put(registry.Key(srv.ID), srv.Encode())
	case "gone":
		d.rev++
		delete(d.rows, lease.RowKey(d.partition(f[1])))
	case "swept":
		seq, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			d.t.Fatal(err)
		}
		d.put(lease.SweptKey("cpu"), lease.Swept{Seq: seq}.Encode())
	case "table":
		d.put(mapstore.Key("cpu"), mapstore.Row{Txn: peer.TxnID{1}, Seq: 9, Servers: []topology.ServerID{"s1"}, Dropped: slices.Contains(f, "dropped")}.Encode())
	default:
		d.t.Fatalf("what is %q?", f)
	}
}

func (d *desk) draw() string {
	var b strings.Builder
	for _, key := range sortedKeys(d.rows) {
		row := d.rows[key]
		fmt.Fprintf(&b, "%d %s", row.Revision, short(key))
		if srv, err := registry.Decode(row); err == nil && srv.ID != "" {
			for _, m := range srv.Moves {
				fmt.Fprintf(&b, ", p%d moves to %q by %s", m.Partition, m.To, m.Note.Who)
			}
			for _, m := range srv.Unfilled {
				fmt.Fprintf(&b, ", p%d was not filled on %q", m.Partition, m.To)
			}
		}
		if _, ok := lease.ParseRowKey(key); ok {
			l, err := lease.DecodeLease(row.Value)
			fmt.Fprintf(&b, " %s by %s, in sync", l.State, l.Holder)
			for _, m := range l.InSync {
				fmt.Fprintf(&b, " %s", m.Server)
			}
			if l.Empty {
				b.WriteString(", empty")
			}
			if l.Next != nil {
				fmt.Fprintf(&b, ", to be handed to %s by %s", l.Next.Server, l.Next.Who)
			}
			if err != nil {
				fmt.Fprintf(&b, " %v", err)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func short(key string) string { return strings.ReplaceAll(key, "0000000000000000000", "") }

// begin reads the steps of a plan: move p1 fences=s1,s2 · sweep p1 p2 · keep s3 · drop · hand p1 s1 s2
func (d *desk) begin(td *datadriven.TestData) {
	d.seq, d.steps, d.todo = 7, nil, nil
	for _, a := range td.CmdArgs {
		if a.Key == "unmapped" {
			d.seq = 0
		}
	}
	rows := map[lease.Partition][]coord.Row{}
	for _, line := range strings.Split(td.Input, "\n") {
		f := strings.Fields(line)
		s := Step{Kind: Repair, Table: "cpu", What: line}
		switch f[0] {
		case "move":
			for _, id := range strings.Split(f[1], ",") {
				p := d.partition(id)
				s.Ops = append(s.Ops, topology.Drop{IDs: []point.PartitionID{p.ID}}) // any op: no map applies it here
				if len(f) > 2 {
					fence := Fence{Partition: p}
					for _, srv := range strings.Split(strings.TrimPrefix(f[2], "fences="), ",") {
						fence.Servers = append(fence.Servers, topology.ServerID(srv))
					}
					s.Fences = append(s.Fences, fence)
				}
			}
		case "sweep":
			for _, id := range f[1:] {
				p := d.partition(id)
				s.Sweep = append(s.Sweep, p)
				rows[p] = []coord.Row{d.get(lease.RowKey(p)), d.get(lease.BornKey(p))}
			}
		case "keep":
			s.MapServer = &MapServer{Server: topology.ServerID(f[1])}
		case "drop":
			s.Drop = true
		case "hand":
			p := d.partition(f[1])
			s.Hand = &Hand{Partition: p, From: topology.ServerID(f[2]), To: topology.ServerID(f[3]), Epoch: 3}
		case "relief", "relief-ends", "relief-unfilled": // relief-unfilled p1 s1 s2
			p := d.partition(f[1])
			s.Relief = &Relief{From: topology.ServerID(f[2]), End: f[0] != "relief", Unfilled: f[0] == "relief-unfilled", Move: registry.Move{Table: p.Table, Partition: p.ID, Placement: point.PlacementID(p.ID)}}
			if len(f) > 3 {
				s.Relief.Move.To = topology.ServerID(f[3])
			}
			if !s.Relief.End {
				for _, id := range strings.Split(strings.TrimPrefix(f[4], "servers="), ",") {
					s.Relief.Servers = append(s.Relief.Servers, topology.ServerID(id))
				}
			}
		default:
			d.t.Fatalf("what is %q?", line)
		}
		d.steps = append(d.steps, s)
	}
	d.work = NewWork("cpu", d.seq, d.steps, rows)
	d.step(Begin{})
}

func (d *desk) get(key string) coord.Row {
	if row, ok := d.rows[key]; ok {
		return row
	}
	return coord.Row{Key: key}
}

func (d *desk) step(in Input) {
	for _, e := range d.work.Step(time.Unix(1_800_000_000, 0), in, nil) {
		switch e := e.(type) {
		case Report:
			if e.Err != nil {
				fmt.Fprintf(&d.log, "report %s: %v\n", e.Step.What, e.Err)
			} else {
				fmt.Fprintf(&d.log, "report %s: carried out\n", e.Step.What)
			}
			continue
		case Ended:
			fmt.Fprintf(&d.log, "ended\n")
			for _, key := range e.Left {
				fmt.Fprintf(&d.log, "  %s stays\n", short(key))
			}
			continue
		case Read:
			fmt.Fprintf(&d.log, "read\n")
			for _, key := range e.Keys {
				fmt.Fprintf(&d.log, "  %s\n", short(key))
			}
		case Commit:
			fmt.Fprintf(&d.log, "commit\n")
			for _, c := range e.Conditions {
				fmt.Fprintf(&d.log, "  if %s is at %d\n", short(c.Key), c.Revision)
			}
			for _, w := range e.Writes {
				verb := "put"
				if w.Delete {
					verb = "delete"
				}
				fmt.Fprintf(&d.log, "  %s %s\n", verb, short(w.Key))
			}
		case Change:
			fmt.Fprintf(&d.log, "change the map of %d: %d ops\n", e.Seq, len(e.Ops))
		case ChangeMapServer:
			fmt.Fprintf(&d.log, "keep %s\n", e.MapServer.Server)
		case DropTable:
			fmt.Fprintf(&d.log, "drop table %s\n", e.Table)
		case Wait:
			fmt.Fprintf(&d.log, "wait %v\n", e.For)
		}
		d.todo = append(d.todo, e)
	}
}

// do answers the effect under way.
func (d *desk) do(td *datadriven.TestData) {
	if len(d.todo) == 0 {
		d.t.Fatalf("%s: nothing is under way", td.Pos)
	}
	e := d.todo[0]
	d.todo = d.todo[1:]
	err, done, seq := error(nil), true, d.seq+1
	for _, a := range td.CmdArgs {
		switch a.Key {
		case "fails": // and it did not happen
			err, done = fault.Errorf(fault.Unavailable, "no answer"), false
		case "lost": // it happened, and the answer is lost
			err = fault.Errorf(fault.Unavailable, "no answer")
		case "refused":
			kind := map[string]fault.Kind{"invalid": fault.Invalid, "stale": fault.Stale}[a.Vals[0]]
			err, done = fault.Errorf(kind, "refused"), false
		}
	}
	switch e := e.(type) {
	case Read:
		in := RowsRead{ID: e.ID, Err: err}
		for _, key := range e.Keys {
			in.Rows = append(in.Rows, d.get(key))
		}
		d.step(in)
	case Commit:
		in := Committed{ID: e.ID, Err: err}
		if done {
			in.Revision, in.OK = d.commit(e)
		}
		d.step(in)
	case Change:
		if err == nil {
			d.seq = seq
		}
		d.step(Changed{ID: e.ID, Seq: seq, Err: err})
	case ChangeMapServer:
		d.step(Changed{ID: e.ID, Err: err})
	case DropTable:
		d.step(Changed{ID: e.ID, Err: err})
	case Wait:
		d.step(Waited{ID: e.ID})
	}
}

func (d *desk) commit(e Commit) (coord.Revision, bool) {
	for _, c := range e.Conditions {
		if d.rows[c.Key].Revision != c.Revision {
			return 0, false
		}
	}
	d.rev++
	for _, w := range e.Writes {
		if w.Delete {
			delete(d.rows, w.Key)
			continue
		}
		if d.rows == nil {
			d.rows = map[string]coord.Row{}
		}
		d.rows[w.Key] = coord.Row{Key: w.Key, Value: w.Value, Revision: d.rev}
	}
	return d.rev, true
}
