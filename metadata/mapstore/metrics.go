package mapstore

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/protocols/peer"
)

type metrics struct {
	transactions *prometheus.CounterVec // result: committed, or a fault's kind
	seconds      prometheus.Histogram
	stores       *prometheus.CounterVec // result: stored, or a fault's kind
	swept        prometheus.Counter
	caughtUp     prometheus.Counter
	alarms       prometheus.Counter
	lagging      prometheus.Gauge
	fetchedWhole prometheus.Counter
	fetchedOps   prometheus.Counter
}

// fetched counts the kind of content that another server sent.
func (m *metrics) fetched(f *peer.File) {
	if f.Map != nil {
		m.fetchedWhole.Inc()
	} else {
		m.fetchedOps.Inc()
	}
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r) // with nil, nothing is registered
	fetches := f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_mapstore_fetches_total",
		Help: "METADATA files that this process got from metadata servers, by form: whole, or the ops since a map that was here."}, []string{"form"})
	return &metrics{
		fetchedWhole: fetches.WithLabelValues("whole"), fetchedOps: fetches.WithLabelValues("ops"),
		transactions: f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_mapstore_transactions_total",
			Help: "METADATA transactions coordinated here, by how they ended."}, []string{"result"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{Name: "spillway_mapstore_transaction_seconds",
			Help: "How long a METADATA transaction took.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		stores: f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_mapstore_stores_total",
			Help: "METADATA files that others asked to store here, by result."}, []string{"result"}),
		swept: f.NewCounter(prometheus.CounterOpts{Name: "spillway_mapstore_swept_files_total",
			Help: "METADATA files deleted because they were old or never decided."}),
		caughtUp: f.NewCounter(prometheus.CounterOpts{Name: "spillway_mapstore_caught_up_files_total",
			Help: "METADATA files fetched from another server because the coordinator's did not arrive."}),
		alarms: f.NewCounter(prometheus.CounterOpts{Name: "spillway_mapstore_alarms_total",
			Help: "Things that must never happen, such as two maps made by the same ops. Anything above 0 needs a person."}),
		lagging: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_mapstore_lagging_tables",
			Help: "Tables whose committed METADATA file should be here and is not."}),
	}
}
