package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// Requests that are well formed and absurd. Each is small; none may cost much, end the process, or be answered with 500.
func oddAttacks() []attack {
	return []attack{
		{name: "odd/ranges", does: "times, steps, time-outs and limits at the ends of their types", run: oddly(oddRanges)},
		{name: "odd/expressions", does: "functions with infinite, negative and huge arguments, labels that double forty times", run: oddly(oddExpressions)},
		{name: "odd/remote-read", does: "remote reads of inverted and endless ranges, unknown matchers, hints and answer types", run: oddly(oddReads)},
		{name: "odd/federate", does: "federation by a thousand selectors and costly patterns", run: oddly(oddFederation)},
		{name: "odd/symbols", does: "remote write 2.0 with symbols out of range, odd, repeated, shared by 100,000 labels", run: oddly(oddSymbols)},
		{name: "odd/histograms", does: "native histograms whose spans, counts, bounds and schemas contradict each other, then read", run: oddly(oddHistograms)},
		{name: "odd/exemplars", does: "exemplars without labels, with long ones, at wild times, then asked for", run: oddly(oddExemplars)},
		{name: "odd/otlp", does: "OpenTelemetry values nested 20,000 deep, by protobuf and JSON", run: oddly(oddOTLP)},
		{name: "odd/text", does: "names and values of broken, overlong, invisible and mirrored UTF-8, read back as JSON", run: oddText},
		{name: "odd/packed", does: "a million empty gzip members, skippable and endless zstd frames, snappy copies of copies", run: oddly(oddPacking)},
		{name: "odd/statements", does: "InfluxQL of 100,000 statements, patterns, brackets, and endless strings", run: oddly(oddStatements)},
		{name: "odd/tables", does: "names of tables with slashes, dots, escapes, NUL, ten thousand bytes", run: oddly(oddTables)},
		{name: "odd/admin", does: "administration, reload and profiles by each method and spelling of the path", run: oddly(oddAdmin)},
	}
}

const oddTable = "odd"

// odd is one request.
type odd struct {
	method, path string
	header       http.Header
	body         []byte
}

// oddMax is the patience with one query, below the time-out of queries: a replacement by 500 groups of 20,000 series needs 20 s, and was seen to need 57 s at a
// load of 25.
const oddMax = 110 * time.Second

// oddly sends requests in turns, four at a time, each at least once, and notes the slowest.
func oddly(requests func(now time.Time) []odd) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		a.crowd(ctx)
		all := requests(time.Now())
		const at = 4
		a.last = max(a.last, 4*time.Minute) // an upper bound: it ends after one turn
		var slowest [at]struct {
			took time.Duration
			what string
		}
		a.workers(ctx, at, func(ctx context.Context, w, turn int) bool {
			i := turn*at + w
			if i >= len(all) {
				return false
			}
			began := time.Now()
			a.send(ctx, all[i].method, all[i].path, all[i].header, all[i].body)
			if took := time.Since(began); took > slowest[w].took {
				slowest[w].took, slowest[w].what = took, fmt.Sprintf("%s %.80s %.80q", all[i].method, all[i].path, all[i].body[:min(len(all[i].body), 80)])
			}
			return true
		})
		for _, s := range slowest {
			if s.took >= slowest[0].took {
				slowest[0] = s
			}
		}
		a.note = fmt.Sprintf("%d requests, the slowest %.2f s: %s", len(all), slowest[0].took.Seconds(), slowest[0].what)
		if slowest[0].took > oddMax {
			a.blame(fmt.Sprintf("%s took %s", slowest[0].what, slowest[0].took))
		}
	}
}

func oddGet(path string, values url.Values) odd {
	return odd{method: http.MethodGet, path: path + "?" + values.Encode()}
}

