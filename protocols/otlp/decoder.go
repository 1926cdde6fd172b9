package otlp

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// RowsMax bounds what one request may hold: data points, the rows they become, exemplars and metadata together.
// Collectors send 8,192 data points a request; without a bound a body of 32 MB could ask for a gigabyte of rows of nothing.
const RowsMax = 1 << 19

// BodyMax bounds a decoded body, so that offsets within it fit 32 bits.
const BodyMax = 1 << 30

// Decoder reads ExportMetricsServiceRequest. Keep it for many requests, by one goroutine at a time. It may be used with
// batches of different Dicts.
type Decoder struct {
	// Deltas adds up delta temporality where the settings ask for it. Nil refuses deltas even then.
	Deltas *Deltas
	// Table is the table that the next Decode reads for. Deltas of two tables are not added up.
	Table string

	t *Translator // constant

	b     *point.Batch // of the Decode that runs
	room  int          // rows this request may still bring
	texts int          // bytes of labels of unknown series that it may still write out
	begun mark         // where the batch stood before the request
	item  int          // the data point being read, from 1
	prev  point.SeriesID
	seen  map[targetSample]struct{} // target_info samples of this request

	families families
	names    labelNames

	res    resource
	scope  scope
	metric metric
	p      dataPoint

	// Scratch memory of one series.
	key    []byte
	arena  []byte // texts of attributes that are no strings
	pairs  []pair
	labels point.LabelsBuilder
	hist   histogramScratch
	deltas []deltaRow // of one data point
}

// NewDecoder makes a decoder.
func NewDecoder(t *Translator) *Decoder {
	return &Decoder{t: t, seen: map[targetSample]struct{}{}}
}

// Decode appends the rows of an unpacked body to b; b's Dict must be set. Data points that cannot be accepted are refused
// in b, each as one row however many it would have become; an item of b is a data point. Errors are for the whole body,
// and then b is as before: Invalid for a body that is no request, TooLarge for one over RowsMax, BodyMax or
// JSONObjectsMax.
//
// Nothing of body is kept. Specification: opentelemetry-proto v1.11.0, metrics/v1/metrics.proto.
func (d *Decoder) Decode(body []byte, f Format, b *point.Batch) error {
	if len(body) > BodyMax {
		return fault.Errorf(fault.TooLarge, "OTLP: body of %d bytes, at most %d are taken", len(body), BodyMax)
	}
	if f == JSON {
		packed, err := fromJSON(body)
		if err != nil {
			return err
		}
		body = packed
	}
	d.b, d.room, d.texts, d.item = b, RowsMax, point.LabelsRequestMax, 0
	d.begun.set(b)
	d.families.begin()
	err := d.request(body)
	if err != nil {
		d.begun.restore(b)
		if fault.KindOf(err) != fault.TooLarge {
			err = fault.Wrap(err, fault.Invalid, "corrupt body at data point %d", d.item+1)
		}
		err = fault.Annotate(err, "OTLP")
	}
	d.forget()
	return err
}

// forget lets go of the body and the batch.
func (d *Decoder) forget() {
	d.b = nil
	if len(d.seen) > seenKept {
		d.seen = map[targetSample]struct{}{}
	}
	clear(d.seen)
	d.res.forget()
	d.scope.forget()
	d.metric = metric{}
	d.hist.forget()
	d.p = dataPoint{attrs: d.p.attrs.emptied(), exemplars: d.p.exemplars.emptied()}
	clear(d.pairs[:cap(d.pairs)])
	d.labels.Reset()
	if cap(d.arena) > scratchKept {
		d.arena = nil
	}
	if cap(d.key) > scratchKept {
		d.key = nil
	}
}

// scratchKept bounds each piece of scratch memory that lives on between requests, in bytes; seenKept the entries of seen.
const (
	scratchKept = 1 << 20
	seenKept    = 1 << 12
)

