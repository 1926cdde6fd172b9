package otlp_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "write anew what the golden requests mean")

// TestGoldenRequests decodes testdata/cases/<case>/in.json, with the settings in settings.json if there are any; want.txt
// is its meaning.
func TestGoldenRequests(t *testing.T) {
	dirs, _ := filepath.Glob("testdata/cases/*")
	if len(dirs) < 10 {
		t.Fatalf("%d golden requests", len(dirs))
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			dec := newDecoder(t, settingsOf(t, dir))
			b := point.GetBatch(point.NewDict(0))
			defer b.Put()
			got := explain(b, dec.Decode(goldenBody(t, dir), otlp.JSON, b))
			file := filepath.Join(dir, "want.txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func goldenBody(t testing.TB, dir string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(dir, "in.json"))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func settingsOf(t testing.TB, dir string) (s otlp.Settings) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "settings.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newDecoder gives a decoder that adds deltas up if its settings say so.
func newDecoder(t testing.TB, s otlp.Settings) *otlp.Decoder {
	t.Helper()
	tr, err := otlp.NewTranslator(s)
	if err != nil {
		t.Fatal(err)
	}
	d := otlp.NewDecoder(tr)
	if s.Delta == otlp.DeltaConvert {
		d.Deltas = new(otlp.Deltas)
	}
	return d
}

// explain lists the result of decoding a body, line by line.
func explain(b *point.Batch, err error) string {
	var s strings.Builder
	if err != nil {
		// protojson spaces its messages at random, so that no program relies on them.
		fmt.Fprintf(&s, "error      %v\n", strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	for i, id := range b.IDs {
		fmt.Fprintf(&s, "sample     %v @%d = %v   (item %d)\n", b.Dict.Labels(id), b.Times[i], valueText(b.Values[i]), b.Item(i))
	}
	for _, h := range b.Hists {
		ih, fh, err := point.DecodeHistogram(h.H)
		switch {
		case err != nil || fh != nil:
			fmt.Fprintf(&s, "histogram  is float %v or broken: %v\n", fh, err)
		case point.IsStaleHistogram(h.H):
			fmt.Fprintf(&s, "histogram  %v @%d = stale\n", b.Dict.Labels(h.ID), h.Time)
		default:
			fmt.Fprintf(&s, "histogram  %v @%d = %v schema %d zero ≤ %g count %d hint %d\n", b.Dict.Labels(h.ID), h.Time, ih, ih.Schema, ih.ZeroThreshold, ih.Count, ih.CounterResetHint)
		}
	}
	for _, e := range b.Exemplars {
		fmt.Fprintf(&s, "exemplar   %v @%d = %v of %v\n", b.Dict.Labels(e.ID), e.Time, e.Value, e.Labels)
	}
	for _, m := range b.Metadata {
		fmt.Fprintf(&s, "metadata   %s is a %s in %q: %q\n", m.Metric, m.Type, m.Unit, m.Help)
	}
	for _, r := range b.Refused {
		fmt.Fprintf(&s, "refused    item %d %s: %s (%v)\n", r.Item, r.Text, r.Reason, r.Kind)
	}
	fmt.Fprintf(&s, "%d points refused\n", b.RefusedRows)
	return s.String()
}

func valueText(v float64) string {
	if point.IsStale(v) {
		return "stale"
	}
	return fmt.Sprint(v)
}

// goldenWire gives the golden requests as protobuf, by case.
func goldenWire(t testing.TB) map[string][]byte {
	t.Helper()
	dirs, _ := filepath.Glob("testdata/cases/*")
	bodies := map[string][]byte{}
	for _, dir := range dirs {
		wire, err := otlp.FromJSON(goldenBody(t, dir))
		if err != nil {
			continue // the cases of bodies that are none
		}
		bodies[filepath.Base(dir)] = wire
	}
	if len(bodies) < 10 {
		t.Fatalf("%d golden requests", len(bodies))
	}
	return bodies
}

func marshal(t testing.TB, m *metricspb.MetricsData) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
