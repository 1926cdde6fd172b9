package intake_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// hole is a Writer that acks at once: the rest is the front door's own cost.
type hole struct{ dict *point.Dict }

func (h hole) Table(context.Context, string) (intake.Table, error)    { return h, nil }
func (h hole) Existing(context.Context, string) (intake.Table, error) { return h, nil }
func (h hole) Create(context.Context, string, *time.Duration) error   { return nil }
func (h hole) List(context.Context) ([]string, error)                 { return nil, nil }
func (h hole) Dict() *point.Dict                                      { return h.dict }
func (h hole) Write(context.Context, *point.Batch, point.Level) error { return nil }
func (h hole) Bounds(point.Nanos) (lo, hi point.Nanos)                { return math.MinInt64, math.MaxInt64 }

func lineBody() (body []byte, samples int) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "cpu,host=host-%04d,region=eu-west-1,os=linux usage_user=%d,usage_system=%d,usage_idle=%d,usage_nice=%d,usage_iowait=%d,usage_irq=%d,usage_softirq=%d,usage_steal=%d,usage_guest=%d,usage_guest_nice=%d %d\n",
			i, i%100, i%97, i%89, i%83, i%79, i%73, i%71, i%67, i%61, i%59, now.UnixNano())
	}
	return []byte(b.String()), 10_000
}

func remoteBody(t testing.TB) (body []byte, samples int) {
	var all []prompb.TimeSeries
	for i := range 2000 {
		all = append(all, series("node_cpu_seconds_total", now, float64(i), "cpu", fmt.Sprint(i%64), "instance", fmt.Sprintf("host-%04d:9100", i), "job", "node", "mode", "idle"))
	}
	return rw1(t, all...), 2000
}

func benchWire(b *testing.B, path, header string, body []byte, samples int) {
	benchWireWith(b, startWith(b, hole{point.NewDict(0)}), path, header, body, samples)
}

func benchWireWith(b *testing.B, f *front, path, header string, body []byte, samples int) {
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := append([]byte(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", path, header, len(body))), body...)
	r := bufio.NewReader(c)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		for first := true; ; first = false {
			line, err := r.ReadSlice('\n')
			if err != nil || first && !strings.HasPrefix(string(line), "HTTP/1.1 204") {
				b.Fatalf("%q %v", line, err)
			}
			if len(line) == 2 {
				break
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(samples), "ns/sample")
}

const rwHead = "Content-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n"

// The benchmarks count the cost of client and server together.

func BenchmarkWireLine(b *testing.B) {
	body, n := lineBody()
	benchWire(b, "/write?db=x", "", body, n)
}

func BenchmarkWireLineGzip(b *testing.B) {
	body, n := lineBody()
	benchWire(b, "/write?db=x", "Content-Encoding: gzip\r\n", gzipped(string(body)), n)
}

func BenchmarkWireRemoteWrite(b *testing.B) {
	body, n := remoteBody(b)
	benchWire(b, "/api/v1/write", rwHead, body, n)
}

func BenchmarkWireSmall(b *testing.B) { benchWire(b, "/write?db=x", "", []byte("m v=1"), 1) }

// BenchmarkWireSmallLimited and BenchmarkWireRemoteWriteLimited have every limit that a write can have, and reach no limit.
func BenchmarkWireSmallLimited(b *testing.B) {
	benchWireWith(b, startLimited(b), "/write?db=x", "", []byte("m v=1"), 1)
}

func BenchmarkWireRemoteWriteLimited(b *testing.B) {
	body, n := remoteBody(b)
	benchWireWith(b, startLimited(b), "/api/v1/write", rwHead, body, n)
}

func startLimited(b *testing.B) *front {
	many, bytes, long := setting.Count(1e12), setting.Bytes(1e12), setting.Span(time.Hour)
	set := limits.Set{SamplesPerSecond: &many, BytesPerSecond: &bytes, RequestBytes: &bytes, RequestConcurrency: &many, ActiveSeries: &many,
		NewSeriesPerSecond: &many, PastMax: ptr(setting.Span(100 * 365 * 24 * time.Hour)), FutureMax: &long}
	r, err := limits.New(limits.Deps{}, limits.Settings{Defaults: set})
	if err != nil {
		b.Fatal(err)
	}
	h := hole{point.NewDict(0)}
	h.dict.Guard(func(known int, _ bool) error { return r.Table("x").NewSeries(known, 0) })
	f := &front{metrics: prometheus.NewRegistry(), client: new(http.Client)}
	f.Front, err = intake.New(intake.Deps{Writer: h, Limits: r, Senders: recent.NewSenders(), Fallback: http.NotFoundHandler(), Registerer: f.metrics}, intake.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	f.listen(b, false)
	return f
}

func ptr[T any](v T) *T { return &v }

// BenchmarkPlainSmall is the same small request on net/http, as the cost that the fast server is to save.
func BenchmarkPlainSmall(b *testing.B) {
	f := startWith(b, hole{point.NewDict(0)})
	s := httptest.NewServer(f)
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	b.ReportAllocs()
	for b.Loop() {
		io.WriteString(c, post("/write?db=x", "m v=1"))
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 204 {
			b.Fatal(err)
		}
	}
}

// TestAllocationsDoNotGrowWithTheBody pins that a sample of an existing series allocates nothing: a body of 10,000 samples
// allocates as much as one of a single sample.
func TestAllocationsDoNotGrowWithTheBody(t *testing.T) {
	f := startWith(t, hole{point.NewDict(0)})
	big, _ := lineBody()
	serve := func(body []byte) float64 {
		text := string(body)
		return testing.AllocsPerRun(50, func() {
			rec := httptest.NewRecorder()
			f.ServeHTTP(rec, httptest.NewRequest("POST", "/write?db=x", strings.NewReader(text)))
			if rec.Code != 204 {
				t.Fatal(rec.Code, rec.Body.String())
			}
		})
	}
	small := serve([]byte("m v=1"))
	if large := serve(big); large > small+100 { // its buffer grows in steps, and pools lose buffers to the collector
		t.Errorf("%v allocations for 10,000 samples, %v for one", large, small)
	}
}
