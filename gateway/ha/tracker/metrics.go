package tracker

import (
	"strings"

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
	if r != nil {
		r.MustRegister(spares{t, prometheus.NewDesc("spillway_tracker_spare_silent_seconds",
			"Time since a replica that is not elected sent rows of a pair to this process; where none did, since it began. Of pairs whose elected replica sent rows within 10 minutes.", []string{"table", "cluster"}, nil)})
	}
	return &metrics{
		duplicates: f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_duplicate_samples_total", Help: "Samples accepted and not stored, since another replica of their pair is elected."}),
		refused:    f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_refused_samples_total", Help: "Samples of pairs beyond ha.clusters_max, which are refused."}),
		elections:  f.NewCounter(prometheus.CounterOpts{Name: "spillway_tracker_elections_total", Help: "Times this process began to keep the rows of another replica of a pair."}),
		commits:    f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_tracker_store_commits_total", Help: "Transactions of elections and signs of life in the coordination store."}, []string{"outcome"}),
	}
}

// sendsWithin is how recent rows of the elected replica must be for its pair to be collected: a pair that is silent as a whole lacks more than a spare.
const sendsWithin = 600

// spares collects how long pairs have been without rows of another replica: one series for each pair, of which there are at most ha.EntriesMax.
type spares struct {
	t    *Tracker
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s spares) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

// Collect implements prometheus.Collector.
func (s spares) Collect(out chan<- prometheus.Metric) {
	for _, p := range s.t.Status() {
		if p.SilentSeconds < sendsWithin {
			out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, p.SpareSeconds, strings.ToValidUTF8(p.Table, "?"), strings.ToValidUTF8(p.Cluster, "?"))
		}
	}
}
