package otlp

import (
	"bytes"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// histogramScratch is the memory in which histograms and summaries are decoded.
type histogramScratch struct {
	counts []uint64
	bounds []float64
	ids    []point.SeriesID // of the buckets, the last one of +Inf; for exemplars
	long   bool             // there were more counts or bounds than point.HistogramBucketsMax

	pos, neg buckets
	buf      []byte
}

func (s *histogramScratch) reset() {
	s.counts, s.bounds, s.ids, s.long = s.counts[:0], s.bounds[:0], s.ids[:0], false
}

func (s *histogramScratch) forget() {
	s.reset()
	if cap(s.buf) > scratchKept {
		s.buf = nil
	}
}

// addCount keeps a count of a bucket as the wire has it.
func (s *histogramScratch) addCount(v float64) {
	if len(s.counts) >= point.HistogramBucketsMax {
		s.long = true
		return
	}
	s.counts = append(s.counts, math.Float64bits(v))
}

func (s *histogramScratch) addBound(v float64) {
	if len(s.bounds) >= point.HistogramBucketsMax {
		s.long = true
		return
	}
	s.bounds = append(s.bounds, v)
}

// explicit holds the fields of a HistogramDataPoint beside its lists.
type explicit struct {
	count  uint64
	sum    float64
	hasSum bool
}

// histogram reads a HistogramDataPoint. reason is a mistake in the point, err a mistake in the message.
func (d *Decoder) histogram(m []byte) (reason, err error) {
	p, s := &d.p, &d.hist
	p.exemplar = 8
	s.reset()
	var x explicit
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return nil, err
		}
		switch f.Num {
		case 3:
			p.time = f.Expect(wire.Fixed64, &err)
		case 4:
			x.count = f.Expect(wire.Fixed64, &err)
		case 5:
			x.sum, x.hasSum = f.Double(&err), true
		case 6:
			err = f.EachDouble(s.addCount) // fixed64 lies on the wire as double does
		case 7:
			err = f.EachDouble(s.addBound)
		case 8:
			f.Bytes(&err)
			p.exemplars.add(m, i, next)
		case 9:
			f.Bytes(&err)
			p.attrs.add(m, i, next)
		case 10:
			p.flags = f.Varint(&err)
		}
		if err != nil {
			return nil, err
		}
		i = next
	}
	if reason := p.timeFault(); reason != nil {
		return reason, nil
	}
	if reason := s.boundsFault(p.noRecordedValue()); reason != nil {
		return reason, nil
	}
	if d.t.settings.ConvertHistogramsToNHCB {
		return d.customHistogram(&x)
	}
	return d.classicHistogram(&x)
}

// boundsFault returns the mistake in bounds and counts, or nil. A last bound of +Inf, which some senders write, is treated
// as the implied one.
func (s *histogramScratch) boundsFault(noValue bool) error {
	if s.long {
		return fault.Errorf(fault.Invalid, "histogram of more than %d buckets", point.HistogramBucketsMax)
	}
	for i, bound := range s.bounds {
		if math.IsNaN(bound) || i > 0 && bound <= s.bounds[i-1] {
			return fault.Errorf(fault.Invalid, "histogram with bounds that do not rise: %v at %d", bound, i)
		}
	}
	switch {
	case noValue:
	case len(s.counts) == 0 && len(s.bounds) == 0:
	case len(s.counts) != len(s.bounds)+1:
		return fault.Errorf(fault.Invalid, "histogram of %d bounds and %d counts; there must be one count more", len(s.bounds), len(s.counts))
	}
	if n := len(s.bounds); n > 0 && math.IsInf(s.bounds[n-1], 1) {
		s.bounds = s.bounds[:n-1]
		if n < len(s.counts) {
			s.counts[n-1] += s.counts[n]
			s.counts = s.counts[:n]
		}
	}
	return nil
}

// classicHistogram adds the series _sum, _count and one _bucket a bound.
func (d *Decoder) classicHistogram(x *explicit) (reason, err error) {
	s := &d.hist
	if err := d.spend(len(s.bounds) + 2); err != nil {
		return nil, err
	}
	before := len(d.b.IDs)
	if reason := d.classicRows(x); reason != nil {
		d.b.Truncate(before)
		return reason, nil
	}
	if reason := d.convert(before); reason != nil {
		return reason, nil
	}
	return nil, d.readExemplars(func(v float64) point.SeriesID {
		i, _ := slices.BinarySearch(s.bounds, v) // the first bucket with a bound not below v
		return s.ids[i]
	})
}

