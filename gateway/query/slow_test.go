package query_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestASlowQueryIsLoggedWithItsExplanation: one that lasts longer than slow_after, and no other.
func TestASlowQueryIsLoggedWithItsExplanation(t *testing.T) {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	for i := range 60 {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m")), int64(i)*10e9, float64(i))
	}
	if err := querytest.Inserter(st, "t", 1)(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]bool{time.Millisecond: true, time.Hour: false} {
		var out bytes.Buffer
		r, err := query.New(query.Deps{Source: slowStore{st}, Log: slog.New(slog.NewJSONHandler(&out, nil))}, query.Settings{SlowAfter: setting.Span(after)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := r.Engine().NewRangeQuery(t.Context(), r.Table("t"), nil, "sum(rate(m[1m]))", time.Unix(60, 0), time.Unix(500, 0), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Exec(t.Context()).Err; err != nil {
			t.Fatal(err)
		}
		q.Close()
		if !want {
			if out.Len() > 0 {
				t.Errorf("after %v: %s", after, out.Bytes())
			}
			continue
		}
		var line struct {
			Msg, Table, Kind, Query, Columns string
			Took                             int64
			ReadAsRows                       int `json:"read_as_rows"`
			Rows                             int
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err, out.String())
		}
		if line.Msg != "slow query" || line.Table != "t" || line.Query != "sum(rate(m[1m]))" || line.Columns != "whole" || line.Took <= 0 || line.ReadAsRows != 1 || line.Rows == 0 {
			t.Errorf("logged %s", out.Bytes())
		}
	}
}

// slowStore begins after a while.
type slowStore struct{ *querytest.Store }

// Select implements peer.Storage.
func (s slowStore) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	time.Sleep(2 * time.Millisecond) // longer than the slowest query that is not logged
	return s.Store.Select(ctx, q)
}
