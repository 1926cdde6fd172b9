package master

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAServerThatIsLostIsMadeGood has three copies of 60 closed partitions and of ten busy ones on five servers, in no zones or in three. One dies for good, and later another one comes, where there are
// zones in that of the dead one. Each state is at rest within two hours, with three copies of everything, never two on a host, nor two in a zone: those beyond FillsMax went to another zone, where
// the only server of theirs was being filled. Without zones bytes and loads are as even as their settings say.
func TestAServerThatIsLostIsMadeGood(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		for _, zones := range []string{"", "abcaba"} {
			c := newLosing(t, seed, zones)
			c.rests("five servers")
			c.dies(0)
			c.rests("four servers")
			c.comes(5)
			c.rests("five servers again")
		}
	}
}

// losing is a crowded cluster of which servers die and come.
type losing struct {
	*crowded
	zones string
}

func (l *losing) server(i int) Server {
	srv := Server{Server: registry.Server{ID: topology.ServerID(fmt.Sprintf("s%d", i)), Host: fmt.Sprint(i), Copies: registry.CopiesOn}, Live: true, For: time.Hour}
	if l.zones != "" {
		srv.Zone = l.zones[i : i+1]
	}
	return srv
}

func newLosing(t *testing.T, seed uint64, zones string) *losing {
	const servers, replicas = 5, 3
	s := &skewed{world: newWorld(), t: t, seed: seed, rows: map[lease.Partition]int64{}, since: map[lease.Partition]int{}}
	l := &losing{&crowded{skewed: s, begun: map[lease.Partition]int{}}, zones}
	s.rng = rand.New(rand.NewPCG(seed, 9))
	s.set.BalanceRows, s.set.SplitBytes, s.set.PresplitAhead, s.set.BalanceBytes = 100, -1, -1, 256<<20
	s.Now = time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC).UnixNano()
	s.Handed, s.Moved = map[lease.Partition]Handed{}, map[lease.Partition]time.Duration{}
	for i := range servers {
		s.Servers = append(s.Servers, l.server(i))
	}
	add := func(table string, ended time.Duration, n int, size func() int64, rows int64) {
		m, err := topology.New(table, topology.Config{PartitionWidth: 24 * time.Hour, Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		for k := range n {
			p := topology.Partition{ID: m.NextID, TimeHi: s.Now - int64(ended) - int64(k)*int64(24*time.Hour)}
			p.TimeLo = p.TimeHi - int64(24*time.Hour)
			key, row := lease.Partition{Table: table, ID: p.ID}, lease.Lease{State: lease.Held, Boot: "b", Epoch: 3}
			in := map[string]bool{}
			for _, i := range s.rng.Perm(servers) {
				if srv := s.Servers[i]; len(p.Placements) < replicas && (zones == "" || !in[srv.Zone]) {
					in[srv.Zone] = true
					pl := topology.Placement{ID: point.PlacementID(s.rng.Uint64() | 1), Server: srv.ID}
					p.Placements, row.InSync = append(p.Placements, pl), append(row.InSync, lease.Member{Placement: pl.ID, Server: srv.ID})
				}
			}
			if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{p}}); err != nil {
				t.Fatal(err)
			}
			row.Holder = p.Placements[0].Server
			s.Leases[key], s.Born[key], s.since[key], s.rows[key] = row, true, -100, rows
			s.Sizes[key] = Size{Bytes: size(), Rows: 1 << 20, MinTime: p.TimeLo, MaxTime: p.TimeHi - 1}
		}
		s.Tables = append(s.Tables, m)
	}
	add("old", 24*time.Hour, 60, func() int64 { return (1 + s.rng.Int64N(1000)) << 20 }, 0)
	for i := range 10 {
		add(fmt.Sprintf("busy%d", i), -23*time.Hour, 1, func() int64 { return 16 << 20 }, 500)
	}
	return l
}

func (l *losing) at(id topology.ServerID) *Server {
	return &l.Servers[slices.IndexFunc(l.Servers, func(s Server) bool { return s.ID == id })]
}

func (l *losing) dies(i int) { l.Servers[i].Live, l.Servers[i].For = false, 0 }

func (l *losing) comes(i int) {
	srv := l.server(i)
	srv.For = 0
	l.Servers = append(l.Servers, srv)
}