func oddRanges(now time.Time) (all []odd) {
	wild := []string{
		"NaN", "Inf", "-Inf", "1e308", "-1e308", "9223372036854775807", "-9223372036854775808", "9223372036.854775807", "0", "-1", "1e-9", "1e19", "253402300800", "-62135596801",
		"9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "0x7fffffffffffffff", "1y", "106751d", "", " ", "é",
	}
	crowd := "/t/" + crowdTable + "/api/v1/"
	end := fmt.Sprint(now.Unix())
	for _, w := range wild {
		all = append(all,
			oddGet(crowd+"query", url.Values{"query": {"sum(crowd)"}, "time": {w}}),
			oddGet(crowd+"query", url.Values{"query": {"sum(crowd)"}, "timeout": {w}, "lookback_delta": {w}, "limit": {w}}),
			oddGet(crowd+"query_range", url.Values{"query": {"sum(crowd)"}, "start": {w}, "end": {end}, "step": {"15"}}),
			oddGet(crowd+"query_range", url.Values{"query": {"sum(crowd)"}, "start": {end}, "end": {w}, "step": {"1e9"}}),
			oddGet(crowd+"query_range", url.Values{"query": {"sum(crowd)"}, "start": {"0"}, "end": {end}, "step": {w}}),
			oddGet(crowd+"query_exemplars", url.Values{"query": {"crowd"}, "start": {w}, "end": {end}}),
			oddGet(crowd+"series", url.Values{"match[]": {"crowd"}, "start": {w}, "end": {w}, "limit": {w}}),
			oddGet(crowd+"labels", url.Values{"start": {w}, "end": {end}, "limit": {w}}),
			oddGet(crowd+"label/host/values", url.Values{"start": {end}, "end": {w}}),
		)
	}
	return all
}

// doubled is an expression whose label is twice as long with each of n calls.
func doubled(n int) string {
	return strings.Repeat("label_replace(", n) + "crowd" + strings.Repeat(`,"path","$1$1","path","(.*)")`, n)
}

func oddExpressions(now time.Time) (all []odd) {
	expressions := []string{
		doubled(8), doubled(40), doubled(400), "label_join(crowd" + strings.Repeat(`,"path","path"`, 1) + strings.Repeat(`,"path"`, 5000) + ")",
		`label_replace(crowd,"a","` + strings.Repeat("$1", 50_000) + `","path","(.*)")`, `label_replace(crowd,"a","$1","path","` + strings.Repeat("(.*)", 500) + `")`,
		`count_values("path", crowd)`, "topk(1e18, crowd)", "topk(-1, crowd)", "topk(NaN, crowd)", "topk(Inf, crowd)", "bottomk(1e308, crowd)", "limitk(1e18, crowd)", "limit_ratio(-1e308, crowd)",
		"quantile(Inf, crowd)", "quantile(NaN, crowd)", "quantile_over_time(-1e308, crowd[1h])", "histogram_quantile(NaN, crowd)", "crowd offset 9223372036s", "crowd offset -9223372036s",
		"crowd @ 9223372036854775807", "crowd @ -1e300", "crowd @ 1e300", "rate(crowd[106751d])", "rate(crowd[1h] offset 100000d)", "predict_linear(crowd[1h], 1e308)", "double_exponential_smoothing(crowd[1h], 0.5, 1e-300)",
		"clamp(crowd, NaN, -Inf)", "round(crowd, 5e-324)", "vector(1)[1d:1ms]", "max_over_time(vector(1)[106751d:1s])", "sort_by_label(crowd" + strings.Repeat(`,"path"`, 3000) + ")", "sum by (" + strings.Repeat("path,", 50_000) + "host) (crowd)",
		"sum without (" + strings.Repeat("path,", 50_000) + "host) (crowd)", "crowd * on(" + strings.Repeat("path,", 20_000) + "host) group_left(" + strings.Repeat("a,", 20_000) + "b) crowd", "info(crowd)", `info(crowd, {__name__=~".+"})`,
		"crowd and crowd or crowd unless crowd", "{__name__=~\"" + strings.Repeat("(a|b)*", 1000) + "\"}", `{__name__=~"((((((((((.*)*)*)*)*)*)*)*)*)*)"}`, `crowd{path=~"` + strings.Repeat("a?", 500) + strings.Repeat("a", 500) + `"}`,
		`crowd{path=~"[\\x{0}-\\x{10ffff}]{1000}"}`, `crowd{host!~"` + strings.Repeat("h1|", 30_000) + `x"}`, "absent(crowd{" + strings.Repeat(`a="b",`, 20_000) + "})", "absent_over_time(crowd{" + strings.Repeat(`a!="b",`, 900) + "}[1h])",
		"avg_over_time(crowd[1h:1s])", "sum(sum_over_time(crowd[1h:1s])) / 0", "-" + strings.Repeat("-", 2000) + "crowd", strings.Repeat("(", 499) + "crowd" + strings.Repeat(")", 499), "timestamp(timestamp(crowd @ end()) @ start())",
	}
	for _, e := range expressions {
		for _, path := range []string{"query", "query_range", "format_query", "parse_query"} {
			body := url.Values{"query": {e}, "start": {fmt.Sprint(now.Add(-time.Hour).Unix())}, "end": {fmt.Sprint(now.Unix())}, "step": {"30"}}.Encode()
			all = append(all, odd{http.MethodPost, "/t/" + crowdTable + "/api/v1/" + path, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(body)})
		}
	}
	return all
}

