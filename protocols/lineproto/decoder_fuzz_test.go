package lineproto

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

func addCases(f *testing.F, add func(body []byte)) {
	paths, err := filepath.Glob("testdata/cases/*/in.lp")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	for _, p := range paths {
		body, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		add(body)
	}
	add(mixedLines(3, benchTime, 1))
}

// FuzzAgainstReference looks for a body that one decoder accepts and the other refuses, or that they read differently,
// beyond the differences that are intended.
func FuzzAgainstReference(f *testing.F) {
	addCases(f, func(body []byte) {
		for p := range uint8(4) {
			f.Add(body, p, int64(caseNow))
		}
	})
	f.Fuzz(func(t *testing.T, body []byte, prec uint8, now int64) {
		agree(t, body, Precision(prec%4), now>>2) // far enough from the ends of time for the reference to round
	})
}

// FuzzDecode looks for bodies that are read differently when their lines were seen before, or that break the batch.
func FuzzDecode(f *testing.F) {
	addCases(f, func(body []byte) { f.Add(body, uint8(0)); f.Add(body, uint8(7)) })
	f.Fuzz(func(t *testing.T, body []byte, bits uint8) {
		s := Settings{Partial: bits&1 != 0, Precision: Precision(bits >> 3 % 7)}
		if bits&2 != 0 {
			s.Strings = InfoSeries
		}
		if bits&4 != 0 {
			s.DBLabel, s.DB = "db", "fuzz"
		}
		describe(t, body, s)
		b := point.GetBatch(point.NewDict(0))
		defer b.Put()
		d := Decoder{Settings: s}
		if err := d.Decode(body, caseNow, b); err != nil {
			t.Fatal(err)
		}
		if !s.Partial && b.RefusedRows > 0 && (b.Rows() > 0 || b.StringFields > 0) {
			t.Errorf("%d rows of a refused body were kept", b.Rows())
		}
		for i, id := range b.IDs {
			if !b.Dict.Labels(id).Valid() {
				t.Errorf("row %d has labels %q", i, b.Dict.Labels(id))
			}
			if n := b.Item(i); n < 1 || n > 1+len(body) {
				t.Errorf("row %d is of line %d", i, n)
			}
		}
	})
}
