package otlp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

func decode(t testing.TB, dec *otlp.Decoder, body []byte, f otlp.Format) (string, error) {
	t.Helper()
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	err := dec.Decode(body, f, b)
	if err != nil && (b.Rows()+b.RefusedRows+len(b.Exemplars)+len(b.Metadata)+len(b.ItemRows)+len(b.Refused)) > 0 {
		t.Errorf("a body that was refused (%v) left %s", err, explain(b, err))
	}
	return explain(b, err), err
}

func TestEveryTruncationIsAnErrorOrARequest(t *testing.T) {
	for name, body := range goldenWire(t) {
		dec := newDecoder(t, settingsOf(t, "testdata/cases/"+name))
		for n := range body {
			_, err := decode(t, dec, body[:n], otlp.Protobuf)
			var m metricspb.MetricsData
			if official := proto.Unmarshal(body[:n], &m); (official == nil) != (err == nil) {
				t.Errorf("%s cut at %d: %v, the official decoder says %v", name, n, err, official)
			}
		}
	}
}

func TestMetricsDataIsTheRequest(t *testing.T) {
	for name, body := range goldenWire(t) {
		var req collectorpb.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &req); err != nil || len(req.ResourceMetrics) == 0 || len(req.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("%s: %v, %d resources", name, err, len(req.ResourceMetrics))
		}
	}
}

// A body with false sizes or with nothing but overhead must cost little memory before it is refused.
func TestBombsAreRefusedCheaply(t *testing.T) {
	inside := func(content []byte, nums ...byte) []byte {
		for i := len(nums) - 1; i >= 0; i-- {
			b := binary.AppendUvarint([]byte{nums[i]<<3 | 2}, uint64(len(content)))
			content = append(b, content...)
		}
		return content
	}
	f := func(name string, body []byte, format otlp.Format, kind fault.Kind, memoryMax uint64) {
		t.Helper()
		dec := newDecoder(t, otlp.Settings{PromoteScopeMetadata: true, PromoteAllResourceAttributes: true})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode(t, dec, body, format)
		runtime.ReadMemStats(&after)
		if got := fault.KindOf(err); err == nil && kind != fault.Canceled || err != nil && got != kind {
			t.Errorf("%s: %v", name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > memoryMax {
			t.Errorf("%s of %d bytes took %d bytes", name, len(body), used)
		}
	}
	const none = fault.Canceled // no error is expected
	f("a length of 2^60", append([]byte{1<<3 | 2}, binary.AppendUvarint(nil, 1<<60)...), otlp.Protobuf, fault.Invalid, 1<<20)
	f("a million empty data points", inside(bytes.Repeat([]byte{1<<3 | 2, 0}, 1<<20), 1, 2, 2, 5), otlp.Protobuf, fault.TooLarge, 64<<20)
	f("a million empty resources", bytes.Repeat([]byte{1<<3 | 2, 0}, 1<<20), otlp.Protobuf, none, 1<<20)
	f("a million empty attributes of a resource", inside(bytes.Repeat([]byte{1<<3 | 2, 0}, 1<<20), 1, 1), otlp.Protobuf, none, 1<<20)

	zeros := inside(make([]byte, 8<<20), 2)
	at := binary.LittleEndian.AppendUint64([]byte{3<<3 | 1}, 1_700_000_000_000_000_000)
	temporality := []byte{2 << 3, 2}
	f("eight million empty buckets", inside(append(inside(append(at, inside(zeros, 8)...), 1), temporality...), 1, 2, 2, 10), otlp.Protobuf, none, 1<<20)
	ones := inside(bytes.Repeat([]byte{1}, 8<<20), 2)
	f("eight million buckets", inside(append(inside(append(at, inside(ones, 8)...), 1), temporality...), 1, 2, 2, 10), otlp.Protobuf, none, 4<<20)
	f("a million bounds", inside(append(inside(append(at, inside(make([]byte, 8<<20), 7)...), 1), temporality...), 1, 2, 2, 9), otlp.Protobuf, none, 4<<20)

	nested := strings.Repeat(`{"arrayValue":{"values":[`, 10_000) + strings.Repeat(`]}}`, 10_000)
	f("arrays within arrays", []byte(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"a","value":`+nested+`}]}}]}`), otlp.JSON, fault.Invalid, 16<<20)
	f("two million JSON objects", []byte(`{"resourceMetrics":[`+strings.Repeat(`{},`, 2<<20)+`{}]}`), otlp.JSON, fault.TooLarge, 1<<20)

	span := []byte(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"a"}},{"key":"b","value":{"stringValue":"c"}}]},"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[{"timeUnixNano":"1","asInt":"1"},{"timeUnixNano":"9000000000000000000","asInt":"1"}]}}]}]}]}`)
	f("target_info for 285 years", span, otlp.JSON, none, 4<<20)
}