func (d *Decoder) classicRows(x *explicit) error {
	s, fam := &d.hist, d.metric.family
	base := d.beginSeries()
	value := func(v float64) float64 {
		if d.p.noRecordedValue() {
			return staleNaN
		}
		return v
	}
	if x.hasSum {
		if _, err := d.roleRow(base, roleSum, fam.sum, nil, 0, value(x.sum)); err != nil {
			return err
		}
	}
	if _, err := d.roleRow(base, roleCount, fam.count, nil, 0, value(float64(x.count))); err != nil {
		return err
	}
	var below uint64
	for i, bound := range s.bounds {
		if i < len(s.counts) {
			below += s.counts[i]
		}
		id, err := d.roleRow(base, roleBucket, fam.bucket, labelLE, bound, value(float64(below)))
		if err != nil {
			return err
		}
		s.ids = append(s.ids, id)
	}
	id, err := d.roleRow(base, roleBucket, fam.bucket, labelLE, math.Inf(1), value(float64(x.count)))
	s.ids = append(s.ids, id)
	return err
}

// roleRow adds a row to one of the series of the data point being read.
func (d *Decoder) roleRow(base point.Hash, r role, name, extra []byte, number, v float64) (point.SeriesID, error) {
	id, err := d.seriesOfRole(base, r, name, extra, number)
	if err != nil {
		return 0, err
	}
	d.b.Append(id, point.Nanos(d.p.time), v)
	return id, nil
}

// appendBound writes a bound or a quantile as the value of a label: 0.005, 10, +Inf.
func appendBound(b []byte, v float64) []byte {
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// customHistogram adds a native histogram with the explicit bounds as they are.
func (d *Decoder) customHistogram(x *explicit) (reason, err error) {
	s := &d.hist
	s.pos.reset()
	for i, c := range s.counts {
		s.pos.add(int64(i), c)
	}
	if len(s.counts) == 0 {
		s.pos.add(0, x.count) // no bounds: everything lies below +Inf
	}
	s.pos.close()
	h := histogram.Histogram{
		CounterResetHint: d.resetHint(), Schema: histogram.CustomBucketsSchema, Count: x.count, Sum: x.sum,
		PositiveSpans: s.pos.spans, PositiveBuckets: s.pos.deltas,
	}
	if len(s.bounds) > 0 {
		h.CustomValues = s.bounds
	}
	return d.addHistogram(&h, s.pos.fault)
}

// resetHint is never "no reset": that was not checked, and readers trust it.
func (d *Decoder) resetHint() histogram.CounterResetHint {
	if d.metric.delta() {
		return histogram.GaugeType
	}
	return histogram.UnknownCounterReset
}

// staleHistogram ends a series of native histograms.
func staleHistogram() *histogram.Histogram { return &histogram.Histogram{Sum: staleNaN} }

// addHistogram appends h unless fault is set or it is unsound.
func (d *Decoder) addHistogram(h *histogram.Histogram, why error) (reason, err error) {
	if d.p.noRecordedValue() {
		h, why = staleHistogram(), nil
	}
	if why == nil {
		why = fault.Wrap(h.Validate(), fault.Invalid, "histogram")
	}
	if why != nil {
		return why, nil
	}
	id, reason := d.seriesOfPoint(d.metric.family.name)
	if reason != nil {
		return reason, nil
	}
	d.hist.buf = point.AppendHistogram(d.hist.buf[:0], h)
	d.b.Hists = append(d.b.Hists, point.HistRow{ID: id, Time: point.Nanos(d.p.time), H: bytes.Clone(d.hist.buf)})
	return nil, d.readExemplars(func(float64) point.SeriesID { return id })
}

// defaultZeroThreshold is Prometheus' width of the bucket of zeros where the sender gives none.
const defaultZeroThreshold = 1e-128

// exponential reads an ExponentialHistogramDataPoint. reason is a mistake in the point, err a mistake in the message.
func (d *Decoder) exponential(m []byte) (reason, err error) {
	p := &d.p
	p.exemplar = 11
	var positive, negative []byte
	var h histogram.Histogram
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return nil, err
		}
		switch f.Num {
		case 1:
			f.Bytes(&err)
			p.attrs.add(m, i, next)
		case 3:
			p.time = f.Expect(wire.Fixed64, &err)
		case 4:
			h.Count = f.Expect(wire.Fixed64, &err)
		case 5:
			h.Sum = f.Double(&err)
		case 6:
			h.Schema = wire.ZigZag32(f.Varint(&err))
		case 7:
			h.ZeroCount = f.Expect(wire.Fixed64, &err)
		case 8:
			err = once(&positive, &f)
		case 9:
			err = once(&negative, &f)
		case 10:
			p.flags = f.Varint(&err)
		case 11:
			f.Bytes(&err)
			p.exemplars.add(m, i, next)
		case 14:
			h.ZeroThreshold = f.Double(&err)
		}
		if err != nil {
			return nil, err
		}
		i = next
	}
	return d.exponentialRow(&h, positive, negative)
}

