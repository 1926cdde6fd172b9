package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// depthMax bounds nesting. Nothing that we read nests deeper than five; skipped parts may.
const depthMax = 32

// Mistakes of syntax. Behind one nothing can be trusted, so the whole record is refused.
var (
	errEnds    = errors.New("the text ends early")
	errDepth   = fmt.Errorf("nested deeper than %d", depthMax)
	errString  = errors.New("a string is expected")
	errControl = errors.New("a control character in a string")
	errEscape  = errors.New("an unknown escape in a string")
	errUTF8    = errors.New("bytes that are not UTF-8")
	errValue   = errors.New("a value is expected")
	errNumber  = errors.New("a malformed number")
	errColon   = errors.New("':' is expected")
	errComma   = errors.New("',' or the end is expected")
	errShape   = errors.New("an object, an array of objects, or objects one after the other are expected")
)

// scanner walks over JSON (RFC 8259) without building values. It allocates nothing.
//
// A value is checked as it is passed over, and returned as a span of the text:
//
//	{"name":"cpu","fields":{"a":1.5}}
//	         └┬┘           └───┬───┘
//	          kindString       kindObject: scanned again by a scanner of its own when it is read
//
// So each byte is looked at two or three times, and nothing is built. Spans live as long as the text. After an error the cursor stands where the
// text is wrong, for the message.
type scanner struct {
	s []byte
	p int
}

// kind is the type of a value, by its first byte.
// The first byte of a value decides, as in the grammar.
type kind uint8

const (
	kindNone kind = iota
	kindString
	kindNumber
	kindObject
	kindArray
	kindTrue
	kindFalse
	kindNull
)

// span is a value as it stands in the text; a string's lacks its quotes.
// raw of true, false and null is nil: the kind says all.
type span struct {
	raw     []byte
	kind    kind
	escaped bool // a string that has backslashes
}

// space passes over the four bytes that JSON calls white space.
func (j *scanner) space() {
	for j.p < len(j.s) {
		switch j.s[j.p] {
		case ' ', '\t', '\n', '\r':
			j.p++
		default:
			return
		}
	}
}

// next skips c, and the space before it, if c is there.
func (j *scanner) next(c byte) bool {
	j.space()
	if j.p < len(j.s) && j.s[j.p] == c {
		j.p++
		return true
	}
	return false
}

// str reads a string with its opening quote at the cursor.
func (j *scanner) str() (span, error) {
	if j.p >= len(j.s) || j.s[j.p] != '"' {
		return span{}, errString
	}
	j.p++
	// ascii collects the bits of all bytes: below 0x80, all were ASCII, and no check of UTF-8 is needed.
	from, escaped, ascii := j.p, false, byte(0)
	for j.p < len(j.s) {
		switch c := j.s[j.p]; {
		case c == '"':
			raw := j.s[from:j.p]
			j.p++
			if ascii >= utf8.RuneSelf && !utf8.Valid(raw) {
				return span{}, errUTF8
			}
			return span{raw, kindString, escaped}, nil
		case c == '\\':
			escaped = true
			if err := j.escape(); err != nil {
				return span{}, err
			}
		case c < 0x20:
			return span{}, errControl
		default:
			ascii |= c
			j.p++
		}
	}
	return span{}, errEnds
}

// escape passes over an escape and checks its form. Halves of surrogate pairs are let through, as encoding/json does.
func (j *scanner) escape() error {
	if j.p+1 >= len(j.s) {
		return errEnds
	}
	switch j.s[j.p+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		j.p += 2
		return nil
	case 'u':
		if j.p+6 > len(j.s) {
			return errEnds
		}
		if hex4(j.s[j.p+2:]) < 0 {
			return errEscape
		}
		j.p += 6
		return nil
	}
	return errEscape
}

// hex4 reads four hexadecimal digits; -1 where they are none.
func hex4(s []byte) rune {
	v := rune(0)
	for _, c := range s[:4] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | rune(c-'0')
		// Bit 5 makes a capital letter small: 'A' is 0x41, 'a' 0x61.
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return v
}

// value reads any value and checks everything inside.
func (j *scanner) value(depth int) (span, error) {
	j.space()
	if j.p >= len(j.s) {
		return span{}, errEnds
	}
	from := j.p
	switch c := j.s[j.p]; {
	case c == '"':
		return j.str()
	case c == '{', c == '[':
		k, err := j.nested(c, depth)
		return span{raw: j.s[from:j.p], kind: k}, err
	// c is a byte: for one below '0' the difference wraps and is above 10.
	case c == '-', c-'0' < 10:
		err := j.number()
		return span{raw: j.s[from:j.p], kind: kindNumber}, err
	case c == 't':
		return j.word("true", kindTrue)
	case c == 'f':
		return j.word("false", kindFalse)
	case c == 'n':
		return j.word("null", kindNull)
	}
	return span{}, errValue
}

