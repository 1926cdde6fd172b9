package remotewrite_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/point"
)

// contents is everything in a batch, in a form that does not depend on numbers of series, so that it can be compared.
type contents struct {
	Samples, Histograms, Exemplars, Metadata []string
	RefusedRows                              int
	RefusedItems                             []int // of which the reasons are kept
}

func contentsOf(b *point.Batch) contents {
	var c contents
	for i, id := range b.IDs {
		c.Samples = append(c.Samples, sampleText(b.Dict.Labels(id), b.Times[i], b.Values[i]))
	}
	for _, h := range b.Hists {
		c.Histograms = append(c.Histograms, fmt.Sprintf("%q %d %x", b.Dict.Labels(h.ID), h.Time, h.H))
	}
	for _, e := range b.Exemplars {
		c.Exemplars = append(c.Exemplars, exemplarText(b.Dict.Labels(e.ID), e.Labels, e.Time, e.Value))
	}
	for _, m := range b.Metadata {
		c.Metadata = append(c.Metadata, fmt.Sprintf("%q", m))
	}
	c.RefusedRows = b.RefusedRows
	for _, r := range b.Refused {
		c.RefusedItems = append(c.RefusedItems, r.Item)
	}
	return c.settled()
}

// settled makes the list of refusals comparable: metadata may stand anywhere between series, and when there are too many
// reasons it is a matter of order which are kept.
func (c contents) settled() contents {
	slices.Sort(c.RefusedItems)
	if len(c.RefusedItems) >= point.RefusalsMax {
		c.RefusedItems = nil
	}
	return c
}

func sampleText(l point.Labels, t int64, v float64) string {
	return fmt.Sprintf("%q %d %016x", l, t, math.Float64bits(v))
}

func exemplarText(l, of point.Labels, t int64, v float64) string {
	return fmt.Sprintf("%q %q %d %016x", l, of, t, math.Float64bits(v))
}

// The reference: the meaning of the messages, written as plainly as possible over Prometheus' own decoded form.

type label struct{ name, value string }

// canonical gives the label set, or false if it is to be refused.
func canonical(ls []label, named bool) (point.Labels, bool) {
	var flat []label
	for _, l := range ls {
		if l.name == "" {
			return "", false
		}
		if l.value != "" {
			flat = append(flat, l)
		}
	}
	if len(ls) > point.LabelsMax {
		return "", false
	}
	slices.SortStableFunc(flat, func(a, b label) int { return strings.Compare(a.name, b.name) })
	var pairs []string
	hasName := false
	for i, l := range flat {
		bad := i > 0 && flat[i-1].name == l.name || !utf8.ValidString(l.name) || !utf8.ValidString(l.value) ||
			len(l.name) > point.LabelNameMax || len(l.value) > point.LabelValueMax
		if bad {
			return "", false
		}
		hasName = hasName || l.name == point.MetricName
		pairs = append(pairs, l.name, l.value)
	}
	if named && !hasName {
		return "", false
	}
	var b point.LabelsBuilder
	for i := 0; i < len(pairs); i += 2 {
		b.Add([]byte(pairs[i]), []byte(pairs[i+1]))
	}
	l, err := b.Unnamed()
	return l, err == nil
}

func fits(ms int64) bool { return ms >= -9223372036854 && ms <= 9223372036854 }

// refHistogram gives the encoding of a histogram, or false if it is unsound. Exactly one of the two is given.
func refHistogram(h *histogram.Histogram, fh *histogram.FloatHistogram) ([]byte, bool) {
	if h != nil {
		if len(h.CustomValues) == 0 {
			h.CustomValues = nil
		}
		if h.Schema > histogram.ExponentialSchemaMax && h.Schema <= histogram.ExponentialSchemaMaxReserved {
			if h.ReduceResolution(histogram.ExponentialSchemaMax) != nil {
				return nil, false
			}
		}
		return point.AppendHistogram(nil, h), h.Validate() == nil && point.CheckZeroThreshold(h.ZeroThreshold) == nil
	}
	if len(fh.CustomValues) == 0 {
		fh.CustomValues = nil
	}
	if fh.Schema > histogram.ExponentialSchemaMax && fh.Schema <= histogram.ExponentialSchemaMaxReserved {
		if fh.ReduceResolution(histogram.ExponentialSchemaMax) != nil {
			return nil, false
		}
	}
	return point.AppendFloatHistogram(nil, fh), fh.Validate() == nil && point.CheckZeroThreshold(fh.ZeroThreshold) == nil
}

func (c *contents) refuse(item, rows int) {
	c.RefusedRows += rows
	if len(c.RefusedItems) < point.RefusalsMax {
		c.RefusedItems = append(c.RefusedItems, item)
	}
}

func (c *contents) sample(item int, l point.Labels, ms int64, v float64) {
	if !fits(ms) {
		c.refuse(item, 1)
		return
	}
	c.Samples = append(c.Samples, sampleText(l, ms*1e6, v))
}

func (c *contents) histogram(item int, l point.Labels, ms int64, enc []byte, ok bool) {
	if !fits(ms) || !ok {
		c.refuse(item, 1)
		return
	}
	c.Histograms = append(c.Histograms, fmt.Sprintf("%q %d %x", l, ms*1_000_000, enc))
}

func (c *contents) exemplar(item int, l point.Labels, of []label, known bool, ms int64, v float64) {
	ls, ok := canonical(of, false)
	if !ok || !known || !fits(ms) {
		c.refuse(item, 0)
		return
	}
	c.Exemplars = append(c.Exemplars, exemplarText(l, ls, ms*1_000_000, v))
}

var typeNames = []string{"unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset"}

func typeName(t int32) string {
	if t < 0 || int(t) >= len(typeNames) {
		return "unknown"
	}
	return typeNames[t]
}

