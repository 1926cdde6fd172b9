package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// sheet carries a plot: an SVG or a PNG. Places are in the units of the SVG, from the upper left corner.
type sheet interface {
	rect(x, y, w, h float64, c colour)
	// line joins places.
	line(at []spot, c colour, s stroke)
	// dot is a partition.
	dot(at spot, r float64, c colour, s stroke)
	// text stands on y: right of x, in the middle of it, or left of it.
	text(at spot, from anchor, s string)
	// encoded ends the drawing.
	encoded() ([]byte, error)
}

type spot struct{ x, y float64 }

// colour is an index into the palette.
type colour uint8

const (
	white colour = iota
	black
	gray  // of lines behind the values
	light // of a region
	blue
	red
	orange
)

// palette has the colours, as red, green and blue.
var palette = [...][3]uint8{white: {255, 255, 255}, gray: {221, 221, 221}, light: {242, 242, 242}, blue: {42, 111, 176}, red: {192, 48, 48}, orange: {217, 119, 6}, black: {}}

type stroke uint8

const (
	solid stroke = iota
	dashed
	hollow // of a dot
)

type anchor uint8

const (
	fromLeft anchor = iota
	centred
	fromRight
)

// panel is a diagram over an axis of time.
type panel struct {
	left, right, top, high float64
	from, to               point.Nanos
	most                   float64 // the value at the top; larger ones lie there
}

func (p *panel) x(at point.Nanos) float64 {
	return p.left + (p.right-p.left)*float64(at-p.from)/float64(max(p.to-p.from, 1))
}

func (p *panel) at(t point.Nanos, v float64) spot {
	return spot{p.x(t), p.top + p.high*(1-min(v/p.most, 1))}
}

// grid draws four lines with their values.
func (p *panel) grid(s sheet, name func(float64) string) {
	for i := range 5 {
		v := p.most * float64(i) / 4
		at := p.at(p.from, v)
		s.line([]spot{at, {p.right, at.y}}, gray, solid)
		s.text(spot{p.left - 6, at.y + 4}, fromRight, name(v))
	}
}

// timeSteps are the times between two marks on an axis.
var timeSteps = [...]time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}

// times marks the axis of time below, a dozen times at most: by the clock (UTC), or by the day.
func (p *panel) times(s sheet) {
	const most, day = 12, 24 * time.Hour
	span := time.Duration(p.to - p.from)
	step, form := (span/most/day+1)*day, "01-02"
	for _, d := range timeSteps {
		if span/d <= most {
			step, form = d, "15:04"
			break
		}
	}
	n := point.Nanos(step)
	for at := (p.from + n - 1) / n * n; at <= p.to; at += n {
		s.line([]spot{{p.x(at), p.top + p.high}, {p.x(at), p.top + p.high + 4}}, black, solid)
		s.text(spot{p.x(at), p.top + p.high + 18}, centred, time.Unix(0, at).UTC().Format(form))
	}
}

// legend names the lines, from a place on to the right.
func legend(s sheet, at spot, all ...legendEntry) {
	for _, e := range all {
		s.line([]spot{{at.x, at.y - 4}, {at.x + 24, at.y - 4}}, e.colour, e.stroke)
		s.text(spot{at.x + 30, at.y}, fromLeft, e.name)
		at.x += 60 + 8*float64(len(e.name))
	}
}

type legendEntry struct {
	name   string
	colour colour
	stroke stroke
}

// drawn writes a plot into the files that are named; "" is none.
func drawn(svg, png string, width, height float64, draw func(sheet)) error {
	for _, f := range []struct {
		name string
		of   func(width, height float64) (sheet, error)
	}{{svg, newSVG}, {png, newPNG}} {
		if f.name == "" {
			continue
		}
		s, err := f.of(width, height)
		if err != nil {
			return err
		}
		draw(s)
		b, err := s.encoded()
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := os.WriteFile(f.name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