func oddReads(time.Time) (all []odd) {
	any := &prompb.LabelMatcher{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: ".+"}
	add := func(r *prompb.ReadRequest) {
		b, err := r.Marshal()
		if err != nil {
			panic(fmt.Sprintf("a request that this program made does not encode: %v", err))
		}
		all = append(all, odd{http.MethodPost, "/t/" + crowdTable + "/api/v1/read", rw1Header(), snappy.Encode(nil, b)})
	}
	ends := []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 / 1_000_000, math.MaxInt64/1_000_000 + 1, math.MaxInt64 - 1, math.MaxInt64}
	streamed := []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS}
	for _, lo := range ends {
		for _, hi := range ends {
			q := &prompb.Query{StartTimestampMs: lo, EndTimestampMs: hi, Matchers: []*prompb.LabelMatcher{any, {Name: "host", Value: "h1"}}}
			q.Hints = &prompb.ReadHints{StartMs: hi, EndMs: lo, StepMs: lo, RangeMs: hi, Func: "no such function", Grouping: []string{"", "\xff"}}
			add(&prompb.ReadRequest{Queries: []*prompb.Query{q}})
			add(&prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: streamed})
		}
	}
	for _, m := range []*prompb.LabelMatcher{{Type: 99, Name: "a"}, {Type: -1, Name: "a"}, {Name: ""}, {Name: "\xff", Value: "\xff"}, {Type: prompb.LabelMatcher_RE, Name: "path", Value: strings.Repeat("(x*)*", 2000)}, {Type: prompb.LabelMatcher_RE, Name: "path", Value: "("}, {Type: prompb.LabelMatcher_NRE, Name: "path", Value: strings.Repeat("a{1000}", 20)}} {
		add(&prompb.ReadRequest{Queries: []*prompb.Query{{EndTimestampMs: math.MaxInt64, Matchers: []*prompb.LabelMatcher{m}}}})
		add(&prompb.ReadRequest{Queries: []*prompb.Query{{EndTimestampMs: math.MaxInt64, Matchers: []*prompb.LabelMatcher{m}}}, AcceptedResponseTypes: streamed})
	}
	types := make([]prompb.ReadRequest_ResponseType, 100_000)
	for i := range types {
		types[i] = prompb.ReadRequest_ResponseType(i + 7)
	}
	add(&prompb.ReadRequest{AcceptedResponseTypes: types, Queries: []*prompb.Query{{Matchers: []*prompb.LabelMatcher{any}}}})
	return all
}

func oddFederation(time.Time) (all []odd) {
	for _, match := range [][]string{
		{""}, {"{}"}, {`{__name__=""}`}, {`{__name__=~".*"}`}, {`{__name__=~".+"}`, `{__name__=~".+"}`, `{__name__=~".+"}`}, {"crowd[5m]"}, {"sum(crowd)"}, {"crowd @ 1"}, {"crowd offset 1h"},
		{`crowd{path=~"` + strings.Repeat("(.*)", 300) + `"}`}, {strings.Repeat("(", 400) + "crowd" + strings.Repeat(")", 400)}, {"crowd{" + strings.Repeat(`host!="a",`, 5000) + "}"}, {"\xff"}, {"crowd\x00"},
	} {
		all = append(all, oddGet("/t/"+crowdTable+"/federate", url.Values{"match[]": match}))
	}
	many := url.Values{}
	for i := range 1100 {
		many.Add("match[]", fmt.Sprintf(`crowd{host="h%d"}`, i))
		if i == 999 || i == 1099 {
			all = append(all, odd{http.MethodPost, "/t/" + crowdTable + "/federate", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte(many.Encode())})
		}
	}
	return append(all, oddGet("/t/"+crowdTable+"/federate", many))
}

