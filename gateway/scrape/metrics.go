package scrape

import "github.com/prometheus/client_golang/prometheus"

// metrics counts scrapes of the process by itself.
type metrics struct {
	rows, dropped, failed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_scrape_" + name + "_total", Help: help})
	}
	m := &metrics{
		rows:    counter("rows", "Rows of its own metrics that the process wrote into table _spillway."),
		dropped: counter("dropped_rows", "Rows of its own metrics beyond the bound of one scrape."),
		failed:  counter("failures", "Times that the process could not write its own metrics."),
	}
	reg.MustRegister(m.rows, m.dropped, m.failed)
	return m
}
