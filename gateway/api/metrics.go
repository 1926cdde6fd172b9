package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics count requests. Labels: handler is a path of the route table, code an HTTP status.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_api_requests_total", Help: "Requests to the Prometheus API by handler and status.",
		}, []string{"handler", "code"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_api_duration_seconds", Help: "Time from a request's header to the last byte of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"handler"}),
		bytes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_api_response_bytes_total", Help: "Bytes of answers, as sent.",
		}, []string{"handler"}),
	}
}

func (m *metrics) observe(handler string, w *seenWriter, d time.Duration) {
	m.requests.WithLabelValues(handler, strconv.Itoa(w.status)).Inc()
	m.duration.WithLabelValues(handler).Observe(d.Seconds())
	m.bytes.WithLabelValues(handler).Add(float64(w.bytes))
}

// seenWriter records the status of the answer.
type seenWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *seenWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *seenWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *seenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
