package master

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// drawWorld makes a cluster: servers in all states on few hosts and zones, tables with partitions around now, some led,
// some with lost rows.
func drawWorld(t *rapid.T) *world {
	w := newWorld()
	w.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	w.set.MergeFrom, w.set.MergeInto = rapid.SampledFrom([]int{-1, 1, 3}).Draw(t, "merge from"), [2]time.Duration{90 * time.Minute, 3 * time.Hour}
	w.set.MovesMax = rapid.IntRange(1, 8).Draw(t, "moves")
	w.Now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()
	n := rapid.IntRange(1, 7).Draw(t, "servers")
	for i := range n {
		id := topology.ServerID(fmt.Sprintf("s%d", i))
		s := Server{Server: registry.Server{ID: id, Host: fmt.Sprintf("h%d", rapid.IntRange(0, n).Draw(t, "host")), Zone: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"), Copies: rapid.SampledFrom([]string{registry.CopiesOn, registry.CopiesOn, registry.CopiesOff, ""}).Draw(t, "copies")}, Live: true, For: time.Hour}
		switch rapid.IntRange(0, 6).Draw(t, "state") {
		case 0:
			s.Live, s.For = false, rapid.SampledFrom([]time.Duration{10 * time.Second, time.Minute, time.Hour}).Draw(t, "silent")
		case 1:
			s.Drain = &lease.Note{Who: "ann", Reason: "test"}
		case 2:
			s.For = 10 * time.Second
		}
		w.Servers = append(w.Servers, s)
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "tables") {
		c := topology.Config{PartitionWidth: time.Hour, Replicas: rapid.IntRange(1, 3).Draw(t, "replicas"), Retention: rapid.SampledFrom([]time.Duration{0, 3 * time.Hour}).Draw(t, "retention")}
		m, err := topology.New(fmt.Sprintf("t%d", i), c)
		if err != nil {
			t.Fatal(err)
		}
		for k := range rapid.IntRange(0, 12).Draw(t, "partitions") {
			lo := w.Now + int64(time.Duration(k-6)*30*time.Minute) // narrower than the table's width
			p := topology.Partition{ID: m.NextID, TimeLo: lo, TimeHi: lo + int64(30*time.Minute)}
			perm := w.rng.Perm(n)
			live := rapid.IntRange(1, min(n, 4)).Draw(t, "live")
			for j, s := range perm[:rapid.IntRange(live, n).Draw(t, "placed")] {
				pl := topology.Placement{ID: point.PlacementID(w.rng.Uint64() | 1), Server: w.Servers[s].ID}
				if j < live {
					p.Placements = append(p.Placements, pl)
				} else {
					p.Joining = append(p.Joining, pl)
				}
			}
			if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{p}}); err != nil {
				t.Fatal(err)
			}
			drawLease(t, w, lease.Partition{Table: m.Table, ID: p.ID}, p)
		}
		w.Tables = append(w.Tables, m)
		if rapid.Bool().Draw(t, "grows") {
			w.grows(m, rapid.SampledFrom([]float64{1e5, 1e6, 5e6}).Draw(t, "rows a second"), 1000, time.Hour)
		}
	}
	return w
}

func drawLease(t *rapid.T, w *world, key lease.Partition, p topology.Partition) {
	switch rapid.IntRange(0, 6).Draw(t, "lease") {
	case 5, 6: // led, and never written to
		row := lease.Lease{State: rapid.SampledFrom([]lease.State{lease.Held, lease.Free}).Draw(t, "held"), Boot: "b", Epoch: 3, Holder: p.Placements[0].Server, Empty: true}
		for _, pl := range p.Placements[:rapid.IntRange(0, len(p.Placements)).Draw(t, "in sync")] {
			row.InSync = append(row.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
		}
		if rapid.IntRange(0, 3).Draw(t, "offline") == 0 {
			row.Offline = &lease.Note{Who: "ann", Reason: "test"}
		}
		w.Leases[key], w.Born[key] = row, true
	case 0, 1: // led
		row := lease.Lease{State: lease.Held, Boot: "b", Epoch: 3, Holder: p.Placements[0].Server}
		for _, pl := range p.Placements[:rapid.IntRange(1, len(p.Placements)).Draw(t, "in sync")] {
			row.InSync = append(row.InSync, lease.Member{Placement: pl.ID, Server: pl.Server})
		}
		w.Leases[key], w.Born[key] = row, true
		w.Sizes[key] = Size{Bytes: int64(rapid.IntRange(0, 3).Draw(t, "GiB")) << 30, Rows: 10, MinTime: p.TimeLo, MaxTime: p.TimeHi - 1}
	case 2:
		w.Born[key] = rapid.Bool().Draw(t, "row lost")
		if !w.Born[key] {
			delete(w.Born, key)
		}
	}
}

// mayHaveRows is the rule once more: a partition that was ever led may, unless its row says that it is empty. An offline one stays as it is.
func mayHaveRows(w *world, key lease.Partition) bool {
	row, led := w.Leases[key]
	return (led || w.Born[key]) && (!row.Empty || row.Offline != nil)
}

// TestPlansAreSafeAndEnd applies plan after plan to random clusters, and checks every step against the invariants.
func TestPlansAreSafeAndEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for round := 0; ; round++ {
			steps := Plan(w.State, w.set, rand.New(rand.NewPCG(uint64(round), 1)))
			// The same state and randomness: the same plan.
			if again := Plan(w.State, w.set, rand.New(rand.NewPCG(uint64(round), 1))); !reflect.DeepEqual(again, steps) {
				t.Fatalf("two plans of one state:\n%s\n%s", Format(steps), Format(again))
			}
			moves := 0
			for _, s := range steps {
				if s.Kind == Repair || s.Kind == Drain || s.Kind == Balance || s.Kind == Split || s.Kind == Merge {
					moves++
				}
				checkStep(t, w, s)
			}
			if moves > w.set.MovesMax {
				t.Fatalf("%d moves in a round, %d are allowed:\n%s", moves, w.set.MovesMax, Format(steps))
			}
			if !slices.ContainsFunc(steps, func(s Step) bool { return s.Kind != Alarm }) {
				return
			}
			if round == 200 {
				t.Fatalf("no end:\n%s\n%s", Format(steps), w.draw())
			}
			before := slices.Clone(w.Tables)
			if err := w.apply(steps); err != nil {
				t.Fatalf("topology refuses: %v\n%s", err, Format(steps))
			}
			for i, m := range w.Tables {
				checkMaps(t, w, before[i], m, steps)
			}
		}
	})
}

