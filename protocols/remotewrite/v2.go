package remotewrite

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// DecoderV2 reads io.prometheus.write.v2.Request. The zero DecoderV2 is ready; keep it for many requests, by one
// goroutine at a time. It may be used with batches of different Dicts.
type DecoderV2 struct {
	common
	symbols   symbols
	scattered []byte   // label references of a series that does not keep them together, packed
	refs      []uint32 // label references being parsed
	families  families
	described []metadataMessage // by name symbol: the metadata this request gave for it

	metadataRoom  int // bytes of metadata that this request may still bring
	labelsRoom    int // bytes of labels of unknown series that it may still write out
	exemplarsRoom int // bytes of labels of exemplars that it may still bring

	// The series being read, beside the fields of common.
	samples, histograms, exemplars int
	created                        int64 // milliseconds, of the series, from before samples had start timestamps of their own
	meta                           metadataMessage
}

var errLabelsRequest = fault.Errorf(fault.TooLarge, "the labels of new series have more than %d bytes when they are written out: send fewer series at once", point.LabelsRequestMax)

// metadataMessage is the message Metadata.
type metadataMessage struct {
	kind       int32
	help, unit uint32 // symbols
}

// Tags of Request and TimeSeries as one byte.
const (
	tagSeriesV2 = 5<<3 | wire.Bytes
	tagRefs     = 1<<3 | wire.Bytes
	tagMetadata = 5<<3 | wire.Bytes
)

// Decode appends the rows of a decompressed request to b, as DecoderV1.Decode does; the same errors and lifetimes. A
// body with a first symbol other than the empty string is Invalid as a whole; a reference to a missing symbol
// refuses its series or its exemplar.
//
// Specification: https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/ and
// prompb/io/prometheus/write/v2/types.proto, v2.0-rc.4.
func (d *DecoderV2) Decode(body []byte, b *point.Batch) error {
	if err := d.begin(V2, body, b); err != nil {
		return err
	}
	d.symbols.reset(body)
	d.families.begin()
	d.described, d.metadataRoom, d.labelsRoom = d.described[:0], point.MetadataRequestMax, point.LabelsRequestMax
	d.exemplarsRoom = point.ExemplarsRequestMax
	err := d.request(body)
	d.symbols.body = nil
	return d.end(err)
}

