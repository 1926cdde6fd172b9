package master

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// world is a cluster on paper: scripts draw it, plans are carried out on it.
type world struct {
	State
	set Settings
	rng *rand.Rand
}

func newWorld() *world {
	w := &world{rng: rand.New(rand.NewPCG(1, 2))}
	w.Leases, w.Born = map[lease.Partition]lease.Lease{}, map[lease.Partition]bool{}
	w.Dropped, w.Dropping = map[string]bool{}, map[string]bool{}
	w.No, w.Sizes = map[lease.Partition][]topology.ServerID{}, map[lease.Partition]Size{}
	w.set.SetDefaults()
	return w
}

// TestScripts plays testdata: a cluster is drawn first, then the master makes a plan.
//
//	cluster   servers, tables and partitions, as `draw` prints them
//	plan      prints the steps of Plan; arguments change settings (moves=4, create=2, share-hosts)
//	apply     carries the last plan out and plans again, until there is nothing to do: prints each round
//	change    lines of a cluster: they replace those that are there; p1 | led by s2, in sync s1 s2: the lease row of a partition; replicas 2: of the last table
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/plan", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			for _, a := range d.CmdArgs {
				w.arg(t, a)
			}
			switch d.Cmd {
			case "cluster":
				set := w.set
				w = newWorld()
				w.set = set
				for _, line := range strings.Split(d.Input, "\n") {
					w.line(t, line)
				}
				return w.draw()
			case "change":
				for _, line := range strings.Split(d.Input, "\n") {
					w.line(t, line)
				}
				return w.draw()
			case "plan":
				return Format(Plan(w.State, w.set, w.rng))
			case "apply":
				return w.converge(t) + w.draw()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func (w *world) arg(t *testing.T, a datadriven.CmdArg) {
	n := func() int {
		v, err := strconv.Atoi(a.Vals[0])
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	switch a.Key {
	case "moves":
		w.set.MovesMax = n()
	case "create":
		w.set.CreateMax = n()
	case "drop":
		w.set.DropMax = n()
	case "balance-rows":
		w.set.BalanceRows = int64(n())
	case "room-from":
		w.set.RoomFrom = n()
	case "share-hosts":
		w.set.ShareHosts = true
	default:
		t.Fatalf("unknown argument %s", a.Key)
	}
}

// line reads one line of a drawing.
func (w *world) line(t *testing.T, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, "#")
	f := strings.Fields(line)
	if len(f) == 0 {
		return
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	span := func(s string) time.Duration {
		if days, ok := strings.CutSuffix(s, "d"); ok {
			n, err := strconv.Atoi(days)
			must(err)
			return time.Duration(n) * 24 * time.Hour
		}
		d, err := time.ParseDuration(s)
		must(err)
		return d
	}
	switch {
	case f[0] == "now":
		w.Now = when(t, f[1])
	case f[0] == "server":
		s := Server{Server: registry.Server{ID: topology.ServerID(f[1]), Host: "h" + f[1], Addr: f[1] + ":1", Copies: registry.CopiesOn}, Live: true, For: time.Hour}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "host":
				s.Host = v
			case "zone":
				s.Zone = v
			case "silent":
				s.Live, s.For = false, span(v)
			case "live":
				s.For = span(v)
			case "copies":
				s.Copies = v
			case "boot":
				s.Beat.Boot = lease.Boot(v)
			case "store": // its directory; "d" is that of lease rows
				s.Store = lease.StoreID(v)
			case "room": // MiB
				n, err := strconv.Atoi(v)
				must(err)
				s.Beat.Room = int64(n) << 20
			case "full": // for the rest of a partition: full=cpu/1
				s.Beat.NoRoom = append(s.Beat.NoRoom, v)
			case "rows": // a second, of partitions that it leads, measured for a minute: rows=cpu/1:4000,cpu/2:300, and rest=20 of others
				if s.Beat.Writes == nil {
					s.Beat.Writes = &lease.Writes{}
				}
				for _, one := range strings.Split(v, ",") {
					name, n, measured := strings.Cut(one, ":")
					if rows, err := strconv.ParseInt(n, 10, 64); measured {
						must(err)
						s.Beat.Writes.Hot = append(s.Beat.Writes.Hot, lease.Hot{Partition: name, Rows: rows, Seconds: 60})
					}
				}
			case "rest":
				n, err := strconv.ParseInt(v, 10, 64)
				must(err)
				if s.Beat.Writes == nil {
					s.Beat.Writes = &lease.Writes{}
				}
				s.Beat.Writes.Rest = n
			case "readonly":
				s.Beat.ReadOnly = "the store is read-only"
			case "drained":
				s.Drain = &lease.Note{Who: v, Reason: "old disk"}
			default:
				t.Fatalf("%s: what is %s?", line, k)
			}
		}
		w.Servers = append(slices.DeleteFunc(w.Servers, func(o Server) bool { return o.ID == s.ID }), s)
	case f[0] == "move": // of a partition of the last table: move p1 from s1 to s2, by ann; move p1 from s1 to s2 for load
		m := w.Tables[len(w.Tables)-1]
		id, err := strconv.ParseUint(f[1][1:], 10, 64)
		must(err)
		at, _ := m.ByID(point.PartitionID(id))
		pl, _ := at.On(topology.ServerID(f[3]))
		i := slices.IndexFunc(w.Servers, func(s Server) bool { return string(s.ID) == f[3] })
		note := lease.Note{Who: "ann", Reason: "hot"}
		if len(f) > 6 {
			note = lease.Note{Who: Fencer, Reason: "load"}
			w.Moving = map[placementOf]time.Duration{{m.Table, pl.ID}: 0}
		}
		w.Servers[i].Moves = append(w.Servers[i].Moves, registry.Move{Table: m.Table, Partition: at.ID, Placement: pl.ID, To: topology.ServerID(f[5]), Note: note})
	case f[0] == "master": // another one, which remembers nothing: master s2
		w.Handed, w.Moved, w.Moving, w.Unfilled = nil, nil, nil, nil
	case f[0] == "later": // so much later
		w.later(span(f[1]))
	case f[0] == "table":
		c := topology.Config{PartitionWidth: 24 * time.Hour, Replicas: 1}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "width":
				c.PartitionWidth = span(v)
			case "retention":
				c.Retention = span(v)
			case "replicas":
				n, err := strconv.Atoi(v)
				must(err)
				c.Replicas = n
			default:
				t.Fatalf("%s: what is %s?", line, k)
			}
		}
		m, err := topology.New(f[1], c)
		must(err)
		w.Tables = append(w.Tables, m)
	case f[0] == "replicas": // of the last table, from now on
		n, err := strconv.Atoi(f[1])
		must(err)
		m := w.Tables[len(w.Tables)-1]
		c := m.Config
		c.Replicas = n
		next, err := m.Apply(topology.SetConfig{Config: c})
		must(err)
		w.Tables[len(w.Tables)-1] = next
	case f[0] == "lease": // of a partition that is no more: lease cpu/7 free
		table, id, _ := strings.Cut(f[1], "/")
		n, err := strconv.ParseUint(id, 10, 64)
		must(err)
		key := lease.Partition{Table: table, ID: point.PartitionID(n)}
		w.Leases[key], w.Born[key] = lease.Lease{State: lease.Free, Epoch: 1}, true
		if f[2] != "free" {
			w.Leases[key] = lease.Lease{State: lease.Held, Holder: topology.ServerID(f[2]), Boot: "b", Epoch: 1}
		}
	case f[0] == "metadata": // the servers that keep a table's files: metadata cpu s1 s2
		if w.Metadata == nil {
			w.Metadata = map[string][]topology.ServerID{}
		}
		w.Metadata[f[1]] = nil
		for _, id := range f[2:] {
			w.Metadata[f[1]] = append(w.Metadata[f[1]], topology.ServerID(id))
		}
	case f[0] == "grows": // for a while until now, in all columns: grows cpu 1000 rows/s of 1024 B for 1h
		m := w.Tables[slices.IndexFunc(w.Tables, func(m *topology.Map) bool { return m.Table == f[1] })]
		rate, err := strconv.ParseFloat(f[2], 64)
		must(err)
		size, err := strconv.ParseFloat(f[5], 64)
		must(err)
		w.grows(m, rate, size, span(f[8]))
	case f[0] == "forget": // a server that was removed from the registry
		w.Servers = slices.DeleteFunc(w.Servers, func(o Server) bool { return string(o.ID) == f[1] })
	case f[0] == "dropped":
		w.Dropped[f[1]] = true
	case f[0] == "dropping":
		w.Dropping[f[1]] = true
	case f[0][0] == 'p':
		w.partition(t, f)
	default:
		t.Fatalf("what is %q?", line)
	}
}

