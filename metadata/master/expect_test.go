package master

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// coming is a model of the load that is expected: the bytes that partitions get from now on, or from their beginning, in two hours at most, at constant rates, on each server.
func (w *world) coming(rates map[string]float64) map[topology.ServerID]float64 {
	out := map[topology.ServerID]float64{}
	for _, s := range w.Servers {
		out[s.ID] = 0
	}
	for _, m := range w.Tables {
		for p := range m.All() {
			for _, pl := range p.Placements {
				if p.TimeHi > w.Now {
					out[pl.Server] += rates[m.Table] * min(time.Duration(p.TimeHi-max(p.TimeLo, w.Now)).Seconds(), 7200)
				}
			}
		}
	}
	return out
}

// lines reads lines of a cluster, as scripts do.
func (w *world) lines(t *testing.T, text string) {
	t.Helper()
	for _, line := range strings.Split(text, "\n") {
		w.line(t, line)
	}
}

// settle carries plans out until there is nothing to do.
func (w *world) settle(t interface {
	Fatalf(string, ...any)
}) {
	for round := range 200 {
		steps := Plan(w.State, w.set, rand.New(rand.NewPCG(uint64(round), 1)))
		if !slices.ContainsFunc(steps, func(s Step) bool { return s.Kind != Alarm }) {
			return
		}
		if err := w.apply(steps); err != nil {
			t.Fatalf("%v\n%s", err, Format(steps))
		}
	}
	t.Fatalf("no end:\n%s", w.draw())
}

// TestOneServerDoesNotGetAllOfABusyTable: a server that was added late has nothing, and others have a dozen quiet partitions each. All that a busy table was to bring in the next
// two hours went to the new server, until it would have had as many partitions as they.
func TestOneServerDoesNotGetAllOfABusyTable(t *testing.T) {
	w := newWorld()
	w.lines(t, "now 2026-11-21T12:57:00Z\nserver s1\nserver s2\nserver s3")
	rates := map[string]float64{}
	for i := range 24 {
		name := fmt.Sprintf("quiet%02d", i)
		w.lines(t, fmt.Sprintf("table %s width=24h\np1 [2026-11-21, 2026-11-22) s%d | led by s%d, in sync s%d, 1 MiB to 2026-11-21T12:57:00Z\ngrows %s 1 rows/s of 100 B for 1h", name, i%2+1, i%2+1, i%2+1, name))
		rates[name] = 100
	}
	w.lines(t, "table busy width=1h\np1 [2026-11-21T12:00, 2026-11-21T13:00) s1 | led by s1, in sync s1, 900 MiB to 2026-11-21T12:57:00Z\np2 [2026-11-21T13:00, 2026-11-21T14:00) s2\ngrows busy 1000 rows/s of 1048 B for 1h")
	rates["busy"] = 1000 * 1048
	w.settle(t)
	coming := w.coming(rates)
	for s, bytes := range coming {
		if bytes > 4.5e9 { // 8.8 GB come in all, and p1 is one partition of 3.8
			t.Errorf("%s is to get %.1f GB: %v\n%s", s, bytes/1e9, coming, w.draw())
		}
	}
	apart(t, w, "busy")
}

// TestQuietPartitionsGoWhereNoBusyOnesAre: they went to the server with the fewest partitions, which had the busy one.
func TestQuietPartitionsGoWhereNoBusyOnesAre(t *testing.T) {
	w := newWorld()
	w.lines(t, "now 2026-11-21T23:55:00Z\nserver s1\nserver s2\ntable busy width=24h\np1 [2026-11-21, 2026-11-23) s1 | led by s1, in sync s1, 900 MiB to 2026-11-21T23:55:00Z\ngrows busy 100 rows/s of 1048 B for 1h")
	for i := range 4 {
		name := fmt.Sprintf("quiet%02d", i)
		w.lines(t, fmt.Sprintf("table %s width=24h\np1 [2026-11-21, 2026-11-22) s2 | led by s2, in sync s2, 1 MiB to 2026-11-21T23:55:00Z\ngrows %s 1 rows/s of 100 B for 1h", name, name))
	}
	w.settle(t)
	p1, _ := w.Tables[0].ByID(1) // it would be too large: it is split, and almost all comes to the second half
	busy := p1.Children()[1].Placements[0].Server
	for _, m := range w.Tables[1:] {
		if p, ok := m.Find(0, w.Now+int64(time.Hour)); !ok || p.Placements[0].Server == busy {
			t.Errorf("%s has the busy one, and %s: %s", busy, m.Table, p)
		}
	}
}