// word reads true, false or null. What follows it is the caller's to check.
func (j *scanner) word(w string, k kind) (span, error) {
	if !bytes.HasPrefix(j.s[j.p:], []byte(w)) {
		return span{}, errValue
	}
	j.p += len(w)
	return span{kind: k}, nil
}

// nested passes over an object or an array. depth bounds the recursion, and so the stack that a hostile text can use.
func (j *scanner) nested(open byte, depth int) (kind, error) {
	if depth >= depthMax {
		return kindNone, errDepth
	}
	if open == '{' {
		return kindObject, j.object(depth, func(span, span) error { return nil })
	}
	j.p++
	if j.next(']') {
		return kindArray, nil
	}
	for {
		if _, err := j.value(depth + 1); err != nil {
			return kindArray, err
		}
		switch {
		case j.next(','):
		case j.next(']'):
			return kindArray, nil
		default:
			return kindArray, j.orEnds(errComma)
		}
	}
}

// object reads the object at the cursor and calls each with its members, in their order.
func (j *scanner) object(depth int, each func(name, value span) error) error {
	j.p++
	if j.next('}') {
		return nil
	}
	for {
		j.space()
		name, err := j.str()
		if err != nil {
			return j.orEnds(err)
		}
		if !j.next(':') {
			return j.orEnds(errColon)
		}
		v, err := j.value(depth + 1)
		if err != nil {
			return err
		}
		if err := each(name, v); err != nil {
			return err
		}
		switch {
		case j.next(','):
		case j.next('}'):
			return nil
		default:
			return j.orEnds(errComma)
		}
	}
}

// orEnds is errEnds where the text is over, which is the better message for a record that was cut.
func (j *scanner) orEnds(err error) error {
	if j.p >= len(j.s) {
		return errEnds
	}
	return err
}

// digits passes over digits, and reports whether there was any.
func (j *scanner) digits() bool {
	from := j.p
	for j.p < len(j.s) && j.s[j.p]-'0' < 10 {
		j.p++
	}
	return j.p > from
}

// number passes over a number of JSON's grammar: -0.5e+3 is one; 01, .5, +1, 1. and NaN are not.
func (j *scanner) number() error {
	if j.s[j.p] == '-' {
		j.p++
	}
	zero := j.p < len(j.s) && j.s[j.p] == '0'
	from := j.p
	if !j.digits() || zero && j.p > from+1 {
		return j.orEnds(errNumber)
	}
	if j.p < len(j.s) && j.s[j.p] == '.' {
		if j.p++; !j.digits() {
			return j.orEnds(errNumber)
		}
	}
	if j.p < len(j.s) && j.s[j.p]|0x20 == 'e' {
		j.p++
		if j.p < len(j.s) && (j.s[j.p] == '+' || j.s[j.p] == '-') {
			j.p++
		}
		if !j.digits() {
			return j.orEnds(errNumber)
		}
	}
	return nil
}

// appendText appends the string, unescaped. A lone half of a surrogate pair becomes U+FFFD, as in encoding/json.
func appendText(dst []byte, v span) []byte {
	s := v.raw
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(s)
			s = s[4:]
			// A pair as in "\ud83d\ude00" becomes one rune. A half alone becomes U+FFFD, and what follows it is read as usual.
			if utf16.IsSurrogate(r) {
				second := rune(-1)
				if len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
					second = hex4(s[2:])
				}
				if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
					s = s[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
	}
}

// pow10 holds the powers of ten that a float64 holds exactly.
var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18}

// float reads a JSON number, rounded to the nearest float64. Usual ones (at most 18 digits, no exponent) need one
// division: m/10^k is exact where both are float64s exactly (W. D. Clinger, 1990). ok is false where it overflows.
func float(s []byte) (v float64, ok bool) {
	i, m, point := 0, uint64(0), -1
	if s[0] == '-' {
		i = 1
	}
	// 20 bytes are a sign, a point and 18 digits: then m stays below 10^18 and does not overflow.
	for ; i < len(s) && len(s) <= 20; i++ {
		if c := s[i]; c == '.' {
			point = i
		} else if c-'0' < 10 && m < 1e18 {
			m = m*10 + uint64(c-'0')
		} else {
			break
		}
	}
	// 12.5 as an example: m 125, one digit behind the point, 125/10. Beyond 2^53 m is not exact as a float64, and the division would round twice.
	if i < len(s) || m > 1<<53 || point >= 0 && len(s)-point-1 >= len(pow10) {
		v, err := strconv.ParseFloat(string(s), 64)
		return v, err == nil
	}
	v = float64(m)
	if point >= 0 {
		v /= pow10[len(s)-point-1]
	}
	if s[0] == '-' {
		v = -v
	}
	return v, true
}

