package query_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/spillwaydb/spillway/gateway/query"
)

// TestHowMuchOfDashboardsIsCut compiles what dashboards ask (testdata/dashboards.txt), and compares how much of each query is evaluated over columns
// with what the file says.
func TestHowMuchOfDashboardsIsCut(t *testing.T) {
	text, err := os.ReadFile("testdata/dashboards.txt")
	if err != nil {
		t.Fatal(err)
	}
	st, all := fleet(t), map[string]int{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		want, expr, _ := strings.Cut(line, " ")
		reg := prometheus.NewRegistry()
		r, err := query.New(query.Deps{Source: st, Registerer: reg}, query.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		q, err := r.Engine().NewRangeQuery(context.Background(), r.Table("default"), nil, strings.TrimSpace(expr), time.Unix(5, 0), time.Unix(9, 0), time.Second)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		if res := q.Exec(t.Context()); res.Err != nil {
			t.Errorf("%s: %v", expr, res.Err)
		}
		got := extentOf(t, reg)
		if all[got]++; got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
	t.Logf("of what dashboards ask: %v", all)
}

// extentOf is the label of the only query that was counted.
func extentOf(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "spillway_query_columnar_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() > 0 {
				return label(m, "extent")
			}
		}
	}
	return ""
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