// TestTimesAtTheEndOfNanosecondsAreStored: the time of target_info wrapped around to 1677 and never came to the last data point, so the
// whole request was refused as too large after seconds of work.
func TestTimesAtTheEndOfNanosecondsAreStored(t *testing.T) {
	for _, before := range []int64{0, 1, int64(otlp.TargetInfoIntervalDefault) - 1, int64(otlp.TargetInfoIntervalDefault), math.MaxInt64 - 1} {
		body := fmt.Sprintf(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"a"}},{"key":"b","value":{"stringValue":"c"}}]},`+
			`"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[{"timeUnixNano":"%d","asInt":"1"},{"timeUnixNano":"%d","asInt":"1"}]}}]}]}]}`,
			math.MaxInt64-before, int64(math.MaxInt64))
		b := point.GetBatch(point.NewDict(0))
		if err := newDecoder(t, otlp.Settings{}).Decode([]byte(body), otlp.JSON, b); err != nil {
			t.Errorf("%d ns before the last: %v", before, err)
		}
		if info := b.Rows() - 2; b.RefusedRows > 0 || info < 1 || info > otlp.TargetInfoSamplesMax+1 || b.Times[len(b.Times)-1] != math.MaxInt64 {
			t.Errorf("%d ns before the last: %d samples of target_info, %d refused", before, info, b.RefusedRows)
		}
		b.Put()
	}
}

// TestAServiceNameIsNotWrittenOutForEver: the attributes of a resource are labels of all its series. Those that are refused wrote them out for
// each data point, 34 GB for a body of 30 MB.
func TestAServiceNameIsNotWrittenOutForEver(t *testing.T) {
	const long = 60_000
	body := func(points int, service, metric string) []byte {
		var b strings.Builder
		fmt.Fprintf(&b, `{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"%s"}}]},"scopeMetrics":[{"metrics":[{"name":"%s","gauge":{"dataPoints":[`, service, metric)
		for i := range points {
			fmt.Fprintf(&b, `%s{"timeUnixNano":"1","asInt":"1","attributes":[{"key":"i","value":{"intValue":"%d"}}]}`, []string{"", ","}[min(i, 1)], i)
		}
		b.WriteString(`]}}]}]}]}`)
		return []byte(b.String())
	}
	dict := point.NewDict(0)
	dict.SetLabelLimits(point.DefaultLabelLimits)
	dec := newDecoder(t, otlp.Settings{})
	text := strings.Repeat("v", long)
	for _, c := range []struct {
		points          int
		service, metric string
		tooMany         bool
	}{{100, text, "m", false}, {point.LabelsRequestMax/long + 1, text, "m", true}, {point.LabelsRequestMax/long + 1, "s", text, true}} {
		points, tooMany := c.points, c.tooMany
		b := point.GetBatch(dict)
		err := dec.Decode(body(points, c.service, c.metric), otlp.JSON, b)
		if tooMany && (!fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), fmt.Sprint(point.LabelsRequestMax)) || b.RefusedRows > 0) {
			t.Errorf("%d points: %v, %d refused", points, err, b.RefusedRows)
		}
		if !tooMany && (err != nil || b.RefusedRows != points) {
			t.Errorf("%d points: %v, %d refused", points, err, b.RefusedRows)
		}
		b.Put()
	}
}

