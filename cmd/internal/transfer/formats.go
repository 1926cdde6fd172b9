package transfer

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/influxdata/line-protocol/v2/lineprotocol"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The formats of files.
const (
	FormatOpenMetrics = "openmetrics"
	FormatPrometheus  = "prometheus"
	FormatLine        = "line"
	FormatJSON        = "json"
	FormatBlocks      = "blocks"
)

// Suffixes are the ends of file names by which a format is recognised, before .gz and .zst.
var Suffixes = map[string]string{".om": FormatOpenMetrics, ".prom": FormatPrometheus, ".lp": FormatLine, ".jsonl": FormatJSON, ".ndjson": FormatJSON}

// FormatOf is the format that a file's name stands for; "" for none.
func FormatOf(file string) string {
	file = strings.TrimSuffix(strings.TrimSuffix(file, ".gz"), ".zst")
	for suffix, format := range Suffixes {
		if strings.HasSuffix(file, suffix) {
			return format
		}
	}
	return ""
}

// encoder appends lines in one format, and counts what the format cannot hold.
type encoder interface {
	append(dst []byte, l *Line) ([]byte, error)
	end(dst []byte) []byte
}

func newEncoder(format string, losses *Losses) (encoder, error) {
	switch format {
	case FormatOpenMetrics:
		return &textEncoder{losses: losses, open: true}, nil
	case FormatPrometheus:
		return &textEncoder{losses: losses}, nil
	case FormatLine:
		e := &lineEncoder{losses: losses}
		e.to.SetPrecision(lineprotocol.Nanosecond)
		return e, nil
	case FormatJSON:
		return jsonEncoder{}, nil
	}
	return nil, fault.Errorf(fault.Invalid, "%q is no format of a file", format)
}

// Why rows are left out.
const (
	lostHistograms = "native histograms were left out: the format has no form for them (json and blocks have)"
	lostStale      = "stale markers were left out: the format has no form for them (json and blocks have)"
	lostNaN        = "NaN values lost the bits that distinguish them: the format knows one NaN (json and blocks keep the bits)"
	lostNotFinite  = "values that are NaN or infinite were left out: line protocol has no form for them"
	lostNanos      = "rows lie between milliseconds: the file has their exact times, readers of this format, spillway import too, take the millisecond (json and line keep it)"
	lostMillis     = "rows lie between milliseconds and were put on the millisecond: the format has no form for them (json and line have)"
	lostBefore1970 = "rows have times before 1970 and were left out: readers of this format refuse them (the other formats have them)"
	lostShared     = "rows shared a millisecond with a newer one and were left out: the format has no form for them (json and line have)"
	lostNameless   = "rows have no metric name and were left out: the format has no form for them"
	lostText       = "rows have a name or label that line protocol cannot write, and were left out"
)

// nanBits are those of the NaN that readers of texts make.
const nanBits = 0x7ff8000000000001

// textEncoder writes the text format of Prometheus, or OpenMetrics (without families: all types are unknown).
type textEncoder struct {
	losses *Losses
	open   bool
	series []byte
}

func (e *textEncoder) append(dst []byte, l *Line) ([]byte, error) {
	e.series = appendSeries(e.series[:0], l)
	if n := len(l.Hists); n > 0 {
		e.losses.LeaveOut(lostHistograms, int64(n), string(e.series))
	}
	for i, t := range l.Times {
		v := l.Values[i]
		if point.IsStale(v) {
			e.losses.LeaveOut(lostStale, 1, string(e.series))
			continue
		}
		if !e.open && point.MillisOf(t) < 0 { // Prometheus' parser, and so our import, knows no sign there
			e.losses.LeaveOut(lostBefore1970, 1, string(e.series))
			continue
		}
		if v != v && math.Float64bits(v) != nanBits {
			e.losses.Add(lostNaN, 1, string(e.series))
		}
		if t%nanosPerMilli != 0 {
			if e.open {
				e.losses.Add(lostNanos, 1, string(e.series))
			} else {
				e.losses.Add(lostMillis, 1, string(e.series))
			}
		}
		dst = append(dst, e.series...)
		dst = append(dst, ' ')
		dst = appendFloat(dst, v)
		dst = append(dst, ' ')
		if e.open {
			dst = appendSeconds(dst, int64(t))
		} else {
			dst = strconv.AppendInt(dst, point.MillisOf(t), 10)
		}
		dst = append(dst, '\n')
	}
	return dst, nil
}

func (e *textEncoder) end(dst []byte) []byte {
	if e.open {
		return append(dst, "# EOF\n"...)
	}
	return dst
}

func appendFloat(dst []byte, v float64) []byte {
	switch {
	case v != v:
		return append(dst, "NaN"...)
	case math.IsInf(v, 1):
		return append(dst, "+Inf"...)
	case math.IsInf(v, -1):
		return append(dst, "-Inf"...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// appendSeconds writes nanoseconds as seconds, exactly.
func appendSeconds(dst []byte, ns int64) []byte {
	u := uint64(ns)
	if ns < 0 {
		dst, u = append(dst, '-'), -u
	}
	dst = strconv.AppendUint(dst, u/1e9, 10)
	frac := u % 1e9
	if frac == 0 {
		return dst
	}
	dst = append(dst, '.')
	for div := uint64(1e8); frac > 0; div /= 10 {
		dst = append(dst, byte('0'+frac/div))
		frac %= div
	}
	return dst
}

// lineEncoder writes line protocol: the metric's name is the measurement, its value the field "value".
type lineEncoder struct {
	losses *Losses
	to     lineprotocol.Encoder
}

func (e *lineEncoder) append(dst []byte, l *Line) ([]byte, error) {
	metric := name(l)
	example := func() string { return string(appendSeries(nil, l)) }
	if n := len(l.Hists); n > 0 {
		e.losses.LeaveOut(lostHistograms, int64(n), example())
	}
	if metric == "" && len(l.Times) > 0 {
		e.losses.LeaveOut(lostNameless, int64(len(l.Times)), example())
		return dst, nil
	}
	e.to.SetBuffer(dst)
	for i, t := range l.Times {
		v, ok := lineprotocol.FloatValue(l.Values[i])
		switch {
		case point.IsStale(l.Values[i]):
			e.losses.LeaveOut(lostStale, 1, example())
			continue
		case !ok:
			e.losses.LeaveOut(lostNotFinite, 1, example())
			continue
		}
		e.to.StartLine(metric)
		for _, p := range l.Labels {
			if p.Name != point.MetricName {
				e.to.AddTag(p.Name, p.Value)
			}
		}
		e.to.AddField("value", v)
		e.to.EndLine(time.Unix(0, int64(t)))
		if err := e.to.Err(); err != nil {
			e.losses.LeaveOut(lostText, 1, example()+": "+err.Error())
			e.to.ClearErr()
		}
	}
	return e.to.Bytes(), nil
}

func (e *lineEncoder) end(dst []byte) []byte { return dst }

type jsonEncoder struct{}

func (jsonEncoder) append(dst []byte, l *Line) ([]byte, error) { return jsonrows.Append(dst, l) }
func (jsonEncoder) end(dst []byte) []byte                      { return dst }
