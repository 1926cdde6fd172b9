package forward

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/share"
)

// metrics count what happens to shares. Labels: outcome is ok or a fault's Kind; reason is one of those below.
type metrics struct {
	shares   *prometheus.CounterVec // by outcome
	retries  *prometheus.CounterVec // by reason
	waited   *prometheus.CounterVec // by reason
	refused  prometheus.Counter
	rerouted prometheus.Counter

	restamped prometheus.Counter

	staged, unstaged prometheus.Counter
	smear            smearMetrics

	leaderless prometheus.Counter
	streams    *prometheus.CounterVec // by reason
	full       prometheus.Counter

	refusedSeries prometheus.Counter
	merged        prometheus.Counter
	dropped       prometheus.Counter
}

// Reasons of streams that are opened. Those of retries are follow.Reason, and reasonBroken.
const (
	reasonBroken   = "broken"   // the stream broke
	reasonNew      = "new"      // the first to this server in this generation
	reasonReopened = "reopened" // after one that broke
)

// smearMetrics count what happens to rows of tables with a window. Labels: reason is one of those below.
type smearMetrics struct {
	rows   prometheus.Counter
	direct *prometheus.CounterVec
	delay  prometheus.Histogram
}

// Reasons why rows do not wait although their table has a window.
const (
	directOptedOut = "opted_out" // the insert, or its Kafka topic, opted out
	directFar      = "far"       // their time is not near now
	directFull     = "full"      // they could not be staged
)

func newSmearMetrics(f promauto.Factory) smearMetrics {
	m := smearMetrics{
		rows: f.NewCounter(prometheus.CounterOpts{Name: "spillway_forward_smeared_rows_total", Help: "Rows that were staged, for a delay by their series, on their way to narrow partitions."}),
		direct: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_forward_smear_direct_rows_total", Help: "Rows of tables with a smearing window that went to the leaders of their partitions at once, by reason; those whose delay is zero are not counted.",
		}, []string{"reason"}),
		delay: f.NewHistogram(prometheus.HistogramOpts{Name: "spillway_forward_smear_delay_seconds", Help: "Delays of the frames of smeared rows.", Buckets: []float64{1, 2.5, 5, 10, 20, 30, 60, 90, 120, 300, 600}}),
	}
	for _, reason := range []string{directOptedOut, directFar, directFull} {
		m.direct.WithLabelValues(reason)
	}
	return m
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	m := &metrics{
		smear: newSmearMetrics(f),
		shares: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_forward_shares_total", Help: "Shares of batches sent to leaders of partitions, by outcome.",
		}, []string{"outcome"}),
		retries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_forward_retries_total", Help: "Shares sent again, by what became of the attempt before.",
		}, []string{"reason"}),
		waited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_forward_waited_seconds_total", Help: "Time that writes waited after a try that failed, by what became of the first of the shares that failed: leaderless, no server led; stale, the server had another map, or did not lead yet; leader, it did not answer, or could not act; moved, another led meanwhile.",
		}, []string{"reason"}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_retries_refused_total", Help: "Shares given up because retries are at their bound.",
		}),
		rerouted: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_rerouted_rows_total", Help: "Rows that were routed again by a newer map.",
		}),
		staged: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_staged_rows_total", Help: "Rows that were staged on other servers because the leader of their partition was away.",
		}),
		unstaged: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_staging_failures_total", Help: "Writes that could not be staged while a leader was away: no room, or too few servers.",
		}),
		restamped: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_restamped_inserts_total", Help: "Inserts that a server sent back for a new stamp: because the clock here is more than a second ahead of the servers', or since an earlier try may have been taken.",
		}),
		leaderless: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_leaderless_shares_total", Help: "Shares that found no live leader of their partition when they came: no server holds its lease, or the one that does did not answer and sends no heartbeats.",
		}),
		full: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_dictionaries_full_total", Help: "Dictionaries that had no room for more series: rows of further ones are refused for some minutes. Raise storage.memory_bytes, or intake.series_max.",
		}),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_relabel_dropped_samples_total", Help: "Samples accepted and not stored, since write_relabel_configs drop their series.",
		}),
		refusedSeries: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_refused_series_total", Help: "New series refused because their table has its share of those that there is memory for.",
		}),
		merged: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_forward_merged_series_total", Help: "Series of line protocol that two measurements flatten to, as a_b c=1 and a b_c=2 do. The log names them.",
		}),
		streams: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_forward_streams_total", Help: "Streams opened to storage servers, by reason.",
		}, []string{"reason"}),
	}
	for reason := follow.Leaderless; reason <= follow.Moved; reason++ {
		m.waited.WithLabelValues(reason.String())
	}
	return m
}

// shows adds gauges of the series that all tables hold, and of the most that there is memory for.
func (m *metrics) shows(r prometheus.Registerer, series *share.Pool) {
	f := promauto.With(r)
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_forward_series", Help: "Active series that the dictionaries of all tables have room for or know."},
		func() float64 { return float64(series.Used()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_forward_series_max", Help: "Active series that there is memory for, of all tables."},
		func() float64 { return float64(series.Most()) })
}

func (m *metrics) share(err error) {
	outcome := "ok"
	if err != nil {
		outcome = fault.KindOf(err).String()
	}
	m.shares.WithLabelValues(outcome).Inc()
}
