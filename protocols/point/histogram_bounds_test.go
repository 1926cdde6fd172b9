package point_test

import (
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestEveryHistogramWithinTheBoundsFits: lists of HistogramBucketsMax items of the most bytes encode to less than
// HistogramBytesMax.
func TestEveryHistogramWithinTheBoundsFits(t *testing.T) {
	const n = point.HistogramBucketsMax
	spans := slices.Repeat([]histogram.Span{{Offset: math.MinInt32, Length: math.MaxUint32}}, n)
	whole := &histogram.Histogram{
		Count: math.MaxUint64, ZeroCount: math.MaxUint64, Schema: math.MinInt32, ZeroThreshold: 0.1,
		PositiveSpans: spans, NegativeSpans: spans,
		PositiveBuckets: slices.Repeat([]int64{math.MinInt64}, n), NegativeBuckets: slices.Repeat([]int64{math.MinInt64}, n),
		CustomValues: slices.Repeat([]float64{0.1}, n),
	}
	if got := len(point.AppendHistogram(nil, whole)); got > point.HistogramBytesMax {
		t.Errorf("%d bytes", got)
	}
	odd := math.Float64frombits(math.MaxUint64)
	float := &histogram.FloatHistogram{
		Count: odd, ZeroCount: odd, Schema: math.MinInt32, ZeroThreshold: odd,
		PositiveSpans: spans, NegativeSpans: spans,
		PositiveBuckets: slices.Repeat([]float64{odd}, n), NegativeBuckets: slices.Repeat([]float64{odd}, n),
		CustomValues: slices.Repeat([]float64{odd}, n),
	}
	if got := len(point.AppendFloatHistogram(nil, float)); got > point.HistogramBytesMax {
		t.Errorf("%d bytes with float counts", got)
	}
}