func (d *Decoder) exponentialRow(h *histogram.Histogram, positive, negative []byte) (reason, err error) {
	s := &d.hist
	scaleDown := uint(max(0, h.Schema-histogram.ExponentialSchemaMax))
	if err := s.pos.read(positive, scaleDown); err != nil {
		return nil, err
	}
	if err := s.neg.read(negative, scaleDown); err != nil {
		return nil, err
	}
	if reason := d.p.timeFault(); reason != nil {
		return reason, nil
	}
	if d.p.noRecordedValue() {
		return d.addHistogram(staleHistogram(), nil)
	}
	if h.Schema < histogram.ExponentialSchemaMin {
		return fault.Errorf(fault.Invalid, "exponential histogram of scale %d, the coarsest taken is %d", h.Schema, histogram.ExponentialSchemaMin), nil
	}
	h.Schema = min(h.Schema, histogram.ExponentialSchemaMax)
	if !(h.ZeroThreshold >= 0) || math.IsInf(h.ZeroThreshold, 1) {
		return fault.Errorf(fault.Invalid, "exponential histogram with a zero threshold of %v", h.ZeroThreshold), nil
	}
	if h.ZeroThreshold == 0 {
		h.ZeroThreshold = defaultZeroThreshold
	}
	h.CounterResetHint = d.resetHint()
	h.PositiveSpans, h.PositiveBuckets = s.pos.spans, s.pos.deltas
	h.NegativeSpans, h.NegativeBuckets = s.neg.spans, s.neg.deltas
	why := s.pos.fault
	if why == nil {
		why = s.neg.fault
	}
	return d.addHistogram(h, why)
}

// buckets turns the dense counts of OpenTelemetry into the spans and deltas of a native histogram.
type buckets struct {
	spans  []histogram.Span
	deltas []int64
	fault  error // Invalid

	// The bucket that is being filled.
	index int64
	count uint64
	last  int64 // index of the last one closed
	prev  int64 // its count
}

func (b *buckets) reset() { *b = buckets{spans: b.spans[:0], deltas: b.deltas[:0]} }

// read reads the message Buckets, merging 2^scaleDown buckets into one. OpenTelemetry's bucket 0 begins above 1,
// Prometheus' ends there. Counts are not kept as they come: a long list of zeros costs nothing.
func (b *buckets) read(m []byte, scaleDown uint) error {
	b.reset()
	offset, err := bucketsOffset(m)
	if err != nil {
		return err
	}
	at := offset
	next := func(count uint64) {
		b.add(at>>scaleDown+1, count)
		at++
	}
	for i := 0; i < len(m); {
		f, after, err := wire.Read(m, i)
		if err == nil && f.Num == 2 {
			err = f.EachVarint(next)
		}
		if err != nil {
			return err
		}
		i = after
	}
	b.close()
	return nil
}

func bucketsOffset(m []byte) (offset int64, err error) {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err == nil && f.Num == 1 {
			offset = int64(wire.ZigZag32(f.Varint(&err)))
		}
		if err != nil {
			return 0, err
		}
		i = next
	}
	return offset, nil
}

// add counts into the bucket with this index; indexes never fall.
func (b *buckets) add(index int64, count uint64) {
	if count == 0 {
		return
	}
	if index != b.index {
		b.close()
		b.index = index
	}
	sum := b.count + count
	if sum < b.count || sum > math.MaxInt64 {
		b.fault = errBucketCount
		return
	}
	b.count = sum
}