// TestTheLargeHalfOfASplitDoesNotGoWhereMuchIsExpected: p1 is full in eight minutes, and what follows for two hours goes to the second half. Both counted as much as the whole, so that the
// second one went to s2, which had work already, and s3 had little to do.
func TestTheLargeHalfOfASplitDoesNotGoWhereMuchIsExpected(t *testing.T) {
	w := newWorld()
	w.lines(t, `now 2026-11-21T12:00:00Z
server s1
server s2
server s3
table busy width=24h
p1 [2026-11-21, 2026-11-22) s1 | led by s1, in sync s1, 512 MiB to 2026-11-21T12:00:00Z
grows busy 1000 rows/s of 1048 B for 1h
table other width=24h
p1 [2026-11-21, 2026-11-22) s2 | led by s2, in sync s2, 512 MiB to 2026-11-21T12:00:00Z
grows other 200 rows/s of 100 B for 1h`)
	steps := Plan(w.State, w.set, w.rng)
	if len(steps) != 1 || steps[0].Kind != Split {
		t.Fatalf("planned:\n%s", Format(steps))
	}
	if split := steps[0].Ops[0].(topology.SplitBegin).Split; split.High.Placements[0].Server == "s2" || split.Low.Placements[0].Server == split.High.Placements[0].Server {
		t.Errorf("planned:\n%s", Format(steps))
	}
	if err := w.apply(steps); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, st := range newView(w.State, w.set).servers {
		sum += st.load
	}
	if sum > 600 { // 512 and 32, and a few of the other table
		t.Errorf("while it is being split, %d are expected in all", sum)
	}
}

// TestCopiesOfADeadServerDoNotGoToTheFullestOne: s4 has few partitions, with most of the bytes, and s3 many small ones. All large copies of s1 went to s4, by number, until it had as many as s3, and
// were moved on afterwards. Where bytes differ by less than balance_bytes numbers decide: the small ones do not all go to s3.
func TestCopiesOfADeadServerDoNotGoToTheFullestOne(t *testing.T) {
	w := newWorld()
	w.lines(t, "now 2026-11-21T23:30:00Z\nserver s1 silent=11m\nserver s2\nserver s3\nserver s4\ntable old width=1h")
	for i := range 20 {
		w.lines(t, fmt.Sprintf("p%d [2026-11-20T%02d:00, 2026-11-20T%02d:00) s3 | led by s3, in sync s3, 1 MiB to 2026-11-20T%02d:59:00Z", i+1, i, i+1, i))
	}
	for i := range 4 {
		w.lines(t, fmt.Sprintf("p%d [2026-11-19T%02d:00, 2026-11-19T%02d:00) s4 | led by s4, in sync s4, 2000 MiB to 2026-11-19T%02d:59:00Z", i+31, i, i+1, i))
	}
	w.lines(t, "table large width=1h replicas=2")
	for i := range 8 {
		w.lines(t, fmt.Sprintf("p%d [2026-11-21T%02d:00, 2026-11-21T%02d:00) s1 s2 | led by s2, in sync s1 s2, 1000 MiB to 2026-11-21T%02d:59:00Z", i+1, i, i+1, i))
	}
	w.lines(t, "table small width=1h replicas=2")
	for i := range 8 {
		w.lines(t, fmt.Sprintf("p%d [2026-11-21T%02d:00, 2026-11-21T%02d:00) s1 s2 | led by s2, in sync s1 s2, 1 MiB to 2026-11-21T%02d:59:00Z", i+1, i, i+1, i))
	}
	steps := Plan(w.State, w.set, w.rng)
	if err := w.apply(steps); err != nil {
		t.Fatal(err)
	}
	came := map[string]map[topology.ServerID]int{}
	for _, m := range w.Tables {
		came[m.Table] = map[topology.ServerID]int{}
		for p := range m.All() {
			for _, pl := range p.Joining {
				came[m.Table][pl.Server]++
			}
		}
	}
	if came["large"]["s3"] < 7 || came["small"]["s4"] < 7 {
		t.Errorf("they go to %v\n%s", came, Format(steps))
	}
}

