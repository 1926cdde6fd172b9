package otlp

import (
	"strings"
	"unicode/utf8"

	"github.com/prometheus/otlptranslator"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// family is the metric's name here, made from its name, unit and type.
type family struct {
	name, bucket, sum, count []byte // label values
	err                      error  // why it has no name; Invalid

	row     point.MetadataRow
	request uint64 // the last request with row in its batch
}

// families remembers families from request to request.
type families struct {
	request uint64
	known   map[string]*family
	key     []byte
}

// Bounds of a decoder's cache of families: this many, with keys and help texts each up to this long. Others are
// computed each time.
const (
	familiesKept   = 4096
	familyKeptSize = 1024
)

func (fs *families) begin() { fs.request++ }

// find gives the family of a metric.
func (fs *families) find(t *Translator, mt *metric) *family {
	k := append(fs.key[:0], byte(mt.kind), boolByte(mt.monotonic), boolByte(mt.unknownType(t)))
	k = appendPart(k, mt.unit)
	fs.key = append(k, mt.name...)
	f := fs.known[string(fs.key)]
	if f == nil {
		f = newFamily(t, mt)
		if len(fs.key) <= familyKeptSize {
			if fs.known == nil || len(fs.known) >= familiesKept {
				fs.known = make(map[string]*family)
			}
			fs.known[string(fs.key)] = f
		}
	}
	if f.row.Help != string(mt.description) {
		if len(mt.description) > familyKeptSize {
			f = &family{name: f.name, bucket: f.bucket, sum: f.sum, count: f.count, err: f.err, row: f.row, request: f.request}
		}
		f.row.Help = strings.ToValidUTF8(string(mt.description), "�")
	}
	return f
}

func newFamily(t *Translator, mt *metric) *family {
	if !utf8.Valid(mt.name) || !utf8.Valid(mt.unit) {
		return &family{err: fault.Errorf(fault.Invalid, "metric with a name or a unit that is not UTF-8")}
	}
	if len(mt.name) == 0 {
		return &family{err: fault.Errorf(fault.Invalid, "metric without a name")}
	}
	if len(mt.name)+len(mt.unit) > point.LabelValueMax {
		return &family{err: fault.Errorf(fault.Invalid, "metric with a name and unit of %d bytes, at most %d are taken", len(mt.name)+len(mt.unit), point.LabelValueMax)}
	}
	name, err := t.metrics.Build(otlptranslator.Metric{Name: string(mt.name), Unit: string(mt.unit), Type: mt.translatorType()})
	if err != nil {
		return &family{err: fault.Wrap(err, fault.Invalid, "metric")}
	}
	return &family{
		name: []byte(name), bucket: []byte(name + "_bucket"), sum: []byte(name + "_sum"), count: []byte(name + "_count"),
		row: point.MetadataRow{Metric: name, Type: mt.typeName(t), Unit: t.units.Build(string(mt.unit))},
	}
}

func (mt *metric) translatorType() otlptranslator.MetricType {
	switch mt.kind {
	case kindGauge:
		return otlptranslator.MetricTypeGauge
	case kindSum:
		if mt.monotonic {
			return otlptranslator.MetricTypeMonotonicCounter
		}
		return otlptranslator.MetricTypeNonMonotonicCounter
	case kindHistogram:
		return otlptranslator.MetricTypeHistogram
	case kindExponential:
		return otlptranslator.MetricTypeExponentialHistogram
	}
	return otlptranslator.MetricTypeSummary
}

// unknownType reports whether the metric is a delta that is kept as it is: Prometheus has no name for its type.
func (mt *metric) unknownType(t *Translator) bool {
	return mt.delta() && t.settings.Delta == DeltaKeep
}

func (mt *metric) typeName(t *Translator) string {
	switch {
	case mt.unknownType(t):
		return "unknown"
	case mt.kind == kindSum && mt.monotonic:
		return "counter"
	case mt.kind == kindGauge, mt.kind == kindSum:
		return "gauge"
	case mt.kind == kindSummary:
		return "summary"
	}
	return "histogram"
}

// giveMetadata appends the metadata of the metric being read, once a request.
func (d *Decoder) giveMetadata() error {
	f := d.metric.family
	if f.request == d.families.request {
		return nil
	}
	f.request = d.families.request
	if err := d.spend(1); err != nil {
		return err
	}
	row := f.row
	if err := row.Fit(); err != nil {
		d.refuseAt(0, 0, err, func() string { return cutText(escaped(d.metric.name)) })
		return nil
	}
	d.b.Metadata = append(d.b.Metadata, row)
	return nil
}
