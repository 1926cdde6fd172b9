package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
)

// federatePath is the path of Prometheus: outside the API.
const federatePath = "/federate"

// federate shows the newest sample of each selected series as a scrape target does, so that a Prometheus can copy series
// by scraping. As there: samples are older than now by the lookback at most, stale ones are left out, names decide
// the order, and native histograms are for scrapers that accept protobuf.
func (a *API) federate(w http.ResponseWriter, c *call) {
	release, err := a.parse(w, c)
	if err != nil {
		a.failPlain(w, err)
		return
	}
	defer release()
	sets, err := a.parser.ParseMetricSelectors(c.Form["match[]"])
	if err != nil {
		a.failPlain(w, badData(err))
		return
	}
	ctx, l, err := a.query.Lookup(c.ctx)
	if err != nil {
		a.failPlain(w, err)
		return
	}
	defer l.End()
	var found promql.Vector
	err = l.Ask(ctx, func(ctx context.Context) (err error) {
		found, err = newest(ctx, c, a.clock.Now(), time.Duration(a.query.Settings().Lookback), sets)
		return err
	})
	if err == nil {
		err = whole(c.warnings)
	}
	if err = l.Leave(err); err != nil {
		a.failPlain(w, err)
		return
	}
	if err := expose(w, c.Request, l.Turn(), found); err != nil {
		a.log.Debug("answer not delivered", "path", c.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
}

// familyBytes is the memory of a sample until it is written, besides its labels.
const familyBytes = 600

// newest returns the last sample of each series, by name.
func newest(ctx context.Context, c *call, now time.Time, lookback time.Duration, sets [][]*labels.Matcher) (promql.Vector, error) {
	maxt := timestamp.FromTime(now)
	mint := maxt - lookback.Milliseconds()
	q, err := c.table.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	var each []storage.SeriesSet
	for _, ms := range sets {
		each = append(each, q.Select(ctx, true, &storage.SelectHints{Start: mint, End: maxt}, ms...))
	}
	var out promql.Vector
	var it chunkenc.Iterator
	loan := budget.LoanOf(ctx)
	set := storage.NewMergeSeriesSet(each, 0, storage.ChainedSeriesMerge)
	for set.Next() {
		s := set.At()
		it = s.Iterator(it)
		sample := promql.Sample{Metric: s.Labels()}
		ok := last(it, &sample)
		if err := it.Err(); err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if err := loan.Take(familyBytes + int64(sample.Metric.Len()*64)); err != nil {
			return nil, fault.Annotate(err, "the selectors find too many series")
		}
		out = append(out, sample)
	}
	slices.SortStableFunc(out, func(a, b promql.Sample) int {
		return cmp.Compare(a.Metric.Get(model.MetricNameLabel), b.Metric.Get(model.MetricNameLabel))
	})
	return out, set.Err()
}

// last moves an iterator to its end; false when there is no sample or the last is a marker.
func last(it chunkenc.Iterator, s *promql.Sample) (ok bool) {
	for {
		switch it.Next() {
		case chunkenc.ValNone:
			return ok && !point.IsStale(s.F) && (s.H == nil || !point.IsStale(s.H.Sum))
		case chunkenc.ValFloat:
			s.T, s.F = it.At()
			s.H, ok = nil, true
		default:
			s.T, s.H = it.AtFloatHistogram(nil)
			s.F, ok = 0, true
		}
	}
}

// expose writes samples in the form that the scraper accepts.
func expose(w http.ResponseWriter, r *http.Request, turn *lane.Turn, samples promql.Vector) error {
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
	body := newBody(w, r)
	w.Header().Set("Content-Type", string(format))
	out := &paced{ctx: r.Context(), w: body, turn: turn}
	if err := turn.Next(out.ctx); err != nil {
		return err
	}
	defer turn.End()
	enc := expfmt.NewEncoder(out, format)
	var family *dto.MetricFamily
	flush := func() error {
		if family == nil {
			return nil
		}
		return enc.Encode(family)
	}
	for i := range samples {
		s := &samples[i]
		name := s.Metric.Get(model.MetricNameLabel)
		if name == "" || s.H != nil && !s.H.UsesCustomBuckets() && !takesNative(format) {
			continue
		}
		if typ := typeOf(s); family == nil || family.GetName() != name || family.GetType() != typ {
			if err := flush(); err != nil {
				return err
			}
			family = &dto.MetricFamily{Name: proto.String(name), Type: typ.Enum()}
		}
		family.Metric = append(family.Metric, metricOf(s))
	}
	if err := flush(); err != nil {
		return err
	}
	if c, ok := enc.(expfmt.Closer); ok {
		if err := c.Close(); err != nil {
			return err
		}
	}
	turn.End()
	return body.finish(out.buf)
}

func takesNative(f expfmt.Format) bool {
	switch f.FormatType() {
	case expfmt.TypeProtoDelim, expfmt.TypeProtoText, expfmt.TypeProtoCompact:
		return true
	}
	return false
}

func typeOf(s *promql.Sample) dto.MetricType {
	switch {
	case s.H == nil:
		return dto.MetricType_UNTYPED
	case s.H.CounterResetHint == histogram.GaugeType:
		return dto.MetricType_GAUGE_HISTOGRAM
	}
	return dto.MetricType_HISTOGRAM
}

// metricOf adds an empty instance if there is none, so that the scraper does not add this server's.
func metricOf(s *promql.Sample) *dto.Metric {
	m := &dto.Metric{TimestampMs: proto.Int64(s.T)}
	instance := false
	s.Metric.Range(func(l labels.Label) {
		if l.Value == "" || l.Name == model.MetricNameLabel {
			return
		}
		instance = instance || l.Name == model.InstanceLabel
		m.Label = append(m.Label, &dto.LabelPair{Name: proto.String(l.Name), Value: proto.String(l.Value)})
	})
	if !instance {
		m.Label = append(m.Label, &dto.LabelPair{Name: proto.String(model.InstanceLabel), Value: proto.String("")})
	}
	switch {
	case s.H == nil:
		m.Untyped = &dto.Untyped{Value: proto.Float64(s.F)}
	case s.H.UsesCustomBuckets():
		m.Histogram = classic(s.H)
	default:
		m.Histogram = native(s.H)
	}
	return m
}

// native is a histogram of exponential buckets.
func native(h *histogram.FloatHistogram) *dto.Histogram {
	return &dto.Histogram{
		SampleCountFloat: proto.Float64(h.Count), SampleSum: proto.Float64(h.Sum), Schema: proto.Int32(h.Schema),
		ZeroThreshold: proto.Float64(h.ZeroThreshold), ZeroCountFloat: proto.Float64(h.ZeroCount),
		PositiveSpan: spans(h.PositiveSpans), PositiveCount: h.PositiveBuckets,
		NegativeSpan: spans(h.NegativeSpans), NegativeCount: h.NegativeBuckets,
	}
}

func spans(of []histogram.Span) []*dto.BucketSpan {
	var out []*dto.BucketSpan
	for _, s := range of {
		out = append(out, &dto.BucketSpan{Offset: proto.Int32(s.Offset), Length: proto.Uint32(s.Length)})
	}
	return out
}

// classic is a histogram of custom buckets, which every form can show. The bucket to infinity follows from the count.
func classic(h *histogram.FloatHistogram) *dto.Histogram {
	counts := make([]float64, len(h.CustomValues)+1)
	for it := h.PositiveBucketIterator(); it.Next(); {
		if at := it.At(); at.Index >= 0 && int(at.Index) < len(counts) {
			counts[at.Index] += at.Count
		}
	}
	out := &dto.Histogram{SampleCountFloat: proto.Float64(h.Count), SampleSum: proto.Float64(h.Sum)}
	sum := 0.0
	for i, le := range h.CustomValues {
		sum += counts[i]
		out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: proto.Float64(le), CumulativeCountFloat: proto.Float64(sum)})
	}
	return out
}