func TestDeepValuesRefuseTheirPoint(t *testing.T) {
	value := `{"stringValue":"x"}`
	for range 40 {
		value = `{"arrayValue":{"values":[` + value + `]}}`
	}
	wire, err := otlp.FromJSON([]byte(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[
		{"timeUnixNano":"5","asInt":"1","attributes":[{"key":"a","value":` + value + `}]},{"timeUnixNano":"5","asInt":"1"}]}}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(t, newDecoder(t, otlp.Settings{}), wire, otlp.Protobuf)
	want := `sample     {__name__="m"} @5 = 1   (item 2)
metadata   m is a gauge in "": ""
refused    item 1 m{a=""}: attribute with a value nested more than 32 deep (invalid)
1 points refused
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// Attributes may be scattered over a data point, and messages may hold their scalars before their points.
func TestFieldsInAnyOrder(t *testing.T) {
	for name, body := range goldenWire(t) {
		s := settingsOf(t, "testdata/cases/"+name)
		want, _ := decode(t, newDecoder(t, s), body, otlp.Protobuf)
		got, err := decode(t, newDecoder(t, s), turned(t, body, "MetricsData"), otlp.Protobuf)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// inner lists the fields that are messages and get their order of fields turned too.
var inner = map[string]map[int]string{
	"MetricsData":     {1: "ResourceMetrics"},
	"ResourceMetrics": {2: "ScopeMetrics"},
	"ScopeMetrics":    {2: "Metric"},
	"Metric":          {5: "Numbers", 7: "Numbers", 9: "Histograms", 10: "Exponentials", 11: "Summaries"},
	"Numbers":         {1: "Number"},
	"Histograms":      {1: "Histogram"},
	"Exponentials":    {1: "Exponential"},
	"Summaries":       {1: "Summary"},
}

// turned writes the numbers of a message's fields in falling order, and where a data point has several attributes puts the
// last attribute behind everything else.
func turned(t testing.TB, m []byte, message string) []byte {
	fields := map[int][][]byte{}
	highest := 0
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		from, size := n, 0
		switch tag & 7 {
		case 0:
			_, size = binary.Uvarint(m[n:])
		case 1:
			size = 8
		case 2:
			l, k := binary.Uvarint(m[n:])
			from, size = n+k, int(l)
		default:
			t.Fatalf("wire type %d", tag&7)
		}
		num, field := int(tag>>3), m[:from+size]
		if within := inner[message][num]; within != "" {
			content := turned(t, m[from:from+size], within)
			field = append(binary.AppendUvarint(bytes.Clone(m[:n]), uint64(len(content))), content...)
		}
		fields[num] = append(fields[num], field)
		highest = max(highest, num)
		m = m[from+size:]
	}
	var out, last []byte
	attrs := map[string]int{"Number": 7, "Histogram": 9, "Exponential": 1, "Summary": 7}[message]
	for num := highest; num > 0; num-- {
		for i, f := range fields[num] {
			if num == attrs && i == len(fields[num])-1 && i > 0 {
				last = f
				continue
			}
			out = append(out, f...)
		}
	}
	return append(out, last...)
}

func TestDecodersOfDifferentSettingsShareADict(t *testing.T) {
	d := point.NewDict(0)
	body := goldenWire(t)["promoted"]
	for _, s := range []otlp.Settings{{}, {Translation: otlp.NoTranslation}, {PromoteScopeMetadata: true}, {}} {
		alone, _ := decode(t, newDecoder(t, s), body, otlp.Protobuf)
		b := point.GetBatch(d)
		err := newDecoder(t, s).Decode(body, otlp.Protobuf, b)
		if diff := cmp.Diff(alone, explain(b, err)); diff != "" {
			t.Errorf("%+v: %s", s, diff)
		}
		b.Put()
	}
}

// A restart gives a process another number; its series stay the same, and so do the bytes a Dict remembers them by.
func TestAttributesThatAreNoLabelsMakeNoNewSpelling(t *testing.T) {
	body := func(pid int) []byte {
		wire, err := otlp.FromJSON([]byte(strings.ReplaceAll(string(goldenBody(t, "testdata/cases/gauge")), "4711", fmt.Sprint(pid))))
		if err != nil {
			t.Fatal(err)
		}
		return wire
	}
	dec, d := newDecoder(t, otlp.Settings{DisableTargetInfo: true}), point.NewDict(0)
	for pid := range 3 {
		b := point.GetBatch(d)
		if err := dec.Decode(body(1000+pid), otlp.Protobuf, b); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(b.IDs); got != "[0 1 2]" {
			t.Errorf("series %s", got)
		}
		b.Put()
	}
	if d.Len() != 3 {
		t.Errorf("%d series", d.Len())
	}
}

// TestAnExemplarKeepsItsTraceIDBesideAttributesOfThatName: the id replaced an empty attribute trace_id, a second attribute
// of that name was left, and the exemplar was refused for two labels of one name.
func TestAnExemplarKeepsItsTraceIDBesideAttributesOfThatName(t *testing.T) {
	text := func(key, value string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
	}
	body, err := proto.Marshal(&metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{ScopeMetrics: []*metricspb.ScopeMetrics{{
		Metrics: []*metricspb.Metric{{Name: "m", Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{{
			TimeUnixNano: 1e18, Value: &metricspb.NumberDataPoint_AsInt{AsInt: 1},
			Exemplars: []*metricspb.Exemplar{{
				Value: &metricspb.Exemplar_AsInt{AsInt: 2}, TraceId: []byte("0123456789abcdef"),
				FilteredAttributes: []*commonpb.KeyValue{text("trace_id", ""), text("trace_id", "other"), text("a", "1")},
			}},
		}}}}}},
	}}}}})
	if err != nil {
		t.Fatal(err)
	}
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	if err := newDecoder(t, otlp.Settings{}).Decode(body, otlp.Protobuf, b); err != nil {
		t.Fatal(err)
	}
	if len(b.Refused) > 0 || len(b.Exemplars) != 1 {
		t.Fatalf("%d exemplars, refused: %v", len(b.Exemplars), b.Refused)
	}
	if got, want := b.Exemplars[0].Labels.String(), `{a="1", trace_id="30313233343536373839616263646566"}`; got != want {
		t.Errorf("labels %s, want %s", got, want)
	}
}

func TestAFullDictAsksToComeAgain(t *testing.T) {
	b := point.GetBatch(point.NewDict(2))
	defer b.Put()
	dec := newDecoder(t, otlp.Settings{})
	if err := dec.Decode(goldenWire(t)["histogram_classic"], otlp.Protobuf, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != 0 || b.RefusedRows != 6 || b.Refused[0].Kind != fault.Throttled {
		t.Errorf("%d rows, %d refused, first %+v", len(b.IDs), b.RefusedRows, b.Refused[0])
	}
}

func TestMessagesThatStandTwice(t *testing.T) {
	twice := func(num byte, content []byte) []byte {
		b := binary.AppendUvarint([]byte{num<<3 | 2}, uint64(len(content)))
		b = append(b, content...)
		return append(b, b...)
	}
	body := append([]byte{1<<3 | 2, 0}, 1<<3|2)
	resources := twice(1, nil)
	body = append(binary.AppendUvarint(body, uint64(len(resources))), resources...)
	if _, err := decode(t, newDecoder(t, otlp.Settings{}), body, otlp.Protobuf); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}

func TestDeltasSurviveABatchThatIsSentAgain(t *testing.T) {
	dec, d := newDecoder(t, otlp.Settings{Delta: otlp.DeltaConvert}), point.NewDict(0)
	body := func(at uint64, v int) []byte {
		wire, err := otlp.FromJSON([]byte(fmt.Sprintf(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"jobs","sum":{"isMonotonic":true,"aggregationTemporality":1,
			"dataPoints":[{"timeUnixNano":%d,"asInt":%d}]}}]}]}]}`, at, v)))
		if err != nil {
			t.Fatal(err)
		}
		return wire
	}
	f := func(at uint64, v int, want ...float64) {
		t.Helper()
		b := point.GetBatch(d)
		defer b.Put()
		if err := dec.Decode(body(at, v), otlp.Protobuf, b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(b.Values)); diff != "" {
			t.Error(diff)
		}
	}
	f(10, 3, 3)
	f(20, 4, 7)
	f(20, 4, 7) // the answer was lost
	f(10, 3, 3) // also that of the one before it
	f(15, 9, 3) // newer ones passed it: it counts from the next sum on
	f(15, 9, 3) // and once
	f(40, 1, 17)
	f(50, 1, 18)
	f(15, 9, 3)
	f(10, 3) // it is not remembered any more
	f(15, 9, 3)
	if late := dec.Deltas.Late(); late != 1 {
		t.Errorf("%d samples were late", late)
	}
	d = point.NewDict(0)
	dec.Table = "other"
	f(30, 5, 5)
	dec.Table = ""
	f(60, 1, 19) // another generation of the Dict is the same series
}

