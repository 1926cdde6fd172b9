package runner

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/storage/chain"
)

// register adds the metrics of the chains here. They are computed at each scrape.
func (c *Chains) register(r prometheus.Registerer) {
	f := promauto.With(r)
	gauge := func(name, help string, of func(m *chain.Machine, now chain.Time) int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			n := 0
			for _, x := range c.all() {
				x.mu.Lock()
				n += of(x.mu.machine, c.deps.Clock())
				x.mu.Unlock()
			}
			return float64(n)
		})
	}
	gauge("spillway_chain_placements", "Placements here of partitions that are kept by several servers.", func(*chain.Machine, chain.Time) int { return 1 })
	gauge("spillway_chain_resting_placements", "Of those, the ones that are at rest: nothing came for a minute, "+
		"or for less where many are not, and they send next to nothing.", func(m *chain.Machine, _ chain.Time) int {
		if m.Quiet() {
			return 1
		}
		return 0
	})
	gauge("spillway_chain_silent_members", "Placements on other servers that the leases of partitions led here list as in sync, and that do not answer. They leave the list within seconds, unless too few would be left to keep a row: then none is taken.",
		func(m *chain.Machine, now chain.Time) int { return len(m.Silent(now)) })
}
