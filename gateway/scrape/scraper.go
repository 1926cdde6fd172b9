package scrape

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Table is the table into which a process writes its metrics.
const Table = peer.OwnTable

// Target receives the rows: a table of the forwarder.
type Target interface {
	// Dict is the dictionary of the generation in force, for one batch.
	Dict() *point.Dict
	// Write accepts everything in b and does not keep b.
	Write(ctx context.Context, b *point.Batch, level point.Level) error
}

// Memory is the account that a scrape's memory is charged to.
type Memory interface {
	Reserve(bytes int64) error
	Release(bytes int64)
}

// Deps are a Scraper's dependencies.
type Deps struct {
	Gatherer   prometheus.Gatherer
	Target     func(ctx context.Context) (Target, error) // finds Table, and makes it where there is none
	Memory     Memory
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // by which rows are stamped
}

// Settings are the numbers of a Scraper.
type Settings struct {
	Interval time.Duration // between scrapes
	Delay    time.Duration // before the first
	Instance string        // label instance of all rows
}

// rowBytes is the memory of one row on its way, with the metric that it is made of: a scrape of 10,000 gauges of two labels allocates
// 700 bytes for each.
const rowBytes = 1 << 10

// scrapeBytes is the memory that a scrape reserves.
const scrapeBytes = RowsMax * rowBytes

// Scraper writes the metrics of a process into a table. Make it with New; Run is its life.
type Scraper struct {
	// Constant after New.
	deps     Deps
	settings Settings
	metrics  *metrics

	// Owned by Run.
	described bool // the table has types and help texts
	failed    int  // scrapes in a row that failed
}

// New makes a Scraper.
func New(d Deps, s Settings) *Scraper {
	return &Scraper{deps: d, settings: s, metrics: newMetrics(d.Registerer)}
}

// Run scrapes after the delay and then after every interval, until ctx ends.
func (s *Scraper) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(s.settings.Delay):
	}
	ticks := time.NewTicker(s.settings.Interval)
	defer ticks.Stop()
	for {
		s.note(ctx, s.scrape(ctx, s.deps.Now()))
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// failuresMin is how many scrapes in a row fail before that is logged: one fails wherever a server that accepts the rows is stopped.
const failuresMin = 2

// note counts a scrape, and logs when several in a row have failed, and when one succeeds again.
func (s *Scraper) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.metrics.failed.Inc()
		if s.failed++; s.failed == failuresMin {
			s.deps.Log.Warn("the process cannot write its own metrics; it retries", "table", Table, "error", err)
		}
	default:
		if s.failed >= failuresMin {
			s.deps.Log.Info("the process writes its own metrics again", "table", Table)
		}
		s.failed = 0
	}
}

// scrape writes one round of metrics, as of a time.
func (s *Scraper) scrape(ctx context.Context, now time.Time) error {
	if err := s.deps.Memory.Reserve(scrapeBytes); err != nil {
		return err
	}
	defer s.deps.Memory.Release(scrapeBytes)
	families, err := s.deps.Gatherer.Gather()
	if err != nil {
		return fault.Wrap(err, fault.Internal, "gathering metrics")
	}
	target, err := s.deps.Target(ctx)
	if err != nil {
		return err
	}
	b := point.GetBatch(target.Dict())
	defer b.Put()
	r := rows{batch: b, at: now.UnixNano(), instance: s.settings.Instance}
	if err := r.families(append(own(), families...)); err != nil {
		return err
	}
	if !s.described {
		b.Metadata = append(b.Metadata, descriptions(families)...)
	}
	n := b.Rows()
	if err := target.Write(ctx, b, point.Received); err != nil {
		return err
	}
	n -= b.RefusedRows
	s.described = true
	s.metrics.rows.Add(float64(n))
	s.metrics.dropped.Add(float64(r.dropped))
	if len(b.Refused) > 0 {
		return fault.Errorf(b.Refused[0].Kind, "%d rows are refused: %s", b.RefusedRows, b.Refused[0].Reason)
	}
	return nil
}

// own are the samples that a scraper adds to those of a page.
func own() []*dto.MetricFamily {
	name, kind, one := "up", dto.MetricType_GAUGE, 1.0
	return []*dto.MetricFamily{{Name: &name, Type: &kind, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &one}}}}}
}
