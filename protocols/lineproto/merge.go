package lineproto

import (
	"bytes"
	"strings"

	"github.com/spillwaydb/spillway/protocols/point"
)

// lookForMerge looks whether the series of the i-th new field of the line, which the Dict has already, is another field of
// another measurement with the same tags:
//
//	a_b,host=x c=1 ─┐
//	                ├─▶ a_b_c{host="x"}
//	a,host=x b_c=2 ─┘
//
// Both are accepted, as in VictoriaMetrics, but their rows cannot be distinguished any more: the batch reports it. A series is
// looked at once, when a line first brings it under this key; nothing is kept per series. Names with escapes, and tags that the
// other line writes in another order, are not seen through.
func (d *Decoder) lookForMerge(k *key, i int) {
	var field string
	for _, f := range d.template[k.known:] {
		if f.ID == waits|point.SeriesID(i) {
			field = f.Name
		}
	}
	raw := d.body[k.at:k.end]
	m := raw
	if n := bytes.IndexByte(raw, ','); n >= 0 {
		m = raw[:n]
	}
	if bytes.IndexByte(m, '\\') >= 0 || strings.IndexByte(field, '\\') >= 0 {
		return
	}
	measurement, sep := string(m), d.Settings.Separator
	metric := measurement
	if field != bareField {
		metric += sep + field
	}
	at := 0
	for range mergeCuts {
		other, otherField := metric, bareField // first the bare name, then a cut at each separator
		if at > 0 {
			other, otherField = metric[:at-1], metric[at-1+len(sep):]
		}
		named := at == 0 || otherField != bareField // a field of that name does not show in a metric's
		if named && (other != measurement || otherField != field) && d.knows(other, raw[len(m):], otherField) {
			d.batch.Merged++
			if len(d.batch.Merges) < point.MergesMax {
				d.batch.Merges = append(d.batch.Merges, point.Merge{
					Metric: metric, Measurement: measurement, Field: field, OtherMeasurement: other, OtherField: otherField,
				})
			}
			return
		}
		n := strings.Index(metric[at:], sep)
		if n < 0 {
			return
		}
		at += n + 1
	}
}

// mergeCuts bounds the ways in which a metric's name is cut, so that one of nothing but separators costs little.
const mergeCuts = 32

// bareField is the field that gives a metric the bare name of its measurement.
const bareField = "value"

// knows reports whether a line of that measurement and those tags has brought that field. The last two are as written.
func (d *Decoder) knows(measurement string, tags []byte, field string) bool {
	if measurement == "" || field == "" {
		return false
	}
	d.sum = append(append(d.sum[:0], measurement...), tags...)
	h := d.batch.Dict.Hash(d.sum)
	h.Lo ^= d.naming.Lo
	h.Hi ^= d.naming.Hi
	known := d.batch.Dict.LookupLine(h)
	if known == nil {
		return false
	}
	for i := range known.Fields {
		if known.Fields[i].Name == field {
			return true
		}
	}
	return false
}