func oddSymbols(now time.Time) (all []odd) {
	ms := now.UnixMilli()
	add := func(symbols []string, refs []uint32, change func(*writev2.TimeSeries)) {
		one := writev2.TimeSeries{LabelsRefs: refs, Samples: []writev2.Sample{{Timestamp: ms, Value: 1}}}
		if change != nil {
			change(&one)
		}
		all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", rw2Header(), packRW2(&writev2.Request{Symbols: symbols, Timeseries: []writev2.TimeSeries{one}})})
	}
	ok := []string{"", "__name__", "odd", "a", "b"}
	for _, refs := range [][]uint32{{}, {1}, {1, 2, 3}, {1, 2, 3, 5}, {1, 2, 3, math.MaxUint32}, {math.MaxUint32, math.MaxUint32}, {3, 4, 1, 2}, {1, 2, 3, 4, 3, 4}, {1, 2, 3, 0}, {0, 0}, {1, 2, 0, 4}, {1, 2, 1, 2}, bytesAsRefs(100_000, 3)} {
		add(ok, refs, nil)
	}
	add(nil, []uint32{0, 0}, nil)
	add([]string{"x", "__name__", "odd"}, []uint32{1, 2}, nil)
	add(make([]string, 1_000_000), []uint32{1, 2}, nil)
	add(append(ok[:5:5], strings.Repeat("v", 1<<20)), []uint32{1, 2, 3, 5}, nil)
	add(ok, []uint32{1, 2}, func(s *writev2.TimeSeries) {
		s.Metadata = writev2.Metadata{Type: 99, HelpRef: math.MaxUint32, UnitRef: 77}
	})
	add(ok, []uint32{1, 2}, func(s *writev2.TimeSeries) {
		s.Exemplars = []writev2.Exemplar{{LabelsRefs: []uint32{3}, Value: 1}, {LabelsRefs: []uint32{9, 9}, Timestamp: math.MinInt64}, {LabelsRefs: bytesAsRefs(10_000, 3)}}
	})
	add(ok, []uint32{1, 2}, func(s *writev2.TimeSeries) { s.Samples[0].StartTimestamp = math.MaxInt64 })
	add(ok, []uint32{1, 2}, func(s *writev2.TimeSeries) { s.Samples[0].StartTimestamp = math.MinInt64 })
	add(ok, []uint32{1, 2}, func(s *writev2.TimeSeries) { s.Samples = make([]writev2.Sample, 300_000) })
	same := make([]writev2.TimeSeries, 100_000) // of a label that no table accepts, six gigabytes when they are written out
	for i := range same {
		same[i] = writev2.TimeSeries{LabelsRefs: []uint32{1, 2, 3, 5}, Samples: []writev2.Sample{{Timestamp: ms, Value: 1}}}
	}
	return append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", rw2Header(),
		packRW2(&writev2.Request{Symbols: append(ok[:5:5], strings.Repeat("v", 60_000)), Timeseries: same})})
}

// bytesAsRefs is n references to the symbols from first on, in pairs.
func bytesAsRefs(n int, first uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i%2)
	}
	return out
}

