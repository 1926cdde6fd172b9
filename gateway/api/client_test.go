package api_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	promapi "github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
)

// TestClientGolangUnderstandsEveryAnswer calls the API through the client that most programs use.
func TestClientGolangUnderstandsEveryAnswer(t *testing.T) {
	srv := httptest.NewServer(newAPI(t, harbour(t), query.Settings{}, api.Settings{Admin: true}))
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	c, err := promapi.NewClient(promapi.Config{Address: srv.URL, Client: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	v1, ctx := promv1.NewAPI(c), context.Background()
	at := func(s float64) time.Time { return time.UnixMilli(int64(s * 1000)) }
	lo, hi := time.Unix(0, 0), at(200)
	ok := func(what string, err error, good bool, got any) {
		t.Helper()
		if err != nil || !good {
			t.Errorf("%s: %v, error %v", what, got, err)
		}
	}

	value, _, _, err := v1.Query(ctx, "boat_miles_total", at(30))
	vec, _ := value.(model.Vector)
	ok("query", err, len(vec) == 2 && vec[1].Value == 6.5 && vec[1].Metric["boat"] == "berta", value)

	value, _, _, err = v1.Query(ctx, "load", at(95))
	vec, _ = value.(model.Vector)
	ok("histogram", err, len(vec) == 1 && vec[0].Histogram != nil && vec[0].Histogram.Count == 9 && len(vec[0].Histogram.Buckets) == 4, value)

	value, _, _, err = v1.Query(ctx, "1+1", at(4))
	sc, _ := value.(*model.Scalar)
	ok("health check", err, sc != nil && sc.Value == 2 && sc.Timestamp == 4000, value)

	value, warnings, _, err := v1.QueryRange(ctx, "boat_miles_total", promv1.Range{Start: lo, End: at(90), Step: 10 * time.Second}, promv1.WithLimit(1))
	mat, _ := value.(model.Matrix)
	ok("query_range", err, len(mat) == 1 && len(mat[0].Values) == 10 && len(warnings) == 1, value)

	names, _, _, err := v1.LabelNames(ctx, nil, lo, hi)
	ok("labels", err, len(names) == 6, names)
	values, _, _, err := v1.LabelValues(ctx, "a.b", nil, lo, hi)
	ok("label values", err, len(values) == 1, values)
	series, _, _, err := v1.Series(ctx, []string{"boat_miles_total"}, lo, hi)
	ok("series", err, len(series) == 2, series)
	exemplars, err := v1.QueryExemplars(ctx, "boat_miles_total", lo, hi)
	ok("exemplars", err, len(exemplars) == 1 && exemplars[0].Exemplars[0].Value == 1.5, exemplars)
	metadata, err := v1.Metadata(ctx, "wind", "")
	ok("metadata", err, len(metadata["wind"]) == 1 && metadata["wind"][0].Type == "gauge", metadata)
	rules, err := v1.Rules(ctx, nil)
	ok("rules", err, rules.Groups != nil && len(rules.Groups) == 0, rules)
	alerts, err := v1.Alerts(ctx)
	ok("alerts", err, alerts.Alerts != nil && len(alerts.Alerts) == 0, alerts)
	managers, err := v1.AlertManagers(ctx)
	ok("alertmanagers", err, managers.Active != nil, managers)
	targets, err := v1.Targets(ctx)
	ok("targets", err, targets.Active != nil, targets)
	build, err := v1.Buildinfo(ctx)
	ok("buildinfo", err, build.Revision == "abc", build)
	run, err := v1.Runtimeinfo(ctx)
	ok("runtimeinfo", err, run.GOMAXPROCS > 0 && !run.StartTime.IsZero(), run)
	config, err := v1.Config(ctx)
	ok("config", err, config.YAML != "", config)
	flags, err := v1.Flags(ctx)
	ok("flags", err, flags["config.file"] != "", flags)
	tsdb, err := v1.TSDB(ctx)
	ok("tsdb", err, tsdb.HeadStats.NumSeries == 5, tsdb)
	replay, err := v1.WalReplay(ctx)
	ok("walreplay", err, replay.Max == 0, replay)
	err = v1.DeleteSeries(ctx, []string{"wind"}, lo, hi)
	ok("delete", err, true, nil)

	_, _, _, err = v1.Query(ctx, "sum(", at(30))
	perr, _ := err.(*promv1.Error)
	ok("bad query", nil, perr != nil && perr.Type == promv1.ErrBadData, err)
}