// mark is the length of a batch at a moment.
type mark struct{ ids, hists, exemplars, metadata, items, refused, refusedRows, refusedExemplars int }

func (m *mark) set(b *point.Batch) {
	m.ids, m.hists, m.exemplars, m.metadata = len(b.IDs), len(b.Hists), len(b.Exemplars), len(b.Metadata)
	m.items, m.refused, m.refusedRows, m.refusedExemplars = len(b.ItemRows), len(b.Refused), b.RefusedRows, b.RefusedExemplars
}

// restore removes everything that was added since the mark.
func (m *mark) restore(b *point.Batch) {
	b.Truncate(m.ids)
	b.Hists, b.Exemplars = b.Hists[:m.hists], b.Exemplars[:m.exemplars]
	b.Metadata, b.ItemRows = b.Metadata[:m.metadata], b.ItemRows[:m.items]
	b.Refused, b.RefusedRows, b.RefusedExemplars = b.Refused[:m.refused], m.refusedRows, m.refusedExemplars
}

// spend uses up room for n rows.
func (d *Decoder) spend(n int) error {
	if d.room -= n; d.room < 0 {
		return fault.Errorf(fault.TooLarge, "more than %d data points, rows, exemplars and metadata in one request", RowsMax)
	}
	return nil
}

var errLabelsRequest = fault.Errorf(fault.TooLarge, "the labels of new series have more than %d bytes when they are written out: send fewer data points at once", point.LabelsRequestMax)

// errTwice refuses repeated messages, which protobuf would merge. No encoder writes it, and merging by copying would
// cost the square of a hostile body.
var errTwice = errors.New("a message that may stand once stands twice")

// once stores the bytes of a message that may occur once: *dst is nil until then.
func once(dst *[]byte, f *wire.Field) (err error) {
	m := f.Bytes(&err)
	if err == nil && *dst != nil {
		err = errTwice
	}
	*dst = m
	return err
}

// each calls read for each field of bytes with this number, and skips the others.
func each(m []byte, num int32, read func([]byte) error) error {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return err
		}
		if f.Num == num {
			data := f.Bytes(&err)
			if err == nil {
				err = read(data)
			}
			if err != nil {
				return err
			}
		}
		i = next
	}
	return nil
}

func (d *Decoder) request(body []byte) error { return each(body, 1, d.resourceMetrics) }

// resourceMetrics reads the resource first, wherever it stands.
func (d *Decoder) resourceMetrics(m []byte) error {
	var res []byte
	if err := each(m, 1, func(r []byte) error { return once(&res, &wire.Field{Type: wire.Bytes, Data: r}) }); err != nil {
		return err
	}
	if err := d.beginResource(res); err != nil {
		return err
	}
	if err := each(m, 2, d.scopeMetrics); err != nil {
		return err
	}
	return d.targetInfo()
}

func (d *Decoder) scopeMetrics(m []byte) error {
	var instrumentation, schema []byte
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 1:
			err = once(&instrumentation, &f)
		case f.Num == 3:
			schema = f.Bytes(&err)
		}
		if err != nil {
			return err
		}
		i = next
	}
	if err := d.beginScope(instrumentation, schema); err != nil {
		return err
	}
	return each(m, 2, d.readMetric)
}

// Kinds of metrics, by their numbers in the message Metric.
const (
	kindGauge       = 5
	kindSum         = 7
	kindHistogram   = 9
	kindExponential = 10
	kindSummary     = 11
)

// Values of AggregationTemporality.
const (
	temporalityDelta      = 1
	temporalityCumulative = 2
)

// metric is the message Metric being read, and its data except the data points.
type metric struct {
	name, description, unit []byte
	kind                    int32
	data                    []byte
	temporality             uint64
	monotonic               bool

	family *family
	// sum is a hash of everything that decides the labels of its series except the data point's attributes.
	sum point.Hash
}

