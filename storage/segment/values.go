package segment

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// A value is written as an integer wherever it is a decimal of few digits, which most measured values are:
//
//	3.25, 3.30, 3.21    ─▶  scale 2: 325, 330, 321  ─▶  delta: +5, -9, minus their mean -2: +7, -7  ─▶  zigzag 14, 13
//	5, 5.1, 5, 5.1, 5   ─▶  scale 1: 50, 51, 50, …  ─▶  level: distances from the lowest: 0, 1, 0, 1, 0
//	1/3, 2/3, √2        ─▶  no scale: xor of the bits with those of the value before
//
// The reader divides the integer by 10^scale, once: m / 10^e of exact doubles is the double nearest to the decimal, which is the double that
// parsing its text gives. The encoder does the same division for each value and compares the bits: any that differ are exceptions.

// Forms of a chunk of float values. Every form gives back the exact bits.
const (
	formConst = 0 // one bit pattern, repeated
	formDelta = 1 // scaled decimals: delta minus the chunk's mean delta, zigzag, in byte planes
	formLevel = 2 // scaled decimals: distance to the lowest, in byte planes
	formXOR   = 3 // any doubles: XOR with the one before, in eight byte planes
	formHist  = 4 // native histograms, as bytes
)

const (
	scaleMax   = 15      // decimals; 10^15 times a value of 2^53/10^15 is still exact
	scaledAbs  = 1 << 53 // integers below it are exact doubles
	exceptDiv  = 16      // a chunk of n scaled decimals may have 1 + n/exceptDiv exceptions
	exceptSize = 9       // least bytes of an exception in the head
)

