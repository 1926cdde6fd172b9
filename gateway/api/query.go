package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const truncated = "results truncated due to limit"

// instant evaluates at one time: now by default.
func (a *API) instant(c *call) (answer, error) {
	limit, err := c.limit()
	if err != nil {
		return answer{}, err
	}
	t, err := c.timeParam("time", a.clock.Now())
	if err != nil {
		return answer{}, err
	}
	if err := evaluable(t); err != nil {
		return answer{}, invalidParam("time", err)
	}
	return a.evaluate(c, limit, func(ctx context.Context, opts promql.QueryOpts) (promql.Query, error) {
		return a.query.Engine().NewInstantQuery(ctx, c.table, opts, c.Form.Get("query"), t)
	})
}

// ranged evaluates at every step from start to end.
func (a *API) ranged(c *call) (answer, error) {
	limit, err := c.limit()
	if err != nil {
		return answer{}, err
	}
	start, end, step, err := c.steps(a.settings.PointsMax)
	if err != nil {
		return answer{}, err
	}
	return a.evaluate(c, limit, func(ctx context.Context, opts promql.QueryOpts) (promql.Query, error) {
		return a.query.Engine().NewRangeQuery(ctx, c.table, opts, c.Form.Get("query"), start, end, step)
	})
}

func (c *call) steps(pointsMax int) (start, end time.Time, step time.Duration, err error) {
	fail := func(name string, err error) (time.Time, time.Time, time.Duration, error) {
		return time.Time{}, time.Time{}, 0, invalidParam(name, err)
	}
	if start, err = parseTime(c.Form.Get("start")); err == nil {
		err = evaluable(start)
	}
	if err != nil {
		return fail("start", err)
	}
	if end, err = parseTime(c.Form.Get("end")); err == nil {
		err = evaluable(end)
	}
	if err != nil {
		return fail("end", err)
	}
	if end.Before(start) {
		return fail("end", errors.New("end timestamp must not be before start time"))
	}
	if step, err = parseDuration(c.Form.Get("step")); err != nil {
		return fail("step", err)
	}
	if step < time.Millisecond && step > 0 {
		return fail("step", errors.New("steps shorter than a millisecond are not accepted"))
	}
	if step <= 0 {
		return fail("step", errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer"))
	}
	if end.Sub(start)/step > time.Duration(pointsMax) {
		err := badDataf("exceeded maximum resolution of %s points per timeseries. Try decreasing the query resolution (?step=XX)", thousands(pointsMax))
		return time.Time{}, time.Time{}, 0, err
	}
	return start, end, step, nil
}

// evaluable refuses times that the engine, which counts in nanoseconds, would turn into others.
func evaluable(t time.Time) error {
	if s := t.Unix(); s <= math.MinInt64/int64(time.Second) || s >= math.MaxInt64/int64(time.Second) {
		return fmt.Errorf("cannot evaluate at %s: only the years 1678 to 2261 are", t.Format(time.RFC3339))
	}
	return nil
}

// thousands prints 11000 as 11,000.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// evaluate runs a query. The answer holds its result and closes it.
func (a *API) evaluate(c *call, limit int, parse func(context.Context, promql.QueryOpts) (promql.Query, error)) (answer, error) {
	ctx := c.ctx
	if v := c.Form.Get("timeout"); v != "" {
		d, err := parseDuration(v)
		if err != nil {
			return answer{}, invalidParam("timeout", err)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	opts, err := c.options()
	if err != nil {
		return answer{}, err
	}
	var explained *query.Explained
	if v := c.Form.Get("explain"); v == "1" || v == "true" {
		ctx, explained = query.WithExplained(ctx)
	}
	q, err := parse(ctx, opts)
	switch {
	case fault.Is(err, fault.Throttled) || fault.Is(err, fault.TooLarge):
		return answer{}, err
	case err != nil:
		return answer{}, invalidParam("query", err)
	}
	ended := false
	defer func() {
		if !ended { // net/http goes on after a panic, and the query's memory would stay booked
			q.Close()
		}
	}()
	res := q.Exec(ctx)
	ended = true
	if res.Err != nil {
		return answer{close: q.Close}, execution(res.Err)
	}
	ans := answer{close: q.Close}
	ans.warnings, ans.infos = res.Warnings.AsStrings(q.String(), annotationsMax, annotationsMax)
	sort.Strings(ans.warnings)
	sort.Strings(ans.infos)
	if truncate(res, limit) {
		ans.warnings = append(ans.warnings, truncated)
	}
	var shown stats.QueryStats
	if c.Form.Get("stats") != "" {
		shown = stats.NewQueryStats(q.Stats())
		if w := statsWarning(c.Form.Get("stats")); w != "" {
			ans.warnings = append(ans.warnings, w)
		}
	}
	ans.data = func(e *encoder) { e.result(res.Value, shown, explained) }
	return ans, nil
}

// annotationsMax bounds the warnings, and the infos, that an expression may cause.
const annotationsMax = 10

// options reads stats and lookback_delta.
func (c *call) options() (promql.QueryOpts, error) {
	var lookback time.Duration
	if v := c.Form.Get("lookback_delta"); v != "" {
		d, err := parseDuration(v)
		if err != nil {
			return nil, badDataf("error parsing lookback delta duration: %w", err)
		}
		lookback = d
	}
	return promql.NewPrometheusQueryOpts(c.Form.Get("stats") == "all", lookback, nil), nil
}

func statsWarning(v string) string {
	if v == "true" || v == "all" {
		return ""
	}
	return fmt.Sprintf("value %q for parameter \"stats\" is deprecated and will be rejected in the next major release, use \"true\" or \"all\"", v)
}

func truncate(res *promql.Result, limit int) bool {
	if limit <= 0 {
		return false
	}
	switch v := res.Value.(type) {
	case promql.Matrix:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	case promql.Vector:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	}
	return false
}
