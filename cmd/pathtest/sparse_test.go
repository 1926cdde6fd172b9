package pathtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestFewRowsOverManyStepsNeedNoMemoryForEachStep: each of many series has a row, and all rows come with one question to a server. While a column of all
// steps was kept for each series such a query needed many times the memory of its result, and failed.
func TestFewRowsOverManyStepsNeedNoMemoryForEachStep(t *testing.T) {
	s := &spread{tb: t, copies: 1, stretchTime: 24 * time.Hour}
	s.start(3, true, 100*time.Second, 1)
	defer func() { s.must(s.close()) }()
	const series, steps = 2000, 10_000
	b := point.GetBatch(point.NewDict(0))
	for i := range series {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))), int64(i%steps)*1e9, float64(i))
	}
	s.must(s.insert(t.Context(), b))
	r, err := query.New(query.Deps{Source: s.source, Memory: budget.New("queries", 96<<20), Processors: 2}, query.Settings{})
	s.must(err)
	q, err := r.Engine().NewRangeQuery(t.Context(), r.Table(promqlsuite.Table), nil, "m", time.Unix(0, 0), time.Unix(steps-1, 0), time.Second)
	s.must(err)
	res := q.Exec(t.Context())
	s.must(res.Err)
	if m, ok := res.Value.(promql.Matrix); !ok || len(m) != series {
		t.Errorf("%d of %d series", len(m), series)
	}
	if n := plansOf(t, s.reg, "whole"); n != 1 {
		t.Errorf("%v plans were read as rows", n)
	}
}
