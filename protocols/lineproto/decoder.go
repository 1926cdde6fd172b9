package lineproto

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// StringPolicy is the treatment of string fields, which are no samples.
type StringPolicy uint8

const (
	// CountStrings drops string fields and counts them in Batch.StringFields.
	CountStrings StringPolicy = iota
	// InfoSeries keeps the string fields of a line as labels of one series <measurement>_info with the value 1, beside the
	// line's tags. A tag of the same name wins and the field is counted. The price: a new series for every new text.
	InfoSeries
)

// Settings say how bodies are read. The zero Settings are Influx' defaults with Partial off.
type Settings struct {
	// Precision of the timestamps.
	Precision Precision
	// Separator stands between measurement and field in a metric's name. Default "_". The field `value` alone gives a
	// metric the bare name of its measurement.
	Separator string
	// DBLabel is the label that gets DB as its value; "": none. A tag of that name wins.
	DBLabel string
	// DB is the db or bucket of the request.
	DB string
	// Strings is the treatment of string fields.
	Strings StringPolicy
	// Partial keeps the good lines of a body that has bad ones. Without it the first bad line ends the work and nothing of
	// the body is kept.
	Partial bool
	// RowsMax bounds the rows of a body, and its lines: one that is blank, or refused, needs memory too. 0: no bound. A body with more is TooLarge.
	RowsMax int
	// Memory is asked before more rows are decoded; nil: there is enough. Decode forgets it.
	Memory Memory
}

// Memory is what the rows of a body are charged to while it is decoded.
type Memory interface {
	// Reserve asks for so many bytes more. The error refuses the body. It is called by the goroutine that decodes.
	Reserve(bytes int) error
}

// rowsStep is for how many rows Memory is asked at once. It is not asked for the first ones of a body, which nearly all bodies are.
const rowsStep = 1 << 16

// SeparatorDefault is the default of Settings.Separator.
const SeparatorDefault = "_"

// Decoder reads bodies of line protocol. The zero Decoder is ready; Settings may be changed between calls of Decode.
// Reuse it, it keeps scratch memory; not for concurrent use.
type Decoder struct {
	Settings Settings

	// Owned by the call of Decode under way.
	body     []byte
	batch    *point.Batch
	now      point.Nanos    // already cut to the precision
	prev     *point.LineKey // of the line before, or nil
	naming   point.Hash     // mixed into every key's hash: the settings that decide how series are named
	line     int            // number, from 1, of the physical line at the cursor
	itemBase int            // items in the batch before this body
	rowBase  int            // and rows
	rowsEnd  int            // the batch may grow to this before moreRows is asked
	texts    int            // bytes of labels of new series that this body may still write out
	over     error          // why the body is refused as a whole
	refusals int            // lines of this body refused so far
	flaw     flaw           // why the line in hand is bad
	searched int            // bytes of bad lines that were searched for their end: the work must be linear

	// Scratch, of the line in hand.
	tags        []tag
	tagsRaw     []byte // the part of the body that tags was read from; nil if it has an escape
	tagEnds     []int  // where in tagsRaw each of tags ends
	measurement []byte
	text        []byte // unescaped pieces
	sum         []byte // bytes to be hashed
	strings     []stringField
	metric      []byte  // a metric's name
	shared      *shared // of the line's series
	lastShared  [4]shared
	clock       int
	spliced     []byte
	fresh       point.Fresh // new series of the line
	labels      point.LabelsBuilder
	template    []point.LineField // the Dict's fields under the key, and those the line adds

	names map[string]string // fields' names, shared by templates
}

// shared is the labels that the series of a line have in common. A host's measurements have the same tags, or one more
// each, in turns: the last few are kept.
type shared struct {
	raw    []byte // the tags in the body; nil if they must not be recognized again
	labels []byte // canonical, without the metric's name
	gap    int    // where in labels that goes; -1: the builder has to find the mistake
	used   int    // Decoder.clock
}

// tag is an unescaped pair; its bytes are in the body or in Decoder.text.
type tag struct{ name, value []byte }

// stringField is a field as written; value lacks its quotes.
type stringField struct{ name, value []byte }

