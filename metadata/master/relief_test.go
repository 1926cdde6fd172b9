package master

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// crowded is a cluster with some servers that were added late: these have no copies, and constant loads come to partitions on the others. It makes whole plans, carries them
// out, and has leaders fill and forget copies, as in the product, a little later.
type crowded struct {
	*skewed
	begun map[lease.Partition]int // reliefs
}

func newCrowded(t *testing.T, seed uint64, noise bool) *crowded {
	s := &skewed{world: newWorld(), t: t, seed: seed, noise: noise, rows: map[lease.Partition]int64{}, since: map[lease.Partition]int{}}
	s.rng = rand.New(rand.NewPCG(seed, 7))
	s.set.BalanceRows, s.set.SplitBytes, s.set.PresplitAhead, s.set.BalanceBytes = 100, -1, -1, -1
	s.Now = time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC).UnixNano()
	s.Handed, s.Moved = map[lease.Partition]Handed{}, map[lease.Partition]time.Duration{}
	replicas := 1 + s.rng.IntN(3)
	old := replicas + s.rng.IntN(3)
	zones := s.rng.IntN(2) == 0
	for i := range old + 1 + s.rng.IntN(3) {
		srv := Server{Server: registry.Server{ID: topology.ServerID(fmt.Sprintf("s%d", i)), Host: fmt.Sprint(i), Copies: registry.CopiesOn}, Live: true, For: time.Hour}
		if zones {
			srv.Zone = fmt.Sprintf("z%d", i%3)
		}
		if i >= old && s.rng.IntN(3) == 0 { // beside another one
			srv.Host = s.Servers[s.rng.IntN(i)].Host
		}
		s.Servers = append(s.Servers, srv)
	}
	for k := range old * (1 + s.rng.IntN(4)) {
		m, err := topology.New(fmt.Sprintf("t%02d", k), topology.Config{PartitionWidth: 24 * time.Hour, Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		p := topology.Partition{ID: m.NextID, TimeLo: s.Now - int64(time.Hour), TimeHi: s.Now + int64(23*time.Hour)}
		for _, i := range s.rng.Perm(old)[:replicas] {
			p.Placements = append(p.Placements, topology.Placement{ID: point.PlacementID(s.rng.Uint64() | 1), Server: s.Servers[i].ID})
		}
		if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{p}}); err != nil {
			t.Fatal(err)
		}
		key := lease.Partition{Table: m.Table, ID: p.ID}
		l := lease.Lease{State: lease.Held, Boot: "b", Epoch: 3, Holder: p.Placements[0].Server}
		for _, pl := range p.Placements {
			l.InSync = append(l.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
		}
		s.Leases[key], s.Born[key], s.since[key] = l, true, -100
		s.Sizes[key] = Size{Bytes: 1 << 20, Rows: 1 << 18, MinTime: p.TimeLo, MaxTime: s.Now}
		switch seed % 3 {
		case 0: // a few have most
			s.rows[key] = int64(10 / (0.001 + s.rng.Float64()))
		case 1:
			s.rows[key] = 1000
		default:
			s.rows[key] = s.rng.Int64N(3000)
		}
		s.Tables = append(s.Tables, m)
	}
	return &crowded{skewed: s, begun: map[lease.Partition]int{}}
}

// under counts the reliefs in the rows of servers.
func (c *crowded) under() (n int) {
	for _, srv := range c.Servers {
		for _, m := range srv.Moves {
			if isRelief(m) {
				n++
			}
		}
	}
	return n
}

// play plays one step.
func (c *crowded) play() {
	c.step++
	for i := range c.Servers {
		if c.Servers[i].Beat.Writes == nil || c.rng.IntN(10) > 0 { // else it is late
			c.report(&c.Servers[i])
		}
	}
	c.later(skewedStep)
	if c.rng.IntN(300) == 0 { // another master, which remembers nothing
		clear(c.Handed)
		clear(c.Moved)
	}
	for _, s := range Plan(c.State, c.set, c.rng) {
		c.carryOut(s)
	}
	if n := c.under(); n > 1 {
		c.t.Fatalf("seed %d, step %d: %d reliefs at a time", c.seed, c.step, n)
	}
	for i := range c.Tables {
		c.follow(c.Tables[i])
	}
	if c.step%2 == 0 {
		c.byShare(&c.Servers[c.rng.IntN(len(c.Servers))])
	}
}

