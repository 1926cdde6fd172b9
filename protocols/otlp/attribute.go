package otlp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// pair is an attribute or a label: bytes of the body, of the arena or of the decoder's memory of names.
type pair struct{ name, value []byte }

// readKeyValue splits a KeyValue; value is the AnyValue as it lies, nil when absent.
func readKeyValue(m []byte) (key, value []byte, err error) {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 1:
			key = f.Bytes(&err)
		case f.Num == 2:
			err = once(&value, &f)
		}
		if err != nil {
			return nil, nil, err
		}
		i = next
	}
	return key, value, nil
}

// anyValue is the message AnyValue.
type anyValue struct {
	typ  int32 // number of the field that is set; 0: none
	bits uint64
	data []byte
}

// Fields of AnyValue.
const (
	valueString = 1
	valueBool   = 2
	valueInt    = 3
	valueDouble = 4
	valueArray  = 5
	valueMap    = 6
	valueBytes  = 7
)

func readValue(m []byte) (v anyValue, err error) {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err == nil && f.Num >= valueString && f.Num <= valueBytes {
			if f.Num == v.typ && (f.Num == valueArray || f.Num == valueMap) {
				return v, errTwice
			}
			v = anyValue{typ: f.Num}
			switch f.Num {
			case valueBool, valueInt:
				v.bits = f.Varint(&err)
			case valueDouble:
				v.bits = f.Expect(wire.Fixed64, &err)
			default:
				v.data = f.Bytes(&err)
			}
		}
		if err != nil {
			return v, err
		}
		i = next
	}
	return v, nil
}

// valueText gives an attribute's value as the text of a label: strings as they are, everything else as OpenTelemetry's
// own AsString writes it. The text is a part of m or of the arena. The error is one of the wire; reason refuses the
// value alone.
func (d *Decoder) valueText(m []byte) (text []byte, reason, err error) {
	v, err := readValue(m)
	if err != nil {
		return nil, nil, err
	}
	if v.typ == 0 {
		return nil, nil, nil
	}
	if v.typ == valueString {
		return v.data, nil, nil
	}
	from := len(d.arena)
	switch v.typ {
	case valueBool:
		d.arena = strconv.AppendBool(d.arena, v.bits != 0)
	case valueInt:
		d.arena = strconv.AppendInt(d.arena, int64(v.bits), 10)
	case valueDouble:
		d.arena = appendDouble(d.arena, math.Float64frombits(v.bits))
	default:
		if len(v.data) > point.LabelValueMax {
			return nil, errLongValue, nil
		}
		if v.typ == valueBytes {
			d.arena = base64.StdEncoding.AppendEncode(d.arena, v.data)
			break
		}
		text, reason, err := nestedText(&v)
		if reason != nil || err != nil {
			return nil, reason, err
		}
		d.arena = append(d.arena, text...)
	}
	return d.arena[from:len(d.arena):len(d.arena)], nil, nil
}

var errLongValue = fault.Errorf(fault.Invalid, "attribute with a value of more than %d bytes", point.LabelValueMax)