// Decode appends the rows of body to b; b's Dict numbers the series. now stands in for missing timestamps. Nothing of
// body is kept by b after the return.
//
// A bad line goes to b.Refuse as one row, with Kind Invalid, or with Throttled where the Dict has no room for its series.
// The error is for the whole body, and then b is as it was: TooLarge, or Settings.Memory's.
//
// A field that stands twice in a line gives two rows; the batch's rule, the later row wins, makes it Influx' rule.
func (d *Decoder) Decode(body []byte, now point.Nanos, b *point.Batch) error {
	if int64(len(body)) > math.MaxUint32 {
		return fault.Errorf(fault.TooLarge, "a body of %d bytes, at most %d are read at once", len(body), uint32(math.MaxUint32))
	}
	d.begin(body, now, b)
	defer d.end()
	rows, strings, reasons, refused := len(b.IDs), b.StringFields, len(b.Refused), b.RefusedRows
	for p := d.skipBlank(skipMark(body)); p < len(body); p = d.skipBlank(p) {
		p = d.take(p)
		if d.over != nil {
			b.Truncate(rows)
			b.StringFields, b.ItemRows = strings, b.ItemRows[:d.itemBase]
			b.Refused, b.RefusedRows = b.Refused[:reasons], refused
			return fault.Annotate(d.over, "line protocol: line %d", d.line)
		}
		if d.refusals > 0 && !d.Settings.Partial {
			b.Truncate(rows)
			b.StringFields = strings
			b.ItemRows = b.ItemRows[:d.itemBase]
			return nil
		}
	}
	return nil
}

func (d *Decoder) begin(body []byte, now point.Nanos, b *point.Batch) {
	if d.Settings.Separator == "" {
		d.Settings.Separator = SeparatorDefault
	}
	d.body, d.batch, d.now = body, b, d.Settings.Precision.Floor(now)
	d.line, d.itemBase, d.refusals, d.searched = 1, len(b.ItemRows), 0, 0
	d.rowBase, d.rowsEnd, d.texts, d.over = len(b.IDs), len(b.IDs)+rowsStep, point.LabelsRequestMax, nil
	if most := d.Settings.RowsMax; most > 0 {
		d.rowsEnd = d.rowBase + min(rowsStep, most)
	}
	d.naming = d.hashNaming()
}

// moreRows makes room for more rows than n, and returns for how many. Without ok d.over is set.
func (d *Decoder) moreRows(n int) (end int, ok bool) {
	step := rowsStep
	if most := d.Settings.RowsMax; most > 0 {
		if step = min(step, d.rowBase+most-n); step <= 0 {
			d.over = fault.Errorf(fault.TooLarge, "more than %d rows in one request: send fewer lines at once", most)
			return n, false
		}
	}
	if d.Settings.Memory != nil {
		if d.over = d.Settings.Memory.Reserve(step * point.FloatBytes); d.over != nil {
			return n, false
		}
	}
	d.rowsEnd = n + step
	return d.rowsEnd, true
}

var errLabelsRequest = fault.Errorf(fault.TooLarge, "the labels of new series have more than %d bytes when they are written out: send fewer lines at once", point.LabelsRequestMax)

// end lets go of the caller's memory.
func (d *Decoder) end() {
	d.body, d.batch, d.prev, d.flaw, d.tagsRaw, d.over = nil, nil, nil, flaw{}, nil, nil
	d.Settings.Memory = nil
	for i := range d.lastShared {
		d.lastShared[i].raw = nil
	}
	clear(d.tags[:cap(d.tags)])
	clear(d.strings[:cap(d.strings)])
}

// hashNaming sums the settings that decide how a series is named, so that a template made under others is never found.
func (d *Decoder) hashNaming() point.Hash {
	s := &d.Settings
	d.sum = append(d.sum[:0], "lineproto"...)
	for _, part := range [...]string{s.Separator, s.DBLabel, s.DB} {
		d.sum = strconv.AppendInt(d.sum, int64(len(part)), 10)
		d.sum = append(append(d.sum, ':'), part...)
	}
	return d.batch.Dict.Hash(d.sum)
}

// byteOrderMark is what editors and shells of Windows write at the start of a file in UTF-8.
const byteOrderMark = "\uFEFF"

// skipMark goes over a byte order mark at the start of a body. InfluxDB 1.x makes it a part of the first measurement's name, which then looks
// like another measurement and can be neither queried nor dropped by typing. Elsewhere in a body the character is text like any other.
func skipMark(body []byte) int {
	if bytes.HasPrefix(body, []byte(byteOrderMark)) {
		return len(byteOrderMark)
	}
	return 0
}

// skipBlank goes over blank lines, comments and leading spaces to the next entry.
func (d *Decoder) skipBlank(p int) int {
	s := d.body
	for p < len(s) {
		switch s[p] {
		case ' ':
			p++
		case '#':
			n := bytes.IndexByte(s[p:], '\n')
			if n < 0 {
				return len(s)
			}
			p += n
		case '\n', '\r':
			next, ok := d.lineEnd(p)
			if !ok {
				return p
			}
			p = next
		default:
			return p
		}
	}
	return p
}