func (c *crowded) carryOut(s Step) {
	key := lease.Partition{Table: s.Table, ID: s.Partition}
	i := slices.IndexFunc(c.Tables, func(m *topology.Map) bool { return m.Table == s.Table })
	if i < 0 {
		return
	}
	switch {
	case s.Hand != nil:
		before := c.squares()
		c.acquire(s.Hand.Partition, s.Hand.To)
		c.Handed[s.Hand.Partition] = Handed{From: s.Hand.From, To: s.Hand.To}
		c.byLoad++
		if after := c.squares(); !c.noise && after >= before {
			c.t.Fatalf("seed %d, step %d: the sum of squares was %.0f and is %.0f after %s: %s", c.seed, c.step, before, after, s.What, s.Why)
		}
	case s.Relief != nil:
		c.relieve(*s.Relief)
		if c.last = c.step; !s.Relief.End {
			c.begun[key]++
		}
	default:
		next, err := c.Tables[i].Apply(s.Ops...)
		if err != nil {
			c.t.Fatalf("seed %d, step %d: %v: %s", c.seed, c.step, err, s.What)
		}
		c.Tables[i] = next
		c.check(next, s)
	}
}

// check checks the floor, and that no two copies share a host, or a zone which they did not need to share.
func (c *crowded) check(m *topology.Map, s Step) {
	for p := range m.All() {
		hosts := map[string]bool{}
		for _, id := range append(on(p.Placements), on(p.Joining)...) {
			host := c.Servers[slices.IndexFunc(c.Servers, func(x Server) bool { return x.ID == id })].Host
			if hosts[host] {
				c.t.Fatalf("seed %d, step %d: two copies on host %s after %s: %s", c.seed, c.step, host, s.What, p)
			}
			hosts[host] = true
		}
		if len(p.Placements) < m.Config.Replicas {
			c.t.Fatalf("seed %d, step %d: too few copies after %s: %s", c.seed, c.step, s.What, p)
		}
	}
}

// follow has the leader of a table's partition fill a copy, or remove one from the list, and release the lease where it may not lead any more.
func (c *crowded) follow(m *topology.Map) {
	for p := range m.All() {
		key := lease.Partition{Table: m.Table, ID: p.ID}
		l := c.Leases[key]
		if c.rng.IntN(4) > 0 {
			continue
		}
		l.InSync = slices.DeleteFunc(slices.Clone(l.InSync), func(x lease.Member) bool {
			return x.Server != l.Holder && !slices.Contains(append(on(p.Placements), on(p.Joining)...), x.Server)
		})
		for _, pl := range p.Joining {
			if !slices.ContainsFunc(l.InSync, func(x lease.Member) bool { return x.Placement == pl.ID }) {
				l.InSync = append(l.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
			}
		}
		c.Leases[key] = l
		if slices.Contains(on(p.Placements), l.Holder) {
			continue
		}
		for _, x := range l.InSync {
			if slices.Contains(on(p.Placements), x.Server) {
				c.acquire(key, x.Server)
				break
			}
		}
	}
}

// TestLoadsThatVaryMoveFewCopies: loads that go up and down by a tenth move no more copies than twice as many as there are partitions, in an hour.
func TestLoadsThatVaryMoveFewCopies(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		c := newCrowded(t, seed, true)
		for range 720 {
			c.play()
		}
		for key, n := range c.begun {
			if n > 2 {
				t.Errorf("seed %d: copies of %s were moved %d times", seed, key, n)
			}
		}
	}
}

// busiest is the load of the busiest server, in percent of the mean.
func (c *crowded) busiest() int64 {
	most, total := int64(0), int64(0)
	for _, srv := range c.Servers {
		most, total = max(most, c.load(srv.ID)), total+c.load(srv.ID)
	}
	return most * 100 * int64(len(c.Servers)) / max(total, 1)
}

