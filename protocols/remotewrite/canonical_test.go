package remotewrite

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Where the short way gives an answer it is the builder's; and it does give one for the usual labels of senders.
func TestUsualLabelsAreTheBuilders(t *testing.T) {
	text := rapid.OneOf(rapid.StringMatching(`[a-z_]{1,12}`), rapid.String(), rapid.Just(point.MetricName), rapid.StringN(120, 140, 150), rapid.Just(""), rapid.Just("\xff"))
	rapid.Check(t, func(t *rapid.T) {
		var ts prompb.TimeSeries
		for range rapid.IntRange(0, 5).Draw(t, "labels") {
			ts.Labels = append(ts.Labels, prompb.Label{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")})
		}
		raw, err := ts.Marshal()
		if err != nil {
			t.Skip("prompb does not encode it")
		}
		got, ok := new(canonical).labels(nil, raw, plainLabel)
		if !ok {
			return
		}
		var b point.LabelsBuilder
		for _, l := range ts.Labels {
			b.Add([]byte(l.Name), []byte(l.Value))
		}
		want, err := b.Labels()
		if err != nil || string(want) != string(got) {
			t.Fatalf("%q: got %q, the builder says %q %v", ts.Labels, got, want, err)
		}
	})
	sent := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "host", Value: "é"}, {Name: "job", Value: "x"}}}
	raw, err := sent.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := new(canonical).labels(nil, raw, plainLabel); !ok || point.Labels(got) != point.MakeLabels("__name__", "up", "host", "é", "job", "x") {
		t.Fatalf("what every sender sends: %q %v", got, ok)
	}
	for n := range raw {
		if got, ok := new(canonical).labels(nil, raw[:n], plainLabel); ok && !point.Labels(got).ValidSeries() {
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
		var packed []byte
		for _, r := range refs {
			packed = binary.AppendUvarint(packed, uint64(r))
		}
		got, ok := new(canonical).labels(nil, packed, s.plainLabel)
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

// Sets that follow one another and share any part, in the same text: each is read as if it were alone.
func TestUsualLabelsAfterOthers(t *testing.T) {
	name := rapid.SampledFrom([]string{point.MetricName, "a", "host", "job", "zone", "\x0a\x01"})
	value := rapid.OneOf(rapid.SampledFrom([]string{"x", "y", "\x0a\x08\x0a\x01a\x12\x03abc", "é", "\xff"}), rapid.StringN(100, 130, 140))
	set := rapid.Custom(func(t *rapid.T) []prompb.Label {
		var set []prompb.Label
		for range rapid.IntRange(0, 6).Draw(t, "labels") {
			set = append(set, prompb.Label{Name: name.Draw(t, "name"), Value: value.Draw(t, "value")})
		}
		if rapid.IntRange(0, 9).Draw(t, "unsorted") > 0 {
			slices.SortFunc(set, func(a, b prompb.Label) int { return strings.Compare(a.Name, b.Name) })
			set = slices.CompactFunc(set, func(a, b prompb.Label) bool { return a.Name == b.Name })
		}
		return set
	})
	shared := 0
	for round := 0; round < 500 && shared == 0; round++ {
		rapid.Check(t, func(t *rapid.T) {
			rapid.SliceOfN(rapid.Bool(), round, round).Draw(t, "round") // with a seed each round would draw the same
			var u canonical
			var text, before []byte
			for i, labels := range rapid.SliceOfN(set, 1, 8).Draw(t, "sets") {
				if i > 0 && rapid.Bool().Draw(t, "again") { // the same but for the front
					labels = append(labels, prompb.Label{Name: "~", Value: "shared"})
				}
				raw, err := (&prompb.TimeSeries{Labels: labels}).Marshal()
				if err != nil {
					t.Skip("prompb does not encode it")
				}
				alone, wantOK := new(canonical).labels(nil, raw, plainLabel)
				got, ok := u.labels(text, raw, plainLabel)
				if ok != wantOK || ok && string(got[len(text):]) != string(alone) {
					t.Fatalf("after %q, %q: got %q %v, alone %q %v", before, labels, got[len(text):], ok, alone, wantOK)
				}
				if ok {
					if len(text) > 0 && len(u.spare) > 0 && u.starts[len(u.starts)-1] == u.spare[len(u.spare)-1] {
						shared++
					}
					text, before = got, raw
				}
			}
		})
	}
	if shared == 0 {
		t.Error("no set ended as the one before: nothing is shown")
	}
}

// A target's new series, one after the other: the cost of each when most labels were there before.
func BenchmarkCanonicalLabels(b *testing.B) {
	raws := make([][]byte, 32)
	for i := range raws {
		ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: point.MetricName, Value: "node_cpu_seconds_total_" + strconv.Itoa(i)}}}
		for _, l := range []string{"arch", "datacenter", "hostname", "os", "rack", "region", "service", "team"} {
			ts.Labels = append(ts.Labels, prompb.Label{Name: l, Value: "the-" + l + "-of-this-target"})
		}
		raws[i], _ = ts.Marshal()
	}
	var u canonical
	var text []byte
	b.ReportAllocs()
	for b.Loop() {
		u.reset()
		text = text[:0]
		for _, raw := range raws {
			var ok bool
			if text, ok = u.labels(text, raw, plainLabel); !ok {
				b.Fatal("not usual")
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(raws)), "ns/series")
}
