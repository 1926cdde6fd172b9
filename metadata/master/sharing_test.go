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

// TestOneZoneThatIsLostTakesNoTwoCopies has copies that were laid out anyhow, on few hosts and in few zones, closed, growing and without rows, and further servers come one after the other.
// While copies move, each partition has as many as its table wants. At rest no copy could be elsewhere and share less, and no server has been left and joined again and again.
func TestOneZoneThatIsLostTakesNoTwoCopies(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		p := newParting(t, seed)
		p.rests()
		for i := range 1 + p.rng.IntN(3) {
			p.comes(fmt.Sprintf("n%d", i))
			p.rests()
		}
	}
}

// parting is a cluster of which copies share hosts and zones.
type parting struct {
	*crowded
	joins map[lease.Partition]int
}

func newParting(t *testing.T, seed uint64) *parting {
	s := &skewed{world: newWorld(), t: t, seed: seed, rows: map[lease.Partition]int64{}, since: map[lease.Partition]int{}}
	p := &parting{&crowded{skewed: s}, map[lease.Partition]int{}}
	s.rng = rand.New(rand.NewPCG(seed, 11))
	s.set.BalanceRows, s.set.SplitBytes, s.set.PresplitAhead, s.set.MergeFrom = -1, -1, -1, -1
	s.set.BalanceBytes = []int64{-1, 64 << 20}[s.rng.IntN(2)]
	s.set.ShareHosts = s.rng.IntN(4) == 0
	s.Now = time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC).UnixNano()
	replicas := 1 + s.rng.IntN(4)
	n := replicas + s.rng.IntN(4)
	for i := range n {
		p.comes(fmt.Sprintf("s%d", i))
	}
	for k, end := range []time.Duration{-24 * time.Hour, 12 * time.Hour, 48 * time.Hour} { // closed, growing, without rows
		m, err := topology.New(fmt.Sprintf("t%d", k), topology.Config{PartitionWidth: 24 * time.Hour, Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		for i := range []int{20, 1, 1}[k] {
			at := topology.Partition{ID: m.NextID, TimeHi: s.Now + int64(end) - int64(i)*int64(24*time.Hour)}
			at.TimeLo = at.TimeHi - int64(24*time.Hour)
			key, row := lease.Partition{Table: m.Table, ID: at.ID}, lease.Lease{State: lease.Held, Boot: "b", Epoch: 3}
			for _, j := range s.rng.Perm(n)[:replicas] {
				pl := topology.Placement{ID: point.PlacementID(s.rng.Uint64() | 1), Server: s.Servers[j].ID}
				at.Placements, row.InSync = append(at.Placements, pl), append(row.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
			}
			if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{at}}); err != nil {
				t.Fatal(err)
			}
			if row.Holder = at.Placements[0].Server; k < 2 {
				s.Leases[key], s.Born[key], s.since[key] = row, true, -100
				s.Sizes[key] = Size{Bytes: (1 + s.rng.Int64N(100)) << 20, Rows: 1 << 20, MinTime: at.TimeLo, MaxTime: min(at.TimeHi-1, s.Now)}
			}
		}
		s.Tables = append(s.Tables, m)
	}
	return p
}

func (p *parting) comes(id string) {
	p.Servers = append(p.Servers, Server{Server: registry.Server{ID: topology.ServerID(id), Host: fmt.Sprint(p.rng.IntN(6)), Zone: []string{"", "a", "b", "b", "c", "c"}[p.rng.IntN(6)], Copies: registry.CopiesOn}, Live: true, For: time.Hour})
}

// rests plays until nothing moves for five minutes.
func (p *parting) rests() {
	was, since := "", 0
	for step := 0; step-since < 60; step++ {
		if step > 2000 {
			p.t.Fatalf("seed %d: no rest:\n%s\n%s", p.seed, Format(Plan(p.State, p.set, p.rng)), p.draw())
		}
		for _, s := range Plan(p.State, p.set, p.rng) {
			i := slices.IndexFunc(p.Tables, func(m *topology.Map) bool { return m.Table == s.Table })
			if i < 0 {
				continue
			}
			for _, op := range s.Ops {
				if join, ok := op.(topology.Join); ok {
					p.joins[lease.Partition{Table: s.Table, ID: join.Partition}]++
				}
			}
			next, err := p.Tables[i].Apply(s.Ops...)
			if err != nil {
				p.t.Fatalf("seed %d: %v: %s", p.seed, err, s.What)
			}
			p.Tables[i] = next
		}
		var now strings.Builder
		for _, m := range p.Tables {
			if m.Table != "t2" { // no server leads that one
				p.follow(m)
			}
			for at := range m.All() {
				if fmt.Fprint(&now, at.Placements, at.Joining); len(at.Placements) < m.Config.Replicas {
					p.t.Fatalf("seed %d: too few copies: %s", p.seed, at)
				}
			}
		}
		if now.String() != was {
			was, since = now.String(), step
		}
	}
	for _, m := range p.Tables {
		for at := range m.All() {
			p.check(m, at)
		}
	}
}

// check moves each copy to each server on a host of its own, and counts pairs.
func (p *parting) check(m *topology.Map, at *topology.Partition) {
	server := func(id topology.ServerID) Server {
		return p.Servers[slices.IndexFunc(p.Servers, func(s Server) bool { return s.ID == id })]
	}
	pairs := func(servers []topology.ServerID) (hosts, zones int, named bool) {
		named = true
		for i, a := range servers {
			named = named && server(a).Zone != ""
			for _, b := range servers[:i] {
				if server(a).Host == server(b).Host {
					hosts++
				}
				if server(a).Zone == server(b).Zone {
					zones++
				}
			}
		}
		return hosts, zones, named
	}
	servers := on(at.Placements)
	hosts, zones, named := pairs(servers)
	for i := range servers {
		for _, to := range p.Servers {
			if slices.ContainsFunc(servers, func(s topology.ServerID) bool { return server(s).Host == to.Host }) {
				continue
			}
			instead := slices.Clone(servers)
			instead[i] = to.ID
			if h, z, _ := pairs(instead); h < hosts || h == hosts && z < zones && named && to.Zone != "" {
				p.t.Errorf("seed %d: %s could be on %s in the place of %s: %d and %d pairs share hosts and zones, not %d and %d\n%s", p.seed, at, to.ID, servers[i], h, z, hosts, zones, p.draw())
			}
		}
	}
	if n := p.joins[lease.Partition{Table: m.Table, ID: at.ID}]; p.set.BalanceBytes < 0 && n > 8 {
		p.t.Errorf("seed %d: %d copies of %s were moved", p.seed, n, at)
	}
	if len(servers) != m.Config.Replicas || len(at.Joining) > 0 {
		p.t.Errorf("seed %d: %s", p.seed, at)
	}
}