// TestAServerThatWasAddedLateGetsItsShareOfTheLoad: with constant loads, copies move where leads alone do not even the loads out, one at a time, no two of a partition on one
// host; it comes to an end, and a master that remembers nothing finds nothing more to do. The sum of the squares of the loads is less afterwards.
func TestAServerThatWasAddedLateGetsItsShareOfTheLoad(t *testing.T) {
	t.Parallel()
	const seeds, steps = 6, 1000
	within, was, reliefs, before, after := 0, 0, 0, 0.0, 0.0
	for seed := range seeds {
		c := newCrowded(t, uint64(seed), false)
		before += c.squares()
		if c.busiest() <= busyPercent {
			was++
		}
		for range steps {
			c.play()
		}
		for i := range c.Servers {
			c.report(&c.Servers[i])
		}
		clear(c.Handed)
		clear(c.Moved)
		if left := Plan(c.State, c.set, c.rng); len(left) > 0 {
			t.Errorf("seed %d: in the end there is still to do:\n%s", seed, Format(left))
		}
		if c.step-c.last < steps/4 {
			t.Errorf("seed %d: the last move was %d steps ago, after %d leads and %v copies", seed, c.step-c.last, c.byLoad, c.begun)
		}
		for key, n := range c.begun {
			if reliefs += n; n > 2 {
				t.Errorf("seed %d: copies of %s were moved %d times", seed, key, n)
			}
		}
		if c.busiest() <= busyPercent {
			within++
		}
		after += c.squares()
	}
	if after >= before || reliefs == 0 {
		t.Errorf("the sum of the squares of the loads was %.0f, and is %.0f after %d copies were moved", before, after, reliefs)
	}
	t.Logf("%d of %d clusters were within 1.25 of the mean, and %d are, after %d copies were moved", was, seeds, within, reliefs)
}

// TestAReliefThatDoesNotGetOnEnds: it has the only slot, and held up all others for ever where its target never got every row, or its table's map is unknown.
func TestAReliefThatDoesNotGetOnEnds(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		c := newCrowded(t, 1, false)
		m := c.Tables[0]
		part, _ := m.Find(0, c.Now)
		key, from, to := lease.Partition{Table: m.Table, ID: part.ID}, part.Placements[len(part.Placements)-1], c.Servers[len(c.Servers)-1].ID
		c.relieve(Relief{From: from.Server, Move: registry.Move{Table: m.Table, Partition: part.ID, Placement: from.ID, To: to}})
		c.Sizes[key] = Size{Bytes: 6 << 30}
		c.set.CopyRate = 1 << 20 // 6144 s
		if !mapped {
			c.Tables = c.Tables[1:]
		}
		ends := func(age time.Duration) (n int) {
			c.Moving = map[placementOf]time.Duration{{m.Table, from.ID}: age}
			for _, s := range Plan(c.State, c.set, c.rng) {
				n += number(s.Relief != nil && s.Relief.End)
			}
			return n
		}
		if ends(61_000*time.Second) != 0 || ends(62_000*time.Second) != 1 {
			t.Errorf("map known %t: ends %d times after 61,000 s, %d after 62,000 s", mapped, ends(61_000*time.Second), ends(62_000*time.Second))
		}
	}
}

// TestAServerThatStartedAgainIsNoTarget: within TakeAfter of its end it counted as idle, since it leads nothing yet.
func TestAServerThatStartedAgainIsNoTarget(t *testing.T) {
	now := time.Duration(0)
	rows := NewRows(func() time.Duration { return now }, 4*time.Second)
	servers := []registry.Server{{ID: "s1", Moves: []registry.Move{{Table: "cpu", Partition: 1, Placement: 7, Note: lease.Note{Who: Fencer}}}}}
	var s State
	beat := func(boot lease.Boot, n uint64) time.Duration {
		now += time.Second
		rows.BeatsRead([]coord.Row{{Key: lease.BeatKey("s1"), Value: lease.Beat{Server: "s1", Boot: boot, Store: "d", N: n}.Encode(), Revision: coord.Revision(now)}})
		rows.FillServers(&s, servers)
		return s.Servers[0].For
	}
	beat("a", 1)
	beat("a", 2)
	if a, b, c := beat("a", 3), beat("b", 1), beat("b", 2); a != 2*time.Second || b != 0 || c != time.Second {
		t.Errorf("it is said to live for %v, for %v when it started again, then for %v", a, b, c)
	}
	if age := s.Moving[placementOf{"cpu", 7}]; age != 4*time.Second {
		t.Errorf("the relief is %v old", age)
	}
	servers[0].Moves = nil
	if beat("b", 3); len(s.Moving) != 0 {
		t.Errorf("a relief that ended is remembered: %v", s.Moving)
	}
}

