package jsonrows

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Bounds on a line: those that are written have LineRowsMax rows, those that are read LineBytesMax bytes.
const (
	LineRowsMax  = 4096
	LineBytesMax = 64 << 20
)

// Label is one pair of a label set.
type Label struct{ Name, Value string }

// Histogram is a native histogram row; one of Int and Float is set.
type Histogram struct {
	Time  point.Nanos
	Int   *histogram.Histogram
	Float *histogram.FloatHistogram
}

// Line is some rows of one series: floats, as many Values as Times, and native histograms, each in time order.
type Line struct {
	Labels []Label // sorted by name
	Times  []point.Nanos
	Values []float64
	Hists  []Histogram
}

// Rows is the number of rows.
func (l *Line) Rows() int { return len(l.Times) + len(l.Hists) }

// Append appends a line, newline included. Errors are Invalid: a text that is not UTF-8, a histogram that has no encoding.
func Append(dst []byte, l *Line) ([]byte, error) {
	dst = append(dst, `{"metric":{`...)
	for i, p := range l.Labels {
		if !utf8.ValidString(p.Name) || !utf8.ValidString(p.Value) {
			return dst, fault.Errorf(fault.Invalid, "label %q=%q is not UTF-8", p.Name, p.Value)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, p.Name)
		dst = append(dst, ':')
		dst = appendText(dst, p.Value)
	}
	dst = append(dst, '}')
	if len(l.Times) > 0 {
		dst = append(dst, `,"timestamps_ns":[`...)
		for i, t := range l.Times {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(t), 10)
		}
		dst = append(dst, `],"values":[`...)
		for i, v := range l.Values {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v)
		}
		dst = append(dst, ']')
	}
	if len(l.Hists) > 0 {
		var err error
		if dst, err = appendHistograms(dst, l.Hists); err != nil {
			return dst, err
		}
	}
	return append(dst, '}', '\n'), nil
}

func appendHistograms(dst []byte, hists []Histogram) ([]byte, error) {
	dst = append(dst, `,"histograms":[`...)
	for i, h := range hists {
		if i > 0 {
			dst = append(dst, ',')
		}
		message := prompb.Histogram{}
		if h.Int != nil {
			message = prompb.FromIntHistogram(point.MillisOf(h.Time), h.Int)
		} else {
			message = prompb.FromFloatHistogram(point.MillisOf(h.Time), h.Float)
		}
		b, err := message.Marshal()
		if err != nil {
			return dst, fault.Wrap(err, fault.Invalid, "histogram at %d", h.Time)
		}
		dst = append(dst, `{"timestamp_ns":`...)
		dst = strconv.AppendInt(dst, int64(h.Time), 10)
		dst = append(dst, `,"histogram":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		dst = append(dst, `"}`...)
	}
	return append(dst, ']'), nil
}

// The bits of the NaNs that have names.
const (
	nanBits   = 0x7ff8000000000001
	staleBits = 0x7ff0000000000002
)

func appendValue(dst []byte, v float64) []byte {
	switch bits := math.Float64bits(v); {
	case bits == staleBits:
		return append(dst, `"stale"`...)
	case bits == nanBits:
		return append(dst, `"NaN"`...)
	case v != v:
		dst = append(dst, `"NaN:`...)
		for shift := 60; shift >= 0; shift -= 4 {
			dst = append(dst, "0123456789abcdef"[bits>>shift&15])
		}
		return append(dst, '"')
	case math.IsInf(v, 1):
		return append(dst, `"+Inf"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Inf"`...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// appendText appends a JSON string.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