// request walks over the body twice, because symbols may follow the series that refer to them.
func (d *DecoderV2) request(body []byte) error {
	first, err := d.readSymbols(body)
	if err != nil || first < 0 {
		return err
	}
	for i := first; i < len(body); {
		if m, next, ok := wire.ReadMessage(body, i, tagSeriesV2); ok {
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
		if f.Num == 5 {
			if err := d.series(f.Data, -1); err != nil {
				return err
			}
		}
		i = next
	}
	return nil
}

// readSymbols fills the table and checks the wire of the outermost message; first is where the first series stands, or
// -1.
func (d *DecoderV2) readSymbols(body []byte) (first int, err error) {
	first = -1
	for i := 0; i < len(body); {
		if _, next, ok := wire.ReadMessage(body, i, tagSeriesV2); ok {
			if first < 0 {
				first = i
			}
			i = next
			continue
		}
		f, next, err := wire.Read(body, i)
		if err != nil {
			return 0, err
		}
		switch f.Num {
		case 1, 2, 3:
			// Reserved in 2.0, but a 1.0 request consists of it. Skipping it would acknowledge data that was not stored.
			err = errors.New("this is a 1.0 message: its content type must say proto=prometheus.WriteRequest, or nothing")
		case 4:
			symbol := f.Bytes(&err)
			if err == nil {
				err = d.symbols.add(d.b.Dict, symbol, next)
			}
		case 5:
			f.Bytes(&err)
			if first < 0 {
				first = i
			}
		}
		if err != nil {
			return 0, err
		}
		i = next
	}
	if d.symbols.len() > 0 && len(d.symbols.at(0)) > 0 || first >= 0 && d.symbols.len() == 0 {
		return 0, errors.New("the first symbol must be the empty string")
	}
	return first, nil
}

// lookAhead looks up the series at body[i] and those behind it, up to one with bad references.
func (d *DecoderV2) lookAhead(body []byte, i int) {
	d.ahead.begin()
	for range aheadSeries {
		m, next, ok := wire.ReadMessage(body, i, tagSeriesV2)
		if !ok {
			break
		}
		packed, rest, _ := wire.ReadMessage(m, 0, tagRefs)
		h, ok := d.symbols.hashRefs(packed)
		if !ok {
			break
		}
		from := next - len(m) + rest
		d.ahead.add(place{i, from - len(packed), from, next}, h)
		i = next
	}
	d.ahead.number(d.b.Dict, func(dst []byte, p place) ([]byte, bool) {
		if p.labels == p.rest || hasLabel(body[p.rest:p.end]) {
			return dst, false
		}
		if d.labelsRoom < 0 {
			return dst, false // the series is refused, and the request with it, when it is read
		}
		out, ok := d.ahead.canonical.labels(dst, body[p.labels:p.rest], d.symbols.plainLabel)
		d.labelsRoom -= len(out) - len(dst)
		return out, ok
	})
}

// series reads one TimeSeries, at that place of the body (-1: an unusual one). Senders write all references first, packed
// into one field.
func (d *DecoderV2) series(m []byte, at int) error {
	if err := d.beginSeries(); err != nil {
		return err
	}
	packed, next, _ := wire.ReadMessage(m, 0, tagRefs)
	var id point.SeriesID
	var ok bool
	if d.hash, id, ok = d.ahead.take(at); !ok {
		id = d.findRefs(packed)
	}
	err := d.seriesOf(id, packed, m[next:], false)
	if err == errScattered {
		d.rewind()
		if err = d.gather(m); err == nil {
			err = d.seriesOf(d.findRefs(d.scattered), d.scattered, m, true)
		}
	}
	return err
}

// gather packs the label references of a TimeSeries, wherever and however they are written.
func (d *DecoderV2) gather(m []byte) error {
	d.scattered = d.scattered[:0]
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		if f.Num == 1 {
			err = f.EachVarint(func(u uint64) { d.scattered = binary.AppendUvarint(d.scattered, uint64(uint32(u))) })
			if err != nil {
				return err
			}
		}
		i = next
	}
	return nil
}

// seriesOf reads a series with its references in packed and its other fields in rest; id is its number, or NoSeries.
// Unless references in rest are to be skipped, it stops with errScattered at the first.
func (d *DecoderV2) seriesOf(id point.SeriesID, packed, rest []byte, skipRefs bool) error {
	d.samples, d.histograms, d.exemplars, d.created, d.meta = 0, 0, 0, 0, metadataMessage{}
	var refusal, err error
	if id == point.NoSeries {
		if id, refusal, err = d.identify(packed, rest, skipRefs); err != nil {
			return err
		}
	}
	d.id, d.prev, d.accept = id, id, refusal == nil
	if err := d.rows(rest, skipRefs); err != nil {
		return err
	}
	if refusal == nil {
		refusal = d.seriesFault()
	}
	if refusal != nil {
		room := d.room
		d.rewind()
		d.room = room // the part read is charged
		d.refuse(d.samples+d.histograms, refusal, func() string { return d.textOf(packed) })
		return nil
	}
	d.giveMetadata(packed)
	return nil
}

// findRefs looks up the series with the references in packed: its number, or NoSeries.
func (d *DecoderV2) findRefs(packed []byte) point.SeriesID {
	var ok bool
	if d.hash, ok = d.symbols.hashRefs(packed); !ok {
		return point.NoSeries
	}
	return d.find()
}