func (d *Decoder) readMetric(m []byte) error {
	d.metric = metric{}
	if err := d.metric.read(m); err != nil {
		return err
	}
	if d.metric.data == nil {
		// No countable data is lost, but a plain 200 would hide that the sender uses another version.
		d.refuseAt(0, 0, errNoData, func() string { return cutText(escaped(d.metric.name)) })
		return nil
	}
	d.metric.family = d.families.find(d.t, &d.metric)
	if err := d.metric.fault(d); err != nil {
		return d.refuseMetric(err)
	}
	d.sumMetric()
	return each(d.metric.data, 1, d.readPoint)
}

func (mt *metric) read(m []byte) error {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 1:
			mt.name = f.Bytes(&err)
		case f.Num == 2:
			mt.description = f.Bytes(&err)
		case f.Num == 3:
			mt.unit = f.Bytes(&err)
		case f.Num == kindGauge, f.Num == kindSum, f.Num >= kindHistogram && f.Num <= kindSummary:
			mt.kind = f.Num
			err = once(&mt.data, &f)
		}
		if err != nil {
			return err
		}
		i = next
	}
	if mt.kind == kindGauge || mt.kind == kindSummary {
		return nil
	}
	return mt.readTemporality()
}

// readTemporality finds the fields beside, and mostly behind, the data points.
func (mt *metric) readTemporality() error {
	m := mt.data
	for i := 0; i < len(m); {
		if _, next, ok := wire.ReadMessage(m, i, 1<<3|wire.Bytes); ok {
			i = next
			continue
		}
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 2:
			mt.temporality = f.Varint(&err)
		case f.Num == 3 && mt.kind == kindSum:
			mt.monotonic = f.Varint(&err) != 0
		}
		if err != nil {
			return err
		}
		i = next
	}
	return nil
}

func (mt *metric) delta() bool { return mt.temporality == temporalityDelta }

// errDelta names the setting that the sender should change.
var errDelta = fault.Errorf(fault.Invalid, "delta temporality is not taken here; let the sender export cumulative values "+
	"(OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative, or the collector's deltatocumulative processor)")

// fault says why no data point of the metric can be accepted, or nil.
func (mt *metric) fault(d *Decoder) error {
	for _, err := range [...]error{mt.family.err, d.res.fault, d.scope.fault} {
		if err != nil {
			return err
		}
	}
	if mt.kind == kindGauge || mt.kind == kindSummary || mt.temporality == temporalityCumulative {
		return nil
	}
	policy := d.t.settings.Delta
	switch {
	case !mt.delta():
		return fault.Errorf(fault.Invalid, "aggregation temporality %d is neither cumulative nor delta", mt.temporality)
	case policy == DeltaRefuse, policy == DeltaConvert && d.Deltas == nil:
		return errDelta
	case policy == DeltaConvert && (mt.kind == kindExponential || mt.kind == kindHistogram && d.t.settings.ConvertHistogramsToNHCB):
		return fault.Errorf(fault.Invalid, "delta temporality of native histograms is not converted; let the sender export cumulative values")
	}
	return nil
}

// refuseMetric refuses all data points of the metric for one reason.
func (d *Decoder) refuseMetric(reason error) error {
	first, n := d.item+1, 0
	err := each(d.metric.data, 1, func([]byte) error {
		n++
		d.item++
		d.b.BeginItem()
		return d.spend(1)
	})
	if err != nil || n == 0 {
		return err
	}
	d.refuseAt(first, n, reason, func() string { return cutText(escaped(d.metric.name)) })
	return nil
}

var errNoData = fault.Errorf(fault.Invalid, "metric without data of a known kind")

// sumMetric hashes all that decides the labels of the metric's series beside their attributes.
func (d *Decoder) sumMetric() {
	mt := &d.metric
	k := append(d.key[:0], domainMetric, byte(mt.kind), boolByte(mt.monotonic))
	k = append(k, d.t.mark[:]...)
	k = appendHash(k, d.res.sum)
	k = appendHash(k, d.scope.sum)
	k = binary.AppendUvarint(k, uint64(len(mt.unit)))
	k = append(k, mt.unit...)
	k = append(k, mt.name...)
	mt.sum = d.b.Dict.Hash(k)
	d.key = k
}

