package otlp

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// refuseAt records that data points from item on were refused; text describes them, and is called only if there is
// room for one more reason.
func (d *Decoder) refuseAt(item, points int, err error, text func() string) {
	kind := fault.KindOf(err)
	if len(d.b.Refused) == point.RefusalsMax {
		if kind == fault.Invalid {
			d.b.RefusedRows += points
			return
		}
		// A passing reason decides the answer (the sender must retry), so a hundred lasting ones must not crowd it out.
		d.b.Refused = d.b.Refused[:point.RefusalsMax-1]
	}
	d.b.Refuse(points, point.Refusal{Item: item, Text: text(), Reason: err.Error(), Kind: kind})
}

// textMax bounds, in bytes, the text shown of a refused data point.
const textMax = 200

// errEnough ends the showing of attributes.
var errEnough = errors.New("no more attributes are shown")

// pointText shows the data point being read: the metric's name as sent and the attributes that can be read.
func (d *Decoder) pointText() string {
	b := append([]byte(escaped(d.metric.name)), '{')
	n := len(b)
	_ = each(d.p.attrs.data, d.attributesField(), func(kv []byte) error {
		key, value, err := readKeyValue(kv)
		if err != nil || len(b) > textMax {
			return errEnough
		}
		d.arena = d.arena[:0]
		text, _, err := d.valueText(value)
		if err != nil {
			return err
		}
		if len(b) > n {
			b = append(b, ", "...)
		}
		b = append(append(b, escaped(key)...), '=')
		b = strconv.AppendQuote(b, string(text[:min(len(text), textMax)]))
		return nil
	})
	return cutText(string(append(b, '}')))
}

func escaped(name []byte) string {
	name = name[:min(len(name), textMax)]
	if utf8.Valid(name) {
		return string(name)
	}
	return strconv.Quote(string(name))
}

// cutText shortens s to textMax bytes at a rune's beginning.
func cutText(s string) string {
	if len(s) <= textMax {
		return s
	}
	n := textMax
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
