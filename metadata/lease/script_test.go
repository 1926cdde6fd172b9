package lease

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestScripts plays stories in testdata: each command draws the lease table as it is then, and reports the events.
//
//	cluster servers=3 partitions=3       nothing runs yet
//	start s1 … | kill s1 … | wipe s1     processes; wipe starts one on an emptied directory
//	run 5s                               time goes by
//	pause s1 6s | away 10s               s1 stands still; the store does not answer
//	copies 2                             a taker drops a silent holder from the list, and leaves that many; before anything starts
//	leave s1 | drain s1                  s1 ends cleanly; s1 gives its leases away
//	clock s1 2s                          the wall clock of s1 is so far ahead from now on
//	bump 1 | offline 1 | online 1        changes of partition 1 by hand, "because" may follow
//	prohibit 1 s2 | allow 1 s2
//	delete-row 1 | delete-beat s1
//	late s1 8s                           changes reach s1 that late
//	give-up 1                            its leader is overloaded
//	damage s1 1 | mend s1                files of partition 1 on s1 are damaged; none are
//	drop 1 | forget 1                    it is in no map any more; its rows are deleted
//	known s1                             the partitions that s1 has entries of
//	place 1 s1 s2                        partition 1 lies on these alone; before anything starts
//	move 1 s3 | end 1                    METADATA transactions: it lies on s3 now; it unloads. Servers that lag do not get that map
//	remove 1 s2                          METADATA removes the placement
//	split 1 2 3                          METADATA has 2 and 3, on the same servers, as its heirs
//	hand 1 s2                            the master asks the holder to hand it to s2
//	rows s1 1 400 2 300                  s1 accepts that many rows a second of these partitions
//	presplit 1                           METADATA replaces it, if it never had rows
//	mark 1 | touch                       a larger one marks its row and dies; the table's row is touched
//	transactions 9997                    as many METADATA transactions, which change none of these partitions
//	lag s1 | catch-up s1                 s1 goes on by the map that it has; it gets the newest
//	retire 1                             METADATA drops it
//	slow s1 2s                           requests of s1 are that long on their way
//	unguarded                            from now on maps change without guards in the lease rows: the former rule
//	list 1 s1 s2                         its leader wants these in sync
//	may-delete 1 s2                      whether s2 may delete its copy
//	batches s1                           the transactions of s1 with several partitions in them since the last time
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cluster" {
				var servers, partitions int
				d.ScanArgs(t, "servers", &servers)
				d.ScanArgs(t, "partitions", &partitions)
				w = newWorld(1, servers, partitions)
				w.delay = func() time.Duration { return 5 * time.Millisecond }
				return "ok"
			}
			w.trace = nil
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.Key)
			}
			if err := w.command(d.Cmd, args); err != nil {
				d.Fatalf(t, "%v", err)
			}
			if w.failure != "" {
				return "BROKEN: " + w.failure
			}
			return w.draw() + strings.Join(append(w.trace, ""), "\n")
		})
	})
}

