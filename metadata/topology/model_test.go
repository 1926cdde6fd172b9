package topology_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// probe is a key of the model's small keyspace: eight ring points, a time each half second.
type probe struct {
	ring uint64
	at   point.Nanos
}

const second = int64(time.Second)

func probes() (out []probe) {
	for r := range uint64(8) {
		for at := -4 * second; at < 24*second; at += second / 2 {
			out = append(out, probe{r << 61, at})
		}
	}
	return out
}

// model is the expected map: the owner of each key, and the partitions in which rows of that key lie.
type model struct {
	m     *topology.Map
	owner map[probe]point.PartitionID
	rows  map[probe]map[point.PartitionID]bool
	past  map[*topology.Map]string // versions and their printed form
	next  point.PlacementID
}

func (w *model) place(point.PartitionID) []topology.Placement {
	w.next += 2
	return []topology.Placement{{ID: w.next, Server: "s1"}, {ID: w.next + 1, Server: "s2"}}
}

// The map against owners of keys: after any ops, in any order, each key has the expected owner, rows are found
// where they lie, no version changes after it was made, and doing a thing twice is doing it once.
func TestMapIsTheModel(t *testing.T) {
	applied := map[string]int{}
	all := []string{"cover", "presplit", "begin", "finalize", "abort", "final", "merge", "drop", "expire", "columns", "join", "live", "unjoin", "remove"}
	never := func(name string) bool { return applied[name] == 0 }
	// The rarest comes once in twenty maps: as many as are needed.
	for round := 0; slices.ContainsFunc(all, never); round++ {
		if round == 50 {
			t.Fatalf("never applied, the model shows nothing about them: %q", slices.DeleteFunc(all, func(name string) bool { return !never(name) }))
		}
		rapid.Check(t, func(t *rapid.T) {
			rapid.SliceOfN(rapid.Bool(), round, round).Draw(t, "round") // with a seed each round would draw the same
			modelled(t, applied)
		})
	}
	t.Log(applied)
}

