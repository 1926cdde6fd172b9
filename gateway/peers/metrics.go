package peers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	failed  prometheus.Counter
	refused prometheus.Counter
	dials   *prometheus.CounterVec // outcome: ok, error
}

func newMetrics(r prometheus.Registerer, p *Peers) *metrics {
	f := promauto.With(r)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_peers_known_servers", Help: "Storage servers this gateway has a connection for.",
	}, func() float64 { known, _ := p.count(); return float64(known) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_peers_resting_servers", Help: "Storage servers that did not answer and are left alone for a moment.",
	}, func() float64 { _, resting := p.count(); return float64(resting) })
	return &metrics{
		failed: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_peers_failed_calls_total", Help: "Calls to storage servers that ended as unavailable.",
		}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_peers_refused_calls_total", Help: "Calls that were not made because their server did not answer before.",
		}),
		dials: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_peers_dials_total", Help: "Connections made, by outcome.",
		}, []string{"outcome"}),
	}
}
