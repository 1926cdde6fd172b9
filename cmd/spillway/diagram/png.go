package diagram

import (
	"bytes"
	_ "embed" // glyphs.txt
	"image"
	"image/color"
	"image/png"
	"math"
	"strings"
)

const (
	// PNGScale is how many pixels of a PNG are a unit of the SVG.
	PNGScale = 1.5
	// Glyphs have 5 × 7 squares, each of glyphDot pixels, and stand 6 squares apart.
	glyphWidth, glyphHeight, glyphDot = 5, 7, 2
	// glyphGap separates two glyphs in glyphText.
	glyphGap = 2
)

// glyphText has the glyphs side by side, in blocks: a line with their names, then their rows.
//
//go:embed glyphs.txt
var glyphText string

// glyphs reads them: a row is a text in which # is black. Other letters are drawn as a question mark.
func glyphs() map[rune][]string {
	out := map[rune][]string{}
	lines := strings.Split(strings.TrimRight(glyphText, "\n"), "\n")
	for ; len(lines) > glyphHeight; lines = lines[1+glyphHeight:] {
		for i, name := range []rune(lines[0]) {
			if name == ' ' {
				continue
			}
			at := i / (glyphWidth + glyphGap) * (glyphWidth + glyphGap)
			for _, row := range lines[1 : 1+glyphHeight] {
				out[name] = append(out[name], row[at:at+glyphWidth])
			}
		}
	}
	return out
}

// pngSheet is a sheet of pixels.
type pngSheet struct {
	m      *image.Paletted
	glyphs map[rune][]string
}

func newPNG(width, height float64) (Sheet, error) {
	var colours color.Palette
	for _, c := range palette {
		colours = append(colours, color.RGBA{c[0], c[1], c[2], 255})
	}
	return &pngSheet{image.NewPaletted(image.Rect(0, 0, int(width*PNGScale), int(height*PNGScale)), colours), glyphs()}, nil // white is 0
}

func pixel(v float64) int { return int(math.Round(v * PNGScale)) }

func (s *pngSheet) fill(x, y, w, h int, c Colour) {
	for j := y; j < y+h; j++ {
		for i := x; i < x+w; i++ {
			s.m.SetColorIndex(i, j, uint8(c)) // places outside are left out
		}
	}
}

func (s *pngSheet) Rect(x, y, w, h float64, c Colour) {
	s.fill(pixel(x), pixel(y), pixel(w), pixel(h), c)
}

// Line is two pixels wide, but for the grid's.
func (s *pngSheet) Line(at []Spot, c Colour, how Stroke) {
	thick, drawn := 2, 0.0 // drawn: how long the line is so far, for its dashes
	if c == Gray {
		thick = 1
	}
	for i := 1; i < len(at); i++ {
		dx, dy := (at[i].x-at[i-1].x)*PNGScale, (at[i].y-at[i-1].y)*PNGScale
		steps := max(math.Ceil(max(math.Abs(dx), math.Abs(dy))), 1)
		for n := 0.0; n <= steps; n++ {
			if how != Dashed || math.Mod(drawn+n, 15) < 9 {
				s.fill(int(math.Round(at[i-1].x*PNGScale+dx*n/steps)), int(math.Round(at[i-1].y*PNGScale+dy*n/steps)), thick, thick, c)
			}
		}
		drawn += steps
	}
}

func (s *pngSheet) Dot(at Spot, r float64, c Colour, how Stroke) {
	x, y, radius := at.x*PNGScale, at.y*PNGScale, r*PNGScale
	for j := math.Floor(y - radius); j <= y+radius; j++ {
		for i := math.Floor(x - radius); i <= x+radius; i++ {
			d := math.Hypot(i-x, j-y)
			if d <= radius && (how != Hollow || d > radius-1.5) {
				s.m.SetColorIndex(int(i), int(j), uint8(c))
			}
		}
	}
}

func (s *pngSheet) Text(at Spot, from Anchor, text string) {
	const cell = (glyphWidth + 1) * glyphDot
	letters := []rune(text)
	x, y := pixel(at.x), pixel(at.y)-glyphHeight*glyphDot
	switch width := len(letters)*cell - glyphDot; from {
	case Centred:
		x -= width / 2
	case FromRight:
		x -= width
	}
	for _, letter := range letters {
		rows := s.glyphs[letter]
		if rows == nil && letter != ' ' {
			rows = s.glyphs['?']
		}
		for j, row := range rows {
			for i := range row {
				if row[i] == '#' {
					s.fill(x+i*glyphDot, y+j*glyphDot, glyphDot, glyphDot, Black)
				}
			}
		}
		x += cell
	}
}

func (s *pngSheet) encoded() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, s.m)
	return b.Bytes(), err
}
