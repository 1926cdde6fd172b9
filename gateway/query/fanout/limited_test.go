package fanout

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestLimitedSeriesAreTheFirstOfAllServers asks servers that have some series in common and some alone, and of which one is of an older version and returns all.
func TestLimitedSeriesAreTheFirstOfAllServers(t *testing.T) {
	w := newWorld(t)
	for i, id := range w.All() {
		b := point.GetBatch(point.NewDict(0))
		for k := range 40 {
			if k%(i+2) == 0 || k%7 == i {
				b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "k", fmt.Sprintf("%02d", k))), int64(i)*1e9, 1)
			}
		}
		if err := querytest.Inserter(w.servers[id].Store, "t", point.PartitionID(i+1))(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	w.servers["n2"].old = true
	list := func(limit int) (all []point.Labels) {
		set, err := w.source.Select(t.Context(), &peer.Select{Table: "t", Hi: 1e18, LabelsOnly: true, Limit: limit, SeriesMax: max(limit, 100)})
		if err != nil {
			t.Fatal(err)
		}
		for set.Next() {
			all = append(all, set.At().Labels)
		}
		if set.Err() != nil || set.Close() != nil {
			t.Fatal(set.Err())
		}
		return all
	}
	all := list(0)
	for limit := 1; limit <= len(all)+1; limit++ {
		if got := list(limit); !slices.Equal(got, all[:min(limit, len(all))]) {
			t.Errorf("the first %d are %v", limit, got)
		}
	}
}
