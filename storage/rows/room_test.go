package rows

import (
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// roomy returns a run of n rows with room for more behind its values.
func roomy(n, more int) Run {
	r := Run{StampLo: 1, StampHi: 1}
	r.Reserve(make([]float64, 0, n+more))
	for i, into := 0, r.Extend(n, 0); i < n; i++ {
		r.Times, into[i] = append(r.Times, point.Nanos(i)), float64(i)
	}
	return r
}

func TestLaterValuesFollowInTheRoomOfTheFirst(t *testing.T) {
	var m Merger
	second := Run{Times: []point.Nanos{10, 11}, Values: []float64{5, 6}}
	m.Merge([]Run{roomy(3, 2), second}) // its times are joined
	first := roomy(3, 2)
	got := m.Merge([]Run{first, second})
	if &got.Values[0] != &first.Values[0] {
		t.Error("the values moved, though there is room")
	}
	if want := []float64{0, 1, 2, 5, 6}; !slices.Equal(got.Values, want) {
		t.Errorf("merged %v, want %v", got.Values, want)
	}
}

// TestRowsBehindACutKeepTheirValues: a deletion makes two runs of one, in one piece of memory.
func TestRowsBehindACutKeepTheirValues(t *testing.T) {
	whole := roomy(6, 4)
	before, after := whole, whole
	before.Cut(0, 1)
	after.Cut(4, 5)
	copy(before.Extend(4, 0), []float64{20, 21, 22, 23})
	if want := []float64{4, 5}; !slices.Equal(after.Values, want) {
		t.Errorf("the rows behind the cut are now %v, want %v", after.Values, want)
	}
	at := &after.Values[0]
	copy(after.Extend(4, 0), []float64{30, 31, 32, 33})
	if want := []float64{4, 5, 30, 31, 32, 33}; !slices.Equal(after.Values, want) || &after.Values[0] != at {
		t.Errorf("the rows behind the cut are now %v, want %v in the same memory", after.Values, want)
	}
}

// TestCapacityIsNoRoom: a part of other values has capacity that is not its own.
func TestCapacityIsNoRoom(t *testing.T) {
	all := []float64{1, 2, 3, 4}
	part := Run{Values: all[:2]}
	copy(part.Extend(2, 0), []float64{8, 9})
	if want := []float64{1, 2, 3, 4}; !slices.Equal(all, want) {
		t.Errorf("values of others changed to %v", all)
	}
	if want := []float64{1, 2, 8, 9}; !slices.Equal(part.Values, want) {
		t.Errorf("extended to %v, want %v", part.Values, want)
	}
}

func TestRoomFilledTwiceIsFoundUnderTheRaceDetector(t *testing.T) {
	if !checked {
		t.Skip("only with -race")
	}
	defer func() {
		if recover() == nil {
			t.Error("two copies of a run filled the same room, and nothing said so")
		}
	}()
	a := roomy(2, 2)
	b := a
	copy(a.Extend(2, 0), []float64{1, 2})
	b.Extend(2, 0)
}
