package point

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// The encoding of a native histogram is drawn in FORMAT.md. It is canonical: one histogram has one encoding, and
// DecodeHistogram refuses every other spelling, so that encodings may be compared instead of histograms.
const (
	histVersion = 1

	histFloat    = 1 << 0 // counts and buckets are floats
	histHintBits = 1      // the counter-reset hint lies in bits 1 and 2
	histHintMask = 3
	histFlags    = histFloat | histHintMask<<histHintBits

	histSumAt  = 2 // the sum lies at a fixed place, for IsStaleHistogram
	histFixed  = histSumAt + 8
	histMinLen = histFixed + 9 // every number and count after the sum needs at least one byte
)

// Bounds of one native histogram. Decoders refuse larger ones, so that a row that was acked always fits into logs and segments.
const (
	// HistogramBucketsMax bounds each list: spans and buckets of either sign, custom bounds. Prometheus makes 160 buckets at
	// most by default.
	HistogramBucketsMax = 1 << 14
	// HistogramBytesMax bounds the encoding. It follows from HistogramBucketsMax: no item is longer than ten bytes.
	HistogramBytesMax = 1 << 20
)

// AppendHistogram appends the encoding of h to dst. Every bit of every float is kept; nil and empty slices are the same;
// a hint that Prometheus does not know becomes UnknownCounterReset. Whether h is consistent is for the caller to check
// (h.Validate) before it accepts it: DecodeHistogram refuses one that is not.
func AppendHistogram(dst []byte, h *histogram.Histogram) []byte {
	dst = appendHistHead(dst, 0, h.CounterResetHint, h.Sum, h.Schema, h.ZeroThreshold)
	dst = binary.AppendUvarint(dst, h.ZeroCount)
	dst = binary.AppendUvarint(dst, h.Count)
	dst = appendSpans(dst, h.PositiveSpans)
	dst = appendSpans(dst, h.NegativeSpans)
	dst = appendDeltas(dst, h.PositiveBuckets)
	dst = appendDeltas(dst, h.NegativeBuckets)
	return appendBounds(dst, h.CustomValues)
}

// AppendFloatHistogram is AppendHistogram for a histogram with float counts.
func AppendFloatHistogram(dst []byte, h *histogram.FloatHistogram) []byte {
	dst = appendHistHead(dst, histFloat, h.CounterResetHint, h.Sum, h.Schema, h.ZeroThreshold)
	dst = appendShortFloat(dst, h.ZeroCount)
	dst = appendShortFloat(dst, h.Count)
	dst = appendSpans(dst, h.PositiveSpans)
	dst = appendSpans(dst, h.NegativeSpans)
	dst = appendFloats(dst, h.PositiveBuckets)
	dst = appendFloats(dst, h.NegativeBuckets)
	return appendBounds(dst, h.CustomValues)
}

// DecodeHistogram decodes either kind: exactly one of the two results is non-nil unless there is an error. The
// result shares no memory with b and is consistent in itself (Validate). Errors are Corrupt.
func DecodeHistogram(b []byte) (*histogram.Histogram, *histogram.FloatHistogram, error) {
	if len(b) < histMinLen {
		return nil, nil, fault.Errorf(fault.Corrupt, "histogram of %d bytes, the shortest has %d", len(b), histMinLen)
	}
	if b[0] != histVersion {
		return nil, nil, fault.Errorf(fault.Corrupt, "histogram of version %d, known is %d", b[0], histVersion)
	}
	if b[1]&^byte(histFlags) != 0 {
		return nil, nil, fault.Errorf(fault.Corrupt, "histogram with unknown flags %#x", b[1])
	}
	if b[1]&histFloat != 0 {
		fh, err := decodeFloatHistogram(b)
		return nil, fh, err
	}
	h, err := decodeIntHistogram(b)
	return h, nil, err
}

func decodeIntHistogram(b []byte) (*histogram.Histogram, error) {
	h := &histogram.Histogram{CounterResetHint: histHint(b), Sum: histSum(b)}
	r := histReader{b: b[histFixed:]}
	h.Schema = r.int32()
	h.ZeroThreshold = soundThreshold(r.shortFloat())
	h.ZeroCount = r.uvarint()
	h.Count = r.uvarint()
	h.PositiveSpans = r.spans()
	h.NegativeSpans = r.spans()
	h.PositiveBuckets = r.deltas()
	h.NegativeBuckets = r.deltas()
	h.CustomValues = r.bounds()
	if err := r.end(); err != nil {
		return nil, err
	}
	if err := h.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "histogram")
	}
	return h, nil
}

func decodeFloatHistogram(b []byte) (*histogram.FloatHistogram, error) {
	h := &histogram.FloatHistogram{CounterResetHint: histHint(b), Sum: histSum(b)}
	r := histReader{b: b[histFixed:]}
	h.Schema = r.int32()
	h.ZeroThreshold = soundThreshold(r.shortFloat())
	h.ZeroCount = r.shortFloat()
	h.Count = r.shortFloat()
	h.PositiveSpans = r.spans()
	h.NegativeSpans = r.spans()
	h.PositiveBuckets = r.floats()
	h.NegativeBuckets = r.floats()
	h.CustomValues = r.bounds()
	if err := r.end(); err != nil {
		return nil, err
	}
	if err := h.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "float histogram")
	}
	return h, nil
}