// identify gives a new series its number. refusal is a mistake in its labels, err a mistake in the message.
func (d *DecoderV2) identify(packed, rest []byte, skipRefs bool) (id point.SeriesID, refusal, err error) {
	if !skipRefs && hasLabel(rest) {
		return 0, errScattered, errScattered // before half of the labels become a series
	}
	if len(packed) == 0 {
		return 0, errNoLabels, nil
	}
	var ok bool
	d.canonical.reset()
	if d.text, ok = d.canonical.labels(d.text[:0], packed, d.symbols.plainLabel); ok {
		if d.labelsRoom -= len(d.text); d.labelsRoom < 0 {
			return 0, nil, errLabelsRequest
		}
		id, refusal = d.b.Dict.InternBytes(d.hash, d.text)
		return id, refusal, nil
	}
	if err := d.parseRefs(packed); err != nil {
		return 0, nil, err
	}
	for _, ref := range d.refs {
		if d.symbols.has(ref) {
			d.labelsRoom -= len(d.symbols.at(ref))
		}
	}
	if d.labelsRoom < 0 {
		return 0, nil, errLabelsRequest
	}
	if refusal := d.addRefs(); refusal != nil {
		return 0, refusal, nil
	}
	id, refusal = d.internBuilt(d.hash)
	return id, refusal, nil
}

// parseRefs unpacks references into d.refs.
func (d *DecoderV2) parseRefs(packed []byte) error {
	d.refs = d.refs[:0]
	f := wire.Field{Type: wire.Bytes, Data: packed}
	return f.EachVarint(d.addRef)
}

// addRef keeps a reference, and one beyond the most that any series may have.
func (d *DecoderV2) addRef(u uint64) {
	if len(d.refs) <= 2*point.LabelsMax {
		d.refs = append(d.refs, uint32(u))
	}
}

// addRefs puts the labels that d.refs names into the builder. Errors are Invalid.
func (d *DecoderV2) addRefs() error {
	d.labels.Reset()
	if err := d.symbols.refsFault(d.refs); err != nil {
		return err
	}
	for i := 0; i < len(d.refs); i += 2 {
		if err := d.addLabel(d.symbols.at(d.refs[i]), d.symbols.at(d.refs[i+1]), i/2); err != nil {
			return err
		}
	}
	return nil
}

// seriesFault says why a series with good labels cannot be accepted, or nil. One with nothing but exemplars is against the
// specification, but is how Prometheus sends every exemplar.
func (d *DecoderV2) seriesFault() error {
	switch {
	case d.samples == 0 && d.histograms == 0 && d.exemplars == 0:
		return fault.Errorf(fault.Invalid, "neither a sample nor a histogram nor an exemplar")
	case d.samples > 0 && d.histograms > 0:
		return fault.Errorf(fault.Invalid, "%d samples and %d histograms in one time series; it may hold one kind", d.samples, d.histograms)
	case !d.symbols.has(d.meta.help) || !d.symbols.has(d.meta.unit):
		return fault.Errorf(fault.Invalid, "metadata refers to symbols %d and %d of a table of %d", d.meta.help, d.meta.unit, d.symbols.len())
	case !millisFit(d.created):
		return fault.Errorf(fault.Invalid, "created timestamp %d ms is out of range", d.created)
	}
	return nil
}

// rows reads the fields of a TimeSeries that are not labels.
func (d *DecoderV2) rows(m []byte, skipRefs bool) error {
	for i := 0; i < len(m); {
		// A sample has at most 32 bytes in any sane spelling: one byte of length.
		if m[i] == tagSample && len(m)-i > 1 && int(m[i+1]) <= min(0x7f, len(m)-i-2) {
			end := i + 2 + int(m[i+1])
			if err := d.sample(m[i+2 : end]); err != nil {
				return err
			}
			i = end
			continue
		}
		if sub, next, ok := wire.ReadMessage(m, i, tagMetadata); ok {
			if err := d.meta.read(sub); err != nil {
				return err
			}
			i = next
			continue
		}
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		if f.Num == 1 && !skipRefs {
			return errScattered
		}
		if err := d.row(&f); err != nil {
			return err
		}
		i = next
	}
	return nil
}

