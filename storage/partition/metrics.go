package partition

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters all partitions of a server share. Reasons are the constants of policy.go.
type Metrics struct {
	flushes        *prometheus.CounterVec
	flushedRows    prometheus.Counter
	flushedBytes   prometheus.Counter
	flushSeconds   prometheus.Histogram
	compactions    *prometheus.CounterVec
	compactedRows  prometheus.Counter
	compactedBytes prometheus.Counter
	compactSeconds prometheus.Histogram

	copied atomic.Uint64 // rows that came from leaders on other servers

	evictedExemplars prometheus.Counter
	quieted          prometheus.Counter
	revived          prometheus.Counter
	cutRows          *prometheus.CounterVec // by the bound they exceed: histogram_bytes, exemplars
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_partition_" + name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "spillway_partition_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.01, 2, 14)})
	}
	byReason := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_partition_" + name, Help: help}, []string{"reason"})
	}
	m := &Metrics{
		flushes:        byReason("flushes_total", "Heads written into segments, by reason."),
		flushedRows:    counter("flushed_rows_total", "Rows written by flushes."),
		flushedBytes:   counter("flushed_bytes_total", "Bytes of segments written by flushes."),
		flushSeconds:   seconds("flush_duration_seconds", "How long flushes took."),
		compactions:    byReason("compactions_total", "Compactions, by reason."),
		compactedRows:  counter("compacted_rows_total", "Rows written by compactions."),
		compactedBytes: counter("compacted_bytes_total", "Bytes of segments written by compactions."),
		compactSeconds: seconds("compaction_duration_seconds", "How long compactions took."),

		quieted:          counter("quieted_series_total", "Series that left memory because they had no rows for a while."),
		revived:          counter("revived_series_total", "Series that came back after they had left memory."),
		evictedExemplars: counter("evicted_exemplars_total", "Exemplars that made room for newer ones before they reached a segment."),
		cutRows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_partition_cut_rows_total", Help: "Rows left out of a segment because no segment can hold them, by what they exceed.",
		}, []string{"bound"}),
	}
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "spillway_partition_copied_rows_total", Help: "Rows that came as copies, from the leaders of partitions on other servers."}, func() float64 { return float64(m.Copied()) }))
	r.MustRegister(m.cutRows, m.flushes, m.flushedRows, m.flushedBytes, m.flushSeconds, m.compactions, m.compactedRows, m.compactedBytes, m.compactSeconds, m.quieted, m.revived, m.evictedExemplars)
	return m
}

// Copied is how many rows came from leaders on other servers.
func (m *Metrics) Copied() uint64 { return m.copied.Load() }

func (m *Metrics) flushed(why Reason, rows, bytes uint64, took time.Duration) {
	m.flushes.WithLabelValues(string(why)).Inc()
	m.flushedRows.Add(float64(rows))
	m.flushedBytes.Add(float64(bytes))
	m.flushSeconds.Observe(took.Seconds())
}

func (m *Metrics) compacted(why Reason, rows, bytes uint64, took time.Duration) {
	m.compactions.WithLabelValues(string(why)).Inc()
	m.compactedRows.Add(float64(rows))
	m.compactedBytes.Add(float64(bytes))
	m.compactSeconds.Observe(took.Seconds())
}