// appendDouble writes a double as JavaScript does, and values that JSON lacks by name.
func appendDouble(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "Infinity"...)
	case math.IsInf(v, -1):
		return append(b, "-Infinity"...)
	}
	if abs := math.Abs(v); abs == 0 || abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, v, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-3] == '-' && b[n-2] == '0' { // 1e-7, not 1e-07
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// valueDepthMax bounds how deep values are nested.
const valueDepthMax = 32

var (
	errDeepValue = fault.Errorf(fault.Invalid, "attribute with a value nested more than %d deep", valueDepthMax)
	errNotJSON   = fault.Errorf(fault.Invalid, "attribute with a value that JSON cannot hold, such as NaN in an array")
)

// nestedText writes an array or a map as JSON, keys sorted.
func nestedText(v *anyValue) (text []byte, reason, err error) {
	raw, err := nested(v, valueDepthMax)
	if errors.Is(err, errDeepValue) {
		return nil, errDeepValue, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if enc.Encode(raw) != nil {
		return nil, errNotJSON, nil
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil, nil
}

func nested(v *anyValue, depth int) (any, error) {
	if depth == 0 {
		return nil, errDeepValue
	}
	inner := func(m []byte) (any, error) {
		v, err := readValue(m)
		if err != nil {
			return nil, err
		}
		return nested(&v, depth-1)
	}
	switch v.typ {
	case valueString:
		return string(v.data), nil
	case valueBool:
		return v.bits != 0, nil
	case valueInt:
		return int64(v.bits), nil
	case valueDouble:
		return math.Float64frombits(v.bits), nil
	case valueBytes:
		return slices.Clone(v.data), nil
	case valueArray:
		list := []any{}
		err := each(v.data, 1, func(m []byte) error {
			x, err := inner(m)
			list = append(list, x)
			return err
		})
		return list, err
	case valueMap:
		dict := map[string]any{}
		err := each(v.data, 1, func(m []byte) error {
			key, value, err := readKeyValue(m)
			if err == nil {
				dict[string(key)], err = inner(value)
			}
			return err
		})
		return dict, err
	}
	return nil, nil
}

// labelNames remembers how names of attributes become names of labels.
type labelNames struct{ known map[string][]byte }

// Bounds of a decoder's cache of names: this many, each up to this long. Others are computed each time.
const (
	namesKept    = 4096
	nameKeptSize = 256
)

// find gives the label name for an attribute's key with prefix before it. Errors are Invalid.
func (n *labelNames) find(t *Translator, key []byte) ([]byte, error) {
	if name, ok := n.known[string(key)]; ok {
		return name, nil
	}
	if !utf8.Valid(key) {
		return nil, fault.Errorf(fault.Invalid, "attribute name %q is not UTF-8", key[:min(len(key), textMax)])
	}
	if len(key) > point.LabelNameMax {
		return nil, fault.Errorf(fault.Invalid, "attribute name of %d bytes, at most %d are taken", len(key), point.LabelNameMax)
	}
	built, err := t.labels.Build(string(key))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "attribute")
	}
	name := []byte(built)
	if len(key) <= nameKeptSize {
		if n.known == nil || len(n.known) >= namesKept {
			n.known = make(map[string][]byte)
		}
		n.known[string(key)] = name
	}
	return name, nil
}

// readAttributes appends the attributes in m, which are fields of this number, to pairs. reason is the first that cannot
// be a label's; more than LabelsMax are no label set either.
func (d *Decoder) readAttributes(pairs []pair, m []byte, num int32) (_ []pair, reason, err error) {
	n := 0
	err = each(m, num, func(kv []byte) error {
		key, value, err := readKeyValue(kv)
		if err != nil {
			return err
		}
		text, why, err := d.valueText(value)
		if err != nil {
			return err
		}
		if n++; n > point.LabelsMax {
			why = errManyAttributes
		}
		if why != nil {
			if reason == nil {
				reason = why
			}
			return nil
		}
		pairs = append(pairs, pair{key, text})
		return nil
	})
	return pairs, reason, err
}

var errManyAttributes = fault.Errorf(fault.Invalid, "more than %d attributes", point.LabelsMax)

// toLabels gives the attributes in pairs the names of labels. Where two get the same name, their values are joined by
// semicolons in the order of the attributes' names. skip names attributes that are left out. Errors are Invalid.
func (d *Decoder) toLabels(pairs []pair, skip func(key []byte) bool) ([]pair, error) {
	slices.SortStableFunc(pairs, func(a, b pair) int { return bytes.Compare(a.name, b.name) })
	out := pairs[:0]
	for _, p := range pairs {
		if string(p.name) == point.MetricName || skip != nil && skip(p.name) {
			continue
		}
		name, err := d.names.find(d.t, p.name)
		if err != nil {
			return nil, err
		}
		if i := indexOf(out, name); i >= 0 && len(out[i].value) > 0 {
			from := len(d.arena)
			d.arena = append(append(append(d.arena, out[i].value...), ';'), p.value...)
			out[i].value = d.arena[from:len(d.arena):len(d.arena)]
			continue
		} else if i >= 0 {
			out[i].value = p.value
			continue
		}
		out = append(out, pair{name, p.value})
	}
	return out, nil
}

func indexOf(pairs []pair, name []byte) int {
	for i := range pairs {
		if string(pairs[i].name) == string(name) {
			return i
		}
	}
	return -1
}

// set adds a label, or replaces the one of that name.
func set(pairs []pair, name, value []byte) []pair {
	if i := indexOf(pairs, name); i >= 0 {
		pairs[i].value = value
		return pairs
	}
	return append(pairs, pair{name, value})
}

// setUnset adds a label unless there is one of that name.
func setUnset(pairs []pair, name, value []byte) []pair {
	if i := indexOf(pairs, name); i >= 0 && len(pairs[i].value) > 0 {
		return pairs
	}
	return set(pairs, name, value)
}

var (
	labelName     = []byte(point.MetricName)
	labelJob      = []byte("job")
	labelInstance = []byte("instance")
	labelLE       = []byte("le")
	labelQuantile = []byte("quantile")
)

// makeLabels works out the labels of a series of the data point being read. An attribute of the point yields to job and
// instance and to the scope, but not to promoted attributes of the resource; le and quantile always win.
func (d *Decoder) makeLabels(name, extra, value []byte) (point.Labels, error) {
	if !d.p.parsed {
		if err := d.parseAttributes(); err != nil {
			return "", err
		}
	}
	d.labels.Reset()
	for _, p := range d.pairs {
		if extra == nil || string(p.name) != string(extra) {
			d.labels.Add(p.name, p.value)
		}
	}
	if extra != nil {
		d.labels.Add(extra, value)
	}
	d.labels.Add(labelName, name)
	d.texts -= len(name) + len(extra) + len(value)
	for _, p := range d.pairs {
		d.texts -= len(p.name) + len(p.value)
	}
	if d.texts < 0 { // ends the request; before more is written
		return "", errLabelsRequest
	}
	return d.labels.Labels()
}

// parseAttributes fills d.pairs with the labels that all series of the data point have.
func (d *Decoder) parseAttributes() error {
	d.arena = d.arena[:0]
	pairs, reason, err := d.readAttributes(d.pairs[:0], d.p.attrs.data, d.attributesField())
	if err != nil {
		// The message is sound but for this attribute: its bytes were hashed unread.
		return fault.Wrap(err, fault.Invalid, "attributes")
	}
	if reason == nil {
		pairs, reason = d.toLabels(pairs, nil)
	}
	if reason != nil {
		return reason
	}
	for _, p := range d.res.promoted {
		pairs = setUnset(pairs, p.name, p.value)
	}
	if len(d.res.job) > 0 {
		pairs = set(pairs, labelJob, d.res.job)
	}
	if len(d.res.instance) > 0 {
		pairs = set(pairs, labelInstance, d.res.instance)
	}
	for _, p := range d.scope.labels {
		pairs = set(pairs, p.name, p.value)
	}
	d.pairs, d.p.parsed = pairs, true
	return nil
}

// attributesField is the number of the field attributes in the data point being read.
func (d *Decoder) attributesField() int32 {
	switch d.metric.kind {
	case kindHistogram:
		return 9
	case kindExponential:
		return 1
	}
	return 7
}
