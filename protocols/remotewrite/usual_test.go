package remotewrite

import (
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Where the short way gives an answer it is the builder's; and it does give one for what senders send.
func TestUsualLabelsAreTheBuilders(t *testing.T) {
	text := rapid.OneOf(rapid.StringMatching(`[a-z_]{1,12}`), rapid.String(), rapid.Just(point.MetricName), rapid.StringN(120, 140, 150), rapid.Just(""), rapid.Just("\xff"))
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		var ts prompb.TimeSeries
		for range rapid.IntRange(0, 5).Draw(t, "labels") {
			ts.Labels = append(ts.Labels, prompb.Label{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")})
		}
		raw, err := ts.Marshal()
		if err != nil {
			t.Skip("prompb does not encode it")
		}
		got, ok := usualLabels(nil, raw)
		if !ok {
			return
		}
		taken++
		var b point.LabelsBuilder
		for _, l := range ts.Labels {
			b.Add([]byte(l.Name), []byte(l.Value))
		}
		want, err := b.Labels()
		if err != nil || string(want) != string(got) {
			t.Fatalf("%q: got %q, the builder says %q %v", ts.Labels, got, want, err)
		}
	})
	usual := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "host", Value: "é"}, {Name: "job", Value: "x"}}}
	raw, err := usual.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := usualLabels(nil, raw); !ok || point.Labels(got) != point.MakeLabels("__name__", "up", "host", "é", "job", "x") {
		t.Fatalf("what every sender sends: %q %v", got, ok)
	}
	for n := range raw {
		if got, ok := usualLabels(nil, raw[:n]); ok && !point.Labels(got).ValidSeries() {
			t.Fatalf("cut at %d: %q", n, got)
		}
	}
}

// By reference the short way's answer is the builder's too, whatever the references.
func TestUsualLabelsByReferenceAreTheBuilders(t *testing.T) {
	names := []string{"", "__name__", "a", "host", "job", "up", "é", "\xff", "\xc3", string(make([]byte, 127)), string(make([]byte, 128))}
	rapid.Check(t, func(t *rapid.T) {
		d := point.NewDict(0)
		var s symbols
		var body []byte
		for _, n := range names {
			body = append(body, n...)
		}
		s.reset(body)
		at := 0
		for _, n := range names {
			at += len(n)
			if err := s.add(d, []byte(n), at); err != nil {
				t.Fatal(err)
			}
		}
		refs := rapid.SliceOfN(rapid.Uint32Range(0, uint32(len(names))), 0, 9).Draw(t, "refs")
		got, ok := s.usualLabels(nil, refs)
		if !ok {
			return
		}
		var b point.LabelsBuilder
		for i := 0; i < len(refs); i += 2 {
			b.Add(s.at(refs[i]), s.at(refs[i+1]))
		}
		want, err := b.Labels()
		if err != nil || string(want) != string(got) {
			t.Fatalf("%v: got %q, the builder says %q %v", refs, got, want, err)
		}
	})
}
