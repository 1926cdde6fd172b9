package diagram

import (
	"strings"
	"testing"
)

// TestEveryLetterOfAPlotHasAGlyph, and no two look alike.
func TestEveryLetterOfAPlotHasAGlyph(t *testing.T) {
	seen := map[string]rune{}
	all := glyphs()
	for letter, rows := range all {
		if len(rows) != glyphHeight {
			t.Fatalf("%c has %d rows", letter, len(rows))
		}
		for _, row := range rows {
			if len(row) != glyphWidth || strings.Trim(row, ".#") != "" {
				t.Errorf("a row of %c is %q", letter, row)
			}
		}
		drawing := strings.Join(rows, "/")
		if other, twice := seen[drawing]; twice {
			t.Errorf("%c and %c are drawn alike", letter, other)
		}
		seen[drawing] = letter
	}
	for _, letter := range "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,:;-_%/()[]^" {
		if all[letter] == nil {
			t.Errorf("%c has no glyph", letter)
		}
	}
}