// modelled is the life of one map; it counts the applied ops, by name.
func modelled(t *rapid.T, applied map[string]int) {
	m, err := topology.New("t", topology.Config{PartitionWidth: 4 * time.Second, Replicas: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := &model{m: m, owner: map[probe]point.PartitionID{}, rows: map[probe]map[point.PartitionID]bool{}, past: map[*topology.Map]string{m: m.String()}}
	for range rapid.IntRange(1, 100).Draw(t, "steps") {
		w.write(rapid.SampledFrom(probes()).Draw(t, "written"))
		name, op := w.op(t)
		if op == nil {
			continue
		}
		// It goes by wire, as to every metadata server.
		ops, err := topology.DecodeOps(topology.EncodeOps([]topology.Op{op}))
		if err != nil {
			t.Fatal(err)
		}
		next, err := w.m.Apply(ops...)
		if err != nil {
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Stale) || next != nil {
				t.Fatalf("%s: %v, and a map %v", op, err, next)
			}
			continue
		}
		if again, err := next.Apply(op); err != nil || again != next {
			t.Fatalf("%s, a second time: %v, %v", op, err, again)
		}
		if next == w.m {
			continue
		}
		applied[name]++
		encoded := next.Encode()
		if back, err := topology.Decode(encoded); err != nil || back.Digest() != next.Digest() || back.EncodedSize() != next.EncodedSize() || next.EncodedSize() < len(encoded) {
			t.Fatalf("%s: the digest %#x is not that of what is read back (%v)", op, next.Digest(), err)
		}
		if next.Seq != w.m.Seq+1 {
			t.Fatalf("seq %d after %d", next.Seq, w.m.Seq)
		}
		w.follow(t, op, next)
		w.past[next] = next.String()
		w.check(t)
	}
	for m, was := range w.past {
		if m.String() != was {
			t.Fatalf("seq %d was\n%sand is\n%s", m.Seq, was, m)
		}
	}
}

func (w *model) write(k probe) {
	if id := w.owner[k]; id != 0 {
		if w.rows[k] == nil {
			w.rows[k] = map[point.PartitionID]bool{}
		}
		w.rows[k][id] = true
	}
}

// op draws an op on the present map; many make no sense.
func (w *model) op(t *rapid.T) (string, topology.Op) {
	all := slices.Collect(w.m.All())
	now := rapid.Int64Range(-4, 24).Draw(t, "now") * second
	cover := func() (string, topology.Op) {
		return "cover", w.m.Covering(rapid.SliceOfN(rapid.Int64Range(-4*second, 24*second-1), 1, 3).Draw(t, "times"), w.place)
	}
	if len(all) == 0 {
		return cover()
	}
	p := rapid.SampledFrom(all).Draw(t, "partition")
	low := point.PartitionID(1)
	if p.Split != nil {
		low = p.Split.Low.ID
	}
	id := w.m.NextID + point.PartitionID(rapid.IntRange(0, 1).Draw(t, "gap"))
	someone := append(slices.Clone(p.Placements), p.Joining...)
	placed := rapid.SampledFrom(someone).Draw(t, "placement").ID
	switch rapid.IntRange(0, 13).Draw(t, "op") {
	case 0:
		return cover()
	case 1:
		var edges []topology.Edge
		for range rapid.IntRange(1, 6).Draw(t, "edges") {
			e := topology.Edge{At: rapid.Int64Range(-4*second, 24*second).Draw(t, "edge")}
			if rapid.Bool().Draw(t, "upper half") {
				e.PointLo = 1 << 63
			}
			edges = append(edges, e)
		}
		return "presplit", w.m.Presplitting(now, edges, w.place)
	case 2:
		at := topology.AtTime(rapid.Int64Range(p.TimeLo, p.TimeHi).Draw(t, "cut"))
		if rapid.Bool().Draw(t, "by ring") {
			at = topology.AtRing(rapid.Uint64Range(0, 8).Draw(t, "cut") << 61)
		}
		return "begin", topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: at, Low: topology.Child{ID: id, Placements: w.place(0)}, High: topology.Child{ID: id + 1, Placements: w.place(0)}}}
	case 3, 4:
		return "finalize", topology.SplitFinalize{Partition: p.ID, Low: low}
	case 5:
		return "abort", topology.SplitAbort{Partition: p.ID, Low: low}
	case 6:
		for _, q := range all {
			if q.State == topology.Unload {
				p = q
			}
		}
		return "final", topology.UnloadFinal{Partition: p.ID}
	case 7:
		ids := []point.PartitionID{p.ID}
		for _, q := range all {
			if q.ID != p.ID && q.Accepts() && (q.TimeLo == p.TimeHi && q.PointLo == p.PointLo || q.TimeLo == p.TimeLo && q.PointLo == p.PointHi) {
				ids = append(ids, q.ID)
				break
			}
		}
		return "merge", topology.Merge{Partitions: ids, Into: topology.Child{ID: id, Placements: w.place(0)}, ClosedBefore: now}
	case 8:
		return "drop", topology.Drop{IDs: []point.PartitionID{p.ID, rapid.SampledFrom(all).Draw(t, "too").ID}}
	case 9:
		if rapid.IntRange(0, 3).Draw(t, "expires") > 0 {
			return cover()
		}
		m, err := w.m.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: 4 * time.Second, Retention: 4 * time.Second, Replicas: 2}})
		if err != nil {
			t.Fatal(err)
		}
		w.m = m
		return "expire", topology.Expire{Now: now}
	case 10:
		weights := rapid.SampledFrom([][]uint32{{1}, {1, 1}, {1, 2, 1}}).Draw(t, "weights")
		from := rapid.Int64Range(0, 5).Draw(t, "from") * 4 * second
		ranges, err := topology.Spread(w.m.RangesAt(from), weights)
		if err != nil {
			t.Fatal(err)
		}
		return "columns", topology.SetColumns{Now: -5 * second, Layout: topology.Layout{From: from, Weights: weights, Ranges: ranges}}
	case 11:
		w.next += 2
		return "join", topology.Join{Partition: p.ID, Placement: topology.Placement{ID: w.next, Server: rapid.SampledFrom([]topology.ServerID{"s2", "s3", "s4"}).Draw(t, "server")}}
	case 12:
		if rapid.Bool().Draw(t, "live") {
			if len(p.Joining) > 0 {
				placed = p.Joining[0].ID
			}
			return "live", topology.JoinFinalize{Partition: p.ID, Placement: placed}
		}
		return "unjoin", topology.Unjoin{Partition: p.ID, Placement: placed, Lost: rapid.Bool().Draw(t, "lost")}
	}
	for _, q := range all { // of one that has a placement to spare
		if len(q.Placements) > 2 {
			p, placed = q, q.Placements[0].ID
		}
	}
	return "remove", topology.Remove{Partition: p.ID, Placement: placed}
}

