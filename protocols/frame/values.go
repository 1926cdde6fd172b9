package frame

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Each value has a control code of four bits; its bytes are stored separately, as many as the code gives. Fixed widths
// cost a little more than varints and are written and read without a branch that can be guessed wrong (DESIGN.md).
const (
	codeWhole = 0  // 0…7: a whole number in that many bytes, zigzag
	codeBits  = 8  // the 8 bytes of the float64
	codeCents = 9  // 9…12: hundredths in 2, 3, 4, 5 bytes, zigzag
	codeMills = 13 // 13, 14, 15: thousandths in 2, 4, 6 bytes, zigzag
)

// codeWidths gives the bytes of each code.
var codeWidths = [16]uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 2, 4, 6}

// codeScales holds the divisor of each code's number. Division, unlike multiplication by 0.01, gives the float that is
// nearest to the decimal that the sender parsed or printed.
var codeScales = [16]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 100, 100, 100, 100, 1000, 1000, 1000}

// pairWidths gives the widths in bytes of two values with codes in one byte.
var pairWidths = func() (w [256]uint8) {
	for i := range w {
		w[i] = codeWidths[i&15] + codeWidths[i>>4]
	}
	return w
}()

// wholeMax is the greatest whole number up to which every whole number is a float64.
const wholeMax = 1 << 53

// wholeOf gives v as an integer if it is one, bit for bit: -0 is none.
func wholeOf(v float64) (int64, bool) {
	n := int64(v)
	return n, math.Float64bits(float64(n)) == math.Float64bits(v) && uint64(n+wholeMax) <= 2*wholeMax
}

// appendValues writes the control codes of all values, two a byte, the earlier in the low half, and then their bytes.
//
// A whole value that follows a whole value of the same series is written as the difference: counters that come
// with several rows a series, as in backfills, then need one byte or two.
func appendValues(b []byte, values []float64, ids []point.DenseID) []byte {
	controls := (len(values) + 1) / 2
	start := len(b)
	b = slices.Grow(b, controls+8*len(values)+8)
	b = b[:cap(b)]
	clear(b[start : start+controls])
	ctl, out, p := b[start:start+controls], b[start+controls:], 0
	base, series := int64(0), point.DenseID(0) // 0 is a base like none
	for i, id := range ids {
		code, u := uint8(codeBits), uint64(0)
		if n, ok := wholeOf(values[i]); ok {
			u = zigzag(n)
			if id == series {
				u = zigzag(n - base)
			}
			code = uint8(bytesOf(u))
			base = n
		} else {
			code, u = fractionCode(values[i])
			base = 0
		}
		series = id
		binary.LittleEndian.PutUint64(out[p:], u)
		p += int(codeWidths[code])
		ctl[i/2] |= code << (i % 2 * 4)
	}
	return b[:start+controls+p]
}

// fractionCode finds the shortest form of a value that is not whole.
func fractionCode(v float64) (code uint8, u uint64) {
	x := v * 1000
	if !(math.Abs(x) < 1<<46) { // NaN too
		return codeBits, math.Float64bits(v)
	}
	n := int64(math.RoundToEven(x))
	if d := x - float64(n); d > 1./64 || d < -1./64 { // most doubles end here, before any division
		return codeBits, math.Float64bits(v)
	}
	if c := n / 10; c*10 == n && isQuotient(v, c, 100) {
		if u = zigzag(c); u < 1<<40 {
			return codeCents + uint8(max(bytesOf(u), 2)-2), u
		}
	}
	if u = zigzag(n); isQuotient(v, n, 1000) {
		return codeMills + uint8(max(bytesOf(u), 2)-1)/2, u
	}
	return codeBits, math.Float64bits(v)
}

func bytesOf(u uint64) int { return (bits.Len64(u) + 7) / 8 }

// isQuotient reports whether n / by is v, bit for bit.
func isQuotient(v float64, n int64, by float64) bool {
	return math.Float64bits(float64(n)/by) == math.Float64bits(v)
}

// values reads the output of appendValues into values; ids are their series.
func (r *reader) values(values []float64, ids []point.DenseID) {
	ctl := r.take((len(values) + 1) / 2)
	if r.err != nil {
		return
	}
	width := 0
	for _, c := range ctl {
		width += int(pairWidths[c])
	}
	if len(values)%2 == 1 && ctl[len(ctl)-1]>>4 != 0 {
		r.fail("a value's code follows the last row")
		return
	}
	in := r.takePadded(width)
	if r.err != nil {
		return
	}
	p := 0
	base, series := int64(0), point.DenseID(0)
	for i, id := range ids {
		code := ctl[i/2] >> (i % 2 * 4) & 15
		w := codeWidths[code]
		u := binary.LittleEndian.Uint64(in[p:]) & widthMasks[w]
		p += int(w)
		if code < codeBits {
			n := unzigzag(u)
			if id == series {
				n += base
			}
			base = n
			values[i] = float64(n)
		} else {
			base = 0
			values[i] = fraction(code, u)
		}
		series = id
	}
}

func fraction(code uint8, u uint64) float64 {
	if code == codeBits {
		return math.Float64frombits(u)
	}
	return float64(unzigzag(u)) / codeScales[code]
}

// widthMasks keeps the bytes of a width of the eight that are read.
var widthMasks = [16]uint64{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1, 1<<40 - 1, 1<<48 - 1, 1<<56 - 1, 1<<64 - 1}
