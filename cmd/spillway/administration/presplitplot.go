package administration

import (
	"fmt"
	"math"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/diagram"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The measures of a plot: a panel of the load, and below it one of the sizes of partitions against the target.
const (
	plotWidth, plotLeft, plotRight = 1200.0, 110.0, 1180.0
	plotTop, plotHigh, plotGap     = 60.0, 200.0, 50.0
	plotHeight                     = plotTop + 2*plotHigh + plotGap + 40
	// sizesMost is the top of the panel of sizes, in targets. Larger ones lie on the edge.
	sizesMost = 2.0
)

func rateName(v float64) string { return master.Bytes(int64(v)) + "/s" }
func sizeName(v float64) string { return master.Bytes(int64(v)) }

// offText says how far sizes were off the target.
func offText(e presplit.Report) string {
	return fmt.Sprintf("off by %.1f %% (median), %.1f %% (95th percentile), %.0f %% (most)", 100*orZero(e.Quantile(0.5)), 100*orZero(e.Quantile(0.95)), 100*orZero(e.Quantile(1)))
}

// panels are those of the load and of the sizes, from a height on.
func panels(y float64, from, to point.Nanos, most, target float64) (load, sizes diagram.Panel) {
	load = diagram.Panel{Left: plotLeft, Right: plotRight, Top: y + plotTop, High: plotHigh, From: from, To: to, Most: max(most, 1)}
	sizes = diagram.Panel{Left: plotLeft, Right: plotRight, Top: y + plotTop + plotHigh + plotGap, High: plotHigh, From: from, To: to, Most: sizesMost * target}
	return load, sizes
}

// drawBacktest draws a replay.
func drawBacktest(s diagram.Sheet, trace presplit.Trace, r presplit.Report, target float64, learn point.Nanos) {
	const minute = point.Nanos(time.Minute)
	most := 0.0
	for _, v := range trace.Bytes {
		if v > most {
			most = v
		}
	}
	load, sizes := panels(0, trace.Start, trace.Start+point.Nanos(len(trace.Bytes))*minute, most/60, target)
	s.Text(diagram.Place(plotLeft, 20), diagram.FromLeft, fmt.Sprintf("%d partitions, target %s: %s", len(r.Errors), sizeName(target), offText(r)))
	diagram.Legend(s, diagram.Place(plotLeft, 42), diagram.Entry{Name: "load", Colour: diagram.Blue, Stroke: diagram.Solid}, diagram.Entry{Name: "target; dots are partitions", Colour: diagram.Red, Stroke: diagram.Dashed})
	s.Rect(plotLeft, load.Top, load.X(trace.Start+learn)-plotLeft, 2*plotHigh+plotGap, diagram.Light)
	load.Grid(s, rateName)
	step := max(len(trace.Bytes)/2000, 1)
	var run []diagram.Spot
	for i := 0; i < len(trace.Bytes); i += step {
		if v := trace.Bytes[i]; !math.IsNaN(v) {
			run = append(run, load.At(trace.Start+point.Nanos(i)*minute, v/60))
			continue
		}
		s.Line(run, diagram.Blue, diagram.Solid)
		run = nil
	}
	s.Line(run, diagram.Blue, diagram.Solid)
	sizes.Grid(s, sizeName)
	s.Line([]diagram.Spot{sizes.At(sizes.From, target), sizes.At(sizes.To, target)}, diagram.Red, diagram.Dashed)
	for _, p := range r.Partitions {
		s.Dot(sizes.At(p.Lo+(p.Hi-p.Lo)/2, p.Bytes), 1.6, diagram.Blue, diagram.Solid)
	}
	sizes.Times(s)
}

// drawForecast draws a column of a table from a height on: the load that came and the expected one, and the sizes of partitions.
func drawForecast(s diagram.Sheet, y float64, table string, c *columnForecast, target float64) {
	var times []point.Nanos
	most := 0.0
	for _, points := range [][]forecastPoint{c.Recorded, c.Forecast} {
		for _, p := range points {
			times, most = append(times, p.at), max(most, p.BytesPerSecond)
		}
	}
	for _, p := range c.Partitions {
		times = append(times, p.lo, min(p.hi, c.until))
	}
	if len(times) == 0 {
		return
	}
	from, to := times[0], times[0]
	for _, t := range times {
		from, to = min(from, t), max(to, t)
	}
	load, sizes := panels(y, from, to, most, target)
	title := fmt.Sprintf("%s, ring %s: no partition that the forecast made has ended", table, c.Ring)
	if c.Errors != nil {
		title = fmt.Sprintf("%s, ring %s: the last %d partitions are %s", table, c.Ring, c.Errors.Partitions, offText(c.Errors.of))
	}
	s.Text(diagram.Place(plotLeft, y+20), diagram.FromLeft, title)
	diagram.Legend(s, diagram.Place(plotLeft, y+42), diagram.Entry{Name: "what came", Colour: diagram.Blue, Stroke: diagram.Solid}, diagram.Entry{Name: "what is expected", Colour: diagram.Orange, Stroke: diagram.Solid}, diagram.Entry{Name: "target, " + sizeName(target), Colour: diagram.Red, Stroke: diagram.Dashed})
	load.Grid(s, rateName)
	for _, run := range runs(&load, c.Recorded) {
		s.Line(run, diagram.Blue, diagram.Solid)
	}
	for _, run := range runs(&load, c.Forecast) {
		s.Line(run, diagram.Orange, diagram.Solid)
	}
	sizes.Grid(s, sizeName)
	s.Line([]diagram.Spot{sizes.At(from, target), sizes.At(to, target)}, diagram.Red, diagram.Dashed)
	for _, p := range c.Partitions {
		if p.Bytes == nil {
			continue
		}
		at := sizes.At(p.lo+(min(p.hi, c.until)-p.lo)/2, float64(*p.Bytes))
		if p.Expected {
			s.Dot(at, 3, diagram.Orange, diagram.Hollow)
		} else {
			s.Dot(at, 3, diagram.Blue, diagram.Solid)
		}
	}
	sizes.Times(s)
}

// runs are the lines through the points, apart where some are missing between two.
func runs(p *diagram.Panel, points []forecastPoint) (out [][]diagram.Spot) {
	for i, one := range points {
		if i == 0 || i > 1 && one.at-points[i-1].at > 3*(points[1].at-points[0].at) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], p.At(one.at, one.BytesPerSecond))
	}
	return out
}
