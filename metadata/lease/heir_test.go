package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestTheParentsLeaderWaitsNoTurnForAHalf, in whatever order the map of a split, the rows that its transaction wrote and heartbeats reach it: the transaction that acquires both halves is
// on its way as soon as the map is there, without time going by. It holds its share by then, and comes last in the chain.
func TestTheParentsLeaderWaitsNoTurnForAHalf(t *testing.T) {
	parent := Partition{"cpu", 1}
	placements := func(id point.PartitionID) (all []topology.Placement) {
		for i, s := range []topology.ServerID{"s2", "s3", "s1"} {
			all = append(all, topology.Placement{ID: point.PlacementID(10*int(id) + i), Server: s})
		}
		return all
	}
	half := func(id point.PartitionID) Assigned {
		return Assigned{Partition: Partition{"cpu", id}, Placement: placements(id)[2].ID, Placements: placements(id), Parents: []point.PartitionID{1}, TableRow: 100, Seq: 2}
	}
	watched := func(key string, value []byte, rev coord.Revision) Input {
		return Watched{[]coord.Event{{Row: coord.Row{Key: key, Value: value, Revision: rev}}}}
	}
	beat := func(s topology.ServerID, n uint64, held int, rev coord.Revision) Input {
		b := Beat{Server: s, Boot: Boot("b-" + s), Store: StoreID("d-" + s), N: n, Held: held, Guards: true}
		return watched(BeatKey(s), b.Encode(), rev)
	}
	sealed := ourRow
	sealed.Seq = 2
	events := []Input{
		Assignments{[]Assigned{half(2), half(3)}},
		MapIs{Table: "cpu", Seq: 2, TableRow: 100},
		watched(RowKey(parent), sealed.Encode(), 100),
		beat("s2", 2, 0, 101),
		beat("s3", 2, 4, 102),
		Tick{Wall: time.Unix(1_800_000_000, 0)},
	}
	for order := range permutations(len(events)) {
		h := newHand(t)
		h.step(0, Assignments{[]Assigned{assigned(parent)}})
		renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
		scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
		h.step(ms(30), beat("s2", 1, 1, 3))
		h.step(ms(30), beat("s3", 1, 1, 4))
		h.step(ms(40), Answer{ID: scan, Outcome: Done, Revision: 60, Rows: []coord.Row{
			{Key: BeatKey("s1"), Value: Beat{Server: "s1", Boot: "b1", Store: "d1", N: 1, Guards: true}.Encode(), Revision: 2},
			{Key: BeatKey("s2"), Value: Beat{Server: "s2", Boot: "b-s2", Store: "d-s2", N: 1, Held: 1, Guards: true}.Encode(), Revision: 3},
			{Key: BeatKey("s3"), Value: Beat{Server: "s3", Boot: "b-s3", Store: "d-s3", N: 1, Held: 1, Guards: true}.Encode(), Revision: 4},
			{Key: RowKey(parent), Value: ourRow.Encode(), Revision: 59}, {Key: BornKey(parent), Value: []byte(`{"v":1}`), Revision: 59},
		}})
		if _, ok := h.m.MayAct(parent, ms(41)); !ok {
			t.Fatal("s1 does not lead the parent")
		}
		var taken []string
		for _, i := range order {
			for _, e := range h.step(ms(50), events[i]) {
				c, ok := e.(Commit)
				for _, w := range c.Writes {
					if p, is := ParseRowKey(w.Key); ok && is && p != parent {
						taken = append(taken, w.Key)
					}
				}
			}
		}
		if want := []string{RowKey(Partition{"cpu", 2}), RowKey(Partition{"cpu", 3})}; !slices.Equal(taken, want) {
			t.Fatalf("in the order %v it asks for %v, want %v", order, taken, want)
		}
	}
}

// permutations yields all orders of n things.
func permutations(n int) func(func([]int) bool) {
	return func(yield func([]int) bool) {
		var more func(rest, taken []int) bool
		more = func(rest, taken []int) bool {
			if len(rest) == 0 {
				return yield(taken)
			}
			for i, x := range rest {
				if !more(slices.Concat(rest[:i], rest[i+1:]), append(slices.Clone(taken), x)) {
					return false
				}
			}
			return true
		}
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		more(all, nil)
	}
}