func oddHistograms(now time.Time) (all []odd) {
	ms := now.UnixMilli()
	spans := [][]prompb.BucketSpan{
		{{Offset: math.MaxInt32, Length: 1}}, {{Offset: math.MinInt32, Length: 1}}, {{Offset: math.MaxInt32, Length: 1}, {Offset: math.MaxInt32, Length: 1}}, {{Length: math.MaxUint32}}, {{Length: 2}, {Offset: -1, Length: 2}},
		{{Length: 0}, {Length: 0}, {Length: 1}}, make([]prompb.BucketSpan, 100_000), {{Offset: 5, Length: 1}, {Offset: -100, Length: 1}},
	}
	deltas := [][]int64{{1}, {-1}, {math.MaxInt64, math.MaxInt64}, {math.MinInt64}, {1, 1, 1, 1}, nil, make([]int64, 50_000)}
	n := 0
	add := func(h prompb.Histogram) {
		n++
		h.Timestamp = ms + int64(n%7)
		one := prompb.TimeSeries{Labels: labelsOf([]string{"__name__", "odd_histogram", "id", fmt.Sprint(n % 50)}), Histograms: []prompb.Histogram{h, h}}
		all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", rw1Header(), packRW1(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{one}})})
	}
	for _, s := range spans {
		for _, d := range deltas {
			for _, schema := range []int32{-4, 8, -53, 9, -5, math.MinInt32, math.MaxInt32} {
				add(prompb.Histogram{Schema: schema, PositiveSpans: s, PositiveDeltas: d, NegativeSpans: s, NegativeDeltas: d, ZeroThreshold: -1, Sum: math.NaN(), Count: &prompb.Histogram_CountInt{CountInt: math.MaxUint64},
					ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: math.MaxUint64}, CustomValues: []float64{math.Inf(1), math.NaN(), 1, 1, -1}})
			}
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), -1, math.MaxFloat64, 5e-324, 1} {
		add(prompb.Histogram{Schema: 0, PositiveSpans: []prompb.BucketSpan{{Length: 3}}, PositiveCounts: []float64{f, f, f}, Count: &prompb.Histogram_CountFloat{CountFloat: 3 * f}, ZeroCount: &prompb.Histogram_ZeroCountFloat{ZeroCountFloat: f}, ZeroThreshold: f, Sum: f, ResetHint: 99})
		add(prompb.Histogram{Schema: -53, PositiveSpans: []prompb.BucketSpan{{Length: 3}}, PositiveCounts: []float64{1, 1, 1}, Count: &prompb.Histogram_CountFloat{CountFloat: 3}, CustomValues: []float64{f, 2 * f, 3 * f}, Sum: f})
		add(prompb.Histogram{Schema: 3, PositiveSpans: []prompb.BucketSpan{{Offset: int32(f), Length: 1}}, PositiveDeltas: []int64{1}, Count: &prompb.Histogram_CountInt{CountInt: 1}})
	}
	for _, e := range []string{"odd_histogram", "histogram_quantile(0.9, odd_histogram)", "sum(odd_histogram)", "rate(odd_histogram[1h])", "histogram_fraction(-Inf, Inf, sum(odd_histogram))", "avg_over_time(odd_histogram[1h]) * -1", "odd_histogram == odd_histogram", "quantile(0.5, odd_histogram)", "histogram_stddev(sum by (id) (odd_histogram))", "count_values(\"x\", odd_histogram)", "increase(odd_histogram[1h:1m])"} {
		all = append(all, oddGet("/t/"+oddTable+"/api/v1/query", url.Values{"query": {e}, "time": {fmt.Sprint(now.Unix() + 1)}}))
	}
	return all
}

func oddExemplars(now time.Time) (all []odd) {
	ms := now.UnixMilli()
	for _, l := range [][]string{nil, {"", ""}, {"a", strings.Repeat("x", 1<<20)}, {strings.Repeat("n", 1<<20), "a"}, {"a", "\xff"}, {"\xff", "a"}, {"a", "1", "a", "2"}, {"__name__", "x"}, strings.Split(strings.Repeat("a,b,", 5000)+"c,d", ",")} {
		for _, at := range []int64{ms, 0, -1, math.MinInt64, math.MaxInt64, ms + 86_400_000*365} {
			for _, v := range []float64{1, math.NaN(), math.Inf(-1)} {
				one := prompb.TimeSeries{Labels: labelsOf([]string{"__name__", "odd_exemplar"}), Samples: []prompb.Sample{{Timestamp: ms, Value: v}}, Exemplars: []prompb.Exemplar{{Labels: labelsOf(l), Timestamp: at, Value: v}}}
				all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", rw1Header(), packRW1(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{one}})})
			}
		}
	}
	for _, q := range []string{"odd_exemplar", "{}", "rate(odd_exemplar[5m]) / odd_exemplar", "sum(absent(odd_exemplar))", `{__name__=~".+"}`, "1", ""} {
		all = append(all, oddGet("/t/"+oddTable+"/api/v1/query_exemplars", url.Values{"query": {q}, "start": {"0"}, "end": {"9999999999"}}))
	}
	return all
}