// TestAPartitionBesideOneThatIsBeingSplitLiesApart: the first half of p1 is led by s2, the second one by s3, and p2 follows that. The leader of the whole, which is on its way out, counted as the
// server before, so that p2 began on s3 as well.
func TestAPartitionBesideOneThatIsBeingSplitLiesApart(t *testing.T) {
	w := newWorld()
	w.lines(t, `now 2026-11-21T12:00:00Z
server s1
server s2
server s3
table cpu width=24h
p1 [2026-11-21, 2026-11-22) s1 | led by s1, in sync s1, 512 MiB to 2026-11-21T12:00:00Z`)
	m, err := w.Tables[0].Apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(w.Now + int64(time.Hour)),
		Low:  topology.Child{ID: 2, Placements: []topology.Placement{{ID: 201, Server: "s2"}}},
		High: topology.Child{ID: 3, Placements: []topology.Placement{{ID: 301, Server: "s3"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	part := topology.Partition{ID: 4, TimeLo: when(t, "2026-11-22"), TimeHi: when(t, "2026-11-23")}
	if got := before(m, &part, nil); got == nil || got.Placements[0].Server != "s3" {
		t.Errorf("before it lies %v", got)
	}
	ring, err := w.Tables[0].Apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtRing(1 << 63),
		Low:  topology.Child{ID: 2, Placements: []topology.Placement{{ID: 201, Server: "s2"}}},
		High: topology.Child{ID: 3, Placements: []topology.Placement{{ID: 301, Server: "s3"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for lo, want := range map[uint64]topology.ServerID{0: "s2", 1 << 63: "s3"} {
		part.PointLo = lo
		if got := before(ring, &part, nil); got == nil || got.Placements[0].Server != want {
			t.Errorf("from %#x on there lies before it %v", lo, got)
		}
	}
}

// TestOneServerDoesNotGetAllClosedPartitionsOfADeadOne: it had the least expected load, which closed partitions do not change. So it got them all, and they were copied a second time to
// make the bytes on the servers even.
func TestOneServerDoesNotGetAllClosedPartitionsOfADeadOne(t *testing.T) {
	for _, sized := range []bool{true, false} {
		w := newWorld()
		w.lines(t, "now 2026-11-21T23:00:00Z\nserver s1 silent=11m\nserver s2\nserver s3\nserver s4\nserver s5")
		for i, s := range []string{"s2", "s3", "s4", "s3", "s4"} {
			w.lines(t, fmt.Sprintf("table busy%d width=24h\np1 [2026-11-21, 2026-11-22) %s | led by %s, in sync %s, 1 MiB to 2026-11-21T23:00:00Z", i, s, s, s))
		}
		w.lines(t, "table cpu width=1h replicas=2")
		for i := range 16 {
			w.lines(t, fmt.Sprintf("p%d [2026-11-21T%02d:00, 2026-11-21T%02d:00) s1 s2 | led by s2, in sync s1 s2, 64 MiB to 2026-11-21T%02d:59:00Z", i+1, i, i+1, i))
		}
		if !sized {
			clear(w.Sizes)
		}
		steps := Plan(w.State, w.set, w.rng)
		if err := w.apply(steps); err != nil {
			t.Fatal(err)
		}
		came := map[topology.ServerID]int{}
		for p := range w.Tables[len(w.Tables)-1].All() {
			for _, pl := range p.Joining {
				came[pl.Server]++
			}
		}
		if came["s3"] < 4 || came["s4"] < 4 || came["s5"] < 4 || came["s5"] > 8 {
			t.Errorf("sizes known: %v: they go to %v\n%s", sized, came, Format(steps))
		}
	}
}

// apart checks that successive partitions of a table are not led by one server.
func apart(t *testing.T, w *world, table string) {
	t.Helper()
	m := w.Tables[slices.IndexFunc(w.Tables, func(m *topology.Map) bool { return m.Table == table })]
	before := topology.ServerID("")
	for p := range m.All() {
		if p.Placements[0].Server == before {
			t.Errorf("%s follows one on the same server", p)
		}
		before = p.Placements[0].Server
	}
}

// TestPartitionsOfOneSizeCountTheSame: within a tenth or two, as those that are cut by a forecast, and by their number where nothing is known.
func TestPartitionsOfOneSizeCountTheSame(t *testing.T) {
	w := newWorld()
	w.lines(t, "now 2026-11-21T12:00:00Z\nserver s1\ntable cpu width=24h\ngrows cpu 1000 rows/s of 1048 B for 1h\ntable new width=24h")
	of := func(table string, lo, hi uint64, width time.Duration) int64 {
		v := newView(w.State, w.set)
		return v.weight(table, &topology.Partition{PointLo: lo, PointHi: hi, TimeLo: w.Now, TimeHi: w.Now + int64(width)})
	}
	w.set.SplitBytes = 1 << 30
	for _, x := range []struct {
		table  string
		lo, hi uint64
		width  time.Duration
		want   int64
	}{
		{"cpu", 0, 0, 17 * time.Minute, 64}, {"cpu", 0, 0, 14 * time.Minute, 64}, {"cpu", 0, 0, 20 * time.Minute, 64},
		{"cpu", 0, 1 << 63, 17 * time.Minute, 32}, {"cpu", 1 << 63, 0, 34 * time.Minute, 64},
		{"cpu", 0, 0, 2 * time.Hour, 512}, {"cpu", 0, 0, 24 * time.Hour, 512}, {"cpu", 0, 0, time.Second, 1},
		{"cpu", 0, 0, math.MaxInt64 / 2, 512},
		{"new", 0, 0, time.Hour, 1},
	} {
		if got := of(x.table, x.lo, x.hi, x.width); got != x.want {
			t.Errorf("%+v: its weight is %d", x, got)
		}
	}
	w.lines(t, "p1 [2026-11-21, 2026-11-22) s1")
	m := w.Tables[0]
	for i := range 3 {
		p := topology.Partition{ID: m.NextID, TimeLo: w.Now + int64(i)*17*60e9, TimeHi: w.Now + int64(i+1)*17*60e9, Placements: []topology.Placement{{ID: point.PlacementID(i + 1), Server: "s1"}}}
		next, err := m.Apply(topology.Create{Partitions: []topology.Partition{p}})
		if err != nil {
			t.Fatal(err)
		}
		m = next
	}
	w.Tables[0] = m
	if got := of("new", 0, 0, time.Hour); got != 64 {
		t.Errorf("of a new table, beside three partitions of 64: %d", got)
	}
	if v := newView(w.State, w.set); v.servers["s1"].load != 4*64 {
		t.Errorf("four of them make %d", v.servers["s1"].load)
	}
}

// TestBusyAndQuietTablesShareServers: in clusters of servers that are all well, with tables of very different loads, no server is to get more than the mean and some partitions; one led by the
// same server does not follow another, and no partition with rows changes.
func TestBusyAndQuietTablesShareServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		w.set.BalanceBytes = -1
		w.Now = time.Date(2026, 11, 21, 12, 1, 0, 0, time.UTC).UnixNano()
		servers := rapid.IntRange(2, 6).Draw(t, "servers")
		replicas := rapid.IntRange(1, min(servers, 3)).Draw(t, "replicas")
		for i := range servers {
			id := fmt.Sprintf("s%d", i+1)
			w.Servers = append(w.Servers, Server{Server: registry.Server{ID: topology.ServerID(id), Host: id, Copies: registry.CopiesOn}, Live: true, For: time.Hour})
		}
		rates, before := map[string]float64{}, map[lease.Partition][]topology.Placement{}
		for i := range rapid.IntRange(2, 12).Draw(t, "tables") {
			m, err := topology.New(fmt.Sprintf("t%02d", i), topology.Config{PartitionWidth: time.Hour, Replicas: replicas})
			if err != nil {
				t.Fatal(err)
			}
			p := topology.Partition{ID: m.NextID, TimeLo: w.Now - 60e9, TimeHi: w.Now - 60e9 + 3600e9}
			p.TimeLo -= p.TimeLo % 3600e9
			p.TimeHi = p.TimeLo + 3600e9
			for _, k := range w.rng.Perm(servers)[:replicas] {
				p.Placements = append(p.Placements, topology.Placement{ID: point.PlacementID(w.rng.Uint64() | 1), Server: w.Servers[k].ID})
			}
			if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{p}}); err != nil {
				t.Fatal(err)
			}
			key, l := lease.Partition{Table: m.Table, ID: p.ID}, lease.Lease{State: lease.Held, Boot: "b", Epoch: 3, Holder: p.Placements[0].Server}
			for _, pl := range p.Placements {
				l.InSync = append(l.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
			}
			w.Leases[key], w.Born[key], before[key] = l, true, p.Placements
			w.Tables = append(w.Tables, m)
			rows := rapid.SampledFrom([]float64{1, 10, 100, 1000, 3000}).Draw(t, "rows a second")
			w.grows(m, rows, 1000, time.Hour)
			rates[m.Table] = rows * 1000
		}
		w.settle(t)
		fixed, all, mean, largest := map[topology.ServerID]float64{}, w.coming(rates), 0.0, 0.0
		for _, m := range w.Tables {
			for p := range m.All() {
				bytes := rates[m.Table] * time.Duration(p.TimeHi-max(p.TimeLo, w.Now)).Seconds()
				largest = max(largest, bytes)
				old, had := before[lease.Partition{Table: m.Table, ID: p.ID}]
				if had && !slices.Equal(p.Placements, old) {
					t.Fatalf("%s has rows, and changed", p)
				}
				for _, pl := range old {
					fixed[pl.Server] += bytes
				}
				if prev, ok := m.Find(0, p.TimeLo-1); ok && replicas > 1 && prev.Placements[0].Server == p.Placements[0].Server {
					t.Fatalf("%s follows one that the same server leads", p)
				}
			}
		}
		for _, bytes := range all {
			mean += bytes / float64(servers)
		}
		for s, bytes := range all {
			if bytes > max(mean, fixed[s])+4*largest {
				t.Fatalf("%s is to get %.1f GB where the mean is %.1f and the largest partition has %.1f:\n%s", s, bytes/1e9, mean/1e9, largest/1e9, w.draw())
			}
		}
	})
}
