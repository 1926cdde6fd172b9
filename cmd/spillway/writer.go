package main

import (
	"context"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/intake"
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
func (w writer) Create(ctx context.Context, name string) error {
	_, err := w.d.behind.tables.Create(ctx, name, w.d.cfg.table())
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

var _ intake.Catalogue = table{}

// MetricNames implements intake.Catalogue.
func (t table) MetricNames(ctx context.Context, limit int) ([]string, error) {
	names, _, err := t.d.behind.source.LabelValues(ctx, t.everything(), point.MetricName, limit)
	return names, err
}

// Series implements intake.Catalogue.
func (t table) Series(ctx context.Context, limit int) ([]point.Labels, error) {
	set, err := t.d.behind.source.Select(ctx, t.everything())
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

func (t table) everything() *peer.Select {
	return &peer.Select{Table: t.name, Lo: -1 << 63, Hi: 1<<63 - 1, LabelsOnly: true}
}