// pow10 holds exact powers: every 10^e up to 10^22 is a double.
var pow10 = [scaleMax + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

var pow10int = [scaleMax + 1]int64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// floats is the head of one chunk of float values.
type floats struct {
	form   uint8
	scale  uint8  // formDelta, formLevel: value = integer / 10^scale
	width  uint8  // bytes of a residual; formXOR: 8
	first  uint64 // formConst, formXOR: bits of the first value; formDelta: first integer; formLevel: lowest integer
	mean   int64  // formDelta: subtracted from each delta
	except []exception
}

// exception is a value that is no scaled decimal at the chunk's scale: NaN payloads, -0, Inf, longer decimals.
// It stands in its row when the chunk is decoded, after all rows were computed.
type exception struct {
	row  uint16
	bits uint64
}

// residuals counts the integers that a chunk of n rows puts into the planes.
func (f *floats) residuals(n int) int {
	switch f.form {
	case formDelta, formXOR:
		return n - 1
	case formLevel:
		return n
	}
	return 0
}

// valueEncoder turns chunks of values into residuals. Its slices are reused; not for concurrent use.
type valueEncoder struct {
	ints   []int64
	res    []uint64
	except []exception
}

// encode finds the form of vs (1 to chunkRowsMax values) and leaves the residuals in e.res. The result's except is valid
// until the next call.
func (e *valueEncoder) encode(vs []float64) floats {
	e.res, e.except = e.res[:0], e.except[:0]
	if isConst(vs) {
		return floats{form: formConst, first: math.Float64bits(vs[0])}
	}
	e.ints = slices.Grow(e.ints[:0], len(vs))[:len(vs)]
	// Whole numbers first, in a loop of their own; the row at which it ends is where decimals goes on.
	scale := 0
	if whole := e.wholes(vs); whole < len(vs) {
		var ok bool
		if scale, ok = e.decimals(vs, whole); !ok {
			return e.xor(vs)
		}
	}
	return e.residue(scale)
}

// isConst compares bits: NaN is equal to itself, 0 and -0 differ.
func isConst(vs []float64) bool {
	b := math.Float64bits(vs[0])
	for _, v := range vs[1:] {
		if math.Float64bits(v) != b {
			return false
		}
	}
	return true
}

// wholes fills e.ints while values are whole numbers, which most are, and returns their number.
func (e *valueEncoder) wholes(vs []float64) int {
	ints := e.ints[:len(vs)]
	for i, v := range vs {
		m := int64(v)
		// One comparison for -2^53 < m < 2^53. int64(v) of NaN or ±Inf is some number, which the bits of float64(m) then refute.
		if uint64(m+scaledAbs-1) > 2*scaledAbs-2 || math.Float64bits(float64(m)) != math.Float64bits(v) {
			return i
		}
		ints[i] = m
	}
	return len(vs)
}

// decimals goes on from row whole: it fills e.ints with vs × 10^scale for the smallest scale that fits, and e.except.
// It gives up when too many values are no decimals.
func (e *valueEncoder) decimals(vs []float64, whole int) (scale int, ok bool) {
	exceptMax := 1 + len(vs)/exceptDiv
	lead := whole == 0 // no integer yet: all rows so far are exceptions
	for i := whole; i < len(vs); i++ {
		m, exact := scaled(vs[i], scale)
		if !exact {
			s, found := scaleOf(vs[i], scale+1)
			// If an integer before would leave the range at the larger scale, this value becomes an exception instead.
			if found && rescale(e.ints[:i], pow10int[s-scale]) {
				scale = s
				m, exact = scaled(vs[i], scale)
			}
		}
		switch {
		case exact && lead:
			// Exceptions before the first integer are given its value: their residuals are 0.
			for k := range i {
				e.ints[k] = m
			}
			lead = false
		case !exact && len(e.except) == exceptMax:
			return 0, false
		case !exact:
			e.except = append(e.except, exception{uint16(i), math.Float64bits(vs[i])})
			if m = 0; i > 0 {
				m = e.ints[i-1] // costs nothing as a delta
			}
		}
		e.ints[i] = m
	}
	return scale, !lead
}

// scaled gives v × 10^scale if dividing that integer by 10^scale gives back the bits of v.
func scaled(v float64, scale int) (m int64, exact bool) {
	// The product may be rounded; whether the integer next to it is right is decided by the division below.
	f := v * pow10[scale]
	if !(f > -scaledAbs && f < scaledAbs) { // also NaN
		return 0, false
	}
	if scale == 0 {
		m = int64(f)
		return m, math.Float64bits(float64(m)) == math.Float64bits(v)
	}
	if m = int64(f + 0.5); f < 0 {
		m = int64(f - 0.5)
	}
	return m, m < scaledAbs && m > -scaledAbs && math.Float64bits(float64(m)/pow10[scale]) == math.Float64bits(v)
}

// scaleOf finds the smallest scale from from on at which v is exact: at most 15 divisions for each value that is no decimal.
func scaleOf(v float64, from int) (scale int, ok bool) {
	for s := from; s <= scaleMax; s++ {
		if _, exact := scaled(v, s); exact {
			return s, true
		}
	}
	return 0, false
}

// rescale multiplies ints by f unless one of them would leave the exact range. m/10^e and (m·f)/(10^e·f) are the same
// rational number of exact doubles, so they divide to the same double.
func rescale(ints []int64, f int64) bool {
	limit := scaledAbs / f
	for _, m := range ints {
		if m >= limit || m <= -limit {
			return false
		}
	}
	for i := range ints {
		ints[i] *= f
	}
	return true
}

// residue chooses between formDelta and formLevel by the bits they need.
func (e *valueEncoder) residue(scale int) floats {
	n := len(e.ints)
	first := e.ints[0]
	var mean int64
	if n > 1 {
		mean = roundDiv(e.ints[n-1]-first, int64(n-1))
	}
	f := floats{form: formDelta, scale: uint8(scale), first: uint64(first), mean: mean, except: e.except}
	e.res = slices.Grow(e.res[:0], n)[:n]
	res := e.res[:n-1]
	prev, low, high := first, first, first
	var deltaBits int
	var wide uint64
	for i, m := range e.ints[1:] {
		z := zigzag(m - prev - mean)
		res[i] = z
		wide |= z
		deltaBits += bits.Len64(z)
		low, high = min(low, m), max(high, m)
		prev = m
	}
	e.res = res
	// Counters and slow walks are smaller as deltas; noise around a level is smaller as a level, as a delta of noise has a bit more.
	if n*bits.Len64(uint64(high-low)) < deltaBits {
		e.res = res[:n]
		for i, m := range e.ints {
			e.res[i] = uint64(m - low)
		}
		wide = uint64(high - low)
		f.form, f.first, f.mean = formLevel, uint64(low), 0
	}
	f.width = uint8(widthOf(wide))
	return f
}

// roundDiv rounds half away from zero; b is positive.
func roundDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b/2) / b)
	}
	return (a + b/2) / b
}

