package clustertest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

// loadCurves are the readings of a time with the same settings.
type loadCurves struct {
	title    string
	readings []reading
}

// curveColors are those of the servers, which differ in brightness too.
var curveColors = [...]string{"#1f4e8c", "#d97706", "#5aa469", "#8b5cf6", "#111111"}

// perSecond are the rows that a server accepted in a second, as the mean of the two seconds around it.
func (l *loadCurves) perSecond(server, i int) float64 {
	from, to := l.readings[max(i-1, 0)], l.readings[min(i+1, len(l.readings)-1)]
	return (to.rows[server] - from.rows[server]) / max(to.at.Sub(from.at).Seconds(), 0.001)
}

// drawLoads draws the rows that each server accepted a second, a panel for each of the curves, with one scale.
func drawLoads(all []loadCurves) []byte {
	const width, left, right, top, high, gap = 1000.0, 80.0, 20.0, 40.0, 160.0, 60.0
	most := 1.0
	for _, l := range all {
		for i := range l.readings {
			for s := range l.readings[i].rows {
				most = max(most, l.perSecond(s, i))
			}
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`, width, float64(len(all))*(high+gap)+20)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)
	for n, l := range all {
		base := top + float64(n)*(high+gap)
		fmt.Fprintf(&b, `<text x="%g" y="%g" font-size="14">%s</text>`, left, base-12, l.title)
		axis(&b, left, width-right, base, high, 0, most, func(v float64) string { return fmt.Sprintf("%.0f rows/s", v) })
		if len(l.readings) < 2 {
			continue
		}
		began := l.readings[0].at
		span := l.readings[len(l.readings)-1].at.Sub(began).Seconds()
		for s := range l.readings[0].rows {
			fmt.Fprintf(&b, `<polyline fill="none" stroke-width="1.8" stroke="%s" points="`, curveColors[s%len(curveColors)])
			for i, r := range l.readings {
				fmt.Fprintf(&b, "%.1f,%.1f ", left+(width-left-right)*r.at.Sub(began).Seconds()/span, base+high*(1-min(max(l.perSecond(s, i), 0)/most, 1)))
			}
			b.WriteString(`"/>`)
			if n == 0 {
				fmt.Fprintf(&b, `<text x="%g" y="%g" fill="%s" font-weight="bold">server %d</text>`, width-right-250+float64(s)*80, base-12, curveColors[s%len(curveColors)], s+1)
			}
		}
		for at := 0.0; at <= span; at += 10 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%.0f s</text>`, left+(width-left-right)*at/span, base+high+18, at)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func TestLoadsAreDrawn(t *testing.T) {
	var curves [2]loadCurves
	for n := range curves {
		curves[n].title = "rows"
		for i := range 30 {
			r := reading{at: time.Unix(int64(i), 0), rows: []float64{0, 0}}
			for j := range i {
				r.rows[(j/10)%2] += 100
			}
			curves[n].readings = append(curves[n].readings, r)
		}
	}
	if got := curves[0].perSecond(0, 5); got != 100 {
		t.Errorf("server 1 takes %v rows/s at 5 s", got)
	}
	if got := curves[0].perSecond(1, 5); got != 0 {
		t.Errorf("server 2 takes %v rows/s at 5 s", got)
	}
	d := xml.NewDecoder(bytes.NewReader(drawLoads(curves[:])))
	lines := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != 4 {
		t.Errorf("%d curves, want 4", lines)
	}
}

// axis draws four lines with their values.
func axis(b *bytes.Buffer, x0, x1, top, high, lo, hi float64, name func(float64) string) {
	for i := range 5 {
		v := lo + (hi-lo)*float64(i)/4
		y := top + high*(1-float64(i)/4)
		fmt.Fprintf(b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, x0, x1, y, y, x0-6, y+4, name(v))
	}
}