func (d *DecoderV2) row(f *wire.Field) (err error) {
	if f.Num == 6 && f.Type == wire.Varint {
		d.created = int64(f.Bits)
	}
	if f.Num < 2 || f.Num > 5 {
		return nil
	}
	m := f.Bytes(&err)
	if err != nil {
		return err
	}
	switch f.Num {
	case 2:
		return d.sample(m)
	case 3:
		return d.histogram(m)
	case 4:
		return d.exemplar(m)
	}
	return d.meta.read(m)
}

func (d *DecoderV2) sample(m []byte) error {
	if err := d.spend(); err != nil {
		return err
	}
	d.samples++
	if v, ms, ok := plainSample(m); ok && d.accept {
		d.b.Append(d.id, nanos(ms), v)
		return nil
	}
	s, err := readSample(m, V2)
	if err != nil {
		return err
	}
	if !millisFit(s.start) && d.accept {
		d.refuseTime(s.start, "start of a sample")
		return nil
	}
	d.addSample(&s)
	return nil
}

func (d *DecoderV2) histogram(m []byte) error {
	err := d.hist.read(m, V2)
	if err == nil {
		err = d.spend()
	}
	if err != nil {
		return err
	}
	d.histograms++
	if !millisFit(d.hist.start) && d.accept {
		d.refuseTime(d.hist.start, "start of a histogram")
		return nil
	}
	d.addHistogram()
	return nil
}

func (d *DecoderV2) exemplar(m []byte) error {
	if err := d.spend(); err != nil {
		return err
	}
	d.exemplars++
	d.refs = d.refs[:0]
	var e exemplar
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		switch f.Num {
		case 1:
			err = f.EachVarint(d.addRef)
		default:
			err = e.field(&f)
		}
		if err != nil {
			return err
		}
		i = next
	}
	if d.accept {
		d.addExemplar(e, d.exemplarLabels())
	}
	return nil
}

// exemplarLabels puts the labels that d.refs names into the builder, unless they are more than an exemplar may have, or than is left
// for those of the request: so nothing is written out that will not be kept. Errors are Invalid.
func (d *DecoderV2) exemplarLabels() error {
	if err := d.symbols.refsFault(d.refs); err != nil {
		return err
	}
	n := 0
	for i := 0; i < len(d.refs); i += 2 {
		if value := d.symbols.at(d.refs[i+1]); len(value) > 0 { // without a value it is no label
			n += len(d.symbols.at(d.refs[i])) + len(value)
		}
	}
	switch {
	case n > point.ExemplarLabelsMax:
		return fault.Errorf(fault.Invalid, "labels of %d bytes, of an exemplar at most %d are taken", n, point.ExemplarLabelsMax)
	case n > d.exemplarsRoom:
		return errExemplars
	}
	d.exemplarsRoom -= n
	return d.addRefs()
}

var errExemplars = fault.Errorf(fault.Invalid, "the exemplars of one request have labels of more than %d bytes: send fewer at once", point.ExemplarsRequestMax)

// read decodes the message; repeated messages of one series are merged, as protobuf has it.
func (md *metadataMessage) read(m []byte) error {
	if md.readShort(m) {
		return nil
	}
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		switch f.Num {
		case 1:
			md.kind = int32(f.Varint(&err))
		case 3:
			md.help = uint32(f.Varint(&err))
		case 4:
			md.unit = uint32(f.Varint(&err))
		}
		if err != nil {
			return err
		}
		i = next
	}
	return nil
}

// readShort reads a message of nothing but the three fields, with values of at most two bytes. If it is another
// message, the part read will be read again.
func (md *metadataMessage) readShort(m []byte) bool {
	for i := 0; i < len(m); {
		v, next := shortRef(m, i+1)
		if v == badRef {
			return false
		}
		switch m[i] {
		case 1<<3 | wire.Varint:
			md.kind = int32(v)
		case 3<<3 | wire.Varint:
			md.help = uint32(v)
		case 4<<3 | wire.Varint:
			md.unit = uint32(v)
		default:
			return false
		}
		i = next
	}
	return true
}