var (
	errBucketCount = fault.Errorf(fault.Invalid, "histogram with a bucket of more than 2^63 observations")
	errBucketIndex = fault.Errorf(fault.Invalid, "histogram with a bucket whose index is out of range")
	errBuckets     = fault.Errorf(fault.Invalid, "histogram of more than %d buckets of one sign that are not empty", point.HistogramBucketsMax-gapMax)
)

// gapMax is how many empty buckets in a row are written out; more begin another span.
const gapMax = 2

// close writes the bucket that was being filled.
func (b *buckets) close() {
	if b.count == 0 || b.fault != nil {
		return
	}
	gap := b.index
	if len(b.spans) > 0 {
		gap = b.index - b.last - 1
	}
	switch {
	case int64(int32(b.index)) != b.index || int64(int32(gap)) != gap:
		b.fault = errBucketIndex
		return
	case len(b.deltas) >= point.HistogramBucketsMax-gapMax:
		b.fault = errBuckets
		return
	case len(b.spans) == 0 || gap > gapMax:
		b.spans = append(b.spans, histogram.Span{Offset: int32(gap)})
	default:
		for range gap {
			b.append(0)
		}
	}
	b.append(int64(b.count))
	b.last, b.count = b.index, 0
}

func (b *buckets) append(count int64) {
	b.spans[len(b.spans)-1].Length++
	b.deltas = append(b.deltas, count-b.prev)
	b.prev = count
}

// summary reads a SummaryDataPoint. reason is a mistake in the point, err a mistake in the message.
func (d *Decoder) summary(m []byte) (reason, err error) {
	p, s := &d.p, &d.hist
	s.reset()
	var x explicit
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return nil, err
		}
		switch f.Num {
		case 3:
			p.time = f.Expect(wire.Fixed64, &err)
		case 4:
			x.count = f.Expect(wire.Fixed64, &err)
		case 5:
			x.sum = f.Double(&err)
		case 6:
			err = s.addQuantile(f.Bytes(&err), err)
		case 7:
			f.Bytes(&err)
			p.attrs.add(m, i, next)
		case 8:
			p.flags = f.Varint(&err)
		}
		if err != nil {
			return nil, err
		}
		i = next
	}
	if reason := p.timeFault(); reason != nil {
		return reason, nil
	}
	if s.long {
		return fault.Errorf(fault.Invalid, "summary of more than %d quantiles", point.HistogramBucketsMax), nil
	}
	if err := d.spend(len(s.bounds) + 1); err != nil {
		return nil, err
	}
	before := len(d.b.IDs)
	if reason := d.summaryRows(&x); reason != nil {
		d.b.Truncate(before)
		return reason, nil
	}
	return nil, nil
}

// addQuantile keeps a quantile and the bits of its value. err is the error of the field.
func (s *histogramScratch) addQuantile(m []byte, err error) error {
	var quantile, value float64
	for i := 0; i < len(m) && err == nil; {
		var f wire.Field
		if f, i, err = wire.Read(m, i); err != nil {
			break
		}
		switch f.Num {
		case 1:
			quantile = f.Double(&err)
		case 2:
			value = f.Double(&err)
		}
	}
	if err != nil {
		return err
	}
	s.addBound(quantile)
	s.addCount(value)
	return nil
}

func (d *Decoder) summaryRows(x *explicit) error {
	s, fam := &d.hist, d.metric.family
	base := d.beginSeries()
	stale := d.p.noRecordedValue()
	if stale {
		x.sum = staleNaN
	}
	if _, err := d.roleRow(base, roleSum, fam.sum, nil, 0, x.sum); err != nil {
		return err
	}
	count := float64(x.count)
	if stale {
		count = staleNaN
	}
	if _, err := d.roleRow(base, roleCount, fam.count, nil, 0, count); err != nil {
		return err
	}
	for i, quantile := range s.bounds {
		v := math.Float64frombits(s.counts[i])
		if stale {
			v = staleNaN
		}
		if _, err := d.roleRow(base, roleQuantile, fam.name, labelQuantile, quantile, v); err != nil {
			return err
		}
	}
	return nil
}