// follow applies the op to the model, without looking at how the map did it.
func (w *model) follow(t *rapid.T, op topology.Op, next *topology.Map) {
	was := w.m
	w.m = next
	anew := func(k probe) point.PartitionID { // the map's owner, if it is one that the op made
		p, ok := next.Find(k.ring, k.at)
		if !ok {
			return 0
		}
		if p.ID < was.NextID {
			t.Fatalf("%s gave %v to %s", op, k, p)
		}
		return p.ID
	}
	for _, k := range probes() {
		id := w.owner[k]
		switch op := op.(type) {
		case topology.Create:
			if id == 0 {
				id = anew(k)
			}
		case topology.Presplit:
			if old := slices.Contains(op.Replace, id); id == 0 || old {
				if id = anew(k); old && id == 0 {
					t.Fatalf("%s left %v without an owner", op, k)
				}
				if old {
					delete(w.rows, k) // the proposer would have seen that it is not empty
				}
			}
		case topology.SplitFinalize:
			if id == op.Partition {
				p, _ := was.ByID(id)
				high := k.ring >= p.Split.At.Ring
				if p.Split.At.ByTime {
					high = k.at >= p.Split.At.Time
				}
				if id = p.Split.Low.ID; high {
					id = p.Split.High.ID
				}
			}
		case topology.Merge:
			if slices.Contains(op.Partitions, id) {
				id = op.Into.ID
			}
		case topology.Drop:
			id = w.dropped(k, id, op.IDs)
		case topology.Expire:
			var ids []point.PartitionID
			for p := range was.All() {
				if p.TimeHi <= op.Now-int64(was.Config.Retention) {
					ids = append(ids, p.ID)
				}
			}
			id = w.dropped(k, id, ids)
		case topology.UnloadFinal:
			if w.rows[k][op.Partition] {
				p, _ := was.ByID(op.Partition)
				delete(w.rows[k], p.ID)
				for _, into := range p.Into {
					if q, ok := was.ByID(into); ok && q.Contains(k.ring, k.at) {
						w.rows[k][into] = true
					}
				}
			}
		}
		w.owner[k] = id
	}
}

func (w *model) dropped(k probe, id point.PartitionID, ids []point.PartitionID) point.PartitionID {
	for _, gone := range ids {
		delete(w.rows[k], gone)
	}
	if slices.Contains(ids, id) {
		return 0
	}
	return id
}