// TestARowStaysShortEnoughToBeRead: a move made a row longer than any server reads.
func TestARowStaysShortEnoughToBeRead(t *testing.T) {
	r := Relief{From: "s1", Move: registry.Move{Table: "cpu", Partition: 1, Placement: 7, To: "s2"}}
	in := func(words int, drain *lease.Note) string {
		from := registry.Server{ID: "s1", Addr: "a:1", Host: "h", Moves: []registry.Move{{Table: "cpu", Placement: 9, Note: lease.Note{Who: "ann", Reason: strings.Repeat("x", words)}}}}
		_, why := r.in([]coord.Row{{Key: "servers/s1", Revision: 1, Value: from.Encode()}, {Key: "servers/s2", Revision: 1, Value: registry.Server{ID: "s2", Addr: "a:2", Host: "i", Drain: drain}.Encode()}}, lease.Note{Who: Fencer, Reason: "load"})
		return why
	}
	if in(1, nil) != "" || in(registry.RowMax-300, nil) == "" || in(1, &lease.Note{Who: "ann"}) == "" {
		t.Errorf("short: %q; long: %q; to a drained server: %q", in(1, nil), in(registry.RowMax-300, nil), in(1, &lease.Note{Who: "ann"}))
	}
}

// TestATargetThatWasNotFilledIsNotChosenAgain: 30 s after the move of one partition to a server had ended unfilled, another one was sent there, and so on. It rests for MovedFor, by the wall
// clock or since this master saw it, whichever is over sooner.
func TestATargetThatWasNotFilledIsNotChosenAgain(t *testing.T) {
	var now time.Duration
	rows := NewRows(func() time.Duration { return now }, 4*time.Second)
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		noted, wall, seen time.Duration // after noon, when the move ended and the time by the clock; for how long this master has seen it
		rests             bool
	}{
		{0, time.Minute, 0, true},
		{0, 29 * time.Minute, 29 * time.Minute, true},
		{0, 31 * time.Minute, 0, false},           // another master
		{0, time.Minute, 31 * time.Minute, false}, // the clock stood
		{1000 * time.Hour, time.Minute, time.Minute, true},
		{1000 * time.Hour, time.Minute, 31 * time.Minute, false}, // the clock was ahead
	} {
		m := registry.Move{Table: "cpu", Partition: 1, Placement: 7, To: "s2", Note: lease.Note{Who: Fencer, When: noon.Add(x.noted)}}
		s := State{Now: noon.Add(x.wall).UnixNano()}
		servers := []registry.Server{{ID: "s1", Unfilled: []registry.Move{m}}}
		rows.FillServers(&s, nil) // earlier servers are forgotten
		rows.FillServers(&s, servers)
		for end := now + x.seen; now < end; {
			now += time.Second
			rows.BeatsRead(nil)
		}
		rows.FillServers(&s, servers)
		p := &planner{view: newView(s, Settings{MovedFor: 30 * time.Minute})}
		for to, want := range map[topology.ServerID]bool{"s2": x.rests, "s3": false} {
			if got := p.unfilledLately(func(m registry.Move) bool { return m.To == to }); got != want {
				t.Errorf("%+v: %s rests: %t", x, to, got)
			}
		}
	}
}

// TestAServerWithManyMovesDoesNotHoldUpThoseOfOthers: the row of s2 is full of persons' moves with long reasons. A copy was to leave it for load, too, which was refused and planned anew
// in each round, and no other copy moved meanwhile.
func TestAServerWithManyMovesDoesNotHoldUpThoseOfOthers(t *testing.T) {
	w := newWorld()
	w.set.BalanceRows, w.set.SplitBytes = 500, -1
	w.lines(t, `now 2026-11-21T12:00:00Z
server s1 rows=cpu/1:2000,net/1:2000
server s2 rest=1900
server s3 rest=1900
server s4 rest=10
table cpu width=24h replicas=2
p1 [2026-11-21, 2026-11-22) s1 s2 | led by s1, in sync s1 s2, 16 MiB to 2026-11-21T11:59
table net width=24h replicas=2
p1 [2026-11-21, 2026-11-22) s1 s3 | led by s1, in sync s1 s3, 16 MiB to 2026-11-21T11:59`)
	begun := func() (step Step, ok bool) {
		steps := slices.DeleteFunc(Plan(w.State, w.set, w.rng), func(s Step) bool { return s.Relief == nil })
		if len(steps) == 0 {
			return step, false
		}
		return steps[0], true
	}
	if step, ok := begun(); !ok || step.Relief.From != "s2" {
		t.Fatalf("with room in all rows: %+v", step)
	}
	fill := func(srv *registry.Server) {
		for _, n := range []int{500, 50, 1} {
			for {
				m := registry.Move{Table: "old", Partition: 1, Placement: point.PlacementID(len(srv.Moves) + 1), To: "s4", Note: lease.Note{Who: "ann", Reason: strings.Repeat("r", 2*n)}}
				if srv.Add(m, func(registry.Move) bool { return true }) != nil {
					break
				}
			}
		}
	}
	fill(&w.Servers[1].Server)
	if step, ok := begun(); !ok || step.Relief.From != "s3" {
		t.Errorf("the row of s2 is full: %+v", step)
	}
	fill(&w.Servers[2].Server)
	if step, ok := begun(); ok {
		t.Errorf("the rows of s2 and s3 are full: %+v", step)
	}
	passed := map[topology.ServerID]string{}
	for _, m := range PassedOver(w.State, w.set, w.rng) {
		passed[m.From] = m.PassedOver
	}
	if len(passed) != 2 || !strings.Contains(passed["s2"], "with this move the row of server s2 would have") || !strings.Contains(passed["s3"], "s3") {
		t.Errorf("passed over: %q", passed)
	}
}

