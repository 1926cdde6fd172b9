package budget

import "github.com/prometheus/client_golang/prometheus"

// Register shows an account and its children. Label account: the process, and the accounts right below it.
func (a *Account) Register(r prometheus.Registerer) {
	if r != nil {
		r.MustRegister(newCollector(a))
	}
}

// figure is one metric of every account.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*Account) float64 // under the tree's lock
}

type collector struct {
	root    *Account
	figures []figure
	waiting *prometheus.Desc
}

func newCollector(root *Account) *collector {
	c := &collector{root: root, waiting: prometheus.NewDesc("spillway_budget_waiting", "Callers that wait for memory.", nil, nil)}
	add := func(kind prometheus.ValueType, name, help string, of func(*Account) float64) {
		c.figures = append(c.figures, figure{prometheus.NewDesc(name, help, []string{"account"}, nil), kind, of})
	}
	add(prometheus.GaugeValue, "spillway_budget_max_bytes", "The most that an account of the process' memory may hold.",
		func(a *Account) float64 { return float64(a.share.Max) })
	add(prometheus.GaugeValue, "spillway_budget_used_bytes", "What is booked in an account of the process' memory.",
		func(a *Account) float64 { return float64(a.used) })
	add(prometheus.GaugeValue, "spillway_budget_peak_bytes", "The most that was ever booked in an account of the process' memory.",
		func(a *Account) float64 { return float64(a.peak) })
	add(prometheus.CounterValue, "spillway_budget_granted_bytes_total", "Bytes booked in an account of the process' memory.",
		func(a *Account) float64 { return float64(a.granted) })
	add(prometheus.CounterValue, "spillway_budget_refused_total", "Reservations that an account of the process' memory refused, or that were waited for in vain.",
		func(a *Account) float64 { return float64(a.refused) })
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		out <- f.desc
	}
	out <- c.waiting
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.metrics() {
		out <- m
	}
}

func (c *collector) metrics() []prometheus.Metric {
	c.root.tree.mu.Lock()
	defer c.root.tree.mu.Unlock()
	all := []prometheus.Metric{prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(len(c.root.tree.waiting)))}
	for _, a := range append([]*Account{c.root}, c.root.children...) {
		for _, f := range c.figures {
			all = append(all, prometheus.MustNewConstMetric(f.desc, f.kind, f.of(a), a.name))
		}
	}
	return all
}