func (w *model) check(t *rapid.T) {
	if err := w.m.Check(); err != nil {
		t.Fatalf("%v in\n%v", err, w.m)
	}
	all := slices.Collect(w.m.All())
	if len(all) != w.m.Len() {
		t.Fatalf("%d of %d", len(all), w.m.Len())
	}
	for _, p := range all {
		if q, ok := w.m.ByID(p.ID); !ok || q != p {
			t.Fatalf("%s by its id: %v", p, q)
		}
		if len(p.Placements) == 0 {
			t.Fatalf("%s lies nowhere", p)
		}
	}
	for _, k := range probes() {
		var got point.PartitionID
		if p, ok := w.m.Find(k.ring, k.at); ok {
			got = p.ID
		}
		if got != w.owner[k] {
			t.Fatalf("%v belongs to p%d, the map says p%d in\n%v", k, w.owner[k], got, w.m)
		}
		if k.ring == 0 {
			want := slices.DeleteFunc(slices.Clone(all), func(p *topology.Partition) bool { return p.TimeLo > k.at+second || p.TimeHi <= k.at })
			if got := w.m.Overlapping(k.at, k.at+second); !slices.Equal(got, want) {
				t.Fatalf("overlapping %d: %v, want %v", k.at, got, want)
			}
		}
		for id := range w.rows[k] {
			if p, ok := w.m.ByID(id); !ok || !p.Contains(k.ring, k.at) {
				t.Fatalf("rows of %v lie in p%d, which the map does not show in\n%v", k, id, w.m)
			}
		}
	}
	b := w.m.Encode()
	if back, err := topology.Decode(b); err != nil || !bytes.Equal(back.Encode(), b) {
		t.Fatalf("read back: %v", err)
	}
}

// Columns get the share that their weights give, and between two cuttings no ring point moves that need not.
func TestSpreadMovesAsLittleAsCanBe(t *testing.T) {
	share := func(rs []topology.Range) map[uint32]float64 {
		out := map[uint32]float64{}
		for i, r := range rs {
			hi := 1.0
			if i+1 < len(rs) {
				hi = float64(rs[i+1].Lo) / (1 << 32) / (1 << 32)
			}
			out[r.Column] += hi - float64(r.Lo)/(1<<32)/(1<<32)
		}
		return out
	}
	at := func(rs []topology.Range, ring uint64) uint32 {
		i, _ := slices.BinarySearchFunc(rs, ring, func(r topology.Range, ring uint64) int {
			if r.Lo <= ring {
				return -1
			}
			return 1
		})
		return rs[i-1].Column
	}
	rapid.Check(t, func(t *rapid.T) {
		var old []topology.Range
		before := map[uint32]float64{}
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			weights := rapid.SliceOfN(rapid.Uint32Range(0, 5), 1, 9).Draw(t, "weights")
			sum := 0.0
			for _, w := range weights {
				sum += float64(w)
			}
			rs, err := topology.Spread(old, weights)
			if sum == 0 {
				if !fault.Is(err, fault.Invalid) {
					t.Fatal(err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			after := share(rs)
			for c := range maps.Keys(after) {
				if int(c) >= len(weights) || weights[c] == 0 {
					t.Fatalf("column %d has no weight in %v and owns of %v", c, weights, rs)
				}
			}
			must := 0.0 // the least that has to move: all that columns gain
			for c, w := range weights {
				if d := after[uint32(c)] - float64(w)/sum; d > 1e-12 || d < -1e-12 {
					t.Fatalf("column %d of %v has %v", c, weights, after[uint32(c)])
				}
				must += max(0, after[uint32(c)]-before[uint32(c)])
			}
			if old != nil {
				cuts := []uint64{}
				for _, r := range append(slices.Clone(old), rs...) {
					cuts = append(cuts, r.Lo)
				}
				slices.Sort(cuts)
				moved := 0.0
				for i, lo := range slices.Compact(cuts) {
					hi := 1.0
					if c := slices.Compact(cuts); i+1 < len(c) {
						hi = float64(c[i+1]) / (1 << 32) / (1 << 32)
					}
					if at(old, lo) != at(rs, lo) {
						moved += hi - float64(lo)/(1<<32)/(1<<32)
					}
				}
				if moved > must+1e-9 {
					t.Fatalf("%v moved, %v must, from %v to %v", moved, must, old, rs)
				}
			}
			old, before = rs, after
		}
	})
}