// First bytes of the hashed text. None begins a protobuf message or a line of text, which the other protocols hash in the
// same Dict.
const (
	domainMetric byte = 0xf8 + iota
	domainResource
	domainScope
	domainPoint
	domainRole
	domainTarget
)

func appendHash(b []byte, h point.Hash) []byte {
	b = binary.LittleEndian.AppendUint64(b, h.Lo)
	return binary.LittleEndian.AppendUint64(b, h.Hi)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// span collects fields of one number: where they are adjacent it is a part of the message, else a copy.
type span struct {
	data []byte
	end  int // of data in the message, while it belongs to the message
	own  []byte
}

// add appends the field m[from:to].
func (s *span) add(m []byte, from, to int) {
	switch {
	case s.data == nil:
		s.data, s.end = m[from:to:to], to
	case s.end == from:
		s.data, s.end = m[from-len(s.data):to:to], to
	default:
		if s.end >= 0 {
			s.own = append(s.own[:0], s.data...)
			s.end = -1
		}
		s.own = append(s.own, m[from:to]...)
		s.data = s.own
	}
}

// emptied gives an empty span that keeps the memory of this one.
func (s *span) emptied() span {
	if cap(s.own) > scratchKept {
		return span{}
	}
	return span{own: s.own[:0]}
}

// dataPoint holds the fields that the four kinds of data points share.
type dataPoint struct {
	attrs     span // fields of attributes, tags included
	exemplars span // fields of exemplars, tags included
	exemplar  int32
	time      uint64
	flags     uint64

	parsed bool // pairs holds the attributes
}

func (p *dataPoint) reset() {
	*p = dataPoint{attrs: p.attrs.emptied(), exemplars: p.exemplars.emptied()}
}

// noRecordedValue is the flag of a point that ends its series.
func (p *dataPoint) noRecordedValue() bool { return p.flags&1 != 0 }

var staleNaN = math.Float64frombits(point.StaleNaN)

func (d *Decoder) readPoint(m []byte) (err error) {
	d.item++
	d.b.BeginItem()
	if err := d.spend(1); err != nil {
		return err
	}
	d.p.reset()
	var reason error
	switch d.metric.kind {
	case kindGauge, kindSum:
		reason, err = d.number(m)
	case kindHistogram:
		reason, err = d.histogram(m)
	case kindExponential:
		reason, err = d.exponential(m)
	case kindSummary:
		reason, err = d.summary(m)
	}
	if err != nil {
		return err
	}
	if d.texts < 0 {
		return errLabelsRequest
	}
	if reason != nil {
		d.refuseAt(d.item, 1, reason, d.pointText)
		return nil
	}
	d.res.saw(point.Nanos(d.p.time))
	return d.giveMetadata()
}

// timeFault returns the mistake in the data point's time.
func (p *dataPoint) timeFault() error {
	switch {
	case p.time == 0:
		return errNoTime
	case p.time > math.MaxInt64:
		return fault.Errorf(fault.Invalid, "timestamp %d ns is out of range", p.time)
	}
	return nil
}

var (
	errNoTime  = fault.Errorf(fault.Invalid, "no timestamp")
	errNoValue = fault.Errorf(fault.Invalid, "neither an integer nor a double value")
)

// number reads a NumberDataPoint. reason is a mistake in the point, err a mistake in the message.
func (d *Decoder) number(m []byte) (reason, err error) {
	p := &d.p
	p.exemplar = 5
	var value float64
	valued := false
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return nil, err
		}
		switch f.Num {
		case 3:
			p.time = f.Expect(wire.Fixed64, &err)
		case 4:
			value, valued = f.Double(&err), true
		case 5:
			f.Bytes(&err)
			p.exemplars.add(m, i, next)
		case 6:
			value, valued = float64(int64(f.Expect(wire.Fixed64, &err))), true
		case 7:
			f.Bytes(&err)
			p.attrs.add(m, i, next)
		case 8:
			p.flags = f.Varint(&err)
		}
		if err != nil {
			return nil, err
		}
		i = next
	}
	if reason := p.timeFault(); reason != nil {
		return reason, nil
	}
	if p.noRecordedValue() {
		value = staleNaN
	} else if !valued {
		return errNoValue, nil
	}
	id, reason := d.seriesOfPoint(d.metric.family.name)
	if reason != nil {
		return reason, nil
	}
	before := len(d.b.IDs)
	d.b.Append(id, point.Nanos(p.time), value)
	if reason = d.convert(before); reason != nil {
		return reason, nil
	}
	return nil, d.readExemplars(func(float64) point.SeriesID { return id })
}