// lineEnd goes over one end of line: LF, CR LF, or CR at the end of the body.
func (d *Decoder) lineEnd(p int) (next int, ok bool) {
	s := d.body
	switch {
	case p == len(s):
		return p, true
	case s[p] == '\n':
		d.line++
		return p + 1, true
	case s[p] != '\r':
		return p, false
	case p+1 == len(s):
		return p + 1, true
	case s[p+1] == '\n':
		d.line++
		return p + 2, true
	}
	return p, false
}

// take reads the entry at p, keeps or refuses its rows, and returns the place behind it.
func (d *Decoder) take(p int) int {
	b, line := d.batch, d.line
	if most := d.Settings.RowsMax; line > most && most > 0 {
		d.over = fault.Errorf(fault.TooLarge, "more than %d lines in one request: send fewer at once", most)
		return p
	}
	for len(b.ItemRows) < d.itemBase+line {
		b.BeginItem() // blank lines and lines within strings are items too, so that item n is line n
	}
	rows, strings := len(b.IDs), b.StringFields
	next, ok := d.entry(p)
	if ok || d.over != nil {
		return next
	}
	b.Truncate(rows)
	b.StringFields = strings
	next = d.skipBad(next)
	d.refuse(line, d.body[p:next])
	return next
}

// skipBad goes from the place of a mistake to the start of the next line. Strings of the bad line are skipped whole:
// their content came from a log message, and must not be read as lines of its own. An unclosed string ends with the
// body.
func (d *Decoder) skipBad(p int) int {
	s := d.body
	lineEnd := -1
	for p < len(s) {
		// A line may hold a string in every five bytes: its end is looked for again only where a string reaches beyond it.
		if lineEnd < p {
			n := bytes.IndexByte(s[p:], '\n')
			if n < 0 {
				d.searched += len(s) - p
				return len(s)
			}
			d.searched += n
			lineEnd = p + n
		}
		q := bytes.Index(s[p:lineEnd], []byte(`="`))
		if q < 0 {
			d.line++
			return lineEnd + 1
		}
		end := stringEnd(s, p+q+2)
		if end < 0 {
			return len(s)
		}
		d.line += bytes.Count(s[p+q:end], []byte{'\n'})
		p = end + 1
	}
	return p
}

// flaw is why a line is bad: a sentence, and perhaps the piece of the line it refers to. It is made into text only if
// the text is returned.
type flaw struct {
	why  string
	what []byte
	err  error // instead of why, when another package found the mistake
	// series: the line is well formed, but the table refuses one of its series.
	series bool
}

func (d *Decoder) bad(p int, why string, what []byte) (int, bool) {
	d.flaw = flaw{why: why, what: what}
	return p, false
}

func (f flaw) String() string {
	switch {
	case f.err != nil:
		return f.err.Error()
	case len(f.what) > 0:
		return f.why + " " + strconv.Quote(cut(f.what))
	}
	return f.why
}

// Lengths to which text of the sender is cut in reasons and answers, in bytes.
const (
	lineTextMax  = 256
	tokenTextMax = 64
)

func (d *Decoder) refuse(line int, text []byte) {
	d.refusals++
	b := d.batch
	kind := fault.Invalid
	if d.flaw.err != nil {
		kind = fault.KindOf(d.flaw.err)
	}
	full := len(b.Refused) >= point.RefusalsMax
	if full && !retryable(kind) {
		b.Refuse(1, point.Refusal{}) // counted only: the text would not be returned
		return
	}
	r := point.Refusal{Item: line, Text: lineText(text), Reason: d.flaw.String(), Kind: kind}
	if d.flaw.series && !retryable(kind) { // the line is well formed: showing its text would suggest that it is not
		r.Reason, r.Text = r.Text+": "+r.Reason, ""
	}
	b.Refuse(1, r)
	if full {
		// The answer must not miss that sending again helps.
		b.Refused[point.RefusalsMax-1] = r
	}
}

// lineText is a line cut to a readable length, without its end.
func lineText(s []byte) string {
	s = bytes.TrimRight(s, "\r\n")
	return cutTo(s, lineTextMax)
}

func cut(s []byte) string { return cutTo(s, tokenTextMax) }

func cutTo(s []byte, n int) string {
	if len(s) <= n {
		return string(s)
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return string(s[:n]) + "…"
}
