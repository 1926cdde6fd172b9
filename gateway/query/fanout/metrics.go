package fanout

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// metrics count requests to storage servers. Label outcome: ok or a fault's Kind; of doubted: warned or refused; of copies: sure, unsure (its rows are
// merged), refused (it may lack rows), failed.
type metrics struct {
	requests *prometheus.CounterVec
	again    prometheus.Counter
	moved    prometheus.Counter
	partial  prometheus.Counter
	doubted  *prometheus.CounterVec
	probes   prometheus.Counter
	fan      prometheus.Histogram
	plans    *prometheus.CounterVec
	copies   *prometheus.CounterVec
	hedges   prometheus.Counter
	merged   prometheus.Counter
}

// divided counts a plan that was to be divided. Label outcome: divided, whole (its rows are read), abandoned.
func (m *metrics) divided(d *query.Divided, err error) {
	outcome := "divided"
	switch {
	case err != nil:
		outcome = "abandoned"
	case d == nil || !slices.ContainsFunc(d.Pieces, func(p columns.Piece) bool { return p.Part != nil }):
		outcome = "whole"
	}
	m.plans.WithLabelValues(outcome).Inc()
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	m := &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_fanout_requests_total", Help: "Requests to storage servers for queries, by outcome.",
		}, []string{"outcome"}),
		again: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_fanout_replans_total", Help: "Times a query was asked again by a newer map or of another leader.",
		}),
		moved: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_fanout_moved_total", Help: "Requests given up because another server leads by now.",
		}),
		partial: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_fanout_partial_answers_total", Help: "Answers that lack rows, as their askers allowed.",
		}),
		doubted: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_fanout_doubted_answers_total", Help: "Answers that may lack rows because the partition map may be too old, by what was done about it.",
		}, []string{"outcome"}),
		probes: f.NewCounter(prometheus.CounterOpts{
			Name: "spillway_fanout_probes_total", Help: "Times metadata servers were asked for a newer map because the coordination store does not answer.",
		}),
		fan: f.NewHistogram(prometheus.HistogramOpts{
			Name: "spillway_fanout_servers_asked", Help: "Storage servers that one query asks.",
			Buckets: []float64{1, 2, 3, 5, 10, 20, 50, 100, 200},
		}),
	}
	m.plans = f.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_fanout_plans_total", Help: "Parts of queries that servers may evaluate: divided among them, read as rows (whole), or left to the plain engine by what a server found (abandoned).",
	}, []string{"outcome"})
	for _, outcome := range []string{"divided", "whole", "abandoned"} {
		m.plans.WithLabelValues(outcome)
	}
	m.copies = f.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_fanout_copies_asked_total", Help: "Answers of servers with copies of partitions: sure, refused (the copy may lack rows), unsure (it gave what it has, to be merged), or failed.",
	}, []string{"outcome"})
	m.hedges = f.NewCounter(prometheus.CounterOpts{
		Name: "spillway_fanout_hedges_total", Help: "Times another copy was asked because the one asked before was late, or gave no sign of life.",
	})
	m.merged = f.NewCounter(prometheus.CounterOpts{
		Name: "spillway_fanout_merged_answers_total", Help: "Answers merged from copies that may lack rows and have all of them together: no leader answered.",
	})
	for _, outcome := range []string{"sure", "refused", "unsure", "failed"} {
		m.copies.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"warned", "refused"} {
		m.doubted.WithLabelValues(outcome)
	}
	return m
}

func (m *metrics) request(err error) {
	outcome := "ok"
	if err != nil {
		outcome = fault.KindOf(err).String()
	}
	m.requests.WithLabelValues(outcome).Inc()
}

func (m *metrics) copy(a follow.CopyAsk, err error) {
	outcome := "sure"
	switch {
	case peer.IsUnsure(err):
		outcome = "refused"
	case err != nil:
		outcome = "failed"
	case a.Mode == peer.UnsureCopies:
		outcome = "unsure"
	}
	m.copies.WithLabelValues(outcome).Inc()
}
