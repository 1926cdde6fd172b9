package lineproto

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/point"
)

// key is the measurement and the tags of the line in hand.
type key struct {
	at     int               // where it starts in the body
	end    int               // and ends, if nothing is wrong
	hash   point.Hash        // of its bytes as written and the naming settings
	fields []point.LineField // the Dict's fields under it, and those the line adds
	known  int               // how many of fields came from the Dict
	next   int               // the one of fields that is expected next
	rows   int               // where the line's rows begin in the batch
	parsed bool              // Decoder.tags and Decoder.measurement hold it unescaped
	sorted bool              // Decoder.shared holds its labels
}

// entry reads the line at p and appends its rows. With ok it returns the start of the next line; without, the place of
// the mistake, with the reason in d.flaw; rows appended until then are for the caller to drop.
func (d *Decoder) entry(p int) (next int, ok bool) {
	s, b := d.body, d.batch
	rows := len(b.IDs)
	d.strings = d.strings[:0]
	d.fresh.Reset()

	// 1. The key. One that is in the Dict was checked when it was first seen.
	end := keyEnd(s, p)
	k := key{at: p, end: end, rows: rows, hash: b.Dict.Hash(s[p:end])}
	k.hash.Lo ^= d.naming.Lo
	k.hash.Hi ^= d.naming.Hi
	if known := b.Dict.LookupLineAfter(d.prev, k.hash); known != nil && end < len(s) && s[end] == ' ' {
		k.fields, k.known, d.prev = known.Fields, len(known.Fields), known
	} else if p, ok = d.parseKey(&k, p); !ok {
		return p, false
	}

	// 2. The fields.
	if p, ok = d.fields(&k, skipSpaces(s, end)); !ok {
		return p, false
	}
	if !d.settle(&k) {
		return p, false
	}
	d.note(&k)
	if len(d.strings) > 0 && !d.info(&k) {
		return p, false
	}

	// 3. The time, once for all fields.
	p, t, ok := d.time(p)
	if !ok {
		return p, false
	}
	b.Times = appendTimes(b.Times, t, len(b.IDs)-rows)
	next, ok = d.lineEnd(p)
	if !ok {
		return d.bad(p, "text after the end of the line:", rest(s, p))
	}
	return next, true
}

// appendTimes appends t n times.
func appendTimes(times []point.Nanos, t point.Nanos, n int) []point.Nanos {
	from := len(times)
	times = slices.Grow(times, n)[:from+n]
	for i := range times[from:] {
		times[from+i] = t
	}
	return times
}

// fields reads fields and appends their ids and values, up to the space or the end of line behind the last.
func (d *Decoder) fields(k *key, p int) (next int, ok bool) {
	s, b := d.body, d.batch
	ids, values := b.IDs, b.Values // in registers; written back when all is well
	most := d.rowsEnd
	for {
		// 1. The name: the one expected, or scanned.
		var id point.SeriesID
		q, hit := p, false
		if k.next < len(k.fields) {
			f := &k.fields[k.next]
			if n := p + len(f.Name); n < len(s) && s[n] == '=' && string(s[p:n]) == f.Name {
				q, id, hit = n, f.ID, true
				k.next++
			}
		}
		if !hit {
			if q, ok = d.fieldName(p); !ok {
				return q, false
			}
		}

		// 2. The value.
		v, end, plain := number(s, q+1)
		if !plain && q+1 < len(s) && s[q+1] == '"' {
			if end, ok = d.stringField(p, q); !ok {
				return end, false
			}
		} else {
			if !plain {
				if v, end, ok = d.value(q + 1); !ok {
					return end, false
				}
			}
			if !hit {
				b.IDs = ids // for settle
				if id, ok = d.fieldID(k, s[p:q]); !ok {
					return q, false
				}
			}
			if len(ids) >= most {
				if most, ok = d.moreRows(len(ids)); !ok {
					return q, false
				}
			}
			ids = append(ids, id)
			values = append(values, v)
		}

		// 3. Another field, or the end of the fields.
		if end == len(s) || s[end] != ',' {
			b.IDs, b.Values = ids, values
			return end, true
		}
		p = end + 1
	}
}

// fieldName scans the name at p and returns the place of the equals sign behind it.
func (d *Decoder) fieldName(p int) (q int, ok bool) {
	s := d.body
	q, _ = scan(s, p, stopName)
	switch {
	case q == p:
		return d.bad(q, "a field's name is missing", nil)
	case q == len(s) || s[q] != '=':
		return d.bad(q, "no '=' behind the field's name", s[p:q])
	}
	return q, true
}

// value reads all that number does not: booleans, long and unusual numbers, mistakes.
func (d *Decoder) value(p int) (v float64, end int, ok bool) {
	end = valueEnd(d.body, p)
	v, why := parseValue(d.body[p:end])
	if why != "" {
		p, ok = d.bad(p, why, d.body[p:end])
		return 0, p, ok
	}
	return v, end, true
}

// stringField skips a string field with its name at p and its equals sign at q.
func (d *Decoder) stringField(p, q int) (next int, ok bool) {
	s := d.body
	end := stringEnd(s, q+2)
	if end < 0 {
		// Nothing after an open quote can be trusted to be a line.
		return d.bad(len(s), "no closing quote for the string of field", s[p:q])
	}
	inside := s[q+2 : end]
	if !utf8.Valid(s[p:q]) || !utf8.Valid(inside) {
		return d.bad(q, "bytes that are not UTF-8 in the name or the string of field", s[p:q])
	}
	d.line += bytes.Count(inside, newline)
	if !endsValue(s, end+1) {
		return d.bad(end+1, "text behind the closing quote of field", s[p:q])
	}
	if d.Settings.Strings == InfoSeries && len(d.strings) <= point.LabelsMax { // with more the line is refused
		d.strings = append(d.strings, stringField{s[p:q], inside})
	} else if d.Settings.Strings != InfoSeries {
		d.batch.StringFields++
	}
	return end + 1, true
}

var newline = []byte{'\n'}

// time reads from the last field to the end of the line: spaces, and perhaps a timestamp.
func (d *Decoder) time(p int) (next int, t point.Nanos, ok bool) {
	s := d.body
	from := skipSpaces(s, p)
	p = from
	for p < len(s) && (s[p]-'0' < 10 || s[p] == '-') {
		p++
	}
	if p == from {
		return p, d.now, true
	}
	written, ok := parseTime(s[from:p])
	if !ok || !endsValue(s, p) {
		p, ok = d.bad(from, "invalid timestamp, or beyond 64 bits:", s[from:valueEnd(s, from)])
		return p, 0, ok
	}
	t, ok = d.Settings.Precision.nanos(written)
	if !ok {
		p, ok = d.bad(from, "timestamp beyond the range of nanoseconds:", s[from:p])
		return p, 0, ok
	}
	return skipSpaces(s, p), t, true
}

// rest is the rest of the line from p.
func rest(s []byte, p int) []byte {
	if n := bytes.IndexByte(s[p:], '\n'); n >= 0 {
		return s[p : p+n]
	}
	return s[p:]
}
