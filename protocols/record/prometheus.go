package record

import (
	"errors"
	"strconv"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// promSample is an object as prometheus-kafka-adapter writes it:
//
//	{"timestamp":"2026-03-01T12:00:00Z","value":"0.5","name":"up","labels":{"__name__":"up","job":"node"}}
//
// value is a string or a number, also "NaN", "+Inf" and "-Inf"; timestamp is RFC 3339 or a number in units of
// Options.Precision. The name is that of the label __name__, else name.
type promSample struct{ name, labels, value, timestamp span }

var (
	errNoValue   = errors.New("no value")
	errBadValue  = errors.New("the value is no number")
	errBadTime   = errors.New("the timestamp is neither a number in range nor RFC 3339")
	errBadLabels = errors.New("labels is no object")
	errBadName   = errors.New("name is no string")
)

// prometheus reads the object at the cursor. An error of syntax ends the record; one of content refuses the object alone.
func (t *jsonDecoder) prometheus() error {
	from := t.p
	if err := t.begin(); err != nil {
		return err
	}
	m := &t.sample
	*m = promSample{}
	err := t.object(0, func(name, value span) error {
		switch string(name.raw) {
		case "name":
			m.name = value
		case "labels":
			m.labels = value
		case "value":
			m.value = value
		case "timestamp":
			m.timestamp = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := t.promRow(m); err != nil {
		t.refuse(from, err)
	}
	return nil
}

// promRow appends the row. The series is looked up last: a row that is refused makes none.
func (t *jsonDecoder) promRow(m *promSample) error {
	v, err := promValue(m.value)
	if err != nil {
		return err
	}
	at := t.d.at
	if m.timestamp.kind != kindNone && m.timestamp.kind != kindNull {
		var ok bool
		if at, ok = when(m.timestamp, t.o.Precision.or(Auto)); !ok {
			return errBadTime
		}
	}
	id, err := t.promSeries(m)
	if err != nil {
		return err
	}
	t.d.b.Append(id, at, v)
	return nil
}

// promValue reads a number, or text that is one, or the three values that JSON has no numbers for.
func promValue(v span) (float64, error) {
	switch v.kind {
	case kindNone, kindNull:
		return 0, errNoValue
	case kindNumber:
	case kindString:
		switch string(v.raw) {
		case "":
			return 0, errNoValue
		case "NaN", "+Inf", "-Inf", "Inf":
			f, _ := strconv.ParseFloat(string(v.raw), 64)
			return f, nil
		}
		j := scanner{s: v.raw}
		if c := v.raw[0]; c != '-' && c-'0' >= 10 || j.number() != nil || j.p < len(v.raw) {
			return 0, errBadValue
		}
	default:
		return 0, errBadValue
	}
	f, ok := float(v.raw)
	if !ok {
		return 0, errBadValue
	}
	return f, nil
}

// promSeries finds the series by its name and labels as written, and makes it if it is new.
func (t *jsonDecoder) promSeries(m *promSample) (point.SeriesID, error) {
	// null means that there are none, as some producers write it.
	if k := m.labels.kind; k != kindNone && k != kindNull && k != kindObject {
		return 0, errBadLabels
	}
	if k := m.name.kind; k != kindNone && k != kindNull && k != kindString {
		return 0, errBadName
	}
	// The hash is of the bytes as written: another order of labels, or another escape, is looked up anew and interned under a second hash of the
	// same series. Adapters write one order, so that nearly all rows are found without reading their labels.
	t.sum = append(t.sum[:0], "promjson:"...)
	t.sum = strconv.AppendInt(t.sum, int64(len(m.name.raw)), 10)
	t.sum = append(append(t.sum, ':'), m.name.raw...)
	t.sum = append(t.sum, m.labels.raw...)
	dict := t.d.b.Dict
	h := dict.Hash(t.sum)
	// Series mostly follow each other in the same order in each record: prev makes the next one a guess that is compared.
	id, ok := dict.LookupAfter(t.prev, h)
	if !ok {
		labels, err := t.promLabels(m)
		if err != nil {
			return 0, err
		}
		if id, err = dict.Intern(h, labels); err != nil {
			return 0, err
		}
	}
	t.prev = id
	return id, nil
}

// promLabels makes the labels of a new series. Errors: Invalid, with the label.
func (t *jsonDecoder) promLabels(m *promSample) (point.Labels, error) {
	t.labels.Reset()
	if m.labels.kind == kindObject {
		if err := t.addLabels(m.labels.raw, func([]byte, span) bool { return false }); err != nil {
			return "", err
		}
	}
	if !t.labels.Has(point.MetricName) {
		t.labels.Add(metricName, t.textOf(m.name))
	}
	l, err := t.labels.Labels()
	return l, fault.Annotate(err, "labels")
}
