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
