package lead

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	holds   prometheus.Counter
	removed prometheus.Counter
	alarms  prometheus.Gauge
	failed  prometheus.Counter
}

func newMetrics(r prometheus.Registerer, l *Lead) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_lead_" + name, Help: help})
	}
	m := &metrics{
		holds:   counter("holds_total", "Times the in-sync list was made this server's placement alone."),
		removed: counter("removed_placements_total", "Placements that were deleted because a map said so."),
		alarms:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_lead_alarms", Help: "Things here that no map explains; a person should look."}),
		failed:  counter("failures_total", "Steps of discovery that failed and are tried again."),
	}
	r.MustRegister(m.holds, m.removed, m.alarms, m.failed, prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "spillway_lead_leading_partitions", Help: "Partitions this server leads."}, func() float64 { return float64(l.leading()) }))
	return m
}

func (l *Lead) leading() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.records {
		if r.leading {
			n++
		}
	}
	return n
}
