package point_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestLongHelpIsCutAtACharacter(t *testing.T) {
	for _, help := range []string{"", "short", strings.Repeat("x", 16<<10), strings.Repeat("é", 1<<20), "x" + strings.Repeat("é", 1<<20), strings.Repeat("💧", 1<<18)} {
		r := point.MetadataRow{Metric: "up", Type: "gauge", Unit: "s", Help: help}
		if err := r.Fit(); err != nil {
			t.Fatal(err)
		}
		n := len(r.Metric) + len(r.Type) + len(r.Unit) + len(r.Help)
		if n > point.MetadataBytesMax || !utf8.ValidString(r.Help) || !strings.HasPrefix(help, r.Help) || len(help) > len(r.Help) && n < point.MetadataBytesMax-3 {
			t.Errorf("help of %d bytes became %d", len(help), len(r.Help))
		}
	}
	for _, r := range []point.MetadataRow{{Metric: strings.Repeat("m", 16<<10), Unit: "s"}, {Metric: "m", Unit: strings.Repeat("u", 16<<10)}} {
		if err := r.Fit(); !fault.Is(err, fault.Invalid) {
			t.Errorf("a name or a unit that is too long: %v", err)
		}
	}
}

func TestLongExemplarLabelsAreRefused(t *testing.T) {
	for n, ok := range map[int]bool{100: true, point.ExemplarLabelsMax - 11: true, point.ExemplarLabelsMax - 10: false, point.LabelValueMax: false} {
		var b point.LabelsBuilder
		b.Add([]byte("trace_id"), []byte(strings.Repeat("x", n)))
		l, err := b.Exemplar()
		if (err == nil) != ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("a value of %d bytes: %d bytes, %v", n, len(l), err)
		}
	}
}
