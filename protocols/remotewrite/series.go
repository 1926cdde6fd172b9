package remotewrite

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// RowsMax bounds what one request may hold: series, samples, histograms, exemplars and metadata together. Senders
// write 2,000 to 10,000 samples a request; without a bound a body of 32 MB could ask for 640 MB of rows of nothing.
const RowsMax = 1 << 19

// BodyMax bounds a decoded body, so that offsets within it fit 32 bits.
const BodyMax = 1 << 30

// Written counts the accepted parts of a request, in the words of the 2.0 response headers.
type Written struct{ Samples, Histograms, Exemplars int }

// common is the part that both decoders share: the batch being filled and the series being read. One goroutine uses it.
type common struct {
	version Version
	b       *point.Batch // of the Decode that runs
	room    int          // rows this request may still bring
	begun   mark         // where the batch stood before the request
	taken   Written      // of the last Decode

	// The series being read.
	item      int  // its index from 1
	start     mark // where the batch stood before it
	startRoom int
	hash      point.Hash // of its labels as written
	id        point.SeriesID
	accept    bool // false: its labels are refused, its rows are only counted
	refused   int  // rows of a series that is not accepted

	prev      point.SeriesID // of the series before, for LookupAfter; a hint that may be wrong
	ahead     ahead          // series that were looked up already
	canonical canonical      // of one new series, into text
	text      []byte
	labels    point.LabelsBuilder
	hist      histogramReader
}

// Taken counts the rows that the last Decode put into the batch.
func (d *common) Taken() Written { return d.taken }

// mark is the length of a batch at a moment.
type mark struct{ ids, hists, exemplars, metadata, items, refused, refusedRows, refusedExemplars int }

// set notes the lengths of b. It writes them one by one where they stay: a mark that is returned and copied costs 20 ns
// a series, because the copy loads in pairs words that were just stored singly.
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

func (d *common) begin(v Version, body []byte, b *point.Batch) error {
	if len(body) > BodyMax {
		return fault.Errorf(fault.TooLarge, "remote write %s: body of %d bytes, at most %d are taken", v, len(body), BodyMax)
	}
	d.version, d.b, d.room, d.item = v, b, RowsMax, 0
	d.begun.set(b)
	d.ahead.reset()
	d.taken = Written{}
	return nil
}

// end counts the accepted rows, or removes them all when the body was bad. It gives err its place and Kind.
func (d *common) end(err error) error {
	d.canonical.reset() // nothing of the body is kept
	d.ahead.canonical.reset()
	if err != nil {
		d.begun.restore(d.b)
		if fault.KindOf(err) == fault.TooLarge {
			return fault.Annotate(err, "remote write %s", d.version)
		}
		return fault.Wrap(err, fault.Invalid, "remote write %s: corrupt body at time series %d", d.version, d.item)
	}
	d.taken = Written{
		Samples:    len(d.b.IDs) - d.begun.ids,
		Histograms: len(d.b.Hists) - d.begun.hists,
		Exemplars:  len(d.b.Exemplars) - d.begun.exemplars,
	}
	d.b = nil
	return nil
}

// spend uses up room for one row.
func (d *common) spend() error {
	if d.room--; d.room < 0 {
		return fault.Errorf(fault.TooLarge, "more than %d series, samples, histograms, exemplars and metadata in one request", RowsMax)
	}
	return nil
}

func (d *common) beginSeries() error {
	d.item++
	d.b.BeginItem()
	d.accept, d.refused = true, 0
	if err := d.spend(); err != nil {
		return err
	}
	d.start.set(d.b)
	d.startRoom = d.room
	return nil
}

// rewind removes the rows read so far of the current series.
func (d *common) rewind() {
	d.start.restore(d.b)
	d.room = d.startRoom
}

// find looks up the series of d.hash: its number, or NoSeries.
func (d *common) find() point.SeriesID {
	if id, ok := d.b.Dict.LookupAfter(d.prev, d.hash); ok {
		d.ahead.unknown = 0
		return id
	}
	d.ahead.unknown++
	return point.NoSeries
}

var errScattered = errors.New("label fields stand apart")

// hasLabel reports whether a field of labels, or of references to them, stands in m. Bytes that it cannot read are
// reported elsewhere.
func hasLabel(m []byte) bool {
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		if err != nil {
			return false
		}
		if f.Num == 1 {
			return true
		}
		i = next
	}
	return false
}

