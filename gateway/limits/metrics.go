package limits

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// shown holds the values of one table label. Its counters only grow, whichever tables have a label of their own.
type shown struct {
	numbers
	counted numbers // up to where the table's counters are in numbers of some shown
	own     bool
}

// collector makes metrics of the counters. Labels: table is one of at most MetricsTablesMax names, or (other); limit is a
// Limit; mode is enforced or dry_run; outcome is ok or failed.
//
// Tables named in the settings get labels first, then the largest users. A table with a label keeps it until another uses
// twice as much, and at most one changes at each collection: a sender that makes tables does not make series without end.
// Counts of a table from a time without a label stay in (other).
type collector struct{ r *Registry }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("spillway_limits_"+name, help, labels, nil)
}

// descs are collector's descriptors.
type descs struct {
	samples, bytes, series, active, queries, requests, refused, refusedSamples, reloads, tables *prometheus.Desc
}

func newDescs() descs {
	return descs{
		samples:        desc("accepted_samples_total", "Samples stored, by table.", "table"),
		bytes:          desc("body_bytes_total", "Bytes of write requests as they were sent, by table.", "table"),
		series:         desc("new_series_total", "Series that were not active before, by table.", "table"),
		active:         desc("active_series", "Series that had a sample in the last 10 min to 2 h, by table.", "table"),
		queries:        desc("queries_total", "Queries that began, by table.", "table"),
		requests:       desc("requests_total", "Write requests that were not refused at the door, by table.", "table"),
		refused:        desc("refused_total", "Requests, series and queries that a limit refused, or would refuse in dry run.", "table", "limit", "mode"),
		refusedSamples: desc("refused_samples_total", "Samples that a limit refused, or would refuse in dry run, where it was known how many there were.", "table", "limit", "mode"),
		reloads:        desc("reloads_total", "Times that limits were read anew.", "outcome"),
		tables:         desc("tables", "Tables of which something is counted."),
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	d := newDescs()
	for _, one := range []*prometheus.Desc{d.samples, d.bytes, d.series, d.active, d.queries, d.requests, d.refused, d.refusedSamples, d.reloads, d.tables} {
		to <- one
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	d := newDescs()
	r := c.r
	r.mu.Lock()
	own := r.chooseLocked()
	var active int64
	type line struct {
		name   string
		n      numbers
		active int64
	}
	var lines []line
	for _, t := range r.mu.tables {
		is := t.counts.read()
		if own[t] {
			t.view.shown.add(&t.view.shown.counted, &is)
			lines = append(lines, line{t.name, t.view.shown.numbers, t.series.Load()})
		} else {
			r.mu.other.add(&t.view.shown.counted, &is)
			active += t.series.Load()
		}
		t.view.shown.counted = is
	}
	lines = append(lines, line{otherTable, r.mu.other.numbers, active})
	tables := len(r.mu.tables)
	r.mu.Unlock()

	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, l := range lines {
		counter(d.samples, l.n.samples, l.name)
		counter(d.bytes, l.n.bytes, l.name)
		counter(d.series, l.n.series, l.name)
		counter(d.queries, l.n.queries, l.name)
		counter(d.requests, l.n.requests, l.name)
		to <- prometheus.MustNewConstMetric(d.active, prometheus.GaugeValue, float64(l.active), l.name)
		for m := range modes {
			for limit := range limitsNum {
				if n := l.n.refused[m][limit]; n > 0 {
					counter(d.refused, n, l.name, limit.String(), modeNames[m])
				}
				if n := l.n.refusedSamples[m][limit]; n > 0 {
					counter(d.refusedSamples, n, l.name, limit.String(), modeNames[m])
				}
			}
		}
	}
	counter(d.reloads, r.reloads[0].Load(), "ok")
	counter(d.reloads, r.reloads[1].Load(), "failed")
	to <- prometheus.MustNewConstMetric(d.tables, prometheus.GaugeValue, float64(tables))
}

// otherTable is the label of tables without one of their own. Its parentheses are not allowed in names of tables.
const otherTable = "(other)"

// chooseLocked says which tables have a label of their own.
func (r *Registry) chooseLocked() map[*Table]bool {
	f := r.force.Load()
	most := f.settings.MetricsTablesMax
	named := func(t *Table) int {
		if _, ok := f.tables[t.name]; ok {
			return 0
		}
		return 1
	}
	all := slices.SortedFunc(maps.Values(r.mu.tables), func(a, b *Table) int {
		return cmp.Or(cmp.Compare(named(a), named(b)), cmp.Compare(b.view.rates.weight(), a.view.rates.weight()), cmp.Compare(a.name, b.name))
	})
	own := map[*Table]bool{}
	var in, out []*Table // by rank
	for _, t := range all {
		if t.view.shown.own && len(in) < most {
			in = append(in, t)
		} else {
			out = append(out, t)
		}
	}
	for len(in) < most && len(out) > 0 {
		in, out = append(in, out[0]), out[1:]
	}
	if len(out) > 0 && len(in) > 0 {
		last, next := in[len(in)-1], out[0]
		if named(next) < named(last) || named(next) == named(last) && next.view.rates.weight() > 2*last.view.rates.weight() {
			in[len(in)-1] = next
		}
	}
	for _, t := range in {
		own[t] = true
	}
	for _, t := range all {
		t.view.shown.own = own[t]
	}
	return own
}