// TestACounterGoesOnAfterADeltaThatIsNoNumber: one such delta made every later sum of its series NaN, until the process was restarted.
func TestACounterGoesOnAfterADeltaThatIsNoNumber(t *testing.T) {
	for _, odd := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		d, series := otlp.NewDeltas(10), point.MakeLabels("__name__", "jobs")
		f := func(at point.Nanos, v, want float64) {
			t.Helper()
			if got, err := d.Add(series, at, v); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v: the sum at %d is %v, %v, not %v", odd, at, got, err, want)
			}
		}
		f(10, 3, 3)
		f(20, odd, odd)
		f(40, 4, 7)
		f(20, odd, odd) // its answer was lost
		f(30, 5, 3)     // late: the row of the last number before it
		f(50, 1, 13)
		f(60, math.MaxFloat64, math.MaxFloat64)
		f(70, math.MaxFloat64, math.Inf(1))
		f(80, -math.MaxFloat64, 0)
	}
}

// TestADeltaThatIsLateAfterOnesThatAreNoNumbersIsARow: it got the row of those, as no number before it was remembered; and one that is no number, and late, got that of a number.
func TestADeltaThatIsLateAfterOnesThatAreNoNumbersIsARow(t *testing.T) {
	d, series := otlp.NewDeltas(10), point.MakeLabels("__name__", "jobs")
	f := func(at point.Nanos, v, want float64) {
		t.Helper()
		if got, err := d.Add(series, at, v); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the sum at %d is %v, %v, not %v", at, got, err, want)
		}
	}
	f(10, 7, 7)
	for at := point.Nanos(20); at <= 50; at += 10 {
		f(at, math.NaN(), math.NaN())
	}
	f(45, 1, 7)
	f(45, 1, 7)
	f(60, 1, 9)
	f(55, math.Inf(1), math.Inf(1))
	f(70, 1, 10)
	if d.Late() != 1 {
		t.Errorf("%d late deltas count from the next sum on, not 1", d.Late())
	}
}

