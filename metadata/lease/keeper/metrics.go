package keeper

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	held  prometheus.Gauge
	share prometheus.Gauge
	good  prometheus.Gauge

	clockAhead prometheus.Gauge
	clockOff   prometheus.Gauge
	diskSlow   prometheus.Gauge

	requests *prometheus.CounterVec // priority: renew, acquire, scan; outcome: unknown, done, conflict, throttled
	leads    prometheus.Counter
	stops    prometheus.Counter
	relists  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		held:       f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_held_leases", Help: "Lease rows that name this process."}),
		share:      f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_share_leases", Help: "Leases from which this process lets others go first."}),
		good:       f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_heartbeat_good", Help: "1 while this process may act for what it holds."}),
		clockOff:   f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_clock_off", Help: "1 while the clock of this server is so far off the median that it gives up its leases."}),
		diskSlow:   f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_disk_slow", Help: "1 while fsyncs of this server's log last so much longer than those of the others that it gives up its leases and leaves in-sync lists."}),
		clockAhead: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_keeper_clock_ahead_seconds", Help: "How far the clock of this server is ahead of the median of all servers' clocks. Set it right where it is more than a second off."}),
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_keeper_store_requests_total",
			Help: "Requests to the coordination store."}, []string{"priority", "outcome"}),
		leads:   f.NewCounter(prometheus.CounterOpts{Name: "spillway_keeper_leads_total", Help: "Times this process began to lead a partition."}),
		stops:   f.NewCounter(prometheus.CounterOpts{Name: "spillway_keeper_stops_total", Help: "Times this process ceased to lead a partition."}),
		relists: f.NewCounter(prometheus.CounterOpts{Name: "spillway_keeper_relists_total", Help: "Times the watch had to start again with a list."}),
	}
}
