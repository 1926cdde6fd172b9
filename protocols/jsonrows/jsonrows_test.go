package jsonrows

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// sample has every kind of value.
func sample() *Line {
	custom := &histogram.Histogram{
		Schema: histogram.CustomBucketsSchema, Count: 5, Sum: 7.5, PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}},
		PositiveBuckets: []int64{2, 1}, CustomValues: []float64{0.5, 1},
	}
	return &Line{
		Labels: []Label{{"__name__", "cpu.usage"}, {"host", "a\"b\\c\nd\x01é"}},
		Times:  []point.Nanos{math.MinInt64, -1, 0, 1, 1700000000000000001, 1700000000000000002, 1700000000000000003, 1700000000000000004, math.MaxInt64},
		Values: []float64{
			math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64,
			math.NaN(), math.Float64frombits(0x7ff0000000000002), math.Float64frombits(0xfff8000000000123),
		},
		Hists: []Histogram{
			{Time: 5, Int: tsdbutil.GenerateTestHistogram(3)}, {Time: 6, Float: tsdbutil.GenerateTestFloatHistogram(4)},
			{Time: 7, Int: custom}, {Time: 8, Int: &histogram.Histogram{Sum: math.Float64frombits(0x7ff0000000000002)}},
		},
	}
}

// bits compares floats by their bits.
var bits = cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })}

func TestRowsComeBackBitByBit(t *testing.T) {
	b, err := Append(nil, sample())
	if err != nil {
		t.Fatal(err)
	}
	var p Parser
	for range 2 { // the second time into memory that was used
		got, err := p.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(sample(), got, bits); d != "" {
			t.Fatal(d)
		}
	}
	golden := filepath.Join("testdata", "v1.jsonl")
	if *update {
		if err := os.WriteFile(golden, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || !bytes.Equal(b, want) {
		t.Errorf("not the bytes of %s (%v):\n%s", golden, err, b)
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		`{"metric":{"__name__":"a"},"timestamps":[1,2],"values":[1,null]}`:                  "",
		` {"metric" : {"__name__":"a"}, "timestamps_ns" : [ ] , "values" : [ ] } `:          "",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":[1,2]}`:                    "1 timestamps and 2 values",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1]}`:                                   "1 timestamps and 0 values",
		`{"metric":{"__name__":"a"},"timestamps":[1],"timestamps_ns":[1],"values":[1]}`:     "both",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1.5],"values":[1]}`:                    "no timestamp",
		`{"metric":{"__name__":"a"},"timestamps":[9223372036854775807],"values":[1]}`:       "no timestamp",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":["7"]}`:                    "no value",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":[true]}`:                   "no value",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":["NaN:7ff000000000000"]}`:  "no value",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":["NaN:3ff0000000000000"]}`: "no value",
		`{"metric":{"__name__":"a"},"timestamps_ns":[1],"values":[1e999]}`:                  "no value",
		`{"metric":{"__name__":"a"},"histograms":[{"timestamp_ns":1,"histogram":"AQ=="}]}`:  "cannot be read",
		`{"timestamps_ns":[1],"values":[1]}`:                                                "no metric",
		`{"metric":{"__name__":"a"},"ranks":[1]}`:                                           "unknown field",
		`{"metric":{"__name__":"a"}} {}`:                                                    "behind",
		"{\"metric\":{\"__name__\":\"\xff\"}}":                                              "UTF-8",
		`{"end":{"series":1,"rows":2}}`:                                                     "no line of rows",
		`[]`:                                                                                "cannot unmarshal",
	} {
		var p Parser
		_, err := p.Parse([]byte(line))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !fault.Is(err, fault.Invalid)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

func TestAnswersEndWithAnEndOrAnError(t *testing.T) {
	var p Parser
	if _, end, err := p.ParseAnswer(AppendEnd(nil, End{3, 4})); err != nil || end == nil || *end != (End{3, 4}) {
		t.Error(end, err)
	}
	_, _, err := p.ParseAnswer(AppendError(nil, fault.Errorf(fault.TooLarge, "too many rows")))
	if !fault.Is(err, fault.TooLarge) || err.Error() != "too many rows" {
		t.Error(err)
	}
}

// A line that was cut or flipped is an error or other rows, never a panic.
func TestDamagedLines(t *testing.T) {
	whole, err := Append(nil, sample())
	if err != nil {
		t.Fatal(err)
	}
	var p Parser
	for i := range len(whole) - 2 {
		if _, err := p.Parse(whole[:i]); err == nil {
			t.Fatalf("a line cut at %d was taken", i)
		}
		b := bytes.Clone(whole)
		for _, bit := range []byte{1, 4, 0x80} {
			b[i] = whole[i] ^ bit
			_, _ = p.Parse(b)
		}
	}
}

func FuzzParse(f *testing.F) {
	b, err := Append(nil, sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"metric":{"__name__":"a"},"timestamps":[1,2],"values":[1,null]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Parser
		l, err := p.Parse(b)
		if err != nil {
			return
		}
		text, err := Append(nil, l)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Labels) == 0 {
			return
		}
		got, err := again.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if d := cmp.Diff(l, got, bits); d != "" && len(l.Hists) == 0 {
			t.Fatal(d)
		}
	})
}
