//go:build clients

package clienttest

import (
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// exporter is a scrape target with metrics that move by themselves.
type exporter struct {
	server *http.Server

	requests *prometheus.CounterVec
	gauge    *prometheus.GaugeVec
	queue    prometheus.Gauge
	classic  *prometheus.HistogramVec
	native   prometheus.Histogram
	both     prometheus.Histogram
	summary  prometheus.Summary
	guests   *prometheus.GaugeVec // series that come and go

	stop chan struct{}
	done sync.WaitGroup
}

// startExporter serves metrics at addr until the test ends or leave is called. Equal seeds move equally.
func startExporter(t *testing.T, addr string, seed uint64) *exporter {
	t.Helper()
	e := newExporter()
	reg := prometheus.NewRegistry()
	reg.MustRegister(e.requests, e.gauge, e.queue, e.classic, e.native, e.both, e.summary, e.guests)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, EnableOpenMetricsTextCreatedSamples: true}))
	e.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	e.done.Add(2)
	go func() { defer e.done.Done(); _ = e.server.Serve(l) }()
	go func() { defer e.done.Done(); e.move(rand.New(rand.NewPCG(seed, 1))) }()
	t.Cleanup(e.leave)
	return e
}

func newExporter() *exporter {
	const growth = 1.1
	return &exporter{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "app_requests_total", Help: `Requests, by "code" \ and method.`}, []string{"code", "method"}),
		gauge:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "app_temperature_celsius", Help: "Goes below zero.", Unit: "celsius"}, []string{"room"}),
		queue:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "app.queue depth", Help: "A name of UTF-8."}),
		classic: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "app_classic_seconds", Help: "Buckets as series.",
			Buckets: []float64{0.01, 0.1, 0.5, 1, 5}}, []string{"path"}),
		native:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "app_native_seconds", Help: "A native histogram.", NativeHistogramBucketFactor: growth, NativeHistogramMaxBucketNumber: 100}),
		both:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "app_both_seconds", Help: "Native and classic.", Buckets: prometheus.DefBuckets, NativeHistogramBucketFactor: 2}),
		summary: prometheus.NewSummary(prometheus.SummaryOpts{Name: "app_summary_seconds", Help: "Quantiles; NaN while empty.", Objectives: map[float64]float64{0.5: 0.05, 0.99: 0.001}, MaxAge: time.Second}),
		guests:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "app_guest", Help: "Here for a while only."}, []string{"guest"}),
		stop:    make(chan struct{}),
	}
}

// move changes the metrics every so often.
func (e *exporter) move(r *rand.Rand) {
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-e.stop:
			return
		case <-tick.C:
			e.step(r, n)
		}
	}
}

func (e *exporter) step(r *rand.Rand, n int) {
	trace := prometheus.Labels{"trace_id": strconv.FormatUint(r.Uint64(), 16)}
	e.requests.WithLabelValues("200", "GET").(prometheus.ExemplarAdder).AddWithExemplar(float64(r.IntN(50)), trace)
	e.requests.WithLabelValues("500", "POST").Add(float64(r.IntN(3)))
	e.gauge.WithLabelValues("cellar").Set(r.NormFloat64() * 20)
	e.gauge.WithLabelValues("nowhere").Set([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e-300}[n/7%4])
	e.queue.Set(float64(r.IntN(1000)))
	e.classic.WithLabelValues("/a b").(prometheus.ExemplarObserver).ObserveWithExemplar(r.ExpFloat64(), trace)
	for range 10 {
		v := r.NormFloat64() * math.Exp(r.NormFloat64())
		e.native.(prometheus.ExemplarObserver).ObserveWithExemplar(v, prometheus.Labels{"trace_id": strconv.FormatUint(r.Uint64(), 16), "span": "s"})
		e.both.Observe(math.Abs(v))
	}
	if n/20%2 == 0 {
		e.summary.Observe(r.Float64()) // empty for three seconds, then not
	}
	guest := strconv.Itoa(n / 15)
	e.guests.WithLabelValues(guest).Set(float64(n))
	e.guests.DeleteLabelValues(strconv.Itoa(n/15 - 2))
}

// leave ends the target: scrapes fail from then on.
func (e *exporter) leave() {
	select {
	case <-e.stop:
		return
	default:
	}
	close(e.stop)
	_ = e.server.Close()
	e.done.Wait()
}
