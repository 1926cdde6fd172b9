package runner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestRowsOfNeighbouringRequestsGoInOneFrame, with the highest of their ranks, and never with a higher one; rows of others keep theirs.
func TestRowsOfNeighbouringRequestsGoInOneFrame(t *testing.T) {
	const base = point.Stamp(1000 * rankUnit)
	s := &slice{unit: rankUnit, open: map[point.Stamp]*building{}}
	for i, ranks := range [][]point.Stamp{{base + 1, base + rankUnit - 1, base + rankUnit}, {base + 7, base + 5*rankUnit + 3}} {
		run := rows.Run{Ranks: ranks}
		for at := range ranks {
			run.Times, run.Values = append(run.Times, int64(at)), append(run.Values, float64(10*i+at))
		}
		if i == 1 {
			run.Hists, run.HistRanks = []peer.Hist{{Time: 9, H: []byte{1}}}, []point.Stamp{base + rankUnit + 2}
		}
		if err := s.take(&Series{Labels: point.MakeLabels("__name__", fmt.Sprint("m", i)), Run: run}); err != nil {
			t.Fatal(err)
		}
	}
	s.finish()
	var got []string
	for _, f := range s.frames {
		text := fmt.Sprintf("%d+%d:", (f.Stamp-base)/rankUnit, f.Stamp%rankUnit)
		for i, id := range f.IDs {
			text += fmt.Sprintf(" %s@%d=%v", f.Defs[id].Get("__name__"), f.Times[i], f.Values[i])
		}
		for _, h := range f.Hists {
			text += fmt.Sprintf(" %s@%d", f.Defs[h.ID].Get("__name__"), h.Time)
		}
		got = append(got, text)
	}
	want := []string{fmt.Sprintf("0+%d: m0@0=0 m0@1=1 m1@0=10", rankUnit-1), "1+2: m0@2=2 m1@9", "5+3: m1@1=11"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestWhereASliceThatWasTooFullEndsNext: behind the rows of the first time at the earliest, and before it where nothing else was seen.
func TestWhereASliceThatWasTooFullEndsNext(t *testing.T) {
	f := func(why string, from, end, want point.Nanos, series int, runs ...[]point.Nanos) {
		t.Helper()
		s := &slice{bytesMax: 200, unit: rankUnit, open: map[point.Stamp]*building{}}
		err := error(nil)
		for i := 0; i < len(runs) && err == nil; i++ {
			run := rows.Run{Times: runs[i], Values: make([]float64, len(runs[i])), Ranks: make([]point.Stamp, len(runs[i]))}
			err = s.take(&Series{At: i, Of: series, Labels: point.MakeLabels("__name__", "m"), Run: run})
		}
		if !IsFull(err) {
			t.Fatalf("%s: %v", why, err)
		}
		if got := s.narrower(from, end); got != want {
			t.Errorf("%s: a slice from %d to %d ends at %d, want %d", why, from, end, got, want)
		}
	}
	many := make([]point.Nanos, 1000)
	for i := range many {
		many[i] = int64(i)
	}
	f("rows all over it", 0, 1000, 6, 1, many)
	f("rows of many series", 0, 1000, 3, 2, many)
	f("two times", 0, 1000, 900, 4, []point.Nanos{100, 900}, []point.Nanos{100, 900}, []point.Nanos{100})
	f("two times, of which each series has one", 0, 1000, 900, 4, []point.Nanos{900}, []point.Nanos{100}, []point.Nanos{100})
	f("one time", 0, 1000, 100, 4, []point.Nanos{100}, []point.Nanos{100}, []point.Nanos{100})
	f("one time, with which it begins", 100, 1000, 101, 4, []point.Nanos{100}, []point.Nanos{100}, []point.Nanos{100})
	f("the first two nanoseconds", 0, 2, 1, 4, []point.Nanos{0, 1}, []point.Nanos{0, 1})
}
