package query

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Kinds of query, a label of the metrics.
const (
	kindInstant = "instant"
	kindRange   = "range"
)

// Extents of evaluation over columns, a label of the metrics.
const (
	extentWhole     = "whole"
	extentPart      = "part"
	extentNone      = "none"
	extentAbandoned = "abandoned" // begun, and abandoned because of the rows
)

// metrics count queries. Labels: kind is instant or range; outcome is ok, execution, timeout, or a fault's Kind;
// extent is one of those below.
type metrics struct {
	factory  promauto.Factory
	queries  *prometheus.CounterVec
	duration *prometheus.HistogramVec
	samples  prometheus.Counter
	series   prometheus.Counter
	rows     prometheus.Counter
	cuts     *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	return &metrics{
		factory: f,
		queries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_query_queries_total", Help: "PromQL queries by kind and outcome.",
		}, []string{"kind", "outcome"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_query_duration_seconds", Help: "Time from a query's arrival to its result, waiting included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"kind"}),
		samples: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_query_samples_total", Help: "Samples the PromQL engine visited.",
		}),
		series: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_query_series_total", Help: "Series that queries loaded from storage.",
		}),
		rows: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_query_rows_total", Help: "Rows that queries loaded from storage.",
		}),
		cuts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_query_columnar_total", Help: "Evaluations of PromQL queries by how much was over columns. A query may be evaluated twice where a server fell silent.",
		}, []string{"extent"}),
	}
}

// watch exports how full a gate is.
func (m *metrics) watch(g *Gate) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_query_running", Help: "PromQL queries that run now.",
	}, func() float64 { return float64(g.Running()) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_query_waiting", Help: "PromQL queries that wait for others to end.",
	}, func() float64 { return float64(g.Waiting()) })
}

func (m *metrics) observe(kind string, start time.Time, err error) {
	m.queries.WithLabelValues(kind, outcome(err)).Inc()
	m.duration.WithLabelValues(kind).Observe(time.Since(start).Seconds())
}

func outcome(err error) string {
	var (
		timeout  promql.ErrQueryTimeout
		canceled promql.ErrQueryCanceled
		store    promql.ErrStorage
	)
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &timeout):
		return "timeout"
	case errors.As(err, &canceled):
		return fault.Canceled.String()
	case errors.As(err, &store):
		return fault.KindOf(store.Err).String()
	}
	if k := fault.KindOf(err); k != fault.Internal {
		return k.String()
	}
	return "execution"
}

// loaded adds the series and rows that a query loaded.
func (m *metrics) loaded(u *usage) {
	s := u.state()
	m.series.Add(float64(s.series))
	m.rows.Add(float64(s.rows))
}
