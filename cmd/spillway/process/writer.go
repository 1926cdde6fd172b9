package process

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/intake"
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

// Create implements intake.Writer.
func (w writer) Create(ctx context.Context, name string, keep *time.Duration) error {
	c := w.d.behind.tables.New()
	if keep != nil {
		c.Retention = *keep
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
func (t table) MetricNames(ctx context.Context, limit int) ([]string, error) {
	names, _, err := t.d.behind.source.LabelValues(ctx, t.everything(), point.MetricName, limit)
	return names, err
}

// Series implements intake.Catalogue.
func (t table) Series(ctx context.Context, metric string, limit int) ([]point.Labels, error) {
	ask := t.everything()
	if metric != "" {
		ask.Matchers = []peer.Matcher{{Type: peer.MatchEqual, Name: point.MetricName, Value: metric}}
	}
	set, err := t.d.behind.source.Select(ctx, ask)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	var out []point.Labels
	for len(out) < limit && set.Next() {
		out = append(out, set.At().Labels)
	}
	return out, set.Err()
}

// Delete implements intake.Deleter.
func (t table) Delete(ctx context.Context, lo, hi point.Nanos, ms []peer.Matcher) error {
	return t.d.behind.source.DeleteSeries(ctx, &peer.Select{Table: t.name, Lo: lo, Hi: hi, Matchers: ms})
}

func (t table) everything() *peer.Select {
	return &peer.Select{Table: t.name, Lo: -1 << 63, Hi: 1<<63 - 1, LabelsOnly: true}
}
