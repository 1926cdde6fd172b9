package processtest

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/point"
)

// AskTable evaluates a query of a fleet's dashboards over a table, at a time or up to it.
func AskTable(b *testing.B, r *query.Reader, table string, q fleet.Query, end time.Time) {
	var in promql.Query
	var err error
	if q.Span == 0 {
		in, err = r.Engine().NewInstantQuery(b.Context(), r.Table(table), nil, q.Expr, end)
	} else {
		in, err = r.Engine().NewRangeQuery(b.Context(), r.Table(table), nil, q.Expr, end.Add(-q.Span), end, q.Step)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	if res := in.Exec(b.Context()); res.Err != nil {
		b.Fatal(res.Err)
	}
}

// InternPairs interns the series of pairs of names and values.
func InternPairs(b *testing.B, d *point.Dict, pairs [][2]string) point.SeriesID {
	var lb point.LabelsBuilder
	for _, p := range pairs {
		lb.Add([]byte(p[0]), []byte(p[1]))
	}
	l, err := lb.Labels()
	if err != nil {
		b.Fatal(err)
	}
	id, err := d.InternLabels(l, d.Hash([]byte(l)))
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// Median returns the median of some figures, at least one, and sorts them.
func Median[T float64 | time.Duration](of []T) T {
	slices.Sort(of)
	return of[len(of)/2]
}