// TestDeltasRememberTheSeriesThatLive while ten times as many as are remembered come and go.
func TestDeltasRememberTheSeriesThatLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1000
		d := otlp.NewDeltas(most)
		live := point.MakeLabels("__name__", "live")
		sum := 0.0
		for i := range 10 * most {
			if _, err := d.Add(point.MakeLabels("__name__", fmt.Sprint("m", i)), 1, 1); err != nil {
				t.Fatal(err)
			}
			if i%80 == 0 { // a table has three quarters of the room
				sum++
				if got, err := d.Add(live, int64(i+1), 1); err != nil || got != sum {
					t.Fatalf("after %d others: %v %v, want %v", i, got, err, sum)
				}
				time.Sleep(otlp.DeltaIdleMin / 8)
			}
		}
		if n := d.Len(); n > most {
			t.Errorf("%d series are remembered", n)
		}
	})
}

// TestSumsOfSeriesInUseGoOnWhereTheirLabelsAreLong: half as many series as are admitted, with labels of a kilobyte, had their sums begin again at zero with each export, because
// two generations had a bound of bytes each. Series for which there is no room are refused; those that are in use go on.
func TestSumsOfSeriesInUseGoOnWhereTheirLabelsAreLong(t *testing.T) {
	for name, series := range map[string]int{"fewer than there is room for": 290, "more than there is room for": 700} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const most, room = 1000, 290
				d, long := otlp.NewDeltas(most), strings.Repeat("x", 1000)
				refused := map[int]bool{}
				for round := 1; round <= 5; round++ {
					for i := range series {
						sum, err := d.Add(point.MakeLabels("__name__", fmt.Sprint("m", i), "l", long), point.Nanos(round), 1)
						if err != nil {
							if round == 1 {
								refused[i] = true
							}
							if !refused[i] || !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "intake.series_max") {
								t.Fatalf("round %d, series %d: %v", round, i, err)
							}
						} else if sum != float64(round) || refused[i] {
							t.Fatalf("round %d, series %d has the sum %v", round, i, sum)
						}
					}
					time.Sleep(time.Minute)
				}
				if taken := series - len(refused); taken < min(series, room) {
					t.Errorf("%d series of %d are taken", taken, series)
				}
				if d.Bytes() > most*otlp.DeltaReckoned {
					t.Errorf("%d bytes are held", d.Bytes())
				}
			})
		})
	}
}