// when reads a time: a number in units of p, the same as a string, or RFC 3339.
func when(v span, p Precision) (point.Nanos, bool) {
	switch v.kind {
	case kindNumber:
	case kindString:
		if len(v.raw) == 0 {
			return 0, false
		}
		// Numbers have neither Z nor a colon. The years are those that nanoseconds in 64 bits reach.
		if c := v.raw[len(v.raw)-1]; c == 'Z' || bytes.IndexByte(v.raw, ':') >= 0 {
			t, err := time.Parse(time.RFC3339Nano, string(v.raw))
			return t.UnixNano(), err == nil && t.Year() > 1677 && t.Year() < 2262
		}
		j := scanner{s: v.raw}
		if c := v.raw[0]; c != '-' && c-'0' >= 10 || j.number() != nil || j.p < len(v.raw) {
			return 0, false
		}
	default:
		return 0, false
	}
	if t, ok := whole(v.raw); ok {
		return p.nanos(t)
	}
	f, ok := float(v.raw)
	if !ok {
		return 0, false
	}
	return p.nanosOf(f)
}

// whole reads an integer that fits in 64 bits.
func whole(s []byte) (v int64, ok bool) {
	neg := s[0] == '-'
	if neg {
		s = s[1:]
	}
	// 19 digits fit 64 bits without a sign; the bound of int64 is compared after them.
	if len(s) == 0 || len(s) > 19 {
		return 0, false
	}
	u := uint64(0)
	for _, c := range s {
		if c-'0' >= 10 {
			return 0, false
		}
		u = u*10 + uint64(c-'0')
	}
	if u > math.MaxInt64 {
		return 0, false
	}
	if neg {
		return -int64(u), true
	}
	return int64(u), true
}

// jsonDecoder reads both kinds of JSON.
// begin is called once an object, and numbers it: refusals name an object by that number, from 1.
type jsonDecoder struct {
	// Owned by the call of decode under way.
	d *Decoder
	o *Options
	scanner
	item   int
	rows   int // of the batch before the record
	texts  int // bytes of labels of new series that the record may still write out
	sample promSample
	metric telegrafMetric

	// Scratch.
	sum     []byte // bytes to be hashed
	text    []byte // unescaped pieces
	strings []member
	labels  point.LabelsBuilder
	prev    point.SeriesID
}

// member is a name and a value of an object.
type member struct{ name, value span }

// decode reads one object, an array of objects, or one object after the other.
func (t *jsonDecoder) decode(d *Decoder, body []byte, o *Options) error {
	t.d, t.o, t.item, t.rows, t.texts = d, o, 0, len(d.b.IDs), point.LabelsRequestMax
	t.scanner = scanner{s: body}
	err := t.documents()
	if err != nil && fault.KindOf(err) == fault.Internal {
		err = fault.Errorf(fault.Invalid, "not the JSON that is expected, at byte %d of %d: %w", t.p, len(body), err)
	}
	t.d, t.o, t.scanner, t.sample, t.metric = nil, nil, scanner{}, promSample{}, telegrafMetric{}
	// Spans alias the value, which the caller may use again.
	clear(t.strings[:cap(t.strings)])
	return err
}

// documents reads objects up to the end of the text: producers put them one after the other, with or without line feeds.
func (t *jsonDecoder) documents() error {
	for t.space(); t.p < len(t.s); t.space() {
		if err := t.objects(true); err != nil {
			return err
		}
	}
	return nil
}

// objects reads the object or the array of objects at the cursor.
// arrays: an array may stand here. Arrays within arrays are not what any producer writes.
func (t *jsonDecoder) objects(arrays bool) error {
	switch {
	case t.p < len(t.s) && t.s[t.p] == '{':
		return t.one()
	case !arrays || !t.next('['):
		return t.orEnds(errShape)
	case t.next(']'):
		return nil
	}
	for {
		t.space()
		if err := t.objects(false); err != nil {
			return err
		}
		switch {
		case t.next(','):
		case t.next(']'):
			return nil
		default:
			return t.orEnds(errComma)
		}
	}
}

