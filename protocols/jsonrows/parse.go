package jsonrows

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// End is the last line of an answer that is whole.
type End struct {
	Series int64 `json:"series"`
	Rows   int64 `json:"rows"`
}

// AppendEnd appends the last line of an answer that is whole.
func AppendEnd(dst []byte, e End) []byte {
	b, _ := json.Marshal(map[string]End{"end": e}) // numbers always encode
	return append(append(dst, b...), '\n')
}

// AppendError appends the last line of an answer that is not whole.
func AppendError(dst []byte, err error) []byte {
	b, _ := json.Marshal(map[string]string{"error": err.Error(), "kind": fault.KindOf(err).String()}) // texts always encode
	return append(append(dst, b...), '\n')
}

// Parser reads lines; its memory is used again for the next. The zero value is ready. One goroutine at a time.
type Parser struct {
	line Line
	wire wire
}

// wire is the JSON object of a line.
type wire struct {
	Metric     map[string]string `json:"metric"`
	Nanos      json.RawMessage   `json:"timestamps_ns"`
	Millis     json.RawMessage   `json:"timestamps"`
	Values     json.RawMessage   `json:"values"`
	Histograms []wireHistogram   `json:"histograms"`

	End   *End   `json:"end"`
	Error string `json:"error"`
	Kind  string `json:"kind"`
}

type wireHistogram struct {
	Nanos     int64  `json:"timestamp_ns"`
	Histogram []byte `json:"histogram"`
}

// Parse reads one line of rows. The line belongs to the parser until the next call; its texts do not. Errors are Invalid.
func (p *Parser) Parse(b []byte) (*Line, error) {
	if err := p.read(b); err != nil {
		return nil, err
	}
	if p.wire.End != nil || p.wire.Error != "" || p.wire.Kind != "" {
		return nil, fault.Errorf(fault.Invalid, "the last line of an answer is no line of rows")
	}
	return p.rows()
}

// ParseAnswer reads one line of an answer of the export route: rows, its end, or the error that it ended with, which has the
// Kind that the server gave it.
func (p *Parser) ParseAnswer(b []byte) (*Line, *End, error) {
	if err := p.read(b); err != nil {
		return nil, nil, err
	}
	if p.wire.Error != "" {
		return nil, nil, fault.Errorf(kindOf(p.wire.Kind), "%s", p.wire.Error)
	}
	if p.wire.End != nil {
		return nil, p.wire.End, nil
	}
	l, err := p.rows()
	return l, nil, err
}

func kindOf(name string) fault.Kind {
	for _, k := range fault.Kinds() {
		if k.String() == name {
			return k
		}
	}
	return fault.Internal
}

func (p *Parser) read(b []byte) error {
	switch {
	case len(b) > LineBytesMax:
		return fault.Errorf(fault.Invalid, "a line of more than %d bytes", LineBytesMax)
	case !utf8.Valid(b):
		return fault.Errorf(fault.Invalid, "not UTF-8")
	}
	p.wire = wire{Nanos: p.wire.Nanos[:0], Millis: p.wire.Millis[:0], Values: p.wire.Values[:0]}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p.wire); err != nil {
		return fault.Errorf(fault.Invalid, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return fault.Errorf(fault.Invalid, "text behind the object")
	}
	return nil
}

// rows makes the line of the fields that were read.
func (p *Parser) rows() (*Line, error) {
	l, w := &p.line, &p.wire
	*l = Line{Labels: l.Labels[:0], Times: l.Times[:0], Values: l.Values[:0], Hists: l.Hists[:0]}
	if len(w.Metric) == 0 {
		return nil, fault.Errorf(fault.Invalid, "no metric")
	}
	for name, value := range w.Metric {
		if value != "" {
			l.Labels = append(l.Labels, Label{name, value})
		}
	}
	slices.SortFunc(l.Labels, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
	times, unit := w.Nanos, int64(1)
	if len(w.Millis) > 0 {
		if len(w.Nanos) > 0 {
			return nil, fault.Errorf(fault.Invalid, "both timestamps and timestamps_ns")
		}
		times, unit = w.Millis, 1e6
	}
	if err := elements("timestamps", times, func(text string) error { return l.addTime(text, unit) }); err != nil {
		return nil, err
	}
	if err := elements("values", w.Values, l.addValue); err != nil {
		return nil, err
	}
	if len(l.Times) != len(l.Values) {
		return nil, fault.Errorf(fault.Invalid, "%d timestamps and %d values", len(l.Times), len(l.Values))
	}
	for i := range w.Histograms {
		if err := l.addHistogram(&w.Histograms[i]); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// elements calls add with each element of an array of valid JSON without inner arrays or objects.
func elements(what string, raw []byte, add func(string) error) error {
	text := string(bytes.TrimSpace(raw))
	if text == "" || text == "null" {
		return nil
	}
	if text[0] != '[' {
		return fault.Errorf(fault.Invalid, "%s is no array", what)
	}
	text = strings.TrimSpace(text[1 : len(text)-1])
	for more := text != ""; more; {
		var one string
		one, text, more = strings.Cut(text, ",") // no text that is a value has a comma
		if err := add(strings.TrimSpace(one)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Line) addTime(text string, unit int64) error {
	t, err := strconv.ParseInt(text, 10, 64)
	if err != nil || t > math.MaxInt64/unit || t < math.MinInt64/unit {
		return fault.Errorf(fault.Invalid, "%.40q is no timestamp", text)
	}
	l.Times = append(l.Times, point.Nanos(t*unit))
	return nil
}

func (l *Line) addValue(text string) error {
	v, ok := parseValue(text)
	if !ok {
		return fault.Errorf(fault.Invalid, "%.40q is no value", text)
	}
	l.Values = append(l.Values, v)
	return nil
}

func parseValue(text string) (v float64, ok bool) {
	quoted, isText := strings.CutPrefix(text, `"`)
	if isText {
		quoted = strings.TrimSuffix(quoted, `"`)
	}
	switch {
	case text == "null" || isText && quoted == "NaN":
		return math.Float64frombits(nanBits), true
	case isText && quoted == "stale":
		return math.Float64frombits(staleBits), true
	case isText && quoted == "+Inf", isText && quoted == "Inf", isText && quoted == "Infinity":
		return math.Inf(1), true
	case isText && quoted == "-Inf", isText && quoted == "-Infinity":
		return math.Inf(-1), true
	case isText:
		hex, found := strings.CutPrefix(quoted, "NaN:")
		bits, err := strconv.ParseUint(hex, 16, 64)
		v = math.Float64frombits(bits)
		return v, found && err == nil && len(hex) == 16 && v != v
	}
	if text == "" || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}

func (l *Line) addHistogram(w *wireHistogram) error {
	var message prompb.Histogram
	if err := message.Unmarshal(w.Histogram); err != nil {
		return fault.Errorf(fault.Invalid, "the histogram at %d cannot be read: %v", w.Nanos, err)
	}
	h := Histogram{Time: point.Nanos(w.Nanos)}
	if message.IsFloatHistogram() {
		h.Float = message.ToFloatHistogram()
	} else {
		h.Int = message.ToIntHistogram()
	}
	l.Hists = append(l.Hists, h)
	return nil
}
