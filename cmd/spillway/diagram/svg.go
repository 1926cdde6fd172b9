package diagram

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// svgSheet is a sheet of text.
type svgSheet struct{ b bytes.Buffer }

func newSVG(width, height float64) (Sheet, error) {
	s := &svgSheet{}
	fmt.Fprintf(&s.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`, width, height)
	s.Rect(0, 0, width, height, White)
	return s, nil
}

func htmlColour(c Colour) string {
	return fmt.Sprintf("#%02x%02x%02x", palette[c][0], palette[c][1], palette[c][2])
}

func (s *svgSheet) Rect(x, y, w, h float64, c Colour) {
	fmt.Fprintf(&s.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x, y, w, h, htmlColour(c))
}

func (s *svgSheet) Line(at []Spot, c Colour, how Stroke) {
	fmt.Fprintf(&s.b, `<polyline fill="none" stroke="%s"`, htmlColour(c))
	if how == Dashed {
		s.b.WriteString(` stroke-dasharray="6 4"`)
	}
	s.b.WriteString(` points="`)
	for _, p := range at {
		fmt.Fprintf(&s.b, "%.1f,%.1f ", p.x, p.y)
	}
	s.b.WriteString(`"/>`)
}

func (s *svgSheet) Dot(at Spot, r float64, c Colour, how Stroke) {
	fill, edge := htmlColour(c), "none"
	if how == Hollow {
		fill, edge = edge, fill
	}
	fmt.Fprintf(&s.b, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s" stroke="%s" fill-opacity="0.6"/>`, at.x, at.y, r, fill, edge)
}

func (s *svgSheet) Text(at Spot, from Anchor, text string) {
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" text-anchor="%s">`, at.x, at.y, [...]string{"start", "middle", "end"}[from])
	_ = xml.EscapeText(&s.b, []byte(text)) // a buffer accepts all
	s.b.WriteString(`</text>`)
}

func (s *svgSheet) encoded() ([]byte, error) {
	s.b.WriteString("</svg>\n")
	return s.b.Bytes(), nil
}
