package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestStagedRowsKeepTheirSeries: in the order in which a sender repeats them, in any other, and several of one series.
func TestStagedRowsKeepTheirSeries(t *testing.T) {
	x := series.New()
	var all []point.Labels
	for i := range 100 {
		all = append(all, point.MakeLabels(point.MetricName, "m", "host", fmt.Sprint(i)))
	}
	refs := x.InternAll(all, nil)
	backward := slices.Clone(refs)
	slices.Reverse(backward)
	for name, of := range map[string][]series.Ref{
		"rising": refs, "some": {refs[3], refs[5], refs[50]}, "one": refs[7:8], "backward": backward, "around": slices.Concat(refs[50:], refs[:50]),
		"each twice": slices.Concat(refs, refs), "side by side": {refs[1], refs[1], refs[2]},
	} {
		c := containers.Get().(*container)
		r := &partition.Rows{Refs: of, Times: make([]point.Nanos, len(of)), Values: make([]float64, len(of))}
		f := c.fill(x, r)
		if len(f.IDs) != len(of) {
			t.Errorf("%s: %d rows of %d", name, len(f.IDs), len(of))
		}
		for i, id := range f.IDs {
			if f.Defs[id] != x.Labels(of[i]) {
				t.Errorf("%s: row %d is of %s, want %s", name, i, f.Defs[id], x.Labels(of[i]))
			}
		}
		seen := map[point.Labels]bool{}
		for _, l := range f.Defs {
			if seen[l] {
				t.Errorf("%s: %s is defined twice", name, l)
			}
			seen[l] = true
		}
		c.put()
	}
}
