package runner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/storage/staging"
)

// metrics of staging. None has a label.
type metrics struct {
	staged, refused, forwarded, restaged, expired, dropped, deleted, aside prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *Store) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_staging_" + name, Help: help})
	}
	m := &metrics{
		staged:    counter("rows_total", "Rows that were staged here: the leader of their partition was away, or they are smeared."),
		refused:   counter("refused_total", "Frames that were not staged here because there was no room."),
		forwarded: counter("forwarded_rows_total", "Rows staged here that their leader accepted from this server."),
		restaged:  counter("restaged_total", "Frames that were staged on another server because a holder was away, or this one was drained or stopped."),
		expired:   counter("expired_rows_total", "Staged rows that were older than the retention of their table when they were forwarded."),
		dropped:   counter("dropped_rows_total", "Staged rows that are gone with their table, which was dropped."),
		deleted:   counter("deleted_rows_total", "Staged rows that deletions removed from their frames on this server."),
		aside:     counter("set_aside_total", "Staged frames that a leader refused as invalid, and that were written into a file beside the log."),
	}
	if r == nil {
		return m
	}
	sum := func(of func(l staging.Load) float64) func() float64 {
		return func() (n float64) {
			for _, l := range s.Loads() {
				n += of(l)
			}
			return n
		}
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_staging_" + name, Help: help}, f)
	}
	r.MustRegister(m.staged, m.refused, m.forwarded, m.restaged, m.expired, m.dropped, m.deleted, m.aside,
		gauge("bytes", "Encoded bytes of the frames staged here.", sum(func(l staging.Load) float64 { return float64(l.Bytes) })),
		gauge("frames", "Frames staged here.", sum(func(l staging.Load) float64 { return float64(l.Frames) })),
		gauge("rows", "Rows staged here.", sum(func(l staging.Load) float64 { return float64(l.Rows) })),
		gauge("later_rows", "Rows staged here that are smeared, and not due yet.", sum(func(l staging.Load) float64 { return float64(l.Later) })),
		gauge("later_bytes", "Encoded bytes of the frames of those rows.", sum(func(l staging.Load) float64 { return float64(l.LaterBytes) })),
		gauge("sole_rows", "Rows staged here that no other server that answers holds. All, where an ack needs one server.", sum(func(l staging.Load) float64 { return float64(l.Sole) })),
		gauge("overdue_seconds", "How long the frame that could have been forwarded first waits for its leader; 0: there is none.", func() (longest float64) {
			for _, l := range s.Loads() {
				if !l.Overdue.IsZero() {
					longest = max(longest, time.Since(l.Overdue).Seconds())
				}
			}
			return longest
		}),
		gauge("oldest_seconds", "Age of the oldest frame staged here; 0: there is none.", func() (oldest float64) {
			for _, l := range s.Loads() {
				oldest = max(oldest, time.Since(l.Oldest).Seconds())
			}
			return oldest
		}),
	)
	return m
}
