package remotewrite

import (
	"bytes"
	"errors"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// histogramReader reads the message Histogram of both versions into memory it keeps for the next one.
type histogramReader struct {
	time, start int64 // milliseconds; start 0 is "not given"

	isFloat              bool
	count, zeroCount     uint64
	countF, zeroCountF   float64
	sum, zeroThreshold   float64
	schema, hint         int32
	posSpans, negSpans   []histogram.Span
	posDeltas, negDeltas []int64
	posCounts, negCounts []float64
	bounds               []float64
	oversized            bool // some list had more than point.HistogramBucketsMax items; the rest was not kept

	buf []byte
}

func (h *histogramReader) reset() {
	*h = histogramReader{
		posSpans: h.posSpans[:0], negSpans: h.negSpans[:0],
		posDeltas: h.posDeltas[:0], negDeltas: h.negDeltas[:0],
		posCounts: h.posCounts[:0], negCounts: h.negCounts[:0],
		bounds: h.bounds[:0], buf: h.buf[:0],
	}
}

// read decodes a message. The error is one of the wire format; encode checks the histogram itself.
func (h *histogramReader) read(m []byte, v Version) (err error) {
	h.reset()
	for i := 0; i < len(m) && err == nil; {
		var f wire.Field
		if f, i, err = wire.Read(m, i); err != nil {
			break
		}
		err = h.field(&f, v)
	}
	return err
}

func (h *histogramReader) field(f *wire.Field, v Version) (err error) {
	switch f.Num {
	case 1:
		h.count, h.countF, h.isFloat = f.Varint(&err), 0, false
	case 2:
		h.count, h.countF, h.isFloat = 0, f.Double(&err), true
	case 3:
		h.sum = f.Double(&err)
	case 4:
		h.schema = wire.ZigZag32(f.Varint(&err))
	case 5:
		h.zeroThreshold = f.Double(&err)
	case 6:
		h.zeroCount, h.zeroCountF = f.Varint(&err), 0
	case 7:
		h.zeroCount, h.zeroCountF = 0, f.Double(&err)
	case 8:
		h.negSpans, err = h.span(h.negSpans, f)
	case 9:
		err = f.EachVarint(func(u uint64) { h.negDeltas = bounded(h, h.negDeltas, wire.ZigZag(u)) })
	case 10:
		err = f.EachDouble(func(c float64) { h.negCounts = bounded(h, h.negCounts, c) })
	case 11:
		h.posSpans, err = h.span(h.posSpans, f)
	case 12:
		err = f.EachVarint(func(u uint64) { h.posDeltas = bounded(h, h.posDeltas, wire.ZigZag(u)) })
	case 13:
		err = f.EachDouble(func(c float64) { h.posCounts = bounded(h, h.posCounts, c) })
	case 14:
		h.hint = int32(f.Varint(&err))
	case 15:
		h.time = int64(f.Varint(&err))
	case 16:
		err = f.EachDouble(func(c float64) { h.bounds = bounded(h, h.bounds, c) })
	case 17:
		if v == V2 {
			h.start = int64(f.Varint(&err))
		}
	}
	return err
}

func (h *histogramReader) span(to []histogram.Span, f *wire.Field) ([]histogram.Span, error) {
	var err error
	m := f.Bytes(&err)
	var s histogram.Span
	for i := 0; i < len(m) && err == nil; {
		var g wire.Field
		if g, i, err = wire.Read(m, i); err != nil {
			break
		}
		switch g.Num {
		case 1:
			s.Offset = wire.ZigZag32(g.Varint(&err))
		case 2:
			s.Length = uint32(g.Varint(&err))
		}
	}
	if err != nil {
		return to, err
	}
	return bounded(h, to, s), nil
}

func bounded[T any](h *histogramReader, to []T, v T) []T {
	if len(to) >= point.HistogramBucketsMax {
		h.oversized = true
		return to
	}
	return append(to, v)
}

// encode checks the histogram and returns it in the encoding of point.AppendHistogram, in memory of its own. Schemas
// finer than Prometheus' finest are reduced to that one, as Prometheus does. Errors are Invalid.
func (h *histogramReader) encode() (_ []byte, err error) {
	if h.oversized {
		return nil, fault.Errorf(fault.Invalid, "native histogram with more than %d spans, buckets of one sign or bounds", point.HistogramBucketsMax)
	}
	if h.isFloat {
		h.buf, err = appendFloatHistogram(h.buf[:0], h.float())
	} else {
		h.buf, err = appendHistogram(h.buf[:0], h.int())
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "native histogram")
	}
	return bytes.Clone(h.buf), nil
}

func appendHistogram(dst []byte, h *histogram.Histogram) ([]byte, error) {
	if tooFine(h.Schema) {
		if err := h.ReduceResolution(histogram.ExponentialSchemaMax); err != nil {
			return dst, err
		}
	}
	if err := errors.Join(h.Validate(), point.CheckZeroThreshold(h.ZeroThreshold)); err != nil {
		return dst, err
	}
	return point.AppendHistogram(dst, h), nil
}

func appendFloatHistogram(dst []byte, h *histogram.FloatHistogram) ([]byte, error) {
	if tooFine(h.Schema) {
		if err := h.ReduceResolution(histogram.ExponentialSchemaMax); err != nil {
			return dst, err
		}
	}
	if err := errors.Join(h.Validate(), point.CheckZeroThreshold(h.ZeroThreshold)); err != nil {
		return dst, err
	}
	return point.AppendFloatHistogram(dst, h), nil
}

func tooFine(schema int32) bool {
	return histogram.IsExponentialSchemaReserved(schema) && schema > histogram.ExponentialSchemaMax
}

func (h *histogramReader) int() *histogram.Histogram {
	return &histogram.Histogram{
		CounterResetHint: histogram.CounterResetHint(h.hint), Schema: h.schema, ZeroThreshold: h.zeroThreshold,
		ZeroCount: h.zeroCount, Count: h.count, Sum: h.sum,
		PositiveSpans: h.posSpans, PositiveBuckets: h.posDeltas,
		NegativeSpans: h.negSpans, NegativeBuckets: h.negDeltas, CustomValues: h.customValues(),
	}
}

func (h *histogramReader) float() *histogram.FloatHistogram {
	return &histogram.FloatHistogram{
		CounterResetHint: histogram.CounterResetHint(h.hint), Schema: h.schema, ZeroThreshold: h.zeroThreshold,
		ZeroCount: h.zeroCountF, Count: h.countF, Sum: h.sum,
		PositiveSpans: h.posSpans, PositiveBuckets: h.posCounts,
		NegativeSpans: h.negSpans, NegativeBuckets: h.negCounts, CustomValues: h.customValues(),
	}
}

// customValues is nil when there are none: Validate asks for that with exponential schemas.
func (h *histogramReader) customValues() []float64 {
	if len(h.bounds) == 0 {
		return nil
	}
	return h.bounds
}
