package surplus

import "github.com/prometheus/client_golang/prometheus"

// metrics of handing over. None has a label.
type metrics struct {
	waiting, bytes                   prometheus.Gauge
	rows, expired, deletions, failed prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_surplus_" + name, Help: help})
	}
	m := &metrics{
		waiting:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_surplus_files", Help: "Files of rows that only this copy of a partition had, and that its leader did not take yet."}),
		bytes:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "spillway_surplus_bytes", Help: "Bytes on the disk of files of rows that only this copy of a partition had, and that its leader did not take yet."}),
		rows:      counter("rows_total", "Rows that only this copy of a partition had, and that its leader has acknowledged or had by then. Rows that are sent again count once."),
		expired:   counter("expired_rows_total", "Rows of such files that were older than the retention of their table."),
		deletions: counter("left_out_deletions_total", "Deletions of such files, none of which was acknowledged. They are left out."),
		failed:    counter("failed_total", "Files that could not be read or were not taken. Each is tried again."),
	}
	if r != nil {
		r.MustRegister(m.waiting, m.bytes, m.rows, m.expired, m.deletions, m.failed)
	}
	return m
}
