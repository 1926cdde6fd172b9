package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/storage/partition"
)

// metrics are the server's counters and gauges.
type metrics struct {
	throttled   prometheus.Counter
	unconfirmed prometheus.Counter
	ahead       prometheus.Counter
	failures    *prometheus.CounterVec // by work: flush, compact, scrub

	handOverWaits *prometheus.CounterVec // by outcome

	copies      copyMetrics
	evaluations evaluationMetrics

	refusedSeries prometheus.Counter

	scrubBytes, scrubSegments, scrubDamaged, scrubPasses, scrubYields prometheus.Counter
}

// Outcomes of inserts that came while heirs of their partition were about to lead.
const (
	waitOpen      = "accepted"  // the gate opened again: nothing was proposed, or there was no answer
	waitOver      = "over"      // the heirs lead: the gateway sends them there
	waitUndecided = "undecided" // the outcome was not known in time
	waitFull      = "full"      // too many of the stream waited
	waitLeft      = "left"      // their caller did
)

func newMetrics(r prometheus.Registerer, s *Server) *metrics {
	m := &metrics{
		throttled:   prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_server_throttled_inserts_total", Help: "Inserts refused because head rows used up their memory."}),
		unconfirmed: prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_server_unconfirmed_changes_total", Help: "Inserts and deletions that were done and not acked, because the lease ended meanwhile."}),
		ahead:       prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_server_ahead_inserts_total", Help: "Inserts sent back for a new stamp, because theirs was more than a second ahead of the servers' clocks: a gateway's clock is fast, or most servers' are slow."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_server_maintenance_failures_total", Help: "Flushes and compactions that failed and are tried again, by what.",
		}, []string{"what"}),
	}
	m.handOverWaits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_server_hand_over_inserts_total", Help: "Inserts that came while heirs of their partition were about to lead, or led, by what became of them.",
	}, []string{"outcome"})
	for _, outcome := range []string{waitOpen, waitOver, waitUndecided, waitFull, waitLeft} {
		m.handOverWaits.WithLabelValues(outcome)
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_server_" + name, Help: help})
		r.MustRegister(c)
		return c
	}
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "spillway_server_rows_total", Help: "Samples accepted as the leader of their partition, those of staging included."},
		func() float64 { return float64(s.ledRows.Load()) }))
	r.MustRegister(gauge("capacity_rows_per_second", "Samples a second that the server could accept as a leader, as measured in its last busy minutes; 0: not known yet.", func() float64 { return s.Capacity().RowsPerSecond }))
	m.scrubBytes = counter("scrub_read_bytes_total", "Bytes of segments that were read again to see that they are whole; opening a file counts for 16 KiB.")
	m.scrubSegments = counter("scrub_segments_total", "Segments that were read again and held against the catalogue's checksums.")
	m.scrubDamaged = counter("scrub_damaged_segments_total", "Segments that turned out to be damaged.")
	m.refusedSeries = counter("refused_series_total", "New series refused because their table has its share of those that this server has memory for, as often as gateways offered them. Raise storage.memory_bytes, or intake.series_max.")
	m.scrubPasses = counter("scrub_passes_total", "Times that all segments were checked.")
	m.scrubYields = counter("scrub_yields_total", "Times that the check of segments went on slower, because the disk was busy or head rows filled their memory.")
	copies, ofCopies := newCopyMetrics()
	m.copies = copies
	evaluations, ofEvaluations := newEvaluationMetrics()
	m.evaluations = evaluations
	r.MustRegister(m.throttled, m.unconfirmed, m.ahead, m.failures, m.handOverWaits, ofCopies, ofEvaluations)
	r.MustRegister(s.memoryMetrics()...)
	r.MustRegister(s.partitionMetrics()...)
	r.MustRegister(s.segmentMetrics()...)
	return m
}

func gauge(name, help string, f func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_server_" + name, Help: help}, f)
}