// TestSumsOfATableHaveRoomBesideATableThatFillsIt: a few series with labels of 256 KiB filled all of the room, and the deltas of every other table were
// refused.
func TestSumsOfATableHaveRoomBesideATableThatFillsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, label = 10_000, 240 << 10
		d, long := otlp.NewDeltas(most), strings.Repeat("x", label/4)
		flood := func(round int) (taken int) {
			for i := range 100 {
				if _, err := d.AddTo("flood", point.MakeLabels("__name__", fmt.Sprint("m", i), "a", long, "b", long, "c", long, "d", long), point.Nanos(round), 1); err == nil {
					taken++
				}
			}
			return taken
		}
		if taken := flood(1); int64(taken)*label < most*otlp.DeltaReckoned/2 {
			t.Errorf("alone, a table had room for %d series of %d bytes", taken, label)
		}
		for i := range most / 20 {
			if _, err := d.AddTo("small", point.MakeLabels("__name__", fmt.Sprint("m", i)), 1, 1); err != nil {
				t.Fatalf("series %d of the other table: %v", i, err)
			}
		}
		// The flood does not end the sums of a smaller table that exports seldom, either.
		for round := 2; round < 10; round++ {
			time.Sleep(otlp.DeltaIdleMin / 4)
			flood(round)
		}
		for i := range most / 20 {
			if sum, err := d.AddTo("small", point.MakeLabels("__name__", fmt.Sprint("m", i)), 2, 1); err != nil || sum != 2 {
				t.Fatalf("series %d of the other table: %v %v", i, sum, err)
			}
		}
		if d.Bytes() > most*otlp.DeltaReckoned {
			t.Errorf("%d bytes are held", d.Bytes())
		}
	})
}

// TestSumsOfTablesThatAreGoneMakeRoom for one table that is larger than each of them.
func TestSumsOfTablesThatAreGoneMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1000
		d := otlp.NewDeltas(most)
		taken := func(table string) (n int) {
			for i := range most {
				if _, err := d.AddTo(table, point.MakeLabels("__name__", fmt.Sprint("m", i)), 1, 1); err == nil {
					n++
				}
			}
			return n
		}
		for i := range most {
			if _, err := d.AddTo(fmt.Sprint("t", i), point.MakeLabels("__name__", "up"), 1, 1); err != nil && i < most/2 {
				t.Fatal(err)
			}
		}
		if n := taken("lives"); n > most/2 {
			t.Errorf("%d series are taken beside those in use", n)
		}
		time.Sleep(otlp.DeltaDeadMin)
		if n := taken("lives"); n < most*5/8 {
			t.Errorf("only %d series are taken where all others are dead", n)
		}
	})
}

