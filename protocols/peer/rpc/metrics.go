package rpc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// serverMetrics are the figures of one server.
type serverMetrics struct {
	calls     *prometheus.CounterVec // by method and kind ("ok")
	inserts   *prometheus.CounterVec // by kind
	rows      prometheus.Counter
	defs      prometheus.Counter
	received  *prometheus.CounterVec // by method
	sent      *prometheus.CounterVec // by method
	streams   prometheus.Gauge
	throttled prometheus.Counter
}

func newServerMetrics(r prometheus.Registerer, s *Server) *serverMetrics {
	m := &serverMetrics{
		calls:     counters("server_calls_total", "Calls that ended, by method and kind of error, or ok.", "method", "kind"),
		inserts:   counters("server_inserts_total", "Inserts answered on streams, by kind of error, or ok.", "kind"),
		rows:      counter("server_rows_total", "Samples that came in inserts."),
		defs:      counter("server_definitions_total", "Series that were defined on streams."),
		received:  counters("server_received_bytes_total", "Bytes of messages received, by method.", "method"),
		sent:      counters("server_sent_bytes_total", "Bytes of messages sent, by method.", "method"),
		streams:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_rpc_server_streams", Help: "Streams of inserts that are open."}),
		throttled: counter("server_throttled_inserts_total", "Inserts refused at a bound of bytes or of inserts under way."),
	}
	if r != nil {
		r.MustRegister(m.calls, m.inserts, m.rows, m.defs, m.received, m.sent, m.streams, m.throttled,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_server_insert_bytes", Help: "Encoded bytes of inserts under way."},
				func() float64 { return float64(s.insertBytes.Load()) }))
	}
	return m
}

// DialMetrics are the figures of all peers that a process calls.
type DialMetrics struct {
	calls    *prometheus.CounterVec // by method and kind ("ok")
	inserts  *prometheus.CounterVec // by kind
	rows     prometheus.Counter
	defs     prometheus.Counter
	received *prometheus.CounterVec // by method
	sent     *prometheus.CounterVec // by method
	streams  prometheus.Gauge
	broken   prometheus.Counter
	silent   prometheus.Counter
}

// NewDialMetrics makes the figures, once for a registerer; nil registers them nowhere.
func NewDialMetrics(r prometheus.Registerer) *DialMetrics {
	m := &DialMetrics{
		calls:    counters("client_calls_total", "Calls to peers that ended, by method and kind of error, or ok.", "method", "kind"),
		inserts:  counters("client_inserts_total", "Inserts sent on streams, by kind of error, or ok.", "kind"),
		rows:     counter("client_rows_total", "Samples sent in inserts."),
		defs:     counter("client_definitions_total", "Series sent to be defined on streams."),
		received: counters("client_received_bytes_total", "Bytes of messages received, by method.", "method"),
		sent:     counters("client_sent_bytes_total", "Bytes of messages sent, by method.", "method"),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_rpc_client_streams", Help: "Streams of inserts that are open to peers."}),
		broken:   counter("client_broken_streams_total", "Streams of inserts that broke before they were closed."),
		silent:   counter("client_silent_connections_total", "Connections given up because the peer sent nothing while calls waited."),
	}
	if r != nil {
		r.MustRegister(m.calls, m.inserts, m.rows, m.defs, m.received, m.sent, m.streams, m.broken, m.silent)
	}
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_rpc_" + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_rpc_" + name, Help: help}, labels)
}

// kindLabel is an outcome as a label.
func kindLabel(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.KindOf(err).String()
}

// linkMetrics are the figures of all links of a server.
type linkMetrics struct {
	linkSent     *prometheus.CounterVec // by class: urgent, frames, pieces
	linkReceived prometheus.Counter
	linkDials    *prometheus.CounterVec // by kind ("ok")
	linkRefused  prometheus.Counter
	linkSilences prometheus.Counter
	linkTrips    prometheus.Histogram
}

func newLinkMetrics(r prometheus.Registerer, ls *Links) *linkMetrics {
	m := &linkMetrics{
		linkSent:     counters("link_sent_bytes_total", "Bytes sent on links to other storage servers, by class: urgent, frames, pieces of segments.", "class"),
		linkReceived: counter("link_received_bytes_total", "Bytes received on links to other storage servers."),
		linkDials:    counters("link_dials_total", "Links that were dialled, by kind of error, or ok.", "kind"),
		linkRefused: counter("link_refused_frames_total",
			"Frames refused because those that wait to be sent had all their room for 5 s; their partitions send them again."),
		linkSilences: counter("link_silences_total", "Times that the other side of a link sent nothing for longer than it may."),
		linkTrips: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "spillway_rpc_link_trip_seconds",
			Help: "From a ping of a link to its answer.", Buckets: prometheus.ExponentialBuckets(100e-6, 2.5, 12)}),
	}
	if r != nil {
		r.MustRegister(m.linkSent, m.linkReceived, m.linkDials, m.linkRefused, m.linkSilences, m.linkTrips,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_link_queued_bytes", Help: "Bytes of frames that wait to be sent on links, in the room that all links share and in that of each."},
				func() float64 { return float64(ls.queuedBytes()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_links", Help: "Links to other storage servers that are there."},
				func() float64 { return float64(ls.count(func(*link) int64 { return 1 })) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_link_out_bytes", Help: "Bytes of frames and pieces of segments sent on links, or queued, that the other side has not done with."},
				func() float64 {
					return float64(ls.count(func(l *link) int64 { return l.frameRoom.bytesOut() + l.pieceRoom.bytesOut() }))
				}),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_rpc_link_in_bytes", Help: "Bytes of frames and pieces of segments that came on links and are not done with."},
				func() float64 {
					return float64(ls.count(func(l *link) int64 { return l.frames.inUse.Load() + l.pieces.inUse.Load() }))
				}))
	}
	return m
}

// count adds a figure of all links up.
func (ls *Links) count(of func(*link) int64) (n int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.mu.links {
		n += of(l)
	}
	return n
}

// queuedBytes are the bytes of the frames that wait to be sent.
func (ls *Links) queuedBytes() int64 {
	return ls.queues.used() + ls.count(func(l *link) int64 { return l.queueRoom.firstInUse() })
}
