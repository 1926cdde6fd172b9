package main

import (
	"fmt"
	"math"
	"time"

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
func panels(y float64, from, to point.Nanos, most, target float64) (load, sizes panel) {
	load = panel{plotLeft, plotRight, y + plotTop, plotHigh, from, to, max(most, 1)}
	sizes = panel{plotLeft, plotRight, y + plotTop + plotHigh + plotGap, plotHigh, from, to, sizesMost * target}
	return load, sizes
}

// drawBacktest draws a replay.
func drawBacktest(s sheet, trace presplit.Trace, r presplit.Report, target float64, learn point.Nanos) {
	const minute = point.Nanos(time.Minute)
	most := 0.0
	for _, v := range trace.Bytes {
		if v > most {
			most = v
		}
	}
	load, sizes := panels(0, trace.Start, trace.Start+point.Nanos(len(trace.Bytes))*minute, most/60, target)
	s.text(spot{plotLeft, 20}, fromLeft, fmt.Sprintf("%d partitions, target %s: %s", len(r.Errors), sizeName(target), offText(r)))
	legend(s, spot{plotLeft, 42}, legendEntry{"load", blue, solid}, legendEntry{"target; dots are partitions", red, dashed})
	s.rect(plotLeft, load.top, load.x(trace.Start+learn)-plotLeft, 2*plotHigh+plotGap, light)
	load.grid(s, rateName)
	step := max(len(trace.Bytes)/2000, 1)
	var run []spot
	for i := 0; i < len(trace.Bytes); i += step {
		if v := trace.Bytes[i]; !math.IsNaN(v) {
			run = append(run, load.at(trace.Start+point.Nanos(i)*minute, v/60))
			continue
		}
		s.line(run, blue, solid)
		run = nil
	}
	s.line(run, blue, solid)
	sizes.grid(s, sizeName)
	s.line([]spot{sizes.at(sizes.from, target), sizes.at(sizes.to, target)}, red, dashed)
	for _, p := range r.Partitions {
		s.dot(sizes.at(p.Lo+(p.Hi-p.Lo)/2, p.Bytes), 1.6, blue, solid)
	}
	sizes.times(s)
}

// drawForecast draws a column of a table from a height on: the load that came and the expected one, and the sizes of partitions.
func drawForecast(s sheet, y float64, table string, c *columnForecast, target float64) {
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
	s.text(spot{plotLeft, y + 20}, fromLeft, title)
	legend(s, spot{plotLeft, y + 42}, legendEntry{"what came", blue, solid}, legendEntry{"what is expected", orange, solid}, legendEntry{"target, " + sizeName(target), red, dashed})
	load.grid(s, rateName)
	for _, run := range load.runs(c.Recorded) {
		s.line(run, blue, solid)
	}
	for _, run := range load.runs(c.Forecast) {
		s.line(run, orange, solid)
	}
	sizes.grid(s, sizeName)
	s.line([]spot{sizes.at(from, target), sizes.at(to, target)}, red, dashed)
	for _, p := range c.Partitions {
		if p.Bytes == nil {
			continue
		}
		at := sizes.at(p.lo+(min(p.hi, c.until)-p.lo)/2, float64(*p.Bytes))
		if p.Expected {
			s.dot(at, 3, orange, hollow)
		} else {
			s.dot(at, 3, blue, solid)
		}
	}
	sizes.times(s)
}

// runs are the lines through the points, apart where some are missing between two.
func (p *panel) runs(points []forecastPoint) (out [][]spot) {
	for i, one := range points {
		if i == 0 || i > 1 && one.at-points[i-1].at > 3*(points[1].at-points[0].at) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], p.at(one.at, one.BytesPerSecond))
	}
	return out
}