// TestAHistogramThatIsRefusedLeavesNoSums: the sums of the buckets before the one that had no room had its counts, and those behind did not.
func TestAHistogramThatIsRefusedLeavesNoSums(t *testing.T) {
	dec, dict := newDecoder(t, otlp.Settings{Delta: otlp.DeltaConvert}), point.NewDict(0)
	dec.Deltas = otlp.NewDeltas(16)
	decode := func(at uint64, name, histogram string) *point.Batch {
		t.Helper()
		wire, err := otlp.FromJSON([]byte(fmt.Sprintf(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":%q,"histogram":{"aggregationTemporality":1,
			"dataPoints":[{"timeUnixNano":%d,%s}]}}]}]}]}`, name, at, histogram)))
		if err != nil {
			t.Fatal(err)
		}
		b := point.GetBatch(dict)
		t.Cleanup(b.Put)
		if err := dec.Decode(wire, otlp.Protobuf, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	const small = `"count":3,"sum":1,"explicitBounds":[1],"bucketCounts":[2,1]`
	if b := decode(10, "small", small); b.RefusedRows != 0 || fmt.Sprint(b.Values) != "[1 3 2 3]" {
		t.Fatal(b.Refused, b.Values)
	}
	held := dec.Deltas.Bytes()
	const large = `"count":1,"explicitBounds":[1,2,3,4,5,6,7,8,9,10,11,12,13,14],"bucketCounts":[1,0,0,0,0,0,0,0,0,0,0,0,0,0,0]`
	if b := decode(20, "large", large); b.RefusedRows != 1 || len(b.Values) != 0 {
		t.Fatal(b.Refused, b.Values)
	}
	if now := dec.Deltas.Bytes(); now != held {
		t.Errorf("a histogram that was refused holds %d bytes", now-held)
	}
	// Of one with more bounds than before only some series are new: none of its counts is added.
	const grown = `"count":30,"sum":10,"explicitBounds":[1,2,3,4,5,6,7,8,9,10,11,12],"bucketCounts":[30,0,0,0,0,0,0,0,0,0,0,0,0]`
	if b := decode(30, "small", grown); b.RefusedRows != 1 || len(b.Values) != 0 {
		t.Fatal(b.Refused, b.Values)
	}
	if b := decode(40, "small", small); b.RefusedRows != 0 || fmt.Sprint(b.Values) != "[2 6 4 6]" {
		t.Error(b.Refused, b.Values)
	}
}

// TestLabelsBeyondTheTablesLimitsHoldNoRoomForSums.
func TestLabelsBeyondTheTablesLimitsHoldNoRoomForSums(t *testing.T) {
	dec, dict := newDecoder(t, otlp.Settings{Delta: otlp.DeltaConvert}), point.NewDict(0)
	dict.SetLabelLimits(point.DefaultLabelLimits)
	wire, err := otlp.FromJSON([]byte(fmt.Sprintf(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"jobs","sum":{"isMonotonic":true,"aggregationTemporality":1,
		"dataPoints":[{"timeUnixNano":1,"asInt":1,"attributes":[{"key":"long","value":{"stringValue":%q}}]}]}}]}]}]}`, strings.Repeat("x", 60<<10))))
	if err != nil {
		t.Fatal(err)
	}
	b := point.GetBatch(dict)
	defer b.Put()
	if err := dec.Decode(wire, otlp.Protobuf, b); err != nil || b.RefusedRows != 1 {
		t.Fatal(err, b.Refused)
	}
	if n := dec.Deltas.Bytes(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestSumsOfDeltasStayWithinTheirMemory: they were in no account, and bounded by their number alone, so that series with long labels filled all of a gateway's
// memory.
func TestSumsOfDeltasStayWithinTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, label = 100, 8 << 10
		d := otlp.NewDeltas(most)
		booked := int64(0)
		d.OnGrowth(func(to int64) { booked = max(booked, to) })
		text := strings.Repeat("x", label)
		for i := range 5 * most {
			if _, err := d.Add(point.MakeLabels("__name__", fmt.Sprint("m", i), "text", text), 1, 1); err != nil {
				t.Fatal(err)
			}
			if now := d.Bytes(); now > most*otlp.DeltaReckoned || int64(d.Len())*label > now {
				t.Fatalf("%d bytes after %d series, of which %d are remembered", now, i+1, d.Len())
			}
			time.Sleep(otlp.DeltaIdleMin)
		}
		if booked < d.Bytes() || d.Len() < 4 {
			t.Errorf("%d bytes were booked; %d series hold %d", booked, d.Len(), d.Bytes())
		}
	})
}

