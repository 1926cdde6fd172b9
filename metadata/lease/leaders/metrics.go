package leaders

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/metadata/lease"
)

// newMetrics shows the view as gauges. Label state: held, free, offline, unreadable.
func newMetrics(r prometheus.Registerer, v *View) {
	f := promauto.With(r)
	for _, state := range []string{stateHeld, stateFree, stateOffline, stateUnreadable} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spillway_leaders_known_leases", Help: "Lease rows by state, as this process knows them.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(v.count(state)) })
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_leaders_live_servers", Help: "Storage servers whose heartbeat changes.",
	}, func() float64 { return float64(v.countLive()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_leaders_age_seconds", Help: "Time since the last answer of the coordination store.",
	}, func() float64 { return v.Age().Seconds() })
}

const (
	stateHeld       = "held"
	stateFree       = "free"
	stateOffline    = "offline"
	stateUnreadable = "unreadable"
)

func (r row) state() string {
	switch {
	case r.err != nil:
		return stateUnreadable
	case r.lease.Offline != nil:
		return stateOffline
	case r.lease.State == lease.Held:
		return stateHeld
	}
	return stateFree
}

func (v *View) count(state string) (n int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, r := range v.mu.board.rows {
		if r.state() == state {
			n++
		}
	}
	return n
}

func (v *View) countLive() (n int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for s := range v.mu.board.beats {
		if v.mu.board.live(s) {
			n++
		}
	}
	return n
}
