package topology_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func place(point.PartitionID) []topology.Placement {
	return []topology.Placement{{ID: 1, Server: "s1"}}
}

// The map against a naive one: after any covers, drops and changes of width, every covered time has exactly one
// partition, and the map it is stored as is the map that is read.
func TestCoverKeepsOneOwnerPerKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 24 * time.Hour})
		m, err := topology.New("t", topology.Config{PartitionWidth: width.Draw(t, "width")})
		if err != nil {
			t.Fatal(err)
		}
		covered := map[int64]bool{}
		anyTime := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1e11, 1e11), rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64 - 1, 0, -1}))
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				m, err = m.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: width.Draw(t, "width")}})
				if err != nil {
					t.Fatal(err)
				}
			case 1:
				if m.Len() > 0 {
					p := rapid.SampledFrom(slices.Collect(m.All())).Draw(t, "dropped")
					m, err = m.Apply(topology.Drop{IDs: []point.PartitionID{p.ID}})
					if err != nil {
						t.Fatal(err)
					}
					for at := range covered {
						if p.Contains(0, at) {
							delete(covered, at)
						}
					}
				}
			default:
				times := rapid.SliceOfN(anyTime, 1, 5).Draw(t, "times")
				before := m.Seq
				m = m.Cover(times, place)
				for _, at := range times {
					covered[at] = true
				}
				if again := m.Cover(times, place); again != m {
					t.Fatalf("covering the same times twice changed the map: seq %d, %d, %d", before, m.Seq, again.Seq)
				}
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			for at := range covered {
				if at == math.MaxInt64 {
					continue // no half-open interval of int64 can hold it; Cover leaves it out
				}
				if p, ok := m.Find(0, at); !ok || !p.Contains(0, at) {
					t.Fatalf("time %d lies nowhere in\n%v", at, m)
				}
			}
		}
		got, err := topology.Decode(m.Encode())
		if err != nil || got.String() != m.String() {
			t.Fatalf("read back %v %v, stored %v", got, err, m)
		}
	})
}

func TestExpiredCountsWholePartitions(t *testing.T) {
	day := int64(24 * time.Hour)
	m, err := topology.New("t", topology.Config{PartitionWidth: 24 * time.Hour, Retention: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]int64{0, day, 2 * day, 3 * day}, place)
	f := func(now int64, want ...point.PartitionID) {
		t.Helper()
		got := m.Expired(now)
		if len(got) != len(want) {
			t.Errorf("at %d: %v, want %v", now, got, want)
		}
	}
	f(2 * day)
	f(3*day - 1) // one nanosecond of the first day is still inside the retention
	f(3*day, 1)
	f(5*day, 1, 2, 3)
}

// The parts of one split or merge expire together: half gone would leave keys without an owner, or lose rows.
func TestExpiredCountsWholeFamilies(t *testing.T) {
	day := int64(24 * time.Hour)
	m, err := topology.New("t", topology.Config{PartitionWidth: 24 * time.Hour, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	must := func(ops ...topology.Op) {
		t.Helper()
		if m, err = m.Apply(ops...); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(now int64, want ...point.PartitionID) {
		t.Helper()
		got := m.Expired(now)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("at %d: %v, want %v", now, got, want)
		}
		after, err := m.Apply(topology.Drop{IDs: got})
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(0); at < 3*day; at += day / 4 { // a key without an owner has no partition at all
			if _, owned := after.Find(0, at); !owned && len(after.Overlapping(at, at)) > 0 {
				t.Errorf("at %d: %d has no owner in\n%v", now, at, after)
			}
		}
	}
	m = m.Cover([]int64{0, day, 2 * day}, place) // 1, 2, 3
	child := func(id point.PartitionID) topology.Child {
		p, _ := m.ByID(1)
		return topology.Child{ID: id, Placements: p.Placements}
	}
	must(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(day / 2), Low: child(4), High: child(5)}},
		topology.SplitFinalize{Partition: 1, Low: 4})
	holds(day + day/2)       // 4 is over, and 1 still unloads into it
	holds(2*day, 1, 4, 5)    // all are over
	holds(3*day, 1, 2, 4, 5) // and the next, which has no family
	unloading := m
	must(topology.UnloadFinal{Partition: 1})
	holds(day+day/2, 4)
	m = unloading
	must(topology.Merge{Partitions: []point.PartitionID{2, 3}, Into: child(6), ClosedBefore: 3 * day})
	holds(3*day, 1, 4, 5) // 2 unloads into 6, which is not over
	holds(4*day, 1, 2, 3, 4, 5, 6)
	if got := m.Droppable([]point.PartitionID{1, 2, 3, 4, 6, 99}); !slices.Equal(got, []point.PartitionID{2, 3, 6}) {
		t.Errorf("without 5: %v", got)
	}
}

func TestConfigRefusals(t *testing.T) {
	f := func(c topology.Config) {
		t.Helper()
		if _, err := topology.New("t", c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	f(topology.Config{})
	f(topology.Config{PartitionWidth: time.Millisecond})
	f(topology.Config{PartitionWidth: time.Hour, Retention: -1})
	f(topology.Config{PartitionWidth: time.Hour, Retention: time.Minute})
}