// nestedValue is an OpenTelemetry value within n lists.
func nestedValue(n int) []byte {
	inner := []byte{0x10, 1} // bool_value: true
	for range n {
		list := append(binary.AppendUvarint([]byte{0x0a}, uint64(len(inner))), inner...) // ArrayValue.values
		inner = append(binary.AppendUvarint([]byte{0x2a}, uint64(len(list))), list...)   // AnyValue.array_value
		if len(inner) > 1<<20 {
			break
		}
	}
	return inner
}

func oddOTLP(now time.Time) (all []odd) {
	within := func(field byte, b []byte) []byte {
		return append(binary.AppendUvarint([]byte{field<<3 | 2}, uint64(len(b))), b...)
	}
	proto, js := http.Header{"Content-Type": {"application/x-protobuf"}}, http.Header{"Content-Type": {"application/json"}}
	for _, n := range []int{1, 100, 10_000, 20_000} {
		attribute := append(within(1, []byte("service.name")), within(2, nestedValue(n))...)
		resource := within(1, within(1, within(1, attribute)))
		all = append(all, odd{http.MethodPost, "/v1/metrics?db=" + oddTable, proto, resource})
		text := strings.Repeat(`{"arrayValue":{"values":[`, n) + `{"boolValue":true}` + strings.Repeat(`]}}`, n)
		all = append(all, odd{http.MethodPost, "/v1/metrics?db=" + oddTable, js, []byte(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":` + text + `}]}}]}`)})
		all = append(all, odd{http.MethodPost, "/v1/metrics?db=" + oddTable, js, []byte(strings.Repeat("[", n) + strings.Repeat("]", n))})
	}
	for _, point := range []string{
		`"asDouble":"NaN"`, `"asDouble":1e999`, `"asInt":"9223372036854775808"`, `"asInt":{}`, `"asInt":"-1","asDouble":2`, `"flags":4294967295`,
	} {
		for _, at := range []string{fmt.Sprint(now.UnixNano()), "18446744073709551615", "-1", "1e30", `"x"`, "null"} {
			all = append(all, odd{http.MethodPost, "/v1/metrics?db=" + oddTable, js, fmt.Appendf(nil, `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"odd.otlp","gauge":{"dataPoints":[{"timeUnixNano":%s,%s}]}}]}]}]}`, at, point)})
		}
	}
	for _, e := range []string{
		`"scale":2147483647,"positive":{"offset":-2147483648,"bucketCounts":["1","18446744073709551615"]}`, `"scale":-2147483648,"zeroThreshold":-1,"negative":{"offset":2147483647,"bucketCounts":["1"]}`,
		`"scale":3,"count":"18446744073709551615","positive":{"bucketCounts":[` + strings.Repeat(`"1",`, 100_000) + `"1"]}`, `"min":"Infinity","max":"-Infinity","sum":"NaN"`,
	} {
		all = append(all, odd{http.MethodPost, "/v1/metrics?db=" + oddTable, js, fmt.Appendf(nil, `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"odd.exp","exponentialHistogram":{"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"%d",%s}]}}]}]}]}`, now.UnixNano(), e)})
	}
	return all
}

// oddTexts are names and values that break tools.
var oddTexts = []string{
	"\xff\xfe", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\xe2\x80", "\u202eabc", "\u200b", "\ufeff", "é\u0301\u0301", "\x00", "\x1b[31m", "\r\n", "\u2028", `\`, `"`, "<script>", "${jndi:x}", "{{.}}", "%s%n", "../../etc", strings.Repeat("\u0301", 4000), "👩‍👩‍👧‍👦", "\U0010ffff", "\ue000",
}

// oddText writes each by three protocols, and reads the accepted rows: each answer is JSON of valid UTF-8.
func oddText(ctx context.Context, a *attacker) {
	escape := strings.NewReplacer(",", `\,`, " ", `\ `, "=", `\=`, "\n", `\n`)
	for i, text := range oddTexts {
		at := time.Now()
		a.post(ctx, "/write?db="+oddTable, nil, fmt.Appendf(nil, "odd_text,t=%s,i=%d value=%d\n%s,i=%d value=1\nodd_text,%s=x value=1\nodd_text %s=1\n", escape.Replace(text), i, i, escape.Replace(text), i, escape.Replace(text), escape.Replace(text)))
		for _, pairs := range [][]string{{"__name__", "odd_text", "t", text}, {"__name__", text, "t", "x"}, {"__name__", "odd_text", text, "x"}} {
			a.post(ctx, "/t/"+oddTable+"/api/v1/write", rw1Header(), rw1([]row{{pairs, at.UnixMilli(), float64(i)}}))
		}
		quoted, _ := json.Marshal(text) // a string: no error
		a.post(ctx, "/v1/metrics?db="+oddTable, http.Header{"Content-Type": {"application/json"}}, fmt.Appendf(nil, `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":%s,"gauge":{"dataPoints":[{"timeUnixNano":"%d","asInt":"1","attributes":[{"key":%s,"value":{"stringValue":%s}}]}]}}]}]}]}`, quoted, at.UnixNano(), quoted, quoted))
	}
	read := "/t/" + oddTable + "/api/v1/"
	for _, path := range []string{"labels", "label/__name__/values", "label/t/values", "series?match[]={__name__!=\"\"}", "query?query={__name__!=\"\"}", "metadata", "status/tsdb", "query_exemplars?query={__name__!=\"\"}&start=0&end=9999999999"} {
		path = strings.ReplaceAll(path, "{__name__!=\"\"}", url.QueryEscape(`{__name__!=""}`))
		status, answer := a.get(ctx, read+path)
		if status == http.StatusOK && (!json.Valid(answer) || !utf8.Valid(answer)) {
			a.blame(fmt.Sprintf("%s is answered with what is not JSON of UTF-8: %.300q", path, answer))
		}
	}
	for _, path := range []string{"/t/" + oddTable + "/federate?match[]=" + url.QueryEscape(`{__name__!=""}`), "/query?db=" + oddTable + "&q=" + url.QueryEscape("SHOW SERIES"), "/metrics"} {
		if status, answer := a.get(ctx, path); status == http.StatusOK && !utf8.Valid(answer) {
			a.blame(fmt.Sprintf("%s is answered with what is not UTF-8", path))
		}
	}
	a.note = fmt.Sprintf("%d texts", len(oddTexts))
}

func oddPacking(time.Time) (all []odd) {
	line := []byte("odd_packed value=1\n")
	add := func(encoding string, body []byte) {
		all = append(all, odd{http.MethodPost, "/write?db=" + oddTable, http.Header{"Content-Encoding": {encoding}}, body})
	}
	empty := gzipped(nil)
	add("gzip", bytes.Repeat(empty, 1_000_000))
	add("gzip", append(bytes.Repeat(empty, 10_000), gzipped(line)...))
	add("gzip", append(gzipped(line), []byte("rubbish behind it")...))
	stored := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3}, bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 2_000_000)...) // blocks without contents
	add("gzip", stored)
	add("gzip", append([]byte{0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3}, bytes.Repeat([]byte("n"), 8<<20)...)) // a name without an end
	skip := []byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}
	add("zstd", append(bytes.Repeat(skip, 1_000_000), zstded(line)...))
	add("zstd", []byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff})
	add("zstd", bytes.Repeat(zstded(nil), 500_000))
	add("zstd", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8}, bytes.Repeat([]byte{0, 0, 0}, 2_000_000)...)) // a window of 2 TB, blocks without contents
	add("zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x03, 0x58, 0xff, 0xff, 0xff, 0xff, 1, 0, 0})                     // a dictionary
	add("zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0})   // 2^63 bytes are declared
	add("gzip, gzip", gzipped(gzipped(line)))
	add("gzip, zstd, br, identity", line)
	add("snappy", snappy.Encode(nil, line))
	copies := binary.AppendUvarint(nil, 32<<20) // one literal, then copies of copies
	copies = append(copies, 0, 'x')
	for range 32 << 20 / 64 {
		copies = append(copies, 63<<2|2, 1, 0)
	}
	all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", rw1Header(), copies})
	all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/read", rw1Header(), copies})
	for _, header := range []http.Header{rw1Header(), rw2Header()} {
		header.Set("Content-Encoding", "zstd")
		all = append(all, odd{http.MethodPost, "/t/" + oddTable + "/api/v1/write", header, zstded(make([]byte, 64<<20))})
	}
	return all
}

func oddStatements(time.Time) (all []odd) {
	for _, q := range []string{
		strings.Repeat("SHOW DATABASES;", 100_000), strings.Repeat(";", 1_000_000), "SHOW TAG VALUES WITH KEY =~ /" + strings.Repeat("(a*)*", 5000) + "/", "SHOW TAG VALUES FROM /.*/ WITH KEY IN (" + strings.Repeat(`"host",`, 100_000) + `"x")`,
		"SELECT " + strings.Repeat("(", 100_000), "SHOW SERIES FROM \"" + strings.Repeat("x", 1<<20), "SHOW FIELD KEYS LIMIT -1 OFFSET 9223372036854775808", "SHOW SERIES LIMIT 9223372036854775807 OFFSET 9223372036854775807", "CREATE DATABASE \"" + strings.Repeat("é", 5000) + "\"",
		"CREATE DATABASE \"a/../b\"", "DROP DATABASE \"../bystander\"", "SHOW TAG VALUES WITH KEY = \"host\" WHERE " + strings.Repeat("host = 'a' OR ", 50_000) + "host = 'b'", "/*" + strings.Repeat("*", 1<<20), "--" + strings.Repeat("-", 1<<20), "\x00\xff", "DELETE FROM crowd WHERE " + strings.Repeat("a='b' AND ", 20_000) + "c='d'",
		"SHOW TAG KEYS FROM " + strings.Repeat(`"a".`, 50_000) + `"b"`, "CREATE RETENTION POLICY x ON y DURATION 99999999999999999999w REPLICATION 1",
	} {
		body := []byte(url.Values{"q": {q}, "db": {crowdTable}, "epoch": {"no such"}, "chunk_size": {"-1"}, "params": {strings.Repeat("[", 10_000)}}.Encode())
		all = append(all, odd{http.MethodPost, "/query", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, body})
		if len(q) < 4000 {
			all = append(all, oddGet("/query", url.Values{"q": {q}, "db": {crowdTable}}))
		}
	}
	return all
}

func oddTables(time.Time) (all []odd) {
	for _, name := range append([]string{"", ".", "..", "a/b", "a%2Fb", "%2e%2e", "..%2fbystander", "bystander%00", "bystander.", "Bystander", " bystander", "bystander%20", "_spillway", "*", "a\\b", strings.Repeat("x", 10_000), strings.Repeat("%c3%a9", 200), "con", "a:b", "a b", "-", "--x", "0", "%", "%zz"}, oddTexts...) {
		for _, path := range []string{"/t/" + url.PathEscape(name) + "/api/v1/query?query=1", "/write?db=" + url.QueryEscape(name), "/api/v2/write?bucket=" + url.QueryEscape(name), "/api/v3/write_lp?db=" + url.QueryEscape(name)} {
			method, body := http.MethodPost, []byte("odd_tables value=1\n")
			if strings.Contains(path, "query=") {
				method, body = http.MethodGet, nil
			}
			all = append(all, odd{method, path, nil, body})
		}
	}
	return all
}

// oddAdmin sends administrators' requests to the port of users.
func oddAdmin(time.Time) (all []odd) {
	for _, path := range []string{
		"/-/reload", "/-/quit", "//-/reload", "/-/./reload", "/%2d/reload", "/debug/pprof/profile?seconds=1", "/debug/pprof/trace", "/debug/pprof/../pprof/heap", "/debug//pprof/heap", "/api/v1/admin/tables", "/api/v1/admin/tables/bystander", "/api/v1//admin/tables", "/api/v1/%61dmin/tables",
		"/t/x/api/v1/admin/tables", "/api/v1/admin/tsdb/snapshot", "/api/v1/admin/tsdb/clean_tombstones", "/t/" + oddTable + "/api/v1/admin/tsdb/delete_series?match[]=%7B%7D", "/t/" + oddTable + "/api/v1/admin/tsdb/delete_series?match[]=odd&start=NaN&end=Inf",
		"/t/" + oddTable + "/../bystander/api/v1/admin/tsdb/delete_series?match[]=steady", "/t/" + oddTable + "%2f..%2fbystander/api/v1/admin/tsdb/delete_series?match[]=steady", "/api/v1/status/config", "/api/v1/status/flags",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodHead, "TRACE", "CONNECT", "PROPFIND"} {
			all = append(all, odd{method, path, http.Header{"X-Http-Method-Override": {"POST"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Original-Url": {"/-/reload"}}, nil})
		}
	}
	return all
}
