package fleet

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/klauspost/compress/s2"
)

// Encoder turns rows into bodies of one protocol.
type Encoder interface {
	// Host adds a host's rows of one scrape; t is in milliseconds.
	Host(f *Fleet, h *Host, t int64)
	// Cut returns the body so far and starts a new one; nil when empty.
	Cut() []byte
	// Samples counts those of the body so far.
	Samples() int
	// Path is the path that bodies are posted to, Header the headers they need.
	Path() string
	Header() map[string]string
}

// NewEncoder makes an encoder of rw1, rw2 or influx; nil for anything else.
func NewEncoder(protocol string) Encoder {
	switch protocol {
	case "rw1":
		return &rw1{}
	case "rw2":
		return &rw2{}
	case "influx":
		return &influx{}
	}
	return nil
}

// Pairs returns the labels of one series, sorted by name, metric name first as '_' sorts before letters.
func Pairs(dst [][2]string, h *Host, m *Measurement, f *Field) [][2]string {
	dst = append(dst[:0], [2]string{"__name__", m.Name + "_" + f.Name})
	dst = append(dst, h.Tags...)
	if m.tag != "" {
		dst = append(dst, [2]string{m.tag, m.tag + "-0"})
		slices.SortFunc(dst[1:], func(a, b [2]string) int {
			if a[0] < b[0] {
				return -1
			}
			return 1
		})
	}
	return dst
}

func appendBytes(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// sample is the Field `samples` (tag 0x12) with a value and milliseconds.
func appendSample(b []byte, t int64, v float64) []byte {
	var s [24]byte
	p := append(s[:0], 1<<3|1)
	p = binary.LittleEndian.AppendUint64(p, math.Float64bits(v))
	p = append(p, 2<<3)
	p = binary.AppendUvarint(p, uint64(t))
	return appendBytes(b, 2<<3|2, string(p))
}

// rw1 is remote write 1.0: snappy over prometheus.WriteRequest.
type rw1 struct {
	buf, series, label []byte
	pairs              [][2]string
	n                  int
}

func (e *rw1) Host(f *Fleet, h *Host, t int64) {
	for i := range f.Shape {
		m := &f.Shape[i]
		for j := range m.Fields {
			e.series = e.series[:0]
			e.pairs = Pairs(e.pairs, h, m, &m.Fields[j])
			for _, p := range e.pairs {
				e.label = appendBytes(e.label[:0], 1<<3|2, p[0])
				e.label = appendBytes(e.label, 2<<3|2, p[1])
				e.series = appendBytes(e.series, 1<<3|2, string(e.label))
			}
			e.series = appendSample(e.series, t, h.series[i][j].next(f.Rand))
			e.buf = appendBytes(e.buf, 1<<3|2, string(e.series))
			e.n++
		}
	}
}

func (e *rw1) Samples() int { return e.n }
func (e *rw1) Path() string { return "/api/v1/write" }
func (e *rw1) Header() map[string]string {
	return map[string]string{"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
}

func (e *rw1) Cut() []byte {
	if e.n == 0 {
		return nil
	}
	out := s2.EncodeSnappy(nil, e.buf)
	e.buf, e.n = e.buf[:0], 0
	return out
}

// rw2 is remote write 2.0: snappy over io.prometheus.write.v2.Request.
type rw2 struct {
	symbols map[string]uint64
	list    []string
	series  []byte
	one     []byte
	refs    []byte
	pairs   [][2]string
	n       int
}

func (e *rw2) symbol(s string) uint64 {
	if e.symbols == nil {
		e.symbols, e.list = map[string]uint64{"": 0}, []string{""}
	}
	i, ok := e.symbols[s]
	if !ok {
		i = uint64(len(e.list))
		e.symbols[s] = i
		e.list = append(e.list, s)
	}
	return i
}

func (e *rw2) Host(f *Fleet, h *Host, t int64) {
	for i := range f.Shape {
		m := &f.Shape[i]
		for j := range m.Fields {
			e.pairs = Pairs(e.pairs, h, m, &m.Fields[j])
			e.refs = e.refs[:0]
			for _, p := range e.pairs {
				e.refs = binary.AppendUvarint(e.refs, e.symbol(p[0]))
				e.refs = binary.AppendUvarint(e.refs, e.symbol(p[1]))
			}
			e.one = appendBytes(e.one[:0], 1<<3|2, string(e.refs))
			e.one = appendSample(e.one, t, h.series[i][j].next(f.Rand))
			e.series = appendBytes(e.series, 5<<3|2, string(e.one))
			e.n++
		}
	}
}

func (e *rw2) Samples() int { return e.n }
func (e *rw2) Path() string { return "/api/v1/write" }
func (e *rw2) Header() map[string]string {
	return map[string]string{
		"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request", "Content-Encoding": "snappy",
		"X-Prometheus-Remote-Write-Version": "2.0.0",
	}
}

func (e *rw2) Cut() []byte {
	if e.n == 0 {
		return nil
	}
	var buf []byte
	for _, s := range e.list {
		buf = appendBytes(buf, 4<<3|2, s)
	}
	buf = append(buf, e.series...)
	e.symbols, e.list, e.series, e.n = nil, nil, e.series[:0], 0
	return s2.EncodeSnappy(nil, buf)
}

// influx is line protocol, one line a Measurement, milliseconds.
type influx struct {
	buf []byte
	n   int
}

func (e *influx) Host(f *Fleet, h *Host, t int64) {
	for i := range f.Shape {
		m := &f.Shape[i]
		e.buf = append(e.buf, m.Name...)
		for _, tag := range h.Tags {
			e.buf = append(append(append(append(e.buf, ','), tag[0]...), '='), tag[1]...)
		}
		if m.tag != "" {
			e.buf = append(append(append(append(append(e.buf, ','), m.tag...), '='), m.tag...), "-0"...)
		}
		for j := range m.Fields {
			sep := byte(',')
			if j == 0 {
				sep = ' '
			}
			e.buf = append(append(append(e.buf, sep), m.Fields[j].Name...), '=')
			v := h.series[i][j].next(f.Rand)
			if m.Fields[j].kind == percent {
				e.buf = strconv.AppendFloat(e.buf, v, 'f', -1, 64)
			} else {
				e.buf = append(strconv.AppendInt(e.buf, int64(v), 10), 'i')
			}
			e.n++
		}
		e.buf = append(strconv.AppendInt(append(e.buf, ' '), t, 10), '\n')
	}
}

func (e *influx) Samples() int              { return e.n }
func (e *influx) Path() string              { return "/write?db=bench&precision=ms" }
func (e *influx) Header() map[string]string { return map[string]string{"Content-Type": "text/plain"} }

func (e *influx) Cut() []byte {
	if e.n == 0 {
		return nil
	}
	out := slices.Clone(e.buf)
	e.buf, e.n = e.buf[:0], 0
	return out
}
