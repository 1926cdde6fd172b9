package access

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts refusals and reloads. The labels are finite: reason one of missing, malformed, unknown, expired,
// throttled, rate, forbidden; result one of changed, failed.
type metrics struct {
	refused *prometheus.CounterVec // reason
	reloads *prometheus.CounterVec // result
	hashed  prometheus.Counter
	inForce atomic.Bool // the last reload succeeded
}

func newMetrics(reg prometheus.Registerer, g *Guard) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_access_refused_requests_total",
			Help: "Requests refused because of the identity of their sender."}, []string{"reason"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_access_reloads_total",
			Help: "Times that the files for TLS, users and tokens were found changed, and times that they could not be used."}, []string{"result"}),
		hashed: prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_access_hashed_passwords_total",
			Help: "Passwords that were not known and had to be hashed."}),
	}
	m.inForce.Store(true)
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_access_" + name, Help: help}, f)
	}
	reg.MustRegister(m.refused, m.reloads, m.hashed,
		gauge("last_reload_successful", "1 while what is in force is what the files say, 0 while they cannot be used.", func() float64 {
			if m.inForce.Load() {
				return 1
			}
			return 0
		}),
		gauge("certificate_expiry_timestamp_seconds", "When the certificate of the HTTP port expires; 0 without TLS.", func() float64 {
			if at := g.now.Load().web.expiry; !at.IsZero() {
				return float64(at.Unix())
			}
			return 0
		}),
		gauge("tokens", "Tokens in force.", func() float64 { return float64(len(g.now.Load().tokens)) }),
	)
	return m
}