// xor fills e.res with eight bytes a value; exceptions that decimals collected are not used.
func (e *valueEncoder) xor(vs []float64) floats {
	first := math.Float64bits(vs[0])
	prev := first
	for _, v := range vs[1:] {
		b := math.Float64bits(v)
		e.res = append(e.res, b^prev)
		prev = b
	}
	return floats{form: formXOR, width: 8, first: first}
}

// decode writes the values of a chunk with the residuals col; len(dst) is the chunk's rows. Exceptions' rows were
// checked when the head was read.
func (f *floats) decode(dst []float64, col *[8][]byte) {
	switch f.form {
	case formConst:
		v := math.Float64frombits(f.first)
		for i := range dst {
			dst[i] = v
		}
	case formXOR:
		f.decodeXOR(dst, col)
	case formDelta:
		f.decodeDelta(dst, col)
	case formLevel:
		f.decodeLevel(dst, col)
	}
	for _, x := range f.except {
		dst[x.row] = math.Float64frombits(x.bits)
	}
}

// decodeXOR reads eight planes at once; the slices are cut to one length so that the loop has no checks of bounds.
func (f *floats) decodeXOR(dst []float64, col *[8][]byte) {
	b := f.first
	dst[0] = math.Float64frombits(b)
	dst = dst[1:]
	c0, c1, c2, c3 := col[0][:len(dst)], col[1][:len(dst)], col[2][:len(dst)], col[3][:len(dst)]
	c4, c5, c6, c7 := col[4][:len(dst)], col[5][:len(dst)], col[6][:len(dst)], col[7][:len(dst)]
	for i := range dst {
		b ^= uint64(c0[i]) | uint64(c1[i])<<8 | uint64(c2[i])<<16 | uint64(c3[i])<<24 |
			uint64(c4[i])<<32 | uint64(c5[i])<<40 | uint64(c6[i])<<48 | uint64(c7[i])<<56
		dst[i] = math.Float64frombits(b)
	}
}

// decodeDelta spells out the widths that nearly all chunks have: a byte a row costs 1 ns this way and 3 in the loop
// for any width.
func (f *floats) decodeDelta(dst []float64, col *[8][]byte) {
	m, mean := int64(f.first), f.mean
	dst[0] = float64(m)
	rest := dst[1:]
	switch f.width {
	case 0:
		for i := range rest {
			m += mean
			rest[i] = float64(m)
		}
	case 1:
		c0 := col[0][:len(rest)]
		for i := range rest {
			m += unzigzag(uint64(c0[i])) + mean
			rest[i] = float64(m)
		}
	case 2:
		c0, c1 := col[0][:len(rest)], col[1][:len(rest)]
		for i := range rest {
			m += unzigzag(uint64(c0[i])|uint64(c1[i])<<8) + mean
			rest[i] = float64(m)
		}
	default:
		for i := range rest {
			m += unzigzag(gather(col, int(f.width), i)) + mean
			rest[i] = float64(m)
		}
	}
	f.unscale(dst)
}

func (f *floats) decodeLevel(dst []float64, col *[8][]byte) {
	low := int64(f.first)
	if f.width == 1 {
		c0 := col[0][:len(dst)]
		for i := range dst {
			dst[i] = float64(low + int64(c0[i]))
		}
	} else {
		for i := range dst {
			dst[i] = float64(low + int64(gather(col, int(f.width), i)))
		}
	}
	f.unscale(dst)
}

// unscale divides: a product with 10^-scale would differ in the last bit, as 10^-scale is no double.
func (f *floats) unscale(dst []float64) {
	if f.scale == 0 {
		return
	}
	div := pow10[f.scale]
	for i := range dst {
		dst[i] /= div
	}
}

// appendExceptions writes row and bits of each.
func appendExceptions(dst []byte, xs []exception) []byte {
	for _, x := range xs {
		dst = binary.AppendUvarint(dst, uint64(x.row))
		dst = binary.LittleEndian.AppendUint64(dst, x.bits)
	}
	return dst
}