// grows has each column of a table grow for a while until now.
func (w *world) grows(m *topology.Map, rate, perRow float64, span time.Duration) {
	g := &Growth{columns: map[column]*presplit.History{}, perRow: map[column]float64{}, weights: map[column]presplit.Weight{}}
	for _, c := range columnsAt(m, w.Now) {
		g.columns[c], g.perRow[c], g.weights[c] = &presplit.History{}, perRow, presplit.Weight{PerRow: perRow}
		for at := w.Now - int64(span); at < w.Now; at += 60e9 {
			g.columns[c].Observe(at, at+60e9, 60*rate)
		}
	}
	if w.Growth == nil {
		w.Growth = map[string]*Growth{}
	}
	w.Growth[m.Table] = g
}

// partition reads: p1 [2026-11-21T00:00:00Z, 2026-11-22T00:00:00Z) s1 s2 +s3 | led by s1, in sync s1 s2, 1024 MiB to 2026-11-21T11:00:00Z
func (w *world) partition(t *testing.T, f []string) {
	t.Helper()
	m := w.Tables[len(w.Tables)-1]
	id, err := strconv.ParseUint(f[0][1:], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if f[1] == "|" { // another lease row of a partition that is there: p1 | led by s2, in sync s1 s2
		p, ok := m.ByID(point.PartitionID(id))
		if !ok {
			t.Fatalf("there is no p%d", id)
		}
		w.led(t, p, f[1:])
		return
	}
	p := topology.Partition{ID: point.PartitionID(id), TimeLo: when(t, strings.Trim(f[1], "[,")), TimeHi: when(t, strings.TrimSuffix(f[2], ")"))}
	rest := f[3:]
	for len(rest) > 0 && rest[0] != "|" {
		name, joins := strings.CutPrefix(rest[0], "+")
		pl := topology.Placement{ID: point.PlacementID(id*100 + uint64(len(p.Placements)+len(p.Joining)) + 1), Server: topology.ServerID(name)}
		if joins {
			p.Joining = append(p.Joining, pl)
		} else {
			p.Placements = append(p.Placements, pl)
		}
		rest = rest[1:]
	}
	next, err := m.Apply(topology.Create{Partitions: []topology.Partition{p}})
	if err != nil {
		t.Fatal(err)
	}
	w.Tables[len(w.Tables)-1] = next
	if len(rest) > 0 {
		w.led(t, &p, rest)
	}
}

// led reads the lease row of a partition of the last table.
func (w *world) led(t *testing.T, p *topology.Partition, rest []string) {
	t.Helper()
	m := w.Tables[len(w.Tables)-1]
	key := lease.Partition{Table: m.Table, ID: p.ID}
	row := lease.Lease{State: lease.Free, Epoch: 7}
	w.Born[key] = true
	for _, part := range strings.Split(strings.Join(rest[1:], " "), ",") {
		g := strings.Fields(part)
		switch strings.Join(g[:min(2, len(g))], " ") {
		case "led by":
			row.State, row.Holder, row.Boot = lease.Held, topology.ServerID(g[2]), "b"
		case "empty":
			row.Empty = true
		case "offline":
			row.Offline = &lease.Note{Who: "ann", Reason: "test"}
		case "in sync":
			for _, s := range g[2:] {
				pl, ok := p.On(topology.ServerID(s))
				if !ok {
					pl, _ = p.JoiningOn(topology.ServerID(s))
				}
				row.InSync = append(row.InSync, lease.Member{Placement: pl.ID, Server: topology.ServerID(s), Store: "d"})
			}
		case "row lost":
			delete(w.Leases, key)
			return // born, and no row
		default:
			n, err := strconv.Atoi(g[0])
			if err != nil || g[1] != "MiB" {
				t.Fatalf("what is %q?", part)
			}
			to := when(t, g[3])
			w.Sizes[key] = Size{Bytes: int64(n) << 20, Rows: uint64(n) * 1000, MinTime: p.TimeLo, MaxTime: to}
		}
	}
	if row.InSync == nil {
		row.InSync = []lease.Member{{Server: row.Holder, Store: "d"}}
	}
	w.Leases[key] = row
}

func when(t *testing.T, s string) point.Nanos {
	t.Helper()
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02", "2006-01-02T15:04"} {
		if v, err := time.Parse(layout, s); err == nil {
			return v.UnixNano()
		}
	}
	t.Fatalf("%q is no time", s)
	return 0
}

