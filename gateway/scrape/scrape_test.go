package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// sink is a table that keeps the last scrape by series.
type sink struct {
	dict    *point.Dict
	err     error
	writes  int
	rows    map[string]float64
	times   map[point.Nanos]bool
	helps   []point.MetadataRow
	refuses int
}

func newSink(seriesMax int) *sink { return &sink{dict: point.NewDict(seriesMax)} }

func (s *sink) Dict() *point.Dict { return s.dict }

func (s *sink) Write(_ context.Context, b *point.Batch, level point.Level) error {
	if s.err != nil {
		return s.err
	}
	if level != point.Received {
		return fmt.Errorf("level %s", level)
	}
	s.writes++
	s.rows, s.times, s.helps = map[string]float64{}, map[point.Nanos]bool{}, append(s.helps, b.Metadata...)
	for i, id := range b.IDs {
		s.rows[b.Dict.Labels(id).String()] = b.Values[i]
		s.times[b.Times[i]] = true
	}
	if s.refuses > 0 {
		b.Refuse(s.refuses, point.Refusal{Reason: "too old", Kind: fault.Invalid})
	}
	return nil
}

// everyKind is a registry with metrics of all kinds, some of which no instrument has touched.
func everyKind() *prometheus.Registry {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rows_total", Help: "Rows."}, []string{"table", "zone"})
	c.WithLabelValues("a b\n\"c\"", "").Add(3)
	c.WithLabelValues("default", "z").Add(1e17)
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bytes", Help: "Bytes."})
	g.Set(math.Inf(-1))
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "wait_seconds", Help: "Wait.", Buckets: []float64{1e-9, 0.5, 1, 2.5e7}}, []string{"op"})
	h.WithLabelValues("read").Observe(0.7)
	h.WithLabelValues("read").Observe(1e9)
	s := prometheus.NewSummary(prometheus.SummaryOpts{Name: "size", Help: "Size.", Objectives: map[float64]float64{0: 0.1, 0.5: 0.1, 1: 0.1}})
	s.Observe(4)
	u := prometheus.NewUntypedFunc(prometheus.UntypedOpts{Name: "odd", Help: "Odd."}, func() float64 { return 7 })
	r.MustRegister(c, g, h, s, u, collectors.NewGoCollector())
	return r
}

// parsed are the samples of a page as Prometheus reads them.
func parsed(t *testing.T, r *prometheus.Registry) map[string]bool {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&page, f); err != nil {
			t.Fatal(err)
		}
	}
	p, out := textparse.NewPromParser(page.Bytes(), labels.NewSymbolTable(), false), map[string]bool{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var ls labels.Labels
		p.Labels(&ls)
		with := labels.NewBuilder(ls).Set("job", Job).Set("instance", "here:1").Labels()
		var b point.LabelsBuilder
		with.Range(func(l labels.Label) { b.Add([]byte(l.Name), []byte(l.Value)) })
		series, err := b.Labels()
		if err != nil {
			t.Fatal(err)
		}
		out[series.String()] = true
	}
}

func scraperOf(g prometheus.Gatherer, to *sink, memory *budget.Account, reg prometheus.Registerer) *Scraper {
	return New(Deps{Gatherer: g, Target: func(context.Context) (Target, error) { return to, nil }, Memory: memory, Log: slog.New(slog.DiscardHandler), Registerer: reg},
		Settings{Interval: time.Second, Instance: "here:1"})
}