// TestMovesThatEndedDoNotKeepCopiesFromMoving: persons moved 64 partitions away from s2 some time ago. All had left, but nothing removes such moves from its
// row but another move by a person, so that none by load began there, without a word.
func TestMovesThatEndedDoNotKeepCopiesFromMoving(t *testing.T) {
	w := newWorld()
	w.set.BalanceRows, w.set.SplitBytes = 500, -1
	w.lines(t, `now 2026-11-21T12:00:00Z
server s1 rows=cpu/1:2000 rest=2000
server s2 rest=1900
server s4 rest=10
table cpu width=12h replicas=2
p1 [2026-11-21T12:00, 2026-11-22) s1 s2 | led by s1, in sync s1 s2, 16 MiB to 2026-11-21T12:00`)
	w.Now += int64(time.Minute)
	begun := func() (relief *Relief) {
		for _, s := range Plan(w.State, w.set, w.rng) {
			if s.Relief != nil && !s.Relief.End {
				relief = s.Relief
			}
		}
		return relief
	}
	s2 := &w.Servers[1].Server
	move := func(table string, p point.PartitionID, pl point.PlacementID, ago time.Duration) registry.Move {
		return registry.Move{Table: table, Partition: p, Placement: pl, To: "s4", Note: lease.Note{Who: "ann", When: time.Unix(0, w.Now).Add(-ago), Reason: "hot"}}
	}
	fill := func(move func(i int) registry.Move) {
		s2.Moves = nil
		for i := range registry.MovesMax {
			s2.Moves = append(s2.Moves, move(i))
		}
	}
	w.Dropped["gone"] = true
	s1 := func(i int) point.PlacementID { return point.PlacementID(1000 + i) }
	for _, x := range []struct {
		what  string
		moves func(i int) registry.Move
		over  bool
	}{
		{"placements that left", func(i int) registry.Move { return move("cpu", 1, s1(i), time.Hour) }, true},
		{"tables that were dropped", func(i int) registry.Move { return move("gone", 1, s1(i), time.Hour) }, true},
		{"one that stands among them", func(i int) registry.Move {
			if i == 7 {
				return move("mem", 1, s1(i), time.Hour)
			}
			return move("cpu", 1, s1(i), time.Hour)
		}, true},
		{"tables of which no map is at hand", func(i int) registry.Move { return move("mem", 1, s1(i), time.Hour) }, false},
		{"partitions that a newer map may have", func(i int) registry.Move { return move("cpu", 99, s1(i), time.Hour) }, false},
		{"placements that a newer map may have", func(i int) registry.Move { return move("cpu", 1, s1(i), time.Minute) }, false},
	} {
		fill(x.moves)
		relief, passed := begun(), PassedOver(w.State, w.set, w.rng)
		switch {
		case !x.over && (relief != nil || len(passed) != 1 || !strings.Contains(passed[0].PassedOver, "64 partitions are being moved away from s2")):
			t.Errorf("%s: begun %+v, passed over %+v", x.what, relief, passed)
		case x.over && (relief == nil || relief.From != "s2" || len(passed) > 0):
			t.Errorf("%s: begun %+v, passed over %+v", x.what, relief, passed)
		case x.over:
			rows := []coord.Row{{Key: registry.Key("s2"), Revision: 1, Value: s2.Encode()}, {Key: registry.Key("s4"), Revision: 1, Value: w.Servers[2].Encode()}}
			next, why := relief.in(rows, lease.Note{Who: Fencer, When: time.Unix(0, w.Now), Reason: "load"})
			want := 1
			if x.what == "one that stands among them" {
				want++
			}
			if why != "" || len(next.Moves) != want {
				t.Errorf("%s: %d moves in the row, refused: %q", x.what, len(next.Moves), why)
			}
		}
	}
}