// TestSumsOfDeltasKeepNoMemoryOfADict: each series had the piece of memory that its labels lay in.
func TestSumsOfDeltasKeepNoMemoryOfADict(t *testing.T) {
	const series, piece = 1000, 64 << 10
	d := otlp.NewDeltas(2 * series)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	began := heap()
	for i := range series {
		l := point.MakeLabels("__name__", fmt.Sprint("m", i))
		within := make([]byte, piece)
		n := copy(within, l)
		if _, err := d.Add(point.Labels(string(within)[:n]), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := heap() - began; n > d.Bytes() {
		t.Errorf("%d series keep %d bytes, and %d are booked", series, n, d.Bytes())
	}
	runtime.KeepAlive(d)
}

func TestSettings(t *testing.T) {
	if err := (otlp.Settings{}).Validate(); err != nil {
		t.Error(err)
	}
	_, err := otlp.NewTranslator(otlp.Settings{
		Translation: "Loud", Delta: "maybe", TargetInfoInterval: 1,
		PromoteAllResourceAttributes: true, PromoteResourceAttributes: []string{"a"},
	})
	for _, want := range []string{"Loud", "maybe", "TargetInfoInterval 1ns", "exclude each other"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %q", err, want)
		}
	}
	if _, err := otlp.NewTranslator(otlp.Settings{IgnoreResourceAttributes: []string{"a"}}); err == nil {
		t.Error("attributes are ignored where none are promoted")
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range goldenWire(f) {
		f.Add(body)
	}
	f.Add(bytes.Repeat([]byte{1<<3 | 2, 0}, 8))
	dec := newDecoder(f, otlp.Settings{PromoteScopeMetadata: true, PromoteAllResourceAttributes: true, Delta: otlp.DeltaKeep})
	nhcb := newDecoder(f, otlp.Settings{ConvertHistogramsToNHCB: true})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, d := range []*otlp.Decoder{dec, nhcb} {
			got, err := decode(t, d, body, otlp.Protobuf)
			if again, _ := decode(t, d, body, otlp.Protobuf); again != got {
				t.Fatalf("a body means this:\n%s\nand the second time that:\n%s", got, again)
			}
			// A message that both the official decoder and ours accept must mean the same when it is written again in the usual way.
			var m metricspb.MetricsData
			if err != nil || proto.Unmarshal(body, &m) != nil {
				continue
			}
			canonical, err := proto.Marshal(&m)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := decode(t, d, canonical, otlp.Protobuf); want != got {
				t.Fatalf("a body means this:\n%s\nbut written as protobuf writes it that:\n%s", got, want)
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, name := range []string{"gauge", "sums", "histogram_classic", "exponential", "summary", "attributes", "not_otlp", "bad_trace_id"} {
		f.Add(goldenBody(f, "testdata/cases/"+name))
	}
	dec := newDecoder(f, otlp.Settings{})
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := decode(t, dec, body, otlp.JSON)
		if k := fault.KindOf(err); err != nil && k != fault.Invalid && k != fault.TooLarge {
			t.Fatal(err)
		}
	})
}