func referenceV1(req *prompb.WriteRequest) contents {
	var c contents
	for i, ts := range req.Timeseries {
		item := i + 1
		l, ok := canonical(labelsV1(ts.Labels), true)
		if !ok {
			c.refuse(item, len(ts.Samples)+len(ts.Histograms))
			continue
		}
		// In the order of their field numbers, as Marshal writes them.
		for _, s := range ts.Samples {
			c.sample(item, l, s.Timestamp, s.Value)
		}
		for _, e := range ts.Exemplars {
			c.exemplar(item, l, labelsV1(e.Labels), true, e.Timestamp, e.Value)
		}
		for _, h := range ts.Histograms {
			var enc []byte
			if h.IsFloatHistogram() {
				enc, ok = refHistogram(nil, h.ToFloatHistogram())
			} else {
				enc, ok = refHistogram(h.ToIntHistogram(), nil)
			}
			c.histogram(item, l, h.Timestamp, enc, ok)
		}
	}
	for _, m := range req.Metadata {
		if m.MetricFamilyName == "" || !utf8.ValidString(m.MetricFamilyName) || !utf8.ValidString(m.Help) || !utf8.ValidString(m.Unit) {
			c.refuse(0, 0)
			continue
		}
		c.Metadata = append(c.Metadata, fmt.Sprintf("%q",
			point.MetadataRow{Metric: m.MetricFamilyName, Type: typeName(int32(m.Type)), Help: m.Help, Unit: m.Unit}))
	}
	return c.settled()
}

func labelsV1(ls []prompb.Label) []label {
	var out []label
	for _, l := range ls {
		out = append(out, label{l.Name, l.Value})
	}
	return out
}

// created finds the created timestamp of a series, which Prometheus' message no longer has and keeps as unknown bytes.
func created(ts *writev2.TimeSeries) (ms int64) {
	for b := ts.XXX_unrecognized; len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ms
		}
		b = b[n:]
		if v, m := protowire.ConsumeVarint(b); num == 6 && typ == protowire.VarintType && m > 0 {
			ms = int64(v)
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return ms
		}
		b = b[n:]
	}
	return ms
}

func referenceV2(req *writev2.Request) contents {
	var c contents
	seen := map[string]bool{}
	for i, ts := range req.Timeseries {
		item := i + 1
		ls, known := labelsV2(ts.LabelsRefs, req.Symbols)
		l, ok := canonical(ls, true)
		both := len(ts.Samples) > 0 && len(ts.Histograms) > 0
		none := len(ts.Samples) == 0 && len(ts.Histograms) == 0 && len(ts.Exemplars) == 0
		metaOK := int(ts.Metadata.HelpRef) < len(req.Symbols) && int(ts.Metadata.UnitRef) < len(req.Symbols)
		if !ok || !known || both || none || !metaOK || !fits(created(&ts)) {
			c.refuse(item, len(ts.Samples)+len(ts.Histograms))
			continue
		}
		for _, s := range ts.Samples {
			if !fits(s.StartTimestamp) {
				c.refuse(item, 1)
				continue
			}
			c.sample(item, l, s.Timestamp, s.Value)
		}
		for _, h := range ts.Histograms {
			var enc []byte
			if h.IsFloatHistogram() {
				enc, ok = refHistogram(nil, h.ToFloatHistogram())
			} else {
				enc, ok = refHistogram(h.ToIntHistogram(), nil)
			}
			c.histogram(item, l, h.Timestamp, enc, ok && fits(h.StartTimestamp))
		}
		for _, e := range ts.Exemplars {
			of, known := labelsV2(e.LabelsRefs, req.Symbols)
			c.exemplar(item, l, of, known, e.Timestamp, e.Value)
		}
		c.metadataV2(item, l.Get(point.MetricName), ts.Metadata, req.Symbols, seen)
	}
	return c.settled()
}

func (c *contents) metadataV2(item int, metric string, m writev2.Metadata, symbols []string, seen map[string]bool) {
	if m.Type == 0 && m.HelpRef == 0 && m.UnitRef == 0 {
		return
	}
	var cut []string
	switch m.Type {
	case writev2.Metadata_METRIC_TYPE_HISTOGRAM:
		cut = []string{"_bucket", "_count", "_sum"}
	case writev2.Metadata_METRIC_TYPE_GAUGEHISTOGRAM:
		cut = []string{"_bucket", "_gcount", "_gsum"}
	case writev2.Metadata_METRIC_TYPE_SUMMARY:
		cut = []string{"_count", "_sum"}
	}
	for _, suffix := range cut {
		if s := strings.TrimSuffix(metric, suffix); s != metric && s != "" {
			metric = s
			break
		}
	}
	help, unit := symbols[m.HelpRef], symbols[m.UnitRef]
	key := fmt.Sprintf("%q %d %q %q", metric, m.Type, help, unit)
	again := seen[key]
	seen[key] = true
	switch {
	case again:
		return
	case !utf8.ValidString(help) || !utf8.ValidString(unit):
		c.refuse(item, 0)
		return
	}
	c.Metadata = append(c.Metadata, fmt.Sprintf("%q", point.MetadataRow{Metric: metric, Type: typeName(int32(m.Type)), Help: help, Unit: unit}))
}

func labelsV2(refs []uint32, symbols []string) (ls []label, ok bool) {
	if len(refs)%2 != 0 {
		return nil, false
	}
	for i := 0; i < len(refs); i += 2 {
		if int(refs[i]) >= len(symbols) || int(refs[i+1]) >= len(symbols) {
			return nil, false
		}
		ls = append(ls, label{symbols[refs[i]], symbols[refs[i+1]]})
	}
	return ls, true
}