// convert adds up the rows of a data point, which begin at before, where its metric is a delta that is to be converted. With a reason they are
// removed.
func (d *Decoder) convert(before int) (reason error) {
	if !d.metric.delta() || d.t.settings.Delta != DeltaConvert || d.p.noRecordedValue() {
		return nil
	}
	ids, values := d.b.IDs[before:], d.b.Values[before:]
	rows := d.deltas[:0]
	for i, id := range ids {
		rows = append(rows, deltaRow{deltaSeries{d.b.Dict.Replica(id), d.b.Dict.Labels(id)}, values[i]})
	}
	if reason = d.Deltas.add(d.Table, point.Nanos(d.p.time), rows); reason != nil {
		d.b.Truncate(before)
	} else {
		for i := range rows {
			values[i] = rows[i].v
		}
	}
	clear(rows) // their labels are a Dict's
	d.deltas = rows
	return reason
}

// seriesOfPoint finds the number of the one series that a data point has.
func (d *Decoder) seriesOfPoint(name []byte) (point.SeriesID, error) {
	k := appendHash(append(d.key[:0], domainPoint), d.metric.sum)
	d.key = append(k, d.p.attrs.data...)
	return d.identify(d.b.Dict.Hash(d.key), name, nil, nil)
}

// role says to which series of several a data point belongs.
type role byte

const (
	roleSum role = iota
	roleCount
	roleBucket
	roleQuantile
)

// beginSeries hashes the attributes once for all series of a data point.
func (d *Decoder) beginSeries() point.Hash {
	k := appendHash(append(d.key[:0], domainPoint), d.metric.sum)
	d.key = append(k, d.p.attrs.data...)
	return d.b.Dict.Hash(d.key)
}

// seriesOfRole finds the number of one of several series. number is the bound or the quantile, which becomes the label
// named extra.
func (d *Decoder) seriesOfRole(base point.Hash, r role, name []byte, extra []byte, number float64) (point.SeriesID, error) {
	k := appendHash(append(d.key[:0], domainRole, byte(r)), base)
	d.key = binary.LittleEndian.AppendUint64(k, math.Float64bits(number))
	h := d.b.Dict.Hash(d.key)
	if id, ok := d.b.Dict.LookupAfter(d.prev, h); ok {
		d.prev = id
		return id, nil
	}
	var value []byte
	if extra != nil {
		value = appendBound(make([]byte, 0, 24), number)
	}
	return d.identify(h, name, extra, value)
}

// identify finds the number of the series with this hash; for an unknown hash, by its labels.
func (d *Decoder) identify(h point.Hash, name, extra, value []byte) (point.SeriesID, error) {
	id, ok := d.b.Dict.LookupAfter(d.prev, h)
	if !ok {
		labels, err := d.makeLabels(name, extra, value)
		if err != nil {
			return 0, err
		}
		if id, err = d.b.Dict.Intern(h, labels); err != nil {
			return 0, err
		}
	}
	d.prev = id
	return id, nil
}
