package main

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// drawBacktest draws a replay as SVG: the load above, below the sizes of the partitions against the target, over one axis of time.
func drawBacktest(trace presplit.Trace, r presplit.Report, target float64, learn point.Nanos) []byte {
	const width, left, right, top, high, gap = 1200.0, 90.0, 20.0, 40.0, 200.0, 50.0
	end := trace.Start + point.Nanos(len(trace.Bytes))*point.Nanos(time.Minute)
	x := func(at point.Nanos) float64 {
		return left + (width-left-right)*float64(at-trace.Start)/float64(max(end-trace.Start, 1))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`, width, top+2*high+gap+40)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%g" y="20" font-size="15">%d partitions, target %s: off by %.1f %% (median), %.1f %% (95th percentile), %.0f %% (most)</text>`,
		left, len(r.Errors), master.Bytes(int64(target)), 100*orZero(r.Quantile(0.5)), 100*orZero(r.Quantile(0.95)), 100*orZero(r.Quantile(1)))
	fmt.Fprintf(&b, `<rect x="%.1f" y="%g" width="%.1f" height="%g" fill="#f2f2f2"/>`, x(trace.Start), top, x(trace.Start+learn)-left, 2*high+gap)

	most := 1.0
	for _, v := range trace.Bytes {
		if v > most {
			most = v
		}
	}
	axis(&b, left, width-right, top, high, 0, most/60, func(v float64) string { return master.Bytes(int64(v)) + "/s" })
	step := max(len(trace.Bytes)/2000, 1)
	fmt.Fprintf(&b, `<polyline fill="none" stroke="#2a6fb0" points="`)
	for i := 0; i < len(trace.Bytes); i += step {
		if v := trace.Bytes[i]; !math.IsNaN(v) {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(trace.Start+point.Nanos(i)*point.Nanos(time.Minute)), top+high*(1-v/most))
		}
	}
	b.WriteString(`"/>`)

	base, scale := top+high+gap, 2.0 // sizes up to twice the target; those beyond lie on the edge
	axis(&b, left, width-right, base, high, 0, scale*target, func(v float64) string { return master.Bytes(int64(v)) })
	fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#c03030" stroke-dasharray="6 4"/>`, left, width-right, base+high/scale, base+high/scale)
	for _, p := range r.Partitions {
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="1.6" fill="#2a6fb0" fill-opacity="0.6"/>`, x(p.Lo+(p.Hi-p.Lo)/2), base+high*(1-min(p.Bytes/target/scale, 1)))
	}
	for at := trace.Start; at <= end; at += point.Nanos(max(24*time.Hour, time.Duration(end-trace.Start)/12/(24*time.Hour)*(24*time.Hour))) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(at), base+high+20, time.Unix(0, at).UTC().Format("01-02"))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// axis draws four lines with their values.
func axis(b *bytes.Buffer, x0, x1, top, high, lo, hi float64, name func(float64) string) {
	for i := range 5 {
		v := lo + (hi-lo)*float64(i)/4
		y := top + high*(1-float64(i)/4)
		fmt.Fprintf(b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, x0, x1, y, y, x0-6, y+4, name(v))
	}
}