func (w *world) command(cmd string, args []string) error {
	each := func(f func(i int)) {
		for _, a := range args {
			f(w.index(a))
		}
	}
	note := Note{Who: "ann", When: noon, Reason: "she said so"}
	switch cmd {
	case "start":
		each(func(i int) { w.start(i, false) })
	case "wipe":
		each(func(i int) { w.start(i, true) })
	case "kill":
		each(w.kill)
	case "run":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		w.run(w.now + d)
	case "pause":
		d, err := time.ParseDuration(args[1])
		w.pause(w.index(args[0]), d)
		return err
	case "away":
		d, err := time.ParseDuration(args[0])
		w.away = w.now + d
		return err
	case "copies":
		n, err := strconv.Atoi(args[0])
		w.least = n
		return err
	case "leave":
		each(func(i int) { w.procs[i].step(Leave{}) })
	case "drain":
		each(func(i int) { w.procs[i].step(Drain{On: true}) })
	case "damage", "mend":
		var all []Partition
		for _, a := range args[1:] {
			n, err := strconv.Atoi(a)
			if err != nil {
				return err
			}
			all = append(all, w.parts[n-1])
		}
		w.procs[w.index(args[0])].step(Damaged{all})
	case "clock":
		d, err := time.ParseDuration(args[1])
		w.procs[w.index(args[0])].ahead = d
		return err
	case "fsync": // s1 5ms s2 2s: how long fsyncs last; "-": not known
		for i := 0; i < len(args); i += 2 {
			d, err := time.ParseDuration(args[i+1])
			if err != nil && args[i+1] != "-" {
				return err
			}
			w.procs[w.index(args[i])].publish(d)
		}
		return nil
	case "bump":
		return w.edit(args[0], func(l Lease) Lease { return l.Bumped(note) })
	case "hand":
		return w.edit(args[0], func(l Lease) Lease {
			return l.HandedTo(Next{topology.ServerID(args[1]), Note{Who: "master", When: w.procs[0].wall(), Reason: "less is written there"}})
		})
	case "rows": // s1 1 400 2 300: rows a second of its partitions, the busiest first
		in := Loaded{Known: true}
		for i := 1; i+1 < len(args); i += 2 {
			n, err := strconv.ParseInt(args[i+1], 10, 64)
			if err != nil {
				return err
			}
			in.Led = append(in.Led, LedRows{w.part(args[i]), n, time.Minute})
		}
		w.procs[w.index(args[0])].step(in)
	case "offline":
		return w.edit(args[0], func(l Lease) Lease { return l.TakenOffline(note) })
	case "online":
		return w.edit(args[0], Lease.TakenOnline)
	case "prohibit":
		w.commit(nil, []coord.Write{Prohibit(w.part(args[0]), topology.ServerID(args[1]), note)})
	case "allow":
		w.commit(nil, []coord.Write{Allow(w.part(args[0]), topology.ServerID(args[1]))})
	case "delete-row":
		w.delete(RowKey(w.part(args[0])))
	case "delete-beat":
		w.delete(BeatKey(topology.ServerID(args[0])))
	case "backup": // as it is now
		rows, _, err := w.store.List(context.Background(), "")
		w.backup = rows
		return err
	case "restore": // as etcdutl does it with --bump-revision --mark-compacted: rows keep their revisions, that of the store goes on, and watchers list
		w.tracef("the store is restored from the backup")
		return w.restore()
	case "late":
		d, err := time.ParseDuration(args[1])
		p := w.procs[w.index(args[0])]
		p.watch = max(p.watch, w.now+d)
		return err
	case "give-up":
		p := w.part(args[0])
		w.procs[w.leaders()[p]].step(GiveUp{Partition: p, Why: "too much to do"})
	case "offer": // by a leader that the map does not list; full: by one whose disk is
		p, why := w.part(args[0]), "misplaced"
		if len(args) > 1 {
			why = args[1]
		}
		w.procs[w.leaders()[p]].step(Offer{Partition: p, Why: why, Misplaced: len(args) == 1})
	case "drop":
		w.unassign(w.part(args[0]))
	case "forget":
		if !w.forget(w.part(args[0])) {
			w.tracef("somebody holds it")
		}
	case "known":
		w.tracef("%s knows %v", args[0], w.procs[w.index(args[0])].known())
	default:
		return w.metadata(cmd, args)
	}
	return nil
}

