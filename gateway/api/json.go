package api

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/lane"
)

// encoder writes JSON into a buffer that it empties into w when it is full. After an error it writes nothing more.
type encoder struct {
	w    io.Writer
	buf  []byte
	err  error
	turn *lane.Turn      // for a buffer each; nil: encoding waits for no turn
	ctx  context.Context // of the request
}

// bufferFull is when the buffer is emptied; bufferCap leaves room for the bytes appended between two checks.
const (
	bufferFull = 60 << 10
	bufferCap  = 64 << 10
)

func (e *encoder) raw(s string) { e.buf = append(e.buf, s...) }

// spill empties a full buffer; to be called between points and series. It reports whether to go on.
func (e *encoder) spill() bool {
	if len(e.buf) >= bufferFull && e.err == nil {
		e.err = e.turn.Write(e.ctx, e.w, e.buf)
		e.buf = e.buf[:0]
	}
	return e.err == nil
}

// str writes a string: quotes, backslashes and control characters escaped, bytes that are not UTF-8 are replaced.
func (e *encoder) str(s string) {
	e.buf = append(e.buf, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			e.buf = append(e.buf, s[start:i]...)
			e.escape(c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			e.buf = append(e.buf, s[start:i]...)
			e.raw(`\ufffd`)
			start = i + 1
		}
		i += size
	}
	e.buf = append(e.buf, s[start:]...)
	e.buf = append(e.buf, '"')
}

func (e *encoder) escape(c byte) {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		e.buf = append(e.buf, '\\', c)
	case '\n':
		e.raw(`\n`)
	case '\r':
		e.raw(`\r`)
	case '\t':
		e.raw(`\t`)
	default:
		e.buf = append(e.buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
	}
}

// millis writes a time in milliseconds as float seconds, without going through a float.
func (e *encoder) millis(t int64) {
	if t < 0 {
		e.buf = append(e.buf, '-')
	}
	u := uint64(t)
	if t < 0 {
		u = -u
	}
	e.buf = strconv.AppendUint(e.buf, u/1000, 10)
	if ms := u % 1000; ms != 0 {
		e.buf = append(e.buf, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	}
}

// float writes a value as a string, the way Prometheus does: NaN and infinities too, and an exponent only for the very
// small and the very large.
func (e *encoder) float(f float64) {
	if n := int64(f); float64(n) == f && -wholeMax < n && n < wholeMax && n != 0 { // not 0: it may be -0
		e.buf = append(e.buf, '"')
		e.buf = strconv.AppendInt(e.buf, n, 10)
		e.buf = append(e.buf, '"')
		return
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	e.buf = append(e.buf, '"')
	e.buf = strconv.AppendFloat(e.buf, f, format, -1, 64)
	e.buf = append(e.buf, '"')
}

// wholeMax bounds the whole numbers that are written as integers. Most values are whole, and such a point costs 89 ns
// instead of 132 (DESIGN.md).
const wholeMax = 1 << 53

// point writes [seconds, "value"].
func (e *encoder) point(t int64, f float64) {
	e.buf = append(e.buf, '[')
	e.millis(t)
	e.buf = append(e.buf, ',')
	e.float(f)
	e.buf = append(e.buf, ']')
}

// histPoint writes [seconds, {histogram}].
func (e *encoder) histPoint(t int64, h *histogram.FloatHistogram) {
	e.buf = append(e.buf, '[')
	e.millis(t)
	e.buf = append(e.buf, ',')
	e.histogram(h)
	e.buf = append(e.buf, ']')
}

// histogram writes count, sum and the buckets that are not empty: [boundaries, lower, upper, count]. boundaries says
// which ends belong to the bucket: 0 upper, 1 lower, 2 none, 3 both.
func (e *encoder) histogram(h *histogram.FloatHistogram) {
	e.raw(`{"count":`)
	e.float(h.Count)
	e.raw(`,"sum":`)
	e.float(h.Sum)
	first := true
	for it := h.AllBucketIterator(); it.Next(); {
		b := it.At()
		if b.Count == 0 {
			continue
		}
		if first {
			e.raw(`,"buckets":[`)
		} else {
			e.buf = append(e.buf, ',')
		}
		first = false
		e.buf = append(e.buf, '[', boundaries(b.LowerInclusive, b.UpperInclusive), ',')
		e.float(b.Lower)
		e.buf = append(e.buf, ',')
		e.float(b.Upper)
		e.buf = append(e.buf, ',')
		e.float(b.Count)
		e.buf = append(e.buf, ']')
	}
	if !first {
		e.buf = append(e.buf, ']')
	}
	e.buf = append(e.buf, '}')
}

func boundaries(lower, upper bool) byte {
	switch {
	case lower && upper:
		return '3'
	case lower:
		return '1'
	case upper:
		return '0'
	}
	return '2'
}

// labels writes {"name":"value", …}.
func (e *encoder) labels(ls labels.Labels) {
	e.buf = append(e.buf, '{')
	n := 0
	ls.Range(func(l labels.Label) {
		e.pair(n, l.Name, l.Value)
		n++
	})
	e.buf = append(e.buf, '}')
}

// pair writes the nth name and value of an object.
func (e *encoder) pair(n int, name, value string) {
	if n > 0 {
		e.buf = append(e.buf, ',')
	}
	e.str(name)
	e.buf = append(e.buf, ':')
	e.str(value)
}

// strs writes an array of strings.
func (e *encoder) strs(list []string) {
	e.buf = append(e.buf, '[')
	for i, s := range list {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.str(s)
		if !e.spill() {
			return
		}
	}
	e.buf = append(e.buf, ']')
}

// value writes anything small by way of reflection.
func (e *encoder) value(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		e.err = err
		return
	}
	e.buf = append(e.buf, b...)
}
