package otlp

import "github.com/spillwaydb/spillway/protocols/point"

// FromJSON lets tests make protobuf of their JSON.
var FromJSON = fromJSON

// DeltaReckoned is the memory that a series is reckoned with.
const DeltaReckoned = deltaReckoned

// DeltaIdleMin is how long a series must have had no sample before another one may replace it.
const DeltaIdleMin = deltaIdleMin

// DeltaDeadMin is how long a series must have had no sample before one of a larger table may replace it.
const DeltaDeadMin = deltaDeadMin

// NewDeltas gives one of another bound.
func NewDeltas(max int) *Deltas { return &Deltas{Max: max} }

// Add adds a delta as a decoder does.
func (d *Deltas) Add(series point.Labels, t point.Nanos, v float64) (float64, error) {
	return d.AddTo("", series, t, v)
}

// AddTo is Add for a table.
func (d *Deltas) AddTo(table string, series point.Labels, t point.Nanos, v float64) (float64, error) {
	rows := []deltaRow{{deltaSeries{labels: series}, v}}
	err := d.add(table, t, rows)
	return rows[0].v, err
}

// Len is the number of series remembered.
func (d *Deltas) Len() int { return len(d.mu.series) }
