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
	copies   copyMetrics
}

// copyMetrics are about the copies under way, 0 while this process is not master.
type copyMetrics struct{ placements, bytes, oldest, progress prometheus.Gauge }

func (m *copyMetrics) set(u underWay) {
	if u.Placements == 0 {
		u = underWay{}
	}
	m.placements.Set(float64(u.Placements))
	m.bytes.Set(float64(u.Bytes))
	m.oldest.Set(float64(u.Oldest) / 1e9)
	m.progress.Set(float64(u.Progress) / 1e9)
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
	gauge := func(n, help string) prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts(name(n, help))) }
	m.copies = copyMetrics{
		placements: gauge("copies_under_way", "Placements that are being filled with rows, for moves, drains, repairs and balance, as the master sees them."),
		bytes:      gauge("copies_under_way_bytes", "Bytes of the partitions of these placements."),
		oldest:     gauge("copies_oldest_timestamp_seconds", "When this master first saw the oldest of these placements; 0: there is none."),
		progress:   gauge("copies_progress_timestamp_seconds", "When one of these placements was last whole or given up, or the first of them was seen; 0: there is none."),
	}
	for k := Alarm; k <= Sweep; k++ {
		m.steps.WithLabelValues(k.String())
		m.failures.WithLabelValues(k.String())
	}
	if r != nil {
		r.MustRegister(m.holds, m.rounds, m.steps, m.failures, m.alarms, m.fences, m.plan, m.copies.placements, m.copies.bytes, m.copies.oldest, m.copies.progress)
	}
	return m
}
