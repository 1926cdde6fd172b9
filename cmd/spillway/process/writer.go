package process

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// writer is the target of intake's writes: tables of the forwarder.
type writer struct{ d *door }

var _ intake.Writer = writer{}

// Table implements intake.Writer.
func (w writer) Table(ctx context.Context, name string) (intake.Table, error) {
	t, err := w.d.forward.Table(ctx, name)
	if err != nil {
		return nil, err
	}
	return table{t, w.d, name}, nil
}

// Existing implements intake.Writer.
func (w writer) Existing(_ context.Context, name string) (intake.Table, error) {
	t, err := w.d.forward.Existing(name)
	if err != nil {
		return nil, err
	}
	return table{t, w.d, name}, nil
}

// Create implements intake.Writer. Clients of Influx cannot choose how wide partitions are: a retention that is shorter than those of new tables makes them as narrow.
func (w writer) Create(ctx context.Context, name string, keep *time.Duration) error {
	c := w.d.behind.tables.New()
	if keep != nil {
		c.Retention = *keep
		if *keep > 0 {
			c.PartitionWidth = min(c.PartitionWidth, *keep)
		}
	}
	m, err := w.d.behind.tables.Create(ctx, name, c)
	if err == nil && keep != nil && m.Config.Retention != *keep {
		return fault.Errorf(fault.Invalid, "retention policy conflicts with an existing policy: %q keeps its rows for %s (0s: for ever), and `spillway table set %s --retention` changes that", name, m.Config.Retention, name)
	}
	return err
}

// List implements intake.Writer.
func (w writer) List(context.Context) ([]string, error) { return w.d.behind.tables.Names(), nil }

// table is one table to write to, with its known series.
type table struct {
	*forward.Table
	d    *door
	name string
}

var (
	_ intake.Catalogue = table{}
	_ intake.Deleter   = table{}
)

// MetricNames implements intake.Catalogue.
func (t table) MetricNames(ctx context.Context, limit int) (names []string, err error) {
	err = t.lookUp(ctx, func(ctx context.Context, from *query.Table) error {
		var err error
		names, _, err = from.LabelValues(ctx, math.MinInt64, math.MaxInt64, point.MetricName, nil, limit)
		return err
	})
	return names, err
}

// Series implements intake.Catalogue.
func (t table) Series(ctx context.Context, metric string, limit int) (series []point.Labels, err error) {
	var of []*labels.Matcher
	if metric != "" {
		of = append(of, labels.MustNewMatcher(labels.MatchEqual, point.MetricName, metric))
	}
	err = t.lookUp(ctx, func(ctx context.Context, from *query.Table) error {
		var err error
		series, _, err = from.Series(ctx, math.MinInt64, math.MaxInt64, [][]*labels.Matcher{of}, limit)
		return err
	})
	return series, err
}

// lookUp lets a look-up of names have what queries have: a place, a turn, a time-out, memory, and the limits of the table.
func (t table) lookUp(ctx context.Context, find func(context.Context, *query.Table) error) error {
	ctx, leave, err := t.d.limits.EnterQuery(ctx, t.name)
	if err != nil {
		return err
	}
	defer leave()
	ctx, l, err := t.d.reader.Lookup(ctx)
	if err != nil {
		return err
	}
	defer l.End()
	return l.Leave(find(ctx, t.d.reader.Table(t.name)))
}

// Delete implements intake.Deleter.
func (t table) Delete(ctx context.Context, lo, hi point.Nanos, ms []peer.Matcher) error {
	return t.d.behind.source.DeleteSeries(ctx, &peer.Select{Table: t.name, Lo: lo, Hi: hi, Matchers: ms})
}
