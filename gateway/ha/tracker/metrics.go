package tracker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duplicates prometheus.Counter
	refused    prometheus.Counter
	elections  prometheus.Counter
	commits    *prometheus.CounterVec // outcome: ok, failed
}

func newMetrics(r prometheus.Registerer, t *Tracker) *metrics {
	f := promauto.With(r)
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_tracker_pairs", Help: "Pairs of senders that are tracked, in all tables."}, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(t.mu.machine.Len())
	})
	return &metrics{
		duplicates: f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_duplicate_samples_total", Help: "Samples accepted and not stored, since another replica of their pair is elected."}),
		refused:    f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_refused_samples_total", Help: "Samples of pairs beyond ha.clusters_max, which are refused."}),
		elections:  f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_elections_total", Help: "Times this process began to keep the rows of another replica of a pair."}),
		commits:    f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_tracker_store_commits_total", Help: "Transactions of elections and signs of life in the coordination store."}, []string{"outcome"}),
	}
}