// giveMetadata appends the metadata of the series just read, unless the request gave the same for its family before.
func (d *DecoderV2) giveMetadata(packed []byte) {
	if d.meta == (metadataMessage{}) {
		return
	}
	name, ok := d.nameOf(packed)
	if !ok || d.sentAlready(name) {
		return
	}
	family := familyOf(d.symbols.at(name), d.meta.kind)
	m := mixBegin()
	m.pair(d.b.Dict.Hash(family), d.symbols.hashes[d.meta.help])
	m.pair(point.Hash{Lo: uint64(d.meta.kind)}, d.symbols.hashes[d.meta.unit])
	h := m.sum()
	row, first := d.families.first(h)
	if !first {
		return
	}
	if row == nil {
		if d.metadataRoom < 0 {
			d.refuse(0, errMetadata, d.knownText)
			return
		}
		row = d.metadataRow(family)
		d.families.add(h, *row)
		d.metadataRoom -= row.Bytes()
	}
	if row.Metric == "" {
		d.refuse(0, fault.Errorf(fault.Invalid, "metadata that is not UTF-8, or with a name and a unit of more than %d bytes", point.MetadataBytesMax), d.knownText)
		return
	}
	d.b.Metadata = append(d.b.Metadata, *row)
}

var errMetadata = fault.Errorf(fault.Invalid, "metadata of more than %d bytes in one request", point.MetadataRequestMax)

// metadataRow copies the metadata of the series just read; without a name if it is no text, or too long.
func (d *DecoderV2) metadataRow(family []byte) *point.MetadataRow {
	help, unit := d.symbols.at(d.meta.help), d.symbols.at(d.meta.unit)
	if !utf8.Valid(help) || !utf8.Valid(unit) {
		return &point.MetadataRow{}
	}
	row := &point.MetadataRow{Metric: string(family), Type: metricType(d.meta.kind), Help: string(help), Unit: string(unit)}
	if row.Fit() != nil {
		return &point.MetadataRow{}
	}
	return row
}

// nameOf finds the symbol of the series' metric name; it stands first in nearly every series. An empty one is none.
func (d *DecoderV2) nameOf(packed []byte) (name uint32, ok bool) {
	if name, ok := d.symbols.plainName(packed); ok {
		return name, true
	}
	for i := 0; i < len(packed); {
		key, next, err := wire.Uvarint(packed, i)
		if err != nil {
			return 0, false
		}
		value, next, err := wire.Uvarint(packed, next)
		if err != nil {
			return 0, false
		}
		if ref := uint32(value); d.symbols.isMetricName(uint32(key)) && d.symbols.has(ref) && len(d.symbols.at(ref)) > 0 {
			return ref, true
		}
		i = next
	}
	return 0, false
}

// sentAlready remembers the metadata of a name within the request, and reports whether it is the same as last time.
func (d *DecoderV2) sentAlready(name uint32) bool {
	if len(d.described) == 0 {
		if cap(d.described) < d.symbols.len() || cap(d.described) > symbolsKept {
			d.described = make([]metadataMessage, d.symbols.len())
		} else {
			d.described = d.described[:d.symbols.len()]
			clear(d.described)
		}
	}
	if d.described[name] == d.meta {
		return true
	}
	d.described[name] = d.meta
	return false
}

func (d *DecoderV2) textOf(packed []byte) string {
	var t pairText
	show := func(ref uint64) []byte {
		if !d.symbols.has(uint32(ref)) {
			return []byte("?")
		}
		return d.symbols.at(uint32(ref))
	}
	for i := 0; i < len(packed) && !t.cut; {
		name, next, err := wire.Uvarint(packed, i)
		if err != nil {
			break
		}
		value, next, err := wire.Uvarint(packed, next)
		if err != nil {
			break
		}
		t.add(show(name), show(value))
		i = next
	}
	return t.String()
}
