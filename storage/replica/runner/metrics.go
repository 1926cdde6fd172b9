package runner

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/storage/replica"
)

// metrics count the copying of segments. Label reason: the reasons to decline an offer.
type metrics struct {
	offers        prometheus.Counter
	declines      *prometheus.CounterVec
	adopted       prometheus.Counter
	mended        prometheus.Counter
	sentBytes     prometheus.Counter
	receivedBytes prometheus.Counter
	suspects      prometheus.Counter
	lost          prometheus.Counter
	rate          prometheus.Gauge
	behind        prometheus.Gauge
	unfinished    prometheus.Gauge
	broken        prometheus.Gauge
	compared      prometheus.Counter
	differed      prometheus.Counter
	repairs       prometheus.Counter
	differences   prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	m := &metrics{
		offers: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_offers_total",
			Help: "Segments that this server, as the leader of their partitions, offered to other placements."}),
		declines: f.NewCounterVec(prometheus.CounterOpts{Name: "spillway_replica_declines_total",
			Help: "Offers of this server that were declined, by the reason. `exists` is usual after a link was made again."}, []string{"reason"}),
		adopted: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_segments_adopted_total",
			Help: "Segments of other servers that are part of a placement here."}),
		mended: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_segments_mended_total",
			Help: "Damaged segments of placements here that were replaced with the bytes of another copy."}),
		sentBytes: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_sent_bytes_total",
			Help: "Bytes of segments sent to other placements."}),
		receivedBytes: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_received_bytes_total",
			Help: "Bytes of segments received from other placements."}),
		suspects: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_suspects_total",
			Help: "Segments whose own bytes were verified because a read met damage in them, or because they arrived damaged again and again."}),
		lost: f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_messages_lost_total",
			Help: "Messages about segments that were dropped because too many waited. They are repeated."}),
		rate: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_replica_rate_bytes_per_second",
			Help: "Bytes of segments that this server may send in a second now, and as many receive: `storage.copy_bytes_per_second` at most, less at the beginning of a copy and while fsyncs of its log last longer than without copying."}),
		behind: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_replica_placements_behind",
			Help: "Reachable placements of partitions led here that lack segments."}),
		unfinished: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_replica_unfinished_files",
			Help: "Segments that are on their way here, or whose sender disconnected a moment ago."}),
		broken: f.NewGauge(prometheus.GaugeOpts{Name: "spillway_replica_broken_segments",
			Help: "Segments of placements with copies elsewhere whose files are damaged. They are fetched from another copy."}),
	}
	m.compared = f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_comparisons_total",
		Help: "Comparisons of partitions led here with their copies, by digests of segments and logs, while no rows came."})
	m.differed = f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_differences_found_total",
		Help: "Copies that were found to hold something else than their leader here, by two comparisons in a row."})
	m.repairs = f.NewCounter(prometheus.CounterOpts{Name: "spillway_replica_repairs_total",
		Help: "Partitions whose segments were made again, because one copy differed from the leader here and another did not."})
	m.differences = f.NewGauge(prometheus.GaugeOpts{Name: "spillway_replica_different_placements",
		Help: "Copies of partitions led here that hold something else than their leader, by the last comparisons."})
	for r := replica.Exists; r <= replica.NoSpace; r++ {
		m.declines.WithLabelValues(r.String())
	}
	return m
}
