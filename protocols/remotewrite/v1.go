package remotewrite

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// DecoderV1 reads prometheus.WriteRequest. The zero DecoderV1 is ready; keep it for many requests, by one goroutine at a
// time. It may be used with batches of different Dicts.
type DecoderV1 struct {
	common
	scattered []byte // label fields of a series that does not keep them together
}

// Tags of WriteRequest and TimeSeries as one byte.
const (
	tagSeriesV1 = 1<<3 | wire.Bytes
	tagLabel    = 1<<3 | wire.Bytes
)

// Decode appends the rows of a decompressed request to b. Series, samples, histograms, exemplars and metadata that
// cannot be accepted are in b.Refused with the index of their series; their siblings are accepted. An error means that the
// body as a whole was refused, and then b is as it was before: Invalid if it is not the protobuf it should be,
// TooLarge if it holds more than RowsMax rows. Nothing of body is kept.
//
// Specification: https://prometheus.io/docs/specs/prw/remote_write_spec/ and prompb/remote.proto.
func (d *DecoderV1) Decode(body []byte, b *point.Batch) error {
	if err := d.begin(V1, body, b); err != nil {
		return err
	}
	return d.end(d.request(body))
}

func (d *DecoderV1) request(body []byte) error {
	for i := 0; i < len(body); {
		if m, next, ok := wire.ReadMessage(body, i, tagSeriesV1); ok {
			if d.ahead.due() {
				d.lookAhead(body, i)
			}
			if err := d.series(m, i); err != nil {
				return err
			}
			i = next
			continue
		}
		f, next, err := wire.Read(body, i)
		if err != nil {
			return err
		}
		i = next
		switch f.Num {
		case 1:
			m := f.Bytes(&err)
			if err == nil {
				err = d.series(m, -1)
			}
		case 3:
			m := f.Bytes(&err)
			if err == nil {
				err = d.metadata(m)
			}
		case 4, 5:
			// Not defined in 1.0, but a 2.0 request consists of it. Skipping it would acknowledge data that was not stored.
			err = errors.New("this is a 2.0 message: its content type must say proto=io.prometheus.write.v2.Request")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookAhead looks up the series at body[i] and those behind it.
func (d *DecoderV1) lookAhead(body []byte, i int) {
	d.ahead.begin()
	for range aheadSeries {
		m, next, ok := wire.ReadMessage(body, i, tagSeriesV1)
		if !ok {
			break
		}
		labels := next - len(m)
		rest := labels + labelSpan(m)
		d.ahead.add(place{i, labels, rest, next}, d.b.Dict.Hash(body[labels:rest]))
		i = next
	}
	d.ahead.number(d.b.Dict, func(dst []byte, p place) ([]byte, bool) {
		if p.labels == p.rest || hasLabel(body[p.rest:p.end]) {
			return dst, false
		}
		return d.ahead.canonical.labels(dst, body[p.labels:p.rest], plainLabel)
	})
}

// series reads one TimeSeries, at that place of the body (-1: an unusual one). Senders write all labels first; then their
// bytes are hashed where they lie.
func (d *DecoderV1) series(m []byte, at int) error {
	if err := d.beginSeries(); err != nil {
		return err
	}
	span := labelSpan(m)
	var id point.SeriesID
	var ok bool
	if d.hash, id, ok = d.ahead.take(at); !ok {
		d.hash = d.b.Dict.Hash(m[:span])
		id = d.find()
	}
	err := d.seriesOf(id, m[:span], m[span:], false)
	if err == errScattered {
		d.rewind()
		if err = d.gather(m); err == nil {
			d.hash = d.b.Dict.Hash(d.scattered)
			err = d.seriesOf(d.find(), d.scattered, m, true)
		}
	}
	return err
}

// labelSpan measures the label fields at the beginning of a TimeSeries: one byte of tag, one or two of length each.
func labelSpan(m []byte) int {
	i := 0
	for len(m)-i > 2 && m[i] == tagLabel {
		n, head := int(m[i+1]), 2
		if n >= 0x80 {
			if m[i+2] >= 0x80 {
				break // a label of 16 KiB; gather reads it
			}
			n, head = n&0x7f|int(m[i+2])<<7, 3
		}
		if n > len(m)-i-head {
			break
		}
		i += head + n
	}
	return i
}

// gather collects the label fields of a TimeSeries from wherever they are, in the spelling of adjacent ones, so that
// both have one hash.
func (d *DecoderV1) gather(m []byte) error {
	d.scattered = d.scattered[:0]
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		if f.Num == 1 {
			label := f.Bytes(&err)
			if err != nil {
				return err
			}
			d.scattered = append(d.scattered, tagLabel)
			d.scattered = binary.AppendUvarint(d.scattered, uint64(len(label)))
			d.scattered = append(d.scattered, label...)
		}
		i = next
	}
	return nil
}

// seriesOf reads a series with its label fields in raw and its other fields in rest; id is its number, or NoSeries.
// Unless labels in rest are to be skipped, it stops with errScattered at the first.
func (d *DecoderV1) seriesOf(id point.SeriesID, raw, rest []byte, skipLabels bool) error {
	d.accept, d.refused = true, 0
	var refusal error
	if id == point.NoSeries {
		if !skipLabels && hasLabel(rest) {
			return errScattered // before half of the labels become a series
		}
		var err error
		id, refusal, err = d.intern(raw, d.hash)
		if err != nil {
			return err
		}
		d.accept = refusal == nil
	}
	d.id, d.prev = id, id
	if err := d.rows(rest, skipLabels); err != nil {
		return err
	}
	if refusal != nil {
		d.refuse(d.refused, refusal, func() string { return textOfLabels(raw) })
	}
	return nil
}

// rows reads the fields of a TimeSeries that are not labels.
func (d *DecoderV1) rows(m []byte, skipLabels bool) error {
	for i := 0; i < len(m); {
		// A sample has at most 21 bytes in any sane spelling: one byte of length.
		if m[i] == tagSample && len(m)-i > 1 && int(m[i+1]) <= min(0x7f, len(m)-i-2) {
			end := i + 2 + int(m[i+1])
			if err := d.sample(m[i+2 : end]); err != nil {
				return err
			}
			i = end
			continue
		}
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		if f.Num == 1 && !skipLabels {
			return errScattered
		}
		if err := d.row(&f); err != nil {
			return err
		}
		i = next
	}
	return nil
}

func (d *DecoderV1) sample(m []byte) error {
	if err := d.spend(); err != nil {
		return err
	}
	if v, ms, ok := plainSample(m); ok && d.accept {
		d.b.Append(d.id, nanos(ms), v)
		return nil
	}
	s, err := readSample(m, V1)
	if err != nil {
		return err
	}
	d.addSample(&s)
	return nil
}

func (d *DecoderV1) row(f *wire.Field) (err error) {
	if f.Num < 1 || f.Num > 4 {
		return nil
	}
	m := f.Bytes(&err)
	if err != nil || f.Num == 1 {
		return err
	}
	if f.Num == 2 {
		return d.sample(m)
	}
	if err := d.spend(); err != nil {
		return err
	}
	switch f.Num {
	case 3:
		err = d.exemplar(m)
	case 4:
		if err = d.hist.read(m, V1); err == nil {
			d.addHistogram()
		}
	}
	return err
}

// intern parses new labels and gives them a number. refusal is a mistake in them, err a mistake in the message.
func (d *DecoderV1) intern(raw []byte, h point.Hash) (id point.SeriesID, refusal, err error) {
	if len(raw) == 0 {
		return 0, errNoLabels, nil
	}
	var ok bool
	d.canonical.reset()
	if d.text, ok = d.canonical.labels(d.text[:0], raw, plainLabel); ok {
		id, refusal = d.b.Dict.InternBytes(h, d.text)
		return id, refusal, nil
	}
	d.labels.Reset()
	if refusal, err = d.addLabels(raw); refusal != nil || err != nil {
		return 0, refusal, err
	}
	id, refusal = d.internBuilt(h)
	return id, refusal, nil
}

// addLabels adds the labels of consecutive label fields to the builder. It reads them all even when it has refused one:
// a broken message is worse than a bad label.
func (d *DecoderV1) addLabels(raw []byte) (refusal, err error) {
	n := 0
	for i := 0; i < len(raw); n++ {
		f, next, err := wire.Read(raw, i)
		if err != nil {
			return nil, err
		}
		name, value, err := readLabel(f.Data)
		if err != nil {
			return nil, err
		}
		i = next
		if refusal == nil {
			refusal = d.addLabel(name, value, n)
		}
	}
	return refusal, nil
}

func readLabel(m []byte) (name, value []byte, err error) {
	for i := 0; i < len(m) && err == nil; {
		var f wire.Field
		if f, i, err = wire.Read(m, i); err != nil {
			break
		}
		switch f.Num {
		case 1:
			name = f.Bytes(&err)
		case 2:
			value = f.Bytes(&err)
		}
	}
	return name, value, err
}

func textOfLabels(raw []byte) string {
	var t pairText
	for i := 0; i < len(raw) && !t.cut; {
		f, next, err := wire.Read(raw, i)
		if err != nil {
			break
		}
		name, value, _ := readLabel(f.Data)
		t.add(name, value)
		i = next
	}
	return t.String()
}

func (d *DecoderV1) exemplar(m []byte) error {
	d.labels.Reset()
	var e exemplar
	var refusal error
	n := 0
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		switch f.Num {
		case 1:
			var name, value []byte
			if label := f.Bytes(&err); err == nil {
				name, value, err = readLabel(label)
			}
			if err == nil && refusal == nil {
				refusal = d.addLabel(name, value, n)
			}
			n++
		default:
			err = e.field(&f)
		}
		if err != nil {
			return err
		}
		i = next
	}
	d.addExemplar(e, refusal)
	return nil
}

// metadata reads a MetricMetadata, which belongs to no series of the request.
func (d *DecoderV1) metadata(m []byte) error {
	if err := d.spend(); err != nil {
		return err
	}
	var kind int32
	var name, help, unit []byte
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		switch f.Num {
		case 1:
			kind = int32(f.Varint(&err))
		case 2:
			name = f.Bytes(&err)
		case 4:
			help = f.Bytes(&err)
		case 5:
			unit = f.Bytes(&err)
		}
		if err != nil {
			return err
		}
		i = next
	}
	if reason := metadataFault(name, help, unit); reason != "" {
		d.b.Refuse(0, point.Refusal{Text: cutText(escaped(name)), Reason: reason, Kind: fault.Invalid})
		return nil
	}
	row := point.MetadataRow{Metric: string(name), Type: metricType(kind), Help: string(help), Unit: string(unit)}
	if err := row.Fit(); err != nil {
		d.b.Refuse(0, point.Refusal{Text: cutText(escaped(name)), Reason: err.Error(), Kind: fault.Invalid})
		return nil
	}
	d.b.Metadata = append(d.b.Metadata, row)
	return nil
}

func metadataFault(name, help, unit []byte) string {
	switch {
	case len(name) == 0:
		return "metadata without the name of a metric family"
	case !utf8.Valid(name) || !utf8.Valid(help) || !utf8.Valid(unit):
		return "metadata that is not UTF-8"
	}
	return ""
}