// CheckZeroThreshold refuses a width of the bucket of zeros that is no number, negative or infinite; the error is Invalid. Prometheus checks none of it,
// and its engine adds two histograms by widening the zero buckets until they are equal: NaN never is, and no time-out ends that.
func CheckZeroThreshold(t float64) error {
	if t != soundThreshold(t) {
		return fault.Errorf(fault.Invalid, "a zero threshold of %v", t)
	}
	return nil
}

// soundThreshold is t, or 0 where no histogram may have it. Stores may hold such ones from before they were refused.
func soundThreshold(t float64) float64 {
	if !(t >= 0) || math.IsInf(t, 1) {
		return 0
	}
	return t
}

// IsStaleHistogram reports whether an encoded histogram is the stale marker, by the bits of its sum and without
// decoding it.
func IsStaleHistogram(b []byte) bool {
	return len(b) >= histFixed && b[0] == histVersion && binary.LittleEndian.Uint64(b[histSumAt:]) == StaleNaN
}

func histHint(b []byte) histogram.CounterResetHint {
	return histogram.CounterResetHint(b[1] >> histHintBits & histHintMask)
}

func histSum(b []byte) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(b[histSumAt:]))
}

func appendHistHead(dst []byte, flags byte, hint histogram.CounterResetHint, sum float64, schema int32, zero float64) []byte {
	if hint > histHintMask {
		hint = histogram.UnknownCounterReset
	}
	dst = append(dst, histVersion, flags|byte(hint)<<histHintBits)
	dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(sum))
	dst = binary.AppendVarint(dst, int64(schema))
	return appendShortFloat(dst, zero)
}

// appendShortFloat writes a float's bits with their bytes reversed as a uvarint: whole numbers and powers of two, which
// counts and thresholds are, have zeros at the low end and need 2 to 4 bytes.
func appendShortFloat(dst []byte, v float64) []byte {
	return binary.AppendUvarint(dst, bits.ReverseBytes64(math.Float64bits(v)))
}

func appendSpans(dst []byte, spans []histogram.Span) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(spans)))
	for _, s := range spans {
		dst = binary.AppendVarint(dst, int64(s.Offset))
		dst = binary.AppendUvarint(dst, uint64(s.Length))
	}
	return dst
}

func appendDeltas(dst []byte, buckets []int64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(buckets)))
	for _, d := range buckets {
		dst = binary.AppendVarint(dst, d)
	}
	return dst
}

func appendFloats(dst []byte, buckets []float64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(buckets)))
	for _, v := range buckets {
		dst = appendShortFloat(dst, v)
	}
	return dst
}

// appendBounds writes custom bounds whole: fractions such as 0.005 have no zeros to save.
func appendBounds(dst []byte, bounds []float64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(bounds)))
	for _, v := range bounds {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return dst
}

var (
	errHistShort    = errors.New("bytes end early")
	errHistSpelling = errors.New("a number is not in its shortest form")
	errHistRange    = errors.New("a number is out of range")
	errHistTrailing = errors.New("bytes follow its end")
)

// histReader reads numbers until the first error, after which everything is zero.
type histReader struct {
	b   []byte
	err error
}

func (r *histReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *histReader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = errHistTrailing
	}
	return fault.Wrap(r.err, fault.Corrupt, "histogram")
}

func (r *histReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(errHistShort)
		return 0
	case n < 0:
		r.fail(errHistRange)
		return 0
	case n > 1 && r.b[n-1] == 0:
		r.fail(errHistSpelling)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *histReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *histReader) int32() int32 {
	v := r.varint()
	if int64(int32(v)) != v {
		r.fail(errHistRange)
		return 0
	}
	return int32(v)
}

func (r *histReader) shortFloat() float64 {
	return math.Float64frombits(bits.ReverseBytes64(r.uvarint()))
}

// count reads the length of a list with items of at least size bytes each, so that memory is allocated only for items
// that can be there.
func (r *histReader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail(errHistShort)
		return 0
	}
	return int(n)
}

func (r *histReader) spans() []histogram.Span {
	n := r.count(2)
	if n == 0 {
		return nil
	}
	spans := make([]histogram.Span, n)
	for i := range spans {
		spans[i].Offset = r.int32()
		length := r.uvarint()
		if length > math.MaxUint32 {
			r.fail(errHistRange)
		}
		spans[i].Length = uint32(length)
	}
	return spans
}

func (r *histReader) deltas() []int64 {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	buckets := make([]int64, n)
	for i := range buckets {
		buckets[i] = r.varint()
	}
	return buckets
}

func (r *histReader) floats() []float64 {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	buckets := make([]float64, n)
	for i := range buckets {
		buckets[i] = r.shortFloat()
	}
	return buckets
}

func (r *histReader) bounds() []float64 {
	n := r.count(8)
	if n == 0 {
		return nil
	}
	bounds := make([]float64, n)
	for i := range bounds {
		bounds[i] = math.Float64frombits(binary.LittleEndian.Uint64(r.b[8*i:]))
	}
	r.b = r.b[8*n:]
	return bounds
}
