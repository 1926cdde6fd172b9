package runner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of moving rows. None has a label.
type metrics struct {
	rows, expired, failed prometheus.Counter
}

func newMetrics(r prometheus.Registerer, u *Unloads) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_unload_" + name, Help: help})
	}
	m := &metrics{
		rows:    counter("rows_total", "Rows of partitions that were split or merged which their heirs have acknowledged. Rows that are sent again count again."),
		expired: counter("expired_rows_total", "Rows of such partitions that were older than the retention of their table when they were moved."),
		failed:  counter("failed_total", "Slices of such partitions that could not be read or were refused. Each is tried again."),
	}
	if r == nil {
		return m
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_unload_" + name, Help: help}, f)
	}
	r.MustRegister(m.rows, m.expired, m.failed,
		gauge("partitions", "Partitions led here whose rows move to their heirs.", func() (n float64) {
			for _, p := range u.Progress() {
				if !p.Finished {
					n++
				}
			}
			return n
		}),
		gauge("stalled_seconds", "The longest time since one of these partitions began, or moved rows last; 0: there is none.", func() (longest float64) {
			for _, p := range u.Progress() {
				since := p.Since
				if p.Moved.After(since) {
					since = p.Moved
				}
				if !p.Finished {
					longest = max(longest, time.Since(since).Seconds())
				}
			}
			return longest
		}))
	return m
}
