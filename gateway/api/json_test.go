package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"testing"
	"unicode/utf8"

	jsoniter "github.com/json-iterator/go"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/jsonutil"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// FuzzPoint compares the spelling of a point with Prometheus' own.
func FuzzPoint(f *testing.F) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -1.5, 1 << 53, -1 << 53, 1<<53 - 1, -1 << 63, 1 << 63, 1e15, 1e-6, 9.99e-7, 1e21, 9.99e20, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(-1), math.NaN(), 0.1} {
		f.Add(int64(v), math.Float64bits(v))
	}
	for _, t := range []int64{0, 1, 10, 100, 999, 1000, -1, -999, -1001, math.MaxInt64, math.MinInt64 + 1, 1435781430781} {
		f.Add(t, uint64(0))
	}
	f.Fuzz(func(t *testing.T, ms int64, bits uint64) {
		if ms == math.MinInt64 {
			t.Skip("Prometheus prints it with two signs")
		}
		v := math.Float64frombits(bits)
		var got bytes.Buffer
		err := api.EncodeResult(&got, promql.Matrix{{Floats: []promql.FPoint{{T: ms, F: v}}}})
		if err != nil {
			t.Fatal(err)
		}
		stream := jsoniter.NewStream(jsoniter.ConfigDefault, nil, 64)
		jsonutil.MarshalTimestamp(ms, stream)
		stream.WriteMore()
		jsonutil.MarshalFloat(v, stream)
		want := fmt.Sprintf(`{"resultType":"matrix","result":[{"metric":{},"values":[[%s]]}]}`, stream.Buffer())
		if got.String() != want {
			t.Errorf("got  %s\nwant %s", &got, want)
		}
	})
}

// FuzzString checks that encoding/json reads back the same text.
func FuzzString(f *testing.F) {
	f.Add("plain")
	f.Add("\"\\\n\r\t\x00\x1f/<>&\u2028größe\xff\xc3")
	f.Fuzz(func(t *testing.T, s string) {
		var back string
		if err := json.Unmarshal([]byte(api.EncodeString(s)), &back); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if utf8.ValidString(s) && back != s || !utf8.ValidString(s) && back != string([]rune(s)) {
			t.Errorf("%q came back as %q", s, back)
		}
	})
}

// manyPoints is a result of more than one buffer.
func manyPoints(series, points int) promql.Matrix {
	m := make(promql.Matrix, series)
	for i := range m {
		m[i].Metric = labels.FromStrings("__name__", "m", "host", fmt.Sprint("host_", i), "region", "north")
		for j := range points {
			m[i].Floats = append(m[i].Floats, promql.FPoint{T: int64(j) * 15_000, F: float64(i*j) / 8})
		}
	}
	return m
}

func TestEncodingTakesNoMemoryPerPoint(t *testing.T) {
	m := manyPoints(20, 1000)
	if err := api.EncodeResult(io.Discard, m); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() { api.EncodeResult(io.Discard, m) }); n > 50 {
		t.Errorf("%v allocations for 20,000 points of 20 series", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	b.Run("whole", func(b *testing.B) { benchmarkEncode(b, func(v float64) float64 { return math.Floor(v) }) })
	b.Run("short", func(b *testing.B) { benchmarkEncode(b, func(v float64) float64 { return v }) })
	b.Run("long", func(b *testing.B) { benchmarkEncode(b, math.Sqrt) })
}

func benchmarkEncode(b *testing.B, f func(float64) float64) {
	m := manyPoints(100, 1000)
	for i := range m {
		for j := range m[i].Floats {
			m[i].Floats[j].F = f(m[i].Floats[j].F)
		}
	}
	var size bytes.Buffer
	if err := api.EncodeResult(&size, m); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(size.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if err := api.EncodeResult(io.Discard, m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/point")
}

// wide is a store with answers of several buffers.
func wide(t testing.TB) *querytest.Store {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	for i := range 50 {
		id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "wide", "host", fmt.Sprint("host_", i)))
		for j := int64(0); j < 500; j++ {
			b.Append(id, point.NanosOf(j*1000), float64(j*int64(i)))
		}
	}
	insert(t, st, "default", b)
	return st
}

func TestAnswersAreTheSameCompressed(t *testing.T) {
	h := newAPI(t, wide(t), query.Settings{}, api.Settings{})
	unpack := map[string]func(io.Reader) (io.Reader, error){
		"":     func(r io.Reader) (io.Reader, error) { return r, nil },
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
	}
	for _, path := range []string{
		"/api/v1/query_range?query=wide&start=0&end=499&step=1",    // many buffers
		"/api/v1/query_range?query=wide&start=0&end=9&step=1",      // one
		"/api/v1/query?query=1%2B1&time=4",                         // too short to compress
		"/api/v1/series?match[]=wide&limit=49",                     // through another encoder
		"/api/v1/query_range?query=no_such&start=0&end=499&step=1", // empty
	} {
		plain := bodyOf(t, get(t, h, path).Body)
		if !json.Valid([]byte(plain)) {
			t.Fatalf("%s: not JSON", path)
		}
		for _, encoding := range []string{"gzip", "zstd"} {
			resp := get(t, h, path, "Accept-Encoding", encoding)
			used := resp.Header.Get("Content-Encoding")
			if want := len(plain) >= 4096; want != (used == encoding) {
				t.Errorf("%s: %d bytes, asked for %s, encoded as %q", path, len(plain), encoding, used)
			}
			r, err := unpack[used](resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := bodyOf(t, r); got != plain {
				t.Errorf("%s: %s differs", path, encoding)
			}
			if z, ok := r.(*zstd.Decoder); ok {
				z.Close()
			}
		}
	}
}

func TestAccepted(t *testing.T) {
	f := func(header, want string) {
		t.Helper()
		if got := api.Accepted(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
	f("", "")
	f("identity", "")
	f("gzip", "gzip")
	f("deflate, gzip;q=1.0, *;q=0.5", "gzip")
	f("gzip, zstd", "zstd")
	f("gzip, zstd;q=0", "gzip")
	f("gzip;q=0", "")
	f("gzip;q=x", "")
}
