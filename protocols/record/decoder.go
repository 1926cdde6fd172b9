package record

import (
	"errors"
	"fmt"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// Settings are the same for all records of a process.
type Settings struct {
	// Separator stands between measurement and field in a metric's name. Default "_".
	Separator string
	// DBLabel is a label that series of line protocol and Telegraf get with their table's name. Default none.
	DBLabel string
	// Strings is the treatment of string fields. Default: dropped and counted.
	Strings lineproto.StringPolicy
	// OTLP holds the settings for OpenTelemetry's metrics. Deltas are refused even under DeltaConvert: a record that is
	// delivered again would be added again.
	OTLP otlp.Settings
	// DecodedBytesMax bounds a value, as it came and unpacked. Default 64 MiB. A larger one is TooLarge.
	DecodedBytesMax int
	// RowsMax bounds the rows of a record of text, and its lines or objects. Those of protobuf have bounds of their own. 0: no bound. A larger
	// one is TooLarge.
	RowsMax int
}

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.Separator == "" {
		s.Separator = lineproto.SeparatorDefault
	}
	if s.DecodedBytesMax == 0 {
		s.DecodedBytesMax = 64 << 20
	}
}

// Validate reports every mistake at once.
func (s Settings) Validate() error {
	var errs []error
	if s.DecodedBytesMax < 0 {
		errs = append(errs, fmt.Errorf("DecodedBytesMax %d is negative", s.DecodedBytesMax))
	}
	if s.RowsMax < 0 {
		errs = append(errs, fmt.Errorf("RowsMax %d is negative", s.RowsMax))
	}
	return errors.Join(append(errs, s.OTLP.Validate())...)
}

// Decoder reads records. It keeps scratch memory for the next; not for concurrent use. Close it in the end.
//
// One call of Decode: value ─ unpacker.buf (or value itself) ─▶ a decoder of the format ─▶ b. The buffer is used again by the next call, so the
// format's decoder copies into the batch what stays: numbers, and labels of new series.
type Decoder struct {
	settings Settings
	unpacker unpacker

	line lineproto.Decoder
	rw1  remotewrite.DecoderV1
	rw2  remotewrite.DecoderV2
	json jsonDecoder
	otlp *otlp.Decoder

	// Owned by the call of Decode under way.
	b  *point.Batch
	at point.Nanos
}

// NewDecoder makes a Decoder. Errors are Invalid (settings) and Internal.
func NewDecoder(s Settings) (*Decoder, error) {
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "record settings")
	}
	s.SetDefaults()
	u, err := newUnpacker(s.DecodedBytesMax)
	if err != nil {
		return nil, err
	}
	t, err := otlp.NewTranslator(s.OTLP)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "record settings")
	}
	return &Decoder{settings: s, unpacker: u, otlp: otlp.NewDecoder(t)}, nil
}

// OnGrowth registers f, which is called before memory is allocated for an unpacked value, with the bytes that the decoder holds then. It may wait. Of more than 4 MiB nothing is kept
// when Decode returns.
func (d *Decoder) OnGrowth(f func(bytes int)) { d.unpacker.grows = f }

// HeldBytes is the memory for unpacked values that is kept for the next.
func (d *Decoder) HeldBytes() int { return cap(d.unpacker.buf) }

// Close gives memory back.
func (d *Decoder) Close() { d.unpacker.zstd.Close() }

// Decode appends the rows of a record's value to b; b's Dict numbers the series. at is the record's own time, for rows
// that have none. Nothing of value is kept. An empty value holds no rows and is no mistake: Kafka's tombstones are.
//
// Rows that cannot be accepted are in b.Refused, with the number of their line, object or series within this record; with
// Options.Atomic no row of the record is then accepted. The error is for the record: Invalid (it cannot be read),
// TooLarge (over a limit; also when unpacked), and b is as it was.
func (d *Decoder) Decode(value []byte, o *Options, at point.Nanos, b *point.Batch) error {
	if len(value) == 0 {
		return nil
	}
	// Where an error or a bad row leads the batch back to.
	m := markOf(b)
	d.b, d.at = b, at
	err := d.decode(value, o)
	d.b = nil
	d.unpacker.shrink()
	if err != nil {
		m.restore(b)
		b.Refused, b.RefusedRows, b.RefusedExemplars = b.Refused[:m.refused], m.refusedRows, m.refusedExemplars
		return err
	}
	// The good rows go, the refusals stay: they are the reason.
	if o.Atomic && b.RefusedRows > m.refusedRows {
		m.restore(b)
	}
	return nil
}

func (d *Decoder) decode(value []byte, o *Options) error {
	// Remote write is the one format that may be a snappy block without saying so (remotewrite.go).
	if o.Format <= RemoteWrite2 && o.Format >= RemoteWrite {
		return d.remoteWrite(value, o)
	}
	packing := o.Packing
	if packing == Detect {
		packing = magic(value)
	}
	body, err := d.unpacker.unpack(value, packing)
	if err != nil {
		return err
	}
	switch o.Format {
	case Line:
		return d.lines(body, o)
	case TelegrafJSON, PrometheusJSON:
		return d.json.decode(d, body, o)
	case OTLP:
		return d.telemetry(body, o)
	}
	return fault.Errorf(fault.Invalid, "records of format %v are not read", o.Format)
}

// lines reads line protocol. Partial: a bad line is refused alone; Atomic is Decode's.
func (d *Decoder) lines(body []byte, o *Options) error {
	d.line.Settings = lineproto.Settings{
		Precision: linePrecisions[o.Precision], Separator: d.settings.Separator, DBLabel: d.settings.DBLabel,
		DB: o.Table, Strings: d.settings.Strings, Partial: true,
		RowsMax: d.settings.RowsMax,
	}
	return d.line.Decode(body, d.at, d.b)
}

// telemetry reads OTLP in either form: a protobuf request begins with the tag of its only field, JSON with a brace.
func (d *Decoder) telemetry(body []byte, o *Options) error {
	d.otlp.Table = o.Table
	// The first byte of the protobuf form is 0a, which is also a line feed: a scanner passes over space, so the brace behind it decides.
	form := otlp.Protobuf
	if j := (scanner{s: body}); j.next('{') {
		form = otlp.JSON
	}
	return d.otlp.Decode(body, form, d.b)
}

// mark is a batch's lengths at some time, to go back to.
// A batch may have rows of records before this one: they are below the mark, and stay.
type mark struct {
	rows, hists, exemplars, metadata, items, strings int
	refused, refusedRows, refusedExemplars           int
}

func markOf(b *point.Batch) mark {
	return mark{len(b.IDs), len(b.Hists), len(b.Exemplars), len(b.Metadata), len(b.ItemRows), b.StringFields,
		len(b.Refused), b.RefusedRows, b.RefusedExemplars}
}

// restore drops the rows since then; refusals stay.
func (m mark) restore(b *point.Batch) {
	b.Truncate(m.rows)
	// Cleared, so that the batch's spare memory keeps none of them alive.
	clear(b.Hists[m.hists:])
	clear(b.Exemplars[m.exemplars:])
	clear(b.Metadata[m.metadata:])
	b.Hists, b.Exemplars, b.Metadata = b.Hists[:m.hists], b.Exemplars[:m.exemplars], b.Metadata[:m.metadata]
	b.ItemRows, b.StringFields = b.ItemRows[:m.items], m.strings
}
