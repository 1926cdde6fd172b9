package diagram

import (
	"fmt"
	"os"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Sheet carries a plot: an SVG or a PNG. Places are in the units of the SVG, from the upper left corner.
type Sheet interface {
	// Rect fills the rectangle of size w × h with its upper left corner at x, y.
	Rect(x, y, w, h float64, c Colour)
	// Line joins places.
	Line(at []Spot, c Colour, s Stroke)
	// Dot is a filled or hollow circle of radius r.
	Dot(at Spot, r float64, c Colour, s Stroke)
	// Text stands on y: right of x, in the middle of it, or left of it.
	Text(at Spot, from Anchor, s string)
	// encoded ends the drawing.
	encoded() ([]byte, error)
}

// Spot is a place on a sheet.
type Spot struct{ x, y float64 }

// Place is the spot x from the left and y from the top.
func Place(x, y float64) Spot { return Spot{x, y} }

// Colour is an index into the palette.
type Colour uint8

const (
	White Colour = iota
	Black
	Gray  // of lines behind the values
	Light // of a region
	Blue
	Red
	Orange
)

// palette has the colours, as red, green and blue.
var palette = [...][3]uint8{White: {255, 255, 255}, Gray: {221, 221, 221}, Light: {242, 242, 242}, Blue: {42, 111, 176}, Red: {192, 48, 48}, Orange: {217, 119, 6}, Black: {}}

// Stroke is how a line or a dot is drawn.
type Stroke uint8

const (
	Solid Stroke = iota
	Dashed
	Hollow // of a dot
)

// Anchor is where a text lies from its place.
type Anchor uint8

const (
	FromLeft Anchor = iota
	Centred
	FromRight
)

// Panel is a diagram over an axis of time.
type Panel struct {
	Left, Right, Top, High float64 // where it lies on the sheet
	From, To               point.Nanos
	Most                   float64 // the value at the top; larger ones lie there
}

// X is how far a time lies from the left edge of the sheet.
func (p *Panel) X(at point.Nanos) float64 {
	return p.Left + (p.Right-p.Left)*float64(at-p.From)/float64(max(p.To-p.From, 1))
}

// At is the place of a value at a time; above most it lies at the top.
func (p *Panel) At(t point.Nanos, v float64) Spot {
	return Spot{p.X(t), p.Top + p.High*(1-min(v/p.Most, 1))}
}

// Grid draws four lines with their values.
func (p *Panel) Grid(s Sheet, name func(float64) string) {
	for i := range 5 {
		v := p.Most * float64(i) / 4
		at := p.At(p.From, v)
		s.Line([]Spot{at, {p.Right, at.y}}, Gray, Solid)
		s.Text(Spot{p.Left - 6, at.y + 4}, FromRight, name(v))
	}
}

// timeSteps are the times between two marks on an axis.
var timeSteps = [...]time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}

// Times marks the axis of time below, a dozen times at most: by the clock (UTC), or by the day.
func (p *Panel) Times(s Sheet) {
	const most, day = 12, 24 * time.Hour
	span := time.Duration(p.To - p.From)
	step, form := (span/most/day+1)*day, "01-02"
	for _, d := range timeSteps {
		if span/d <= most {
			step, form = d, "15:04"
			break
		}
	}
	n := point.Nanos(step)
	for at := (p.From + n - 1) / n * n; at <= p.To; at += n {
		s.Line([]Spot{{p.X(at), p.Top + p.High}, {p.X(at), p.Top + p.High + 4}}, Black, Solid)
		s.Text(Spot{p.X(at), p.Top + p.High + 18}, Centred, time.Unix(0, at).UTC().Format(form))
	}
}

// Legend names the lines, from a place on to the right.
func Legend(s Sheet, at Spot, all ...Entry) {
	for _, e := range all {
		s.Line([]Spot{{at.x, at.y - 4}, {at.x + 24, at.y - 4}}, e.Colour, e.Stroke)
		s.Text(Spot{at.x + 30, at.y}, FromLeft, e.Name)
		at.x += 60 + 8*float64(len(e.Name))
	}
}

// Entry is a line of a legend, drawn as the line that it names.
type Entry struct {
	Name   string
	Colour Colour
	Stroke Stroke
}

// Write writes a plot of that size, in units of the SVG, into the files that are named; "" is none. Errors are those of the file.
func Write(svg, png string, width, height float64, draw func(Sheet)) error {
	for _, f := range []struct {
		name string
		of   func(width, height float64) (Sheet, error)
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
