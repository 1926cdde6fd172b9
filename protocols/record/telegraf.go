package record

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
)

// telegrafMetric is a metric as Telegraf's serializer "json" writes it:
//
//	{"fields":{"usage_user":1.5,"usage_idle":98},"name":"cpu","tags":{"host":"a"},"timestamp":1772366400}
//
// alone, one after the other, in an array, or in {"metrics":[…]}. It becomes the same series as that metric in line
// protocol: cpu_usage_user{host="a"}. Booleans are 0 and 1, strings are counted or kept as labels
// (Settings.Strings), null is no field.
// Members may come in any order; all are spans, read when the object is complete. Of a name that occurs twice the last counts.
type telegrafMetric struct{ fields, name, tags, timestamp, metrics span }

var (
	errNoName   = errors.New("no name")
	errNoFields = errors.New("no fields")
	errBadTags  = errors.New("tags is no object")
	errField    = errors.New("a field is neither a number nor a boolean nor a string")
	errNameTag  = errors.New("the metric is named by name and field, not by a tag")
	errMetrics  = errors.New("metrics is no array")
	errStrings  = errors.New("too many string fields in one metric to be labels")
)

// telegraf reads the object at the cursor. outer: it may be a batch.
func (t *jsonDecoder) telegraf(outer bool) error {
	from := t.p
	m := &t.metric
	*m = telegrafMetric{}
	err := t.object(0, func(name, value span) error {
		switch string(name.raw) {
		case "fields":
			m.fields = value
		case "name":
			m.name = value
		case "tags":
			m.tags = value
		case "timestamp":
			m.timestamp = value
		case "metrics":
			m.metrics = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	if outer && m.metrics.kind != kindNone && m.fields.kind == kindNone {
		return t.telegrafBatch(m.metrics)
	}
	if err := t.begin(); err != nil {
		return err
	}
	mark := markOf(t.d.b)
	if err := t.telegrafRows(m); fault.Is(err, fault.TooLarge) {
		return err // the record, not the object
	} else if err != nil {
		mark.restore(t.d.b)
		t.refuse(from, err)
	}
	return nil
}

// telegrafBatch reads the metrics of a batch, which were scanned once already, as a text of their own.
func (t *jsonDecoder) telegrafBatch(metrics span) error {
	if metrics.kind != kindArray {
		return errMetrics
	}
	// The array was scanned with the batch's object, so its syntax is right: the one mistake left to find is an element that is no object.
	outer := t.scanner
	t.scanner = scanner{s: metrics.raw}
	t.next('[')
	for !t.next(']') {
		t.space()
		if t.p >= len(t.s) || t.s[t.p] != '{' {
			return errShape
		}
		if err := t.telegraf(false); err != nil {
			return err
		}
		t.next(',')
	}
	t.scanner = outer
	return nil
}

// telegrafRows appends a row for each field, without times at first: how many there are is seen at the end.
func (t *jsonDecoder) telegrafRows(m *telegrafMetric) error {
	switch {
	case m.name.kind != kindString || len(m.name.raw) == 0:
		return errNoName
	case m.fields.kind != kindObject:
		return errNoFields
	case m.tags.kind != kindObject && m.tags.kind != kindNone && m.tags.kind != kindNull:
		return errBadTags
	}
	at := t.d.at
	if m.timestamp.kind != kindNone && m.timestamp.kind != kindNull {
		var ok bool
		if at, ok = when(m.timestamp, t.o.Precision.or(Second)); !ok {
			return errBadTime
		}
	}
	b := t.d.b
	rows := len(b.IDs)
	k := t.keyOf(m)
	j := scanner{s: m.fields.raw}
	if err := j.object(0, func(name, value span) error { return t.field(&k, name, value) }); err != nil {
		return err
	}
	if len(t.strings) > 0 {
		if err := t.info(&k); err != nil {
			return err
		}
	}
	from := len(b.Times)
	// All rows of a metric have one time.
	b.Times = slices.Grow(b.Times, len(b.IDs)-rows)[:from+len(b.IDs)-rows]
	for i := from; i < len(b.Times); i++ {
		b.Times[i] = at
	}
	return nil
}

// key is a metric's name and tags, with the fields that the Dict has seen under them.
//
//	cpu,host=a ─▶ hash of name and tags ─▶ Dict: fields usage_user → 7, usage_idle → 8
//	                                        next: the fields of a metric come in the same order each time, so the first one compared is mostly it
type key struct {
	m      *telegrafMetric
	hash   point.Hash
	fields []point.LineField
	next   int // the one that is expected next
}

// keyOf looks the metric up by the bytes of its name and tags, as they stand in the text.
func (t *jsonDecoder) keyOf(m *telegrafMetric) key {
	t.under("telegraf")
	t.sum = binary.LittleEndian.AppendUint64(t.sum, uint64(len(m.name.raw)))
	t.sum = append(append(t.sum, m.name.raw...), m.tags.raw...)
	k := key{m: m, hash: t.d.b.Dict.Hash(t.sum)}
	if known := t.d.b.Dict.LookupLine(k.hash); known != nil {
		k.fields = known.Fields
	}
	return k
}

// field appends the row of one field, without its time.
func (t *jsonDecoder) field(k *key, name, value span) error {
	v := 0.0
	switch value.kind {
	case kindNumber:
		var ok bool
		if v, ok = float(value.raw); !ok {
			return errBadValue
		}
	case kindTrue:
		v = 1
	case kindFalse:
	case kindNull:
		return nil
	case kindString:
		if t.d.settings.Strings == lineproto.InfoSeries {
			if len(t.strings) == point.LabelsMax {
				return errStrings
			}
			t.strings = append(t.strings, member{name, value})
		} else {
			t.d.b.StringFields++
		}
		return nil
	default:
		return errField
	}
	id, err := t.fieldID(k, name)
	if err != nil {
		return err
	}
	return t.addRow(id, v)
}

// fieldsScanned is the number of fields that are compared before a hash is faster.
const fieldsScanned = 64

// fieldID finds the series of a field, in three steps: by its place, by its hash, and by its labels, which are made then.
func (t *jsonDecoder) fieldID(k *key, name span) (point.SeriesID, error) {
	if i := find(k.fields, k.next, name.raw); i >= 0 {
		k.next = i + 1
		return k.fields[i].ID, nil
	}
	dict := t.d.b.Dict
	h := t.hashUnder(k.hash, 'f', name.raw)
	if len(k.fields) >= fieldsScanned {
		if id, ok := dict.Lookup(h); ok {
			return id, nil
		}
	}
	labels, err := t.fieldLabels(k, name)
	if err != nil {
		return 0, err
	}
	if len(k.fields) >= fieldsScanned {
		return dict.Intern(h, labels)
	}
	id, err := dict.InternLabels(labels, h)
	if err == nil {
		k.fields = dict.ExtendLine(k.hash, point.LineField{Name: string(name.raw), ID: id}).Fields
		k.next = len(k.fields)
	}
	return id, err
}

// find looks for a name behind the expected field, then before it.
// find compares bytes as written. Behind fieldsScanned comparisons a hash costs less.
func find(fields []point.LineField, next int, name []byte) int {
	for i := next; i < min(len(fields), next+fieldsScanned); i++ {
		if fields[i].Name == string(name) {
			return i
		}
	}
	for i := range fields[:min(next, fieldsScanned)] {
		if fields[i].Name == string(name) {
			return i
		}
	}
	return -1
}

// hashUnder makes a hash of a hash and some bytes. what keeps fields ('f') and info series ('s') apart.
func (t *jsonDecoder) hashUnder(h point.Hash, what byte, raw []byte) point.Hash {
	t.sum = binary.LittleEndian.AppendUint64(t.sum[:0], h.Lo)
	t.sum = binary.LittleEndian.AppendUint64(t.sum, h.Hi)
	t.sum = append(append(t.sum, what), raw...)
	return t.d.b.Dict.Hash(t.sum)
}

// fieldLabels makes the labels of a new series: its tags, and the name of metric and field together.
func (t *jsonDecoder) fieldLabels(k *key, name span) (point.Labels, error) {
	unescaped := len(t.text)
	defer func() { t.text = t.text[:unescaped] }() // the tags are unescaped for each field anew
	if err := t.startLabels(k); err != nil {
		return "", err
	}
	metric := append([]byte(nil), t.textOf(k.m.name)...)
	// As in line protocol: a field called value adds nothing to the name.
	if field := t.textOf(name); string(field) != "value" {
		metric = append(append(metric, t.d.settings.Separator...), field...)
	}
	t.labels.Add(metricName, metric)
	l, err := t.labels.Labels()
	if err == nil {
		err = t.written(l)
	}
	return l, err
}

// startLabels puts the tags, and the table where it is asked for, into t.labels.
func (t *jsonDecoder) startLabels(k *key) error {
	t.labels.Reset()
	if k.m.tags.kind == kindObject {
		named := false
		err := t.addLabels(k.m.tags.raw, func(name []byte, _ span) bool {
			named = named || string(name) == point.MetricName
			return named
		})
		if err == nil && named {
			err = errNameTag
		}
		if err != nil {
			return err
		}
	}
	if l := t.d.settings.DBLabel; l != "" && !t.labels.Has(l) {
		t.labels.Add([]byte(l), []byte(t.o.Table))
	}
	return nil
}

// info appends the row of the metric's info series: its string fields as labels, with the value 1. A tag of the same name
// wins; of fields with one name the last wins.
func (t *jsonDecoder) info(k *key) error {
	raw := []byte(nil)
	for _, f := range t.strings {
		raw = binary.AppendUvarint(raw, uint64(len(f.name.raw)))
		raw = append(raw, f.name.raw...)
		raw = binary.AppendUvarint(raw, uint64(len(f.value.raw)))
		raw = append(raw, f.value.raw...)
	}
	b := t.d.b
	h := t.hashUnder(k.hash, 's', raw)
	id, ok := b.Dict.Lookup(h)
	if !ok {
		labels, err := t.infoLabels(k)
		if err == nil {
			id, err = b.Dict.Intern(h, labels)
		}
		if err != nil {
			return fault.Annotate(err, "info series")
		}
	}
	return t.addRow(id, 1)
}

// infoLabels makes the labels of the metric's info series.
func (t *jsonDecoder) infoLabels(k *key) (point.Labels, error) {
	if err := t.startLabels(k); err != nil {
		return "", err
	}
	// Backward: the last of two fields of one name is added, and Has leaves out the one before.
	for _, f := range slices.Backward(t.strings) {
		if name := t.textOf(f.name); !t.labels.Has(string(name)) && string(name) != point.MetricName {
			t.labels.Add(name, t.textOf(f.value))
		}
	}
	t.labels.Add(metricName, append(append([]byte(nil), t.textOf(k.m.name)...), "_info"...))
	return t.labels.Labels()
}