// addLabel adds the n-th label of a set, counted from 0.
func (d *common) addLabel(name, value []byte, n int) error {
	switch {
	case n >= point.LabelsMax:
		return fault.Errorf(fault.Invalid, "more than %d labels", point.LabelsMax)
	case len(name) == 0:
		return fault.Errorf(fault.Invalid, "empty label name with value %s", cutText(escaped(value)))
	}
	d.labels.Add(name, value)
	return nil
}

// internBuilt gives the labels in the builder a number. The error is a mistake in them, or that there is no room.
func (d *common) internBuilt(h point.Hash) (point.SeriesID, error) {
	labels, err := d.labels.Labels()
	if err != nil {
		return 0, err
	}
	return d.b.Dict.Intern(h, labels)
}

// addSample appends a sample of the series being read.
func (d *common) addSample(s *sample) {
	switch {
	case !d.accept:
		d.refused++
	case !millisFit(s.time):
		d.refuseTime(s.time, "sample")
	default:
		d.b.Append(d.id, nanos(s.time), s.value)
	}
}

// addHistogram appends the histogram that d.hist holds.
func (d *common) addHistogram() {
	switch {
	case !d.accept:
		d.refused++
		return
	case !millisFit(d.hist.time):
		d.refuseTime(d.hist.time, "histogram")
		return
	}
	enc, err := d.hist.encode()
	if err != nil {
		d.refuse(1, err, d.knownText)
		return
	}
	d.b.Hists = append(d.b.Hists, point.HistRow{ID: d.id, Time: nanos(d.hist.time), H: enc})
}

// exemplar is the message Exemplar of both versions, but for its labels, which are in the builder.
type exemplar struct {
	value float64
	time  int64
}

// field reads the fields that both versions write alike.
func (e *exemplar) field(f *wire.Field) (err error) {
	switch f.Num {
	case 2:
		e.value = f.Double(&err)
	case 3:
		e.time = int64(f.Varint(&err))
	}
	return err
}

// addExemplar appends an exemplar with its labels in the builder. err is an earlier mistake in them.
func (d *common) addExemplar(e exemplar, err error) {
	if !d.accept {
		return
	}
	var labels point.Labels
	if err == nil {
		labels, err = d.labels.Exemplar()
	}
	if err == nil && !millisFit(e.time) {
		err = fault.Errorf(fault.Invalid, "timestamp %d ms is out of range", e.time)
	}
	if err != nil {
		d.b.RefuseExemplars(1, d.item, d.knownText, fault.Annotate(err, "exemplar").Error())
		return
	}
	d.b.Exemplars = append(d.b.Exemplars, point.ExemplarRow{ID: d.id, Time: nanos(e.time), Value: e.value, Labels: labels})
}

func (d *common) refuseTime(ms int64, what string) {
	d.refuse(1, fault.Errorf(fault.Invalid, "%s: timestamp %d ms is out of range", what, ms), d.knownText)
}

// refuse records that rows of the series being read were refused. text shows its labels, and is called only if
// there is room for one more reason.
func (d *common) refuse(rows int, err error, text func() string) {
	kind := fault.KindOf(err)
	if len(d.b.Refused) == point.RefusalsMax {
		if kind != fault.Invalid {
			// A passing reason decides the answer (the sender must retry), so a hundred lasting ones must not crowd
			// it out.
			d.b.Refused = d.b.Refused[:point.RefusalsMax-1]
		} else {
			d.b.RefusedRows += rows
			return
		}
	}
	d.b.Refuse(rows, point.Refusal{Item: d.item, Text: text(), Reason: err.Error(), Kind: kind})
}

// errNoLabels is made once, so that a body of nothing but empty series costs little.
var errNoLabels = fault.Errorf(fault.Invalid, "no labels")

// textMax bounds, in bytes, the text shown of a refused series.
const textMax = 200

// pairText collects labels as a person reads them, cut to textMax. Bytes that are no text are escaped.
type pairText struct {
	buf []byte
	cut bool
}

func (t *pairText) add(name, value []byte) {
	if t.cut {
		return
	}
	if len(t.buf) > 0 {
		t.buf = append(t.buf, ", "...)
	}
	t.buf = append(t.buf, escaped(name)...)
	t.buf = append(t.buf, '=')
	t.buf = strconv.AppendQuote(t.buf, string(value[:min(len(value), textMax)]))
	t.cut = len(t.buf) > textMax
}

func escaped(name []byte) string {
	name = name[:min(len(name), textMax)]
	if utf8.Valid(name) {
		return string(name)
	}
	return strconv.Quote(string(name))
}

func (t *pairText) String() string { return cutText("{" + string(t.buf) + "}") }

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

// knownText shows the series being read by the labels its number stands for.
func (d *common) knownText() string { return cutText(d.b.Dict.Labels(d.id).String()) }
