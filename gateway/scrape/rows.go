package scrape

import (
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// RowsMax bounds the rows of one scrape. Those beyond it, in the order of metric names, are dropped and counted.
const RowsMax = 10_000

// Job is the label job of all rows: as in docker/prometheus.yml and in the alert rules.
const Job = "spillway"

// rows appends the samples of families to a batch, as Prometheus would that scrapes the process's page.
type rows struct {
	batch    *point.Batch
	at       point.Nanos
	instance string
	builder  point.LabelsBuilder
	dropped  int
}

// families appends all samples of metrics, and returns the first error: Throttled where the table may not have more series.
func (r *rows) families(all []*dto.MetricFamily) (err error) {
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if err := r.metric(f.GetName(), f.GetType(), m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rows) metric(name string, kind dto.MetricType, m *dto.Metric) error {
	switch kind {
	case dto.MetricType_COUNTER:
		return r.add(name, m, m.GetCounter().GetValue())
	case dto.MetricType_GAUGE:
		return r.add(name, m, m.GetGauge().GetValue())
	case dto.MetricType_UNTYPED:
		return r.add(name, m, m.GetUntyped().GetValue())
	case dto.MetricType_SUMMARY:
		return r.summary(name, m)
	case dto.MetricType_HISTOGRAM:
		return r.histogram(name, m)
	}
	return nil // not our metric: native histograms of gauges
}

func (r *rows) summary(name string, m *dto.Metric) error {
	s := m.GetSummary()
	for _, q := range s.GetQuantile() {
		if err := r.add(name, m, q.GetValue(), "quantile", bound(q.GetQuantile())); err != nil {
			return err
		}
	}
	return r.sumAndCount(name, m, s.GetSampleSum(), s.GetSampleCount())
}

func (r *rows) histogram(name string, m *dto.Metric) error {
	h := m.GetHistogram()
	infinite := false
	for _, b := range h.GetBucket() {
		infinite = infinite || math.IsInf(b.GetUpperBound(), 1)
		if err := r.add(name+"_bucket", m, float64(b.GetCumulativeCount()), "le", bound(b.GetUpperBound())); err != nil {
			return err
		}
	}
	if !infinite {
		if err := r.add(name+"_bucket", m, float64(h.GetSampleCount()), "le", bound(math.Inf(1))); err != nil {
			return err
		}
	}
	return r.sumAndCount(name, m, h.GetSampleSum(), h.GetSampleCount())
}

func (r *rows) sumAndCount(name string, m *dto.Metric, sum float64, count uint64) error {
	if err := r.add(name+"_sum", m, sum); err != nil {
		return err
	}
	return r.add(name+"_count", m, float64(count))
}

// add appends one sample of a metric, with one more label if extra names it.
func (r *rows) add(name string, m *dto.Metric, v float64, extra ...string) error {
	if r.batch.Rows() >= RowsMax {
		r.dropped++
		return nil
	}
	b := &r.builder
	b.Reset()
	b.Add([]byte(point.MetricName), []byte(name))
	b.Add([]byte("instance"), []byte(r.instance))
	b.Add([]byte("job"), []byte(Job))
	for _, l := range m.GetLabel() {
		b.Add([]byte(l.GetName()), []byte(l.GetValue()))
	}
	if len(extra) == 2 {
		b.Add([]byte(extra[0]), []byte(extra[1]))
	}
	labels, err := b.Labels()
	if err != nil {
		return fault.Annotate(err, "metric %s", name)
	}
	id, err := r.batch.Dict.InternLabels(labels, point.Hash{})
	if err != nil {
		return fault.Annotate(err, "metric %s", name)
	}
	r.batch.Append(id, r.at, v)
	return nil
}

// bound writes the bound of a bucket or a quantile as OpenMetrics does: whole numbers keep a decimal point.
func bound(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, "e.IN") {
		text += ".0"
	}
	return text
}

// descriptions are the types and help texts of families.
func descriptions(all []*dto.MetricFamily) []point.MetadataRow {
	var out []point.MetadataRow
	for _, f := range all {
		kind := strings.ToLower(f.GetType().String())
		if kind == "untyped" {
			kind = "unknown"
		}
		row := point.MetadataRow{Metric: f.GetName(), Type: kind, Help: f.GetHelp(), Unit: f.GetUnit()}
		if row.Fit() == nil {
			out = append(out, row)
		}
	}
	return out
}
