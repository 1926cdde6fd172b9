package point_test

import (
	"math"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestOneHistogramDoesNotStopAllQueries: Prometheus' engine adds histograms by widening their zero buckets until they are equal, and a width that is no
// number never is: one such row in a sum kept a query's turn for ever, past its time-out, and others waited behind it. Rows that a
// store has from before are read without their width.
func TestOneHistogramDoesNotStopAllQueries(t *testing.T) {
	for _, width := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -5e-324} {
		if err := point.CheckZeroThreshold(width); !fault.Is(err, fault.Invalid) {
			t.Errorf("a zero threshold of %v: %v", width, err)
		}
		float := &histogram.FloatHistogram{ZeroThreshold: width, Count: 2, ZeroCount: 1, PositiveSpans: []histogram.Span{{Length: 1}}, PositiveBuckets: []float64{1}}
		_, stored, err := point.DecodeHistogram(point.AppendFloatHistogram(nil, float))
		if err != nil {
			t.Fatal(err)
		}
		ints := &histogram.Histogram{ZeroThreshold: width, Count: 2, ZeroCount: 1, PositiveSpans: []histogram.Span{{Length: 1}}, PositiveBuckets: []int64{1}}
		of, _, err := point.DecodeHistogram(point.AppendHistogram(nil, ints))
		if err != nil {
			t.Fatal(err)
		}
		sum, _, _, err := of.ToFloat(nil).Add(stored) // ends
		if err != nil || sum.Count != 4 || sum.ZeroCount != 2 || sum.ZeroThreshold != 0 {
			t.Errorf("with a zero threshold of %v the sum is %v, %v", width, sum, err)
		}
	}
	for _, width := range []float64{0, 5e-324, 1e-128, 1, math.MaxFloat64} {
		if err := point.CheckZeroThreshold(width); err != nil {
			t.Errorf("a zero threshold of %v: %v", width, err)
		}
	}
}