// metadata are the commands about maps and their guards in the lease rows.
func (w *world) metadata(cmd string, args []string) error {
	at := func(servers []string) (out []topology.Placement) {
		for _, s := range servers {
			out = append(out, topology.Placement{ID: point.PlacementID(w.index(s) + 1), Server: topology.ServerID(s)})
		}
		return out
	}
	reported := func() {
		for i, p := range w.procs {
			if !p.dead && !w.lag[p.self.Server] {
				p.do(func() { w.assign(i, w.parts) })
			}
		}
	}
	switch cmd {
	case "place":
		w.placed[w.part(args[0])] = at(args[1:])
	case "move":
		w.placed[w.part(args[0])] = at(args[1:])
		w.change(Guard{Partition: w.part(args[0]), Placements: at(args[1:])})
		reported()
	case "remove":
		p := w.part(args[0])
		left := slices.DeleteFunc(slices.Clone(w.placed[p]), func(pl topology.Placement) bool { return string(pl.Server) == args[1] })
		w.placed[p] = left
		w.change(Guard{Partition: p, Placements: left})
		reported()
	case "strand": // as remove, and the server goes on with its placement, because it may alone have the rows (storage/lead/rules)
		w.lag[topology.ServerID(args[1])] = true
		if err := w.metadata("remove", args); err != nil {
			return err
		}
		p, i := w.part(args[0]), w.index(args[1])
		row, _, err := w.store.Get(context.Background(), tableKey("cpu"))
		if err != nil {
			return err
		}
		w.procs[i].step(Assigned{Partition: p, Placement: at(args[1:])[0].ID, Placements: w.placed[p], TableRow: row.Revision, Seq: w.txn})
	case "retire":
		p := w.part(args[0])
		w.placed[p] = nil
		w.change(Guard{Partition: p, Dropped: true})
		reported()
	case "slow":
		d, err := time.ParseDuration(args[1])
		w.procs[w.index(args[0])].slow = d
		return err
	case "end":
		p := w.part(args[0])
		w.change(Guard{Partition: p, Placements: w.placed[p]})
		reported()
	case "split":
		p := w.part(args[0])
		placed := w.placed[p]
		if placed == nil {
			placed = at([]string{"s1", "s2", "s3"}[:len(w.procs)])
		}
		for _, a := range args[1:] {
			child := w.part(a)
			w.parts, w.parents[child] = append(w.parts, child), []point.PartitionID{p.ID}
			if w.placed[p] != nil {
				w.placed[child] = placed
			}
		}
		w.change(Guard{Partition: p, Placements: placed})
		reported()
	case "presplit":
		p := w.part(args[0])
		if err := w.try(Guard{Partition: p, Dropped: true, Unused: true}); err != nil {
			w.tracef("%v", err)
			return nil
		}
		w.placed[p] = nil
		reported()
	case "mark":
		p := w.part(args[0])
		g := Guard{Partition: p, Dropped: true}
		row, _, _ := w.store.Get(context.Background(), tableKey("cpu"))
		conditions, writes, err := g.Write(w.txn+1, w.rowsOf(g), row.Revision)
		if err != nil {
			return err
		}
		w.commit(conditions, writes)
	case "touch":
		w.commit(nil, []coord.Write{w.tableRow()})
		reported()
	case "transactions":
		n, err := strconv.Atoi(args[0])
		for range n {
			w.change()
		}
		reported()
		return err
	case "lag":
		for _, s := range args {
			w.lag[topology.ServerID(s)] = true
		}
	case "catch-up":
		for _, s := range args {
			delete(w.lag, topology.ServerID(s))
			w.assign(w.index(s), w.parts)
		}
	case "unguarded":
		w.broken = unguarded
	case "list":
		p := w.part(args[0])
		var members []Member
		for _, pl := range at(args[1:]) {
			members = append(members, Member{pl.ID, pl.Server, w.storeOf(pl.Server)})
		}
		w.procs[w.leaders()[p]].step(SetInSync{Partition: p, Members: members})
	case "may-delete":
		p := w.part(args[0])
		l := w.listed[p]
		w.tracef("%s may delete its copy of %s: %v", args[1], p, l.MayDelete(at(args[1:])[0].ID, w.txn))
	case "batches":
		p := w.procs[w.index(args[0])]
		w.tracef("%v", p.batches)
		p.batches = nil
	default:
		return fmt.Errorf("no command %q", cmd)
	}
	return nil
}

func (w *world) index(server string) int {
	for i, p := range w.procs {
		if string(p.self.Server) == server {
			return i
		}
	}
	panic("no server " + server)
}

func (w *world) part(id string) Partition {
	var n point.PartitionID
	fmt.Sscan(id, &n)
	return Partition{"cpu", n}
}

func (w *world) edit(id string, f func(Lease) Lease) error {
	row, ok, err := w.store.Get(context.Background(), RowKey(w.part(id)))
	if err != nil || !ok {
		return fmt.Errorf("no row of %s: %w", id, err)
	}
	l, err := DecodeLease(row.Value)
	if err != nil {
		return err
	}
	w.commit([]coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Value: f(l).Encode()}})
	return nil
}

// draw shows the rows as the store has them, and which processes may act.
func (w *world) draw() string {
	var b strings.Builder
	leaders := w.leaders()
	fmt.Fprintf(&b, "partition  state  holder   epoch  in sync      may act\n")
	for _, p := range w.parts {
		row, ok, _ := w.store.Get(context.Background(), RowKey(p))
		state, holder, epoch, inSync, acts := "none", "-", "-", "-", "-"
		if ok {
			l, err := DecodeLease(row.Value)
			if err != nil {
				panic(err)
			}
			state, holder, epoch = string(l.State), fmt.Sprintf("%s/%s", l.Holder, l.Boot), fmt.Sprint(l.Epoch)
			var names []string
			for _, m := range l.InSync {
				names = append(names, string(m.Server))
			}
			inSync = strings.Join(names, ",")
			if l.Offline != nil {
				state += ", offline by " + l.Offline.Who
			}
		}
		if i, ok := leaders[p]; ok {
			acts = string(w.procs[i].self.Server)
		}
		fmt.Fprintf(&b, "%-9s  %-5s  %-7s  %5s  %-11s  %s\n", p, state, holder, epoch, inSync, acts)
	}
	return b.String()
}
