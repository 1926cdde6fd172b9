package fanout

import (
	"testing"

	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAckedRowsAreReadWhileTheyWait: a row is staged on n2, and no partition has it. It is in the answer.
func TestAckedRowsAreReadWhileTheyWait(t *testing.T) {
	inWorld(t, func(w *world) {
		n2 := w.servers["n2"]
		n2.staged = querytest.NewStore()
		b := point.GetBatch(point.NewDict(0))
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", "waits")), 7e9, 1)
		if err := querytest.Inserter(n2.staged, "t", 1)(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		w.reads(whole)
		w.source.deps.Staged = func(string) []topology.ServerID { return []topology.ServerID{"n2"} }
		w.reads(whole + ", waits: 7")
	})
}
