package lead

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	holds   prometheus.Counter
	removed prometheus.Counter
	alarms  prometheus.GaugeFunc
	failed  prometheus.Counter
	handed  prometheus.Counter
	retried prometheus.Counter
}

func newMetrics(r prometheus.Registerer, l *Lead) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_lead_" + name, Help: help})
	}
	gauge := func(name, help string, f func() int) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_lead_" + name, Help: help}, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return float64(f())
		})
	}
	m := &metrics{
		holds:   counter("holds_total", "Times the in-sync list was made this server's placement alone."),
		removed: counter("removed_placements_total", "Placements that were deleted because a map said so."),
		alarms:  gauge("alarms", "Things here that no map explains; a person should look.", l.mu.machine.Alarms),
		failed:  counter("failures_total", "Steps of discovery that failed and are tried again."),
		handed:  counter("handovers_total", "Splits and unloads that this server ended."),
		retried: counter("handovers_failed_total", "Attempts to end a split or an unload that failed and are made again."),
	}
	r.MustRegister(m.holds, m.removed, m.alarms, m.failed, m.handed, m.retried,
		gauge("leading_partitions", "Partitions this server leads.", l.mu.machine.Leading))
	return m
}
