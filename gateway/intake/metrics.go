package intake

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/otlp"
)

// protocol is the protocol of a sender; the values of the label protocol.
type protocol uint8

const (
	protoRW1 protocol = iota
	protoRW2
	protoInflux1
	protoInflux2
	protoInflux3
	protoOTLP
	protoOther // ping, health, query, buckets
	protocols
)

var protocolNames = [protocols]string{"rw1", "rw2", "influx1", "influx2", "influx3", "otlp", "other"}

// metrics counts what happens here. The labels are finite: protocol as above; status an HTTP status we send; reason one
// of old, ahead, or a fault's Kind; server one of peek, fasthttp, nethttp; form packed or unpacked.
type metrics struct {
	requests     *prometheus.CounterVec // protocol, status
	refused      *prometheus.CounterVec // protocol, reason
	conns        *prometheus.GaugeVec   // server
	connsRefused prometheus.Counter
	handedOver   prometheus.Counter

	handshakesFailed prometheus.Counter
	panics           prometheus.Counter
	deletions        prometheus.Counter

	per [protocols]protocolMetrics
}

// protocolMetrics are looked up once: a look-up by label costs more than the counting.
type protocolMetrics struct {
	accepted, strings, exemplars, packed, unpacked prometheus.Counter
	duration                                       prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, inFlight *budget, held *brakes, deltas *otlp.Deltas) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_intake_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_intake_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &metrics{
		requests:         counters("requests_total", "Requests answered.", "protocol", "status"),
		refused:          counters("rows_refused_total", "Rows refused, by the reason.", "protocol", "reason"),
		connsRefused:     counter("connections_refused_total", "Connections closed because too many were open."),
		handedOver:       counter("connections_handed_over_total", "Connections that went from fasthttp to net/http."),
		handshakesFailed: counter("failed_tls_handshakes_total", "Connections that ended in their TLS handshake."),

		deletions: counter("deletions_total", "Deletions of rows by Influx clients that were carried out."),

		panics: counter("decode_panics_total", "Bodies whose decoding failed by a defect of ours."),
		conns: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "spillway_intake_connections",
			Help: "Open connections, by the HTTP server that serves them; peek: new, or waiting for the next request."}, []string{"server"}),
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "spillway_intake_request_duration_seconds",
		Help: "Time from the header's arrival to the answer.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"protocol"})
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "spillway_intake_late_deltas_total",
		Help: "Samples of delta temporality that came after newer ones of their series, and count from the next sum on."}, func() float64 { return float64(deltas.Late()) }))
	reg.MustRegister(m.conns, duration, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_intake_in_flight_bytes",
		Help: "Bytes that bodies and batches of requests hold now."}, func() float64 { return float64(inFlight.used.Load()) }))
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_intake_requests_held_back",
		Help: "Requests that wait, their bodies unread, until the store has room for rows of their table."}, func() float64 { return float64(held.held()) }))
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_intake_requests_awaiting_memory",
		Help: "Large requests that wait for memory, and requests that are delayed so that it becomes free."}, func() float64 { return float64(inFlight.waiting()) }))
	accepted := counters("rows_accepted_total", "Rows acknowledged.", "protocol")
	strings := counters("string_fields_total", "String fields of line protocol that became no sample.", "protocol")
	exemplars := counters("exemplars_refused_total", "Exemplars that were not kept, of series whose samples were.", "protocol")
	bodies := counters("body_bytes_total", "Bytes of bodies, as they came and unpacked.", "protocol", "form")
	for p, name := range protocolNames {
		m.per[p] = protocolMetrics{
			accepted: accepted.WithLabelValues(name), strings: strings.WithLabelValues(name), exemplars: exemplars.WithLabelValues(name),
			packed: bodies.WithLabelValues(name, "packed"), unpacked: bodies.WithLabelValues(name, "unpacked"),
			duration: duration.WithLabelValues(name),
		}
	}
	return m
}

func (m *metrics) answered(p protocol, status int, took time.Duration) {
	m.requests.WithLabelValues(protocolNames[p], strconv.Itoa(status)).Inc()
	m.per[p].duration.Observe(took.Seconds())
}

func (m *metrics) rowsRefused(p protocol, reason string, n int) {
	if n > 0 {
		m.refused.WithLabelValues(protocolNames[p], reason).Add(float64(n))
	}
}