// tick plays one step of 5 s.
func (l *losing) tick() {
	l.step++
	for i := range l.Servers {
		if l.Servers[i].For += skewedStep; l.Servers[i].Live {
			l.report(&l.Servers[i])
		}
	}
	for key, row := range l.Leases { // what a dead server led goes to one that has every row
		if srv := l.at(row.Holder); !srv.Live && srv.For > 10*time.Second {
			for _, x := range row.InSync {
				if l.at(x.Server).Live {
					row.InSync = slices.DeleteFunc(slices.Clone(row.InSync), func(y lease.Member) bool { return !l.at(y.Server).Live })
					l.Leases[key] = row
					l.acquire(key, x.Server)
					break
				}
			}
		}
	}
	l.later(skewedStep)
	l.Now += int64(skewedStep)
	for _, s := range Plan(l.State, l.set, l.rng) {
		l.carryOut(s)
	}
	for _, m := range l.Tables {
		l.follow(m)
	}
	if srv := &l.Servers[l.rng.IntN(len(l.Servers))]; srv.Live {
		l.byShare(srv)
	}
}

// rests runs rounds until no placement and no leader has changed for 25 minutes, then checks how bytes, leaders and load are spread. Within that time every move that
// has to wait after another one would have begun.
func (l *losing) rests(what string) {
	was, since, began := "", l.step, l.step
	for l.step-since < 300 {
		l.tick()
		var now strings.Builder
		for _, m := range l.Tables {
			for p := range m.All() {
				fmt.Fprint(&now, p.Placements, p.Joining, l.Leases[lease.Partition{Table: m.Table, ID: p.ID}].Holder)
				if in := l.in(p); l.zones != "" && len(in) < 3 {
					l.t.Fatalf("seed %d, %s: in zones %v: %s", l.seed, what, in, p)
				}
			}
		}
		if now.String() != was {
			was, since = now.String(), l.step
		}
		if l.step-began > 1440+300 {
			l.t.Fatalf("seed %d, %s: no rest within two hours", l.seed, what)
		}
	}
	bytes, leads, loads := map[topology.ServerID]int64{}, map[topology.ServerID]int{}, map[topology.ServerID]int64{}
	live, total, rows := 0, int64(0), int64(0)
	for _, m := range l.Tables {
		for p := range m.All() {
			if len(p.Placements) != 3 || len(p.Joining) > 0 {
				l.t.Errorf("seed %d, %s: %s", l.seed, what, p)
			}
			key := lease.Partition{Table: m.Table, ID: p.ID}
			for _, pl := range p.Placements {
				bytes[pl.Server] += l.Sizes[key].Bytes
				total += l.Sizes[key].Bytes
			}
			holder := l.Leases[key].Holder
			leads[holder], loads[holder], rows = leads[holder]+1, loads[holder]+l.rows[key], rows+l.rows[key]
		}
	}
	line := ""
	for _, srv := range l.Servers {
		if srv.Live {
			live++
			line += fmt.Sprintf("  %s%s %.1f GiB leads %d, %d rows/s", srv.ID, srv.Zone, float64(bytes[srv.ID])/(1<<30), leads[srv.ID], loads[srv.ID])
		}
	}
	l.t.Logf("seed %d, zones %q, %s at rest after %v:%s", l.seed, l.zones, what, time.Duration(since-began)*skewedStep, line)
	mean, slack := total/int64(live), max(l.set.BalanceBytes, total/int64(live)/5)
	for _, srv := range l.Servers {
		switch {
		case !srv.Live && bytes[srv.ID] > 0:
			l.t.Errorf("seed %d, %s: %s is dead, and has copies", l.seed, what, srv.ID)
		case srv.Live && l.zones == "" && (bytes[srv.ID] > mean+slack || bytes[srv.ID] < mean-slack-1000<<20):
			l.t.Errorf("seed %d, %s: %s has %.1f GiB, the mean is %.1f", l.seed, what, srv.ID, float64(bytes[srv.ID])/(1<<30), float64(mean)/(1<<30))
		case l.zones == "" && loads[srv.ID]*int64(live) > 2*rows:
			l.t.Errorf("seed %d, %s: %s accepts %d of %d rows/s", l.seed, what, srv.ID, loads[srv.ID], rows)
		}
	}
}

// in is how many copies of a partition are in each zone.
func (l *losing) in(p *topology.Partition) map[string]int {
	in := map[string]int{}
	for _, pl := range p.Placements {
		in[l.at(pl.Server).Zone]++
	}
	return in
}
