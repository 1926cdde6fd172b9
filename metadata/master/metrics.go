package master

import "github.com/prometheus/client_golang/prometheus"

// metrics count the actions of a candidate and a master. Label kind: the names of Kind.
type metrics struct {
	holds    prometheus.Gauge
	rounds   prometheus.Counter
	steps    *prometheus.CounterVec
	failures *prometheus.CounterVec
	alarms   prometheus.Gauge
	fences   prometheus.Counter
	plan     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	name := func(n, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "spillway", Subsystem: "master", Name: n, Help: help}
	}
	m := &metrics{
		holds:    prometheus.NewGauge(prometheus.GaugeOpts(name("holds", "1 while this process is master."))),
		rounds:   prometheus.NewCounter(prometheus.CounterOpts(name("rounds_total", "Rounds in which this process looked and planned."))),
		steps:    prometheus.NewCounterVec(prometheus.CounterOpts(name("steps_total", "Steps carried out, by kind.")), []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts(name("step_failures_total", "Steps that were refused or got no answer, by kind; the next round plans anew.")), []string{"kind"}),
		alarms:   prometheus.NewGauge(prometheus.GaugeOpts(name("alarms", "What the last plan could not mend."))),
		fences:   prometheus.NewCounter(prometheus.CounterOpts(name("stale_fences_total", "Fences that an earlier master left behind and this one took away."))),
		plan: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "spillway", Subsystem: "master", Name: "plan_seconds",
			Help: "Time to make a plan.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}),
	}
	for k := Alarm; k <= Sweep; k++ {
		m.steps.WithLabelValues(k.String())
		m.failures.WithLabelValues(k.String())
	}
	if r != nil {
		r.MustRegister(m.holds, m.rounds, m.steps, m.failures, m.alarms, m.fences, m.plan)
	}
	return m
}
