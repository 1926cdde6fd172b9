package figures

import (
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// forecastStep lies between two points of a forecast.
const forecastStep = 10 * time.Minute

// Forecaster makes the forecast of a column as people see it.
type Forecaster struct {
	Map    *topology.Map
	Sizes  func(point.PartitionID) (s master.Size, known bool) // of the rows of a partition
	Now    point.Nanos
	Ahead  time.Duration // how far the forecast reaches
	Past   int           // how many partitions that ended are shown
	Target float64       // bytes of a partition; 0: unknown
}

// Column is the forecast, and the newest partitions that ended, then those to come with the sizes that they should get.
func (f *Forecaster) Column(col master.ColumnGrowth) ui.Forecast {
	// The newest minutes are not in the store yet: the forecast is as of the end of the recorded ones.
	until := f.Now + int64(f.Ahead)
	rows, known := col.Rows.Forecast(min(f.Now, col.Rows.Until()), until)
	weight := col.Weigh(f.Now, f.Map, func(id point.PartitionID) master.Size { s, _ := f.Sizes(id); return s })
	if f.Target > 0 && weight.PerRow > 0 {
		rows = presplit.Plan{Target: weight.Rows(f.Target)}.Suited(rows)
	}
	out := ui.Forecast{RingLo: RingShare(col.Lo), RingHi: 1, Known: known, Days: rows.Days, RowsPerSecond: rows.Rate(f.Now), BytesPerRow: col.BytesPerRow, BytesPerPartition: int64(weight.PerPartition), Short: time.Duration(rows.Short), Points: []ui.ForecastPoint{}, Partitions: []ui.Expected{}}
	if col.Hi != 0 {
		out.RingHi = RingShare(col.Hi)
	}
	if since, ok := col.Rows.Since(); ok {
		out.Since = TimeOf(since)
	}
	for t := f.Now; t <= until; t += int64(forecastStep) {
		out.Points = append(out.Points, ui.ForecastPoint{At: time.Unix(0, t).UTC(), BytesPerSecond: rows.Rate(t) * col.BytesPerRow})
	}
	parts := slices.DeleteFunc(f.Map.Overlapping(math.MinInt64, until), func(p *topology.Partition) bool { return p.PointLo != col.Lo })
	past := 0
	for _, p := range parts {
		if p.TimeHi <= f.Now {
			past++
		}
	}
	for _, p := range parts[max(past-f.Past, 0):] {
		out.Partitions = append(out.Partitions, f.partition(p, &rows, known, weight))
	}
	return out
}

func (f *Forecaster) partition(p *topology.Partition, rows *presplit.Forecast, known bool, weight presplit.Weight) ui.Expected {
	size, there := f.Sizes(p.ID)
	one := ui.Expected{ID: uint64(p.ID), From: time.Unix(0, p.TimeLo).UTC(), To: time.Unix(0, p.TimeHi).UTC()}
	if p.TimeHi > f.Now && known {
		expected := int64(weight.Bytes(float64(size.Rows) + rows.Bytes(max(f.Now, p.TimeLo), p.TimeHi)))
		one.Bytes, one.Expected = &expected, true
	} else if there {
		one.Bytes = &size.Bytes
	}
	if len(p.Placements) > 0 {
		one.Server = string(p.Placements[0].Server)
	}
	return one
}

// TimeOf is a time; nil: there is none.
func TimeOf(t point.Nanos) *time.Time {
	if t == 0 {
		return nil
	}
	when := time.Unix(0, t).UTC()
	return &when
}