// one reads one object of the format.
func (t *jsonDecoder) one() error {
	if t.o.Format == TelegrafJSON {
		return t.telegraf(true)
	}
	return t.prometheus()
}

// begin notes the next object.
// Pieces of the object before are given up: nothing of it is read any more.
// The error is TooLarge: the record has too many.
func (t *jsonDecoder) begin() error {
	t.item++
	if most := t.d.settings.RowsMax; most > 0 && t.item > most {
		return fault.Errorf(fault.TooLarge, "more than %d objects in one record: send fewer at once", most)
	}
	t.d.b.BeginItem()
	t.text, t.strings = t.text[:0], t.strings[:0]
	return nil
}

// addRow appends the row of a field, without its time. The error is TooLarge: the record has too many.
func (t *jsonDecoder) addRow(id point.SeriesID, v float64) error {
	b := t.d.b
	if most := t.d.settings.RowsMax; most > 0 && len(b.IDs)-t.rows >= most {
		return fault.Errorf(fault.TooLarge, "more than %d rows in one record, at object %d: send fewer at once", most, t.item)
	}
	b.IDs, b.Values = append(b.IDs, id), append(b.Values, v)
	return nil
}

// written counts the labels of a new series. The error is TooLarge.
func (t *jsonDecoder) written(l point.Labels) error {
	if t.texts -= len(l); t.texts < 0 {
		return fault.Errorf(fault.TooLarge, "the labels of new series have more than %d bytes when they are written out, at object %d: send fewer at once",
			point.LabelsRequestMax, t.item)
	}
	return nil
}

// refuse records that the current object is refused.
func (t *jsonDecoder) refuse(from int, err error) {
	b := t.d.b
	kind := fault.KindOf(err)
	if kind == fault.Internal {
		kind = fault.Invalid
	}
	r := point.Refusal{Item: t.item, Kind: kind}
	if len(b.Refused) < point.RefusalsMax {
		// The first refusals have the text; the others are counted. point.RefusalsMax bounds the memory.
		r.Text, r.Reason = cut(string(t.s[from:t.p])), err.Error()
	}
	b.Refuse(1, r)
	if kind == fault.Throttled && len(b.Refused) == point.RefusalsMax {
		b.Refused[point.RefusalsMax-1] = r // that trying again helps must not be missed
	}
}

// textOf gives the string, unescaped; the bytes live until the next object.
func (t *jsonDecoder) textOf(v span) []byte {
	if !v.escaped {
		return v.raw
	}
	// t.text may move when it grows: pieces returned before keep the old memory, which stays as it is.
	from := len(t.text)
	t.text = appendText(t.text, v)
	return t.text[from:len(t.text):len(t.text)]
}

// addLabels adds the members of the object in raw to t.labels, and calls on for names that are to be left out.
// raw was scanned once, so only what skip and labelValue find can fail here.
func (t *jsonDecoder) addLabels(raw []byte, skip func(name []byte, value span) bool) error {
	j := scanner{s: raw}
	return j.object(0, func(name, value span) error {
		n := t.textOf(name)
		if skip(n, value) {
			return nil
		}
		v, err := t.labelValue(n, value)
		if err == nil {
			t.labels.Add(n, v)
		}
		return err
	})
}

// labelValue accepts strings, and other plain JSON of senders: numbers and booleans as they stand, null as no label.
func (t *jsonDecoder) labelValue(name []byte, v span) ([]byte, error) {
	switch v.kind {
	case kindString:
		return t.textOf(v), nil
	case kindNumber:
		return v.raw, nil
	case kindTrue:
		return []byte("true"), nil
	case kindFalse:
		return []byte("false"), nil
	case kindNull:
		return nil, nil
	}
	return nil, fault.Errorf(fault.Invalid, "label %q is neither text nor a number", cut(string(name)))
}

// under begins t.sum with the settings that decide how a series is named, so that formats and settings never share a hash.
// Each part has its length before it, so that "a","bc" and "ab","c" differ.
func (t *jsonDecoder) under(what string) {
	s := &t.d.settings
	t.sum = append(t.sum[:0], what...)
	for _, part := range [...]string{s.Separator, s.DBLabel, t.o.Table} {
		t.sum = strconv.AppendInt(t.sum, int64(len(part)), 10)
		t.sum = append(append(t.sum, ':'), part...)
	}
}

var metricName = []byte(point.MetricName)