// TestTheSeriesAreThoseThatPrometheusScrapes: otherwise a dashboard would need other expressions for either.
func TestTheSeriesAreThoseThatPrometheusScrapes(t *testing.T) {
	r, to := everyKind(), newSink(10_000)
	s := scraperOf(r, to, budget.New("process", 1<<30), prometheus.NewRegistry())
	now := time.Unix(1_700_000_000, 5)
	if err := s.scrape(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	want := parsed(t, r)
	want[point.MakeLabels(point.MetricName, "up", "job", Job, "instance", "here:1").String()] = true
	for series := range want {
		if _, ok := to.rows[series]; !ok {
			t.Errorf("%s is missing", series)
		}
	}
	for series := range to.rows {
		if !want[series] {
			t.Errorf("%s is not on the page", series)
		}
	}
	if len(to.times) != 1 || !to.times[now.UnixNano()] {
		t.Errorf("times %v", to.times)
	}
	for _, f := range []struct {
		value float64
		pairs []string
	}{
		{1, []string{"__name__", "up"}},
		{3, []string{"__name__", "rows_total", "table", "a b\n\"c\""}},
		{math.Inf(-1), []string{"__name__", "bytes"}},
		{1, []string{"__name__", "wait_seconds_bucket", "op", "read", "le", "1.0"}},
		{2, []string{"__name__", "wait_seconds_bucket", "op", "read", "le", "+Inf"}},
		{1e9 + 0.7, []string{"__name__", "wait_seconds_sum", "op", "read"}},
		{4, []string{"__name__", "size", "quantile", "0.5"}},
	} {
		series := point.MakeLabels(append(f.pairs, "job", Job, "instance", "here:1")...).String()
		if v, ok := to.rows[series]; !ok || v != f.value {
			t.Errorf("%s is %v, want %v", series, v, f.value)
		}
	}
}

// TestTypesAndHelpsAreWrittenOnce: they do not change while a process lives.
func TestTypesAndHelpsAreWrittenOnce(t *testing.T) {
	to := newSink(10_000)
	s := scraperOf(everyKind(), to, budget.New("process", 1<<30), prometheus.NewRegistry())
	to.err = errors.New("no room")
	if err := s.scrape(t.Context(), time.Now()); err == nil {
		t.Fatal("a failed write went unnoticed")
	}
	to.err = nil
	for range 3 {
		if err := s.scrape(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]string{}
	for _, h := range to.helps {
		if _, twice := seen[h.Metric]; twice {
			t.Errorf("%s is described twice", h.Metric)
		}
		seen[h.Metric] = h.Type + " " + h.Help
	}
	for metric, want := range map[string]string{"rows_total": "counter Rows.", "bytes": "gauge Bytes.", "wait_seconds": "histogram Wait.", "size": "summary Size.", "odd": "unknown Odd."} {
		if seen[metric] != want {
			t.Errorf("%s is described as %q, want %q", metric, seen[metric], want)
		}
	}
}

// TestARegistryThatGrowsCannotFillTheStore: rows and memory of a scrape are bounded, and the rows left out are counted.
func TestARegistryThatGrowsCannotFillTheStore(t *testing.T) {
	r, own := prometheus.NewRegistry(), prometheus.NewRegistry()
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "many", Help: "Many."}, []string{"i"})
	for i := range RowsMax + 50 {
		g.WithLabelValues(fmt.Sprint(i)).Set(1)
	}
	r.MustRegister(g)
	to, memory := newSink(1_000_000), budget.New("process", scrapeBytes)
	s := scraperOf(r, to, memory, own)
	for range 2 {
		if err := s.scrape(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if len(to.rows) != RowsMax {
		t.Errorf("%d rows, want %d", len(to.rows), RowsMax)
	}
	if dropped := testutil.ToFloat64(s.metrics.dropped); dropped != 2*51 {
		t.Errorf("%v rows are counted as dropped, want %d", dropped, 2*51)
	}
	if memory.Used() != 0 {
		t.Errorf("%d bytes are still booked", memory.Used())
	}
	if to.rows[point.MakeLabels("__name__", "up", "job", Job, "instance", "here:1").String()] != 1 {
		t.Error("up is among the rows that were left out")
	}
}

// TestFailedScrapesAreCounted: each cause is seen in spillway_scrape_failures_total, and the next scrape works again.
func TestFailedScrapesAreCounted(t *testing.T) {
	to, memory := newSink(10_000), budget.New("process", scrapeBytes)
	s := scraperOf(everyKind(), to, memory, prometheus.NewRegistry())
	failures := 0.0
	fails := func(kind fault.Kind, what string) {
		t.Helper()
		err := s.scrape(t.Context(), time.Now())
		s.note(t.Context(), err)
		failures++
		if !fault.Is(err, kind) || testutil.ToFloat64(s.metrics.failed) != failures || s.failed == 0 {
			t.Errorf("%s: error %v, want %v; %v failures counted, want %v", what, err, kind, testutil.ToFloat64(s.metrics.failed), failures)
		}
	}
	works := func() {
		t.Helper()
		err := s.scrape(t.Context(), time.Now())
		s.note(t.Context(), err)
		if err != nil || s.failed != 0 || testutil.ToFloat64(s.metrics.failed) != failures {
			t.Errorf("%v; %d failures in a row", err, s.failed)
		}
	}
	memory.Force(1)
	fails(fault.Throttled, "no memory")
	if to.writes != 0 {
		t.Error("rows were written without memory")
	}
	memory.Release(1)
	works()
	to.err = fault.Errorf(fault.Unavailable, "the disk is full")
	fails(fault.Unavailable, "no room")
	to.err = nil
	works()
	written := testutil.ToFloat64(s.metrics.rows)
	to.refuses = 5
	fails(fault.Invalid, "refused rows")
	if more := testutil.ToFloat64(s.metrics.rows) - written; more != float64(len(to.rows)-5) {
		t.Errorf("%v rows counted, %d kept", more, len(to.rows)-5)
	}
	to.refuses = 0
	works()
	to.dict = point.NewDict(3)
	fails(fault.Throttled, "a table that may have three series")
	if memory.Used() != 0 {
		t.Errorf("%d bytes are still booked", memory.Used())
	}
}