// memoryMetrics report the memory of heads, names and caches, and the open files.
func (s *Server) memoryMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		gauge("head_bytes", "Memory of all head rows.", func() float64 { return float64(s.heads.Used()) }),
		gauge("head_bytes_max", "Bound of the memory of all head rows.", func() float64 { return float64(s.settings.HeadBytesMax) }),
		gauge("names_bytes", "What partitions hold to know their series by.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 { return float64(p.NamesBytes()) })
		}),
		gauge("cache_bytes", "Memory of the segment cache.", func() float64 { return float64(s.cache.Bytes()) }),
		gauge("open_segment_files", "Segment files that are open now.", func() float64 {
			n, _, _, _ := s.cache.FileStats()
			return float64(n)
		}),
		gauge("open_segment_files_max", "Bound of the segment files that are open at once; those being read stay open beyond it.", func() float64 {
			_, most, _, _ := s.cache.FileStats()
			return float64(most)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "spillway_server_segment_files_closed_total", Help: "Segment files that were closed to keep the number of open ones within its bound. Many a second: queries open files again and again.",
		}, func() float64 {
			_, _, _, shut := s.cache.FileStats()
			return float64(shut)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "spillway_server_opened_blocks_total", Help: "Blocks of segments that were decompressed, for queries and for compactions. Those that the cache keeps decoded are not.",
		}, func() float64 { blocks, _ := s.cache.Opened(); return float64(blocks) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "spillway_server_opened_block_bytes_total", Help: "Bytes in the files of the blocks that were decompressed.",
		}, func() float64 { _, bytes := s.cache.Opened(); return float64(bytes) }),
	}
}

// partitionMetrics report tables, series, partitions and their check.
func (s *Server) partitionMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		gauge("tables", "Tables with data on this server.", func() float64 { return float64(len(s.tables())) }),
		gauge("series", "Series in memory, of all tables.", func() float64 { return float64(s.Series()) }),
		gauge("partitions", "Partitions on this server.", func() float64 { return s.sum(func(*partition.Partition) float64 { return 1 }) }),
		gauge("damaged_partitions", "Partitions that are not read because a segment of theirs is damaged.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 {
				if p.Damaged() != nil {
					return 1
				}
				return 0
			})
		}),
		gauge("unflushed_partitions", "Partitions whose last flush failed: their rows stay in memory and in the log.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 {
				if p.Unflushed() != nil {
					return 1
				}
				return 0
			})
		}),
		gauge("scrub_pass_ratio", "How much of its segments the present check has seen, 0 to 1.", func() float64 {
			v := s.Scrub()
			return float64(v.Checked) / float64(max(v.Segments, 1))
		}),
		gauge("scrub_last_pass_timestamp_seconds", "When all segments had been checked last; 0: never.", func() float64 {
			if v := s.Scrub(); !v.PassEnded.IsZero() {
				return float64(v.PassEnded.Unix())
			}
			return 0
		}),
	}
}

// segmentMetrics report the rows in segments and those not there yet.
func (s *Server) segmentMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		gauge("segments", "Segments on this server.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 { return float64(len(p.Segments())) })
		}),
		gauge("segment_bytes", "Bytes of all segments.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 {
				var n int64
				for _, g := range p.Segments() {
					n += g.Size
				}
				return float64(n)
			})
		}),
		gauge("segment_rows", "Rows in all segments.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 {
				var n uint64
				for _, g := range p.Segments() {
					n += g.Rows
				}
				return float64(n)
			})
		}),
		gauge("head_rows", "Rows not yet in segments.", func() float64 {
			return s.sum(func(p *partition.Partition) float64 { return float64(p.HeadRows()) })
		}),
	}
}

func (s *Server) sum(f func(*partition.Partition) float64) float64 {
	total := 0.0
	for _, t := range s.tables() {
		for _, p := range t.all() {
			total += f(p)
		}
	}
	return total
}