// checkStep: a step that changes an empty partition fences it on every server that might acquire it, and no step changes one with rows.
func checkStep(t *rapid.T, w *world, s Step) {
	for _, f := range s.Fences {
		if mayHaveRows(w, f.Partition) {
			t.Fatalf("%v is fenced, and has rows", f.Partition)
		}
		for _, m := range w.Tables {
			if p, ok := m.ByID(f.Partition.ID); ok && m.Table == f.Partition.Table {
				for _, pl := range p.Placements {
					if !slices.Contains(f.Servers, pl.Server) {
						t.Fatalf("%v is changed without a fence on %s: %s", f.Partition, pl.Server, s.What)
					}
				}
			}
		}
	}
	for _, op := range s.Ops {
		switch o := op.(type) {
		case topology.JoinFinalize:
			row := w.Leases[lease.Partition{Table: s.Table, ID: o.Partition}]
			if len(s.Fences) == 0 && !slices.ContainsFunc(row.InSync, func(m lease.Member) bool { return m.Placement == o.Placement }) {
				t.Fatalf("%s without a fence, and it is not listed: %s", o, s.What)
			}
		case topology.Merge:
			for _, id := range o.Partitions {
				if len(s.Fences) == 0 && !mayHaveRows(w, lease.Partition{Table: s.Table, ID: id}) {
					t.Fatalf("%s without a fence, and p%d has no rows: %s", o, id, s.What)
				}
			}
		case topology.UnloadFinal, topology.SplitFinalize:
			if len(s.Fences) == 0 {
				t.Fatalf("%s without a fence: %s", o, s.What)
			}
		}
	}
}

func checkMaps(t *rapid.T, w *world, before, after *topology.Map, steps []Step) {
	hosts := map[topology.ServerID]string{}
	for _, s := range w.Servers {
		hosts[s.ID] = s.Host
	}
	for p := range before.All() {
		key := lease.Partition{Table: before.Table, ID: p.ID}
		next, ok := after.ByID(p.ID)
		row := w.Leases[key]
		rows := mayHaveRows(w, key)
		if !ok {
			if mayHaveRows(w, key) {
				if !slices.ContainsFunc(steps, func(s Step) bool { return s.Kind == Retention && s.Table == before.Table }) {
					t.Fatalf("%s had rows and is gone", p)
				}
			}
			continue
		}
		if floor := min(len(p.Placements), before.Config.Replicas); len(next.Placements) < floor {
			t.Fatalf("%s is below its floor of %d: %s", p, floor, next)
		}
		if rows && len(row.InSync) == 0 && !slices.Equal(p.Placements, next.Placements) {
			t.Fatalf("nobody knows who holds %s, and it changed: %s", p, next)
		}
		if rows && len(row.InSync) > 0 {
			left := slices.ContainsFunc(row.InSync, func(m lease.Member) bool {
				_, live := next.On(m.Server)
				_, joins := next.JoiningOn(m.Server)
				return live || joins
			})
			if !left {
				t.Fatalf("no holder of %s is left: %s", p, next)
			}
		}
		// Nothing new comes beside something on the same host.
		all := append(slices.Clone(next.Placements), next.Joining...)
		for _, pl := range all {
			if slices.Contains(append(slices.Clone(p.Placements), p.Joining...), pl) {
				continue
			}
			for _, other := range next.Placements {
				dead := slices.ContainsFunc(w.Servers, func(s Server) bool { return s.ID == other.Server && (!s.Live || s.Drain != nil) })
				if other != pl && hosts[other.Server] == hosts[pl.Server] && !dead {
					t.Fatalf("%s came beside %s on host %s: %s", pl.Server, other.Server, hosts[pl.Server], next)
				}
			}
		}
	}
}

// TestAServerThatDiesLosesNoEmptyPartition: in any cluster, a partition never written to can be led again after one plan,
// if any server is left.
func TestAServerThatDiesLosesNoEmptyPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.set.MovesMax = 1000
		usable := slices.ContainsFunc(w.Servers, func(s Server) bool { return s.Live && s.Drain == nil })
		if !usable {
			return
		}
		steps := Plan(w.State, w.set, w.rng)
		if err := w.apply(steps); err != nil {
			t.Fatal(err)
		}
		for _, m := range w.Tables {
			for p := range m.All() {
				key := lease.Partition{Table: m.Table, ID: p.ID}
				if mayHaveRows(w, key) || p.State != topology.Live {
					continue
				}
				ok := slices.ContainsFunc(p.Placements, func(pl topology.Placement) bool {
					return slices.ContainsFunc(w.Servers, func(s Server) bool {
						return s.ID == pl.Server && (s.Live || s.For < w.set.EmptyAfter)
					})
				})
				if !ok {
					t.Fatalf("nobody can lead %s:\n%s%s", p, Format(steps), w.draw())
				}
			}
		}
	})
}