// draw shows the cluster.
func (w *world) draw() string {
	var b strings.Builder
	v := newView(w.State, w.set)
	for _, s := range v.order {
		state := fmt.Sprintf("lives for %v", s.For)
		if !s.Live {
			state = fmt.Sprintf("silent for %v", s.For)
		}
		if s.Drain != nil {
			state += ", drained by " + s.Drain.Who
		}
		fmt.Fprintf(&b, "%s on %s zone %q: %d placements, %d take writes; %s\n", s.ID, s.Host, s.Zone, s.all, s.active, state)
	}
	for _, table := range sortedKeys(w.Metadata) {
		fmt.Fprintf(&b, "%s is kept by %s\n", table, list(w.Metadata[table]))
	}
	for _, m := range v.Tables {
		fmt.Fprintf(&b, "%s seq=%d width=%v retention=%v replicas=%d\n", m.Table, m.Seq, m.Config.PartitionWidth, m.Config.Retention, m.Config.Replicas)
		for p := range m.All() {
			key := lease.Partition{Table: m.Table, ID: p.ID}
			fmt.Fprintf(&b, "  %s", p)
			if l, ok := w.Leases[key]; ok {
				fmt.Fprintf(&b, " | %s by %s, in sync", l.State, l.Holder)
				for _, member := range l.InSync {
					fmt.Fprintf(&b, " %s", member.Server)
				}
				if l.Empty {
					b.WriteString(", empty")
				}
				if l.Offline != nil {
					b.WriteString(", offline")
				}
			} else if w.Born[key] {
				b.WriteString(" | row lost")
			}
			if s, ok := w.Sizes[key]; ok {
				fmt.Fprintf(&b, ", %s to %s", Bytes(s.Bytes), stamp(s.MaxTime))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// apply carries steps out on paper: all of a table in one transaction, as the runner does.
func (w *world) apply(steps []Step) error {
	for i, m := range w.Tables {
		var ops []topology.Op
		for _, s := range steps {
			if s.Table == m.Table {
				ops = append(ops, s.Ops...)
			}
		}
		next, err := m.Apply(ops...)
		if err != nil {
			return err
		}
		w.Tables[i] = next
	}
	for _, s := range steps {
		for _, f := range s.Fences { // its leader releases it
			if l, ok := w.Leases[f.Partition]; ok {
				l.State = lease.Free
				w.Leases[f.Partition] = l.Vacated()
			}
		}
		if s.Hand != nil {
			w.hand(*s.Hand)
		}
		if s.Relief != nil {
			w.relieve(*s.Relief)
		}
		if k := s.MapServer; k != nil && k.Leave {
			w.Metadata[s.Table] = slices.DeleteFunc(w.Metadata[s.Table], func(o topology.ServerID) bool { return o == k.Server })
		} else if k != nil {
			w.Metadata[s.Table] = append(w.Metadata[s.Table], k.Server)
			slices.Sort(w.Metadata[s.Table])
		}
		if s.Drop {
			w.Tables = slices.DeleteFunc(w.Tables, func(m *topology.Map) bool { return m.Table == s.Table })
			delete(w.Dropping, s.Table)
			w.Dropped[s.Table] = true
		}
		for _, p := range s.Sweep {
			delete(w.Leases, p)
			delete(w.Born, p)
		}
	}
	return nil
}

// hand hands a lead over on paper, and its load.
func (w *world) hand(h Hand) {
	l := w.Leases[h.Partition]
	l.Holder = h.To
	w.Leases[h.Partition] = l
	if w.Handed == nil {
		w.Handed = map[lease.Partition]Handed{}
	}
	w.Handed[h.Partition] = Handed{From: h.From, To: h.To}
	writes := func(s topology.ServerID) *lease.Writes {
		return w.Servers[slices.IndexFunc(w.Servers, func(x Server) bool { return x.ID == s })].Beat.Writes
	}
	from, to := writes(h.From), writes(h.To)
	i := slices.IndexFunc(from.Hot, func(x lease.Hot) bool { return x.Partition == h.Partition.String() })
	to.Hot = append(to.Hot, from.Hot[i])
	from.Hot = slices.Delete(slices.Clone(from.Hot), i, i+1)
}

// relieve writes a relief into a server's row on paper, or deletes it.
func (w *world) relieve(r Relief) {
	srv := &w.Servers[slices.IndexFunc(w.Servers, func(x Server) bool { return x.ID == r.From })]
	srv.Moves = slices.DeleteFunc(slices.Clone(srv.Moves), func(m registry.Move) bool { return m.Placement == r.Move.Placement && m.Table == r.Move.Table })
	r.Move.Note = lease.Note{Who: Fencer, When: time.Unix(0, w.Now), Reason: "load"}
	delete(w.Moving, placementOf{r.Move.Table, r.Move.Placement})
	switch {
	case !r.End:
		srv.Moves = append(srv.Moves, r.Move)
		if w.Moving == nil {
			w.Moving = map[placementOf]time.Duration{}
		}
		w.Moving[placementOf{r.Move.Table, r.Move.Placement}] = 0
	case r.Unfilled:
		srv.AddUnfilled(r.Move, time.Unix(0, w.Now-int64(movedMax)))
		w.Unfilled = map[unfilledMove]time.Duration{unfilledOf(r.Move): 0}
	}
	if w.Moved == nil {
		w.Moved = map[lease.Partition]time.Duration{}
	}
	w.Moved[lease.Partition{Table: r.Move.Table, ID: r.Move.Partition}] = 0
}

// later has time go on for the leads that were handed over, and the copies that were and are moved for load.
func (w *world) later(d time.Duration) {
	for p := range w.Moving {
		w.Moving[p] += d
	}
	for m := range w.Unfilled {
		w.Unfilled[m] += d
	}
	for p := range w.Moved {
		if w.Moved[p] += d; w.Moved[p] >= movedMax {
			delete(w.Moved, p)
		}
	}
	for p, h := range w.Handed {
		if h.For += d; h.For < handedMax {
			w.Handed[p] = h
		} else {
			delete(w.Handed, p)
		}
	}
}

// converge plans and applies until nothing but alarms is left.
func (w *world) converge(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for round := 1; ; round++ {
		steps := Plan(w.State, w.set, w.rng)
		fmt.Fprintf(&b, "round %d\n%s", round, Format(steps))
		if !slices.ContainsFunc(steps, func(s Step) bool { return s.Kind != Alarm }) {
			return b.String()
		}
		if err := w.apply(steps); err != nil {
			t.Fatalf("%s%v", b.String(), err)
		}
		if round == 100 {
			t.Fatalf("no end:\n%s", b.String())
		}
	}
}
