package pathtest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAggregatesTravelAndNotTheirRows: of 1,200 series in 12 groups, on three servers that each have a part of every group, at most four times the bytes of the answer travel to the
// gateway: a state of each group from each server. The rows would be dozens of times as many.
func TestAggregatesTravelAndNotTheirRows(t *testing.T) {
	s := openSpread(t, 3, true, 4000*time.Second, 6)
	defer func() { s.must(s.close()) }()
	const series, groups, rows = 1200, 12, 60
	b := point.GetBatch(point.NewDict(0))
	for i := range series {
		id := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "c", "group", fmt.Sprint("g", i%groups), "i", fmt.Sprint(i)))
		for at := range rows {
			b.Append(id, point.Nanos(at)*10e9, float64(at*i)/7)
		}
	}
	s.must(s.insert(t.Context(), b))
	r, err := query.New(query.Deps{Source: s.source}, query.Settings{})
	s.must(err)
	for _, expr := range []string{
		"sum by (group) (rate(c[1m]))", "avg by (group) (c)", "min by (group) (c)", "max by (group) (max_over_time(c[1m]))", "count by (group) (c)", "sum by (group) (c)", "group by (group) (c)",
		"stddev by (group) (c)", "sum by (group) (c > 100)", "sum by (group) (increase(c[2m])) / 2",
	} {
		ctx, explained := query.WithExplained(t.Context())
		q, err := r.Engine().NewRangeQuery(ctx, r.Table(promqlsuite.Table), nil, expr, time.Unix(60, 0), time.Unix(590, 0), 10*time.Second)
		s.must(err)
		res := q.Exec(ctx)
		s.must(res.Err)
		answer, err := json.Marshal(res.Value)
		s.must(err)
		moved, read, servers := int64(0), 0, map[string]bool{}
		for _, p := range explained.Show().Parts {
			if p.What != "evaluated" {
				t.Errorf("%s: %+v", expr, p)
			}
			moved, read = moved+p.Bytes, read+p.Rows
			servers[p.Server] = true
		}
		t.Logf("%s: %d bytes of answer, %d moved, %d rows read", expr, len(answer), moved, read)
		if moved == 0 || moved > 4*int64(len(answer)) || len(servers) != 3 || read < series*rows/2 {
			t.Errorf("%s: an answer of %d bytes moved %d from %d servers, which read %d rows", expr, len(answer), moved, len(servers), read)
		}
	}
}
