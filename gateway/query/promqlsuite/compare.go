//go:build !race

package promqlsuite

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
)

// comparing is an engine that asks two others everything as well and wants their results to be the same: with columns
// and without. The scripts themselves delay the removal of names, which columns do not.
type comparing struct {
	*query.Engine
	t              *testing.T
	columns, plain *query.Engine
}

func newComparing(t *testing.T, e *query.Engine) *comparing {
	s := experiments
	s.DelayedNameRemoval = false
	columns := reader(t, nil, s).Engine()
	s.PlainEngine = true
	return &comparing{e, t, columns, reader(t, nil, s).Engine()}
}

// NewInstantQuery implements promql.QueryEngine.
func (c *comparing) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, at time.Time) (promql.Query, error) {
	return c.compare(func(e *query.Engine) (promql.Query, error) {
		return e.NewInstantQuery(ctx, q, opts, text, at)
	})
}

// NewRangeQuery implements promql.QueryEngine.
func (c *comparing) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	return c.compare(func(e *query.Engine) (promql.Query, error) {
		return e.NewRangeQuery(ctx, q, opts, text, start, end, step)
	})
}

func (c *comparing) compare(ask func(*query.Engine) (promql.Query, error)) (promql.Query, error) {
	in, err := ask(c.Engine)
	if err != nil {
		return nil, err
	}
	return &compared{in, func(ctx context.Context) {
		columns, errColumns := ask(c.columns)
		plain, errPlain := ask(c.plain)
		if errColumns != nil || errPlain != nil {
			c.t.Errorf("%s: %v, and %v", in, errColumns, errPlain)
			return
		}
		a, b := columns.Exec(ctx), plain.Exec(ctx)
		sortVector(a)
		sortVector(b)
		if d := querytest.Diff(a, b, 1e-12); d != "" {
			c.t.Errorf("%s: with columns and without: %s", in, d)
		}
	}}, nil
}

// compared is a query that is compared when it is executed.
type compared struct {
	promql.Query
	compare func(context.Context)
}

func (c *compared) Exec(ctx context.Context) *promql.Result {
	c.compare(ctx)
	return c.Query.Exec(ctx)
}

// sortVector removes the order of an evaluation at one time: for some expressions the engine leaves it to chance.
func sortVector(r *promql.Result) {
	if v, ok := r.Value.(promql.Vector); ok {
		slices.SortFunc(v, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
	}
}
