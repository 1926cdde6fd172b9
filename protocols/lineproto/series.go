package lineproto

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/point"
)

// parseKey reads the key at p strictly into d.measurement and d.tags. Without ok it returns the place of the mistake.
func (d *Decoder) parseKey(k *key, p int) (next int, ok bool) {
	s := d.body
	d.text = d.text[:0]
	end, escaped := scan(s, p, stopMeasurement)
	if end == p {
		return d.bad(p, "no measurement at the start of the line", nil)
	}
	if !utf8.Valid(s[p:end]) {
		return d.bad(end, "bytes that are not UTF-8 in measurement", s[p:end])
	}
	d.measurement = d.unescape(s[p:end], stopMeasurement, escaped)
	from := end
	end += d.keepTags(k, from)
	d.tagsRaw = nil
	for end < len(s) && s[end] == ',' {
		if end, ok = d.parseTag(end + 1); !ok {
			return end, false
		}
		d.tagEnds = append(d.tagEnds, end-from)
	}
	if end == k.end && bytes.IndexByte(s[from:end], '\\') < 0 {
		d.tagsRaw = s[from:end]
	}
	switch {
	case end == len(s) || s[end] == '\n' || s[end] == '\r':
		return d.bad(end, "no fields", nil)
	case s[end] != ' ':
		return d.bad(end, "not allowed in a measurement or a tag:", s[end:end+1])
	}
	k.parsed = true
	return end, true
}

// keepTags keeps the first tags of d.tags as far as they are at p too, and returns their length there: a host's measurements
// begin with the same tags.
func (d *Decoder) keepTags(k *key, p int) (n int) {
	kept, s := 0, d.body
	for _, end := range d.tagEnds {
		at := p + end
		if end > len(d.tagsRaw) || at > k.end || at == len(s) || string(s[p+n:at]) != string(d.tagsRaw[n:end]) || s[at] != ',' && (at < k.end || s[at] != ' ') {
			break
		}
		kept, n = kept+1, end
	}
	d.tags, d.tagEnds = d.tags[:kept], d.tagEnds[:kept]
	return n
}

// parseTag reads the pair at p into d.tags. An empty value is kept here, for the sake of its name, and dropped with the
// labels.
func (d *Decoder) parseTag(p int) (next int, ok bool) {
	s := d.body
	q, nameEscaped := scan(s, p, stopName)
	switch {
	case q == p:
		return d.bad(q, "a tag's name is missing", nil)
	case q == len(s) || s[q] != '=':
		return d.bad(q, "no '=' behind the tag's name", s[p:q])
	case len(d.tags) == point.LabelsMax:
		return d.bad(q, "too many tags, from here on:", s[p:q])
	}
	end, valueEscaped := scan(s, q+1, stopName)
	if end < len(s) && s[end] == '=' {
		return d.bad(end, "'=' must be escaped in the value of tag", s[p:q])
	}
	if !utf8.Valid(s[p:end]) {
		return d.bad(end, "bytes that are not UTF-8 in tag", s[p:end])
	}
	name := d.unescape(s[p:q], stopName, nameEscaped)
	if string(name) == point.MetricName {
		return d.bad(end, "the metric is named by measurement and field, not by tag", name)
	}
	if d.hasTag(name) {
		return d.bad(end, "twice in one line: tag", name)
	}
	d.tags = append(d.tags, tag{name, d.unescape(s[q+1:end], stopName, valueEscaped)})
	return end, true
}

func (d *Decoder) hasTag(name []byte) bool {
	for i := range d.tags {
		if string(d.tags[i].name) == string(name) {
			return true
		}
	}
	return false
}

// unescape gives the token's meaning: the token itself, or a copy in d.text. Pieces made earlier stay as they are when
// d.text moves.
func (d *Decoder) unescape(token []byte, class uint8, escaped bool) []byte {
	if !escaped {
		return token
	}
	from := len(d.text)
	d.text = appendUnescaped(d.text, token, class)
	return d.text[from:len(d.text):len(d.text)]
}

// Fields are found by comparing as long as a key has few; beyond that by hash, since senders that keep fields in a
// hash map write them in another order every time.
const (
	fieldsScanned = 64   // fields compared before and after the expected one
	fieldsKept    = 1024 // fields a template holds; finding one by position saves its hash
)

// fieldID finds the series of the field with that name as written, and makes it if it is new. Without ok d.flaw is set.
func (d *Decoder) fieldID(k *key, name []byte) (id point.SeriesID, ok bool) {
	if i := findField(k.fields, k.next, name); i >= 0 {
		k.next = i + 1
		return k.fields[i].ID, true
	}
	if len(k.fields) < fieldsScanned { // comparing will find it, no hash need
		return d.await(k, name)
	}
	if !d.settle(k) {
		return 0, false
	}
	dict := d.batch.Dict
	h := d.hashUnder(k.hash, 'f', name)
	if id, ok = dict.Lookup(h); ok {
		return id, true
	}
	if d.spliced, ok = d.fieldLabels(d.spliced[:0], k, name); !ok {
		return 0, false
	}
	id, err := dict.InternBytes(h, d.spliced)
	if err != nil {
		return 0, d.fail(err)
	}
	if len(k.fields) < fieldsKept {
		d.expect(k, point.LineField{Name: d.sharedName(name), ID: id})
	}
	return id, true
}

// waits marks a pending number: its other bits are a place in Decoder.fresh.
const waits point.SeriesID = 1 << 31

// await puts a new field among those of the line that get their numbers together. Until settle a place stands for its
// number, in the template and in the rows of the line.
func (d *Decoder) await(k *key, name []byte) (id point.SeriesID, ok bool) {
	if d.fresh.Text, ok = d.fieldLabels(d.fresh.Text, k, name); !ok {
		return 0, false
	}
	id = waits | point.SeriesID(d.fresh.Len())
	d.fresh.End(point.Hash{})
	d.expect(k, point.LineField{Name: d.sharedName(name), ID: id})
	return id, true
}

// expect adds a field to the template.
func (d *Decoder) expect(k *key, f point.LineField) {
	if len(k.fields) == k.known { // it is the Dict's
		d.template = append(d.template[:0], k.fields...)
	}
	d.template = append(d.template, f)
	k.fields, k.next = d.template, len(d.template)
}

// settle gives those that wait their numbers. Without ok d.flaw is set.
func (d *Decoder) settle(k *key) (ok bool) {
	if d.fresh.Len() == 0 {
		return true
	}
	if err := d.batch.Dict.InternAll(&d.fresh); err != nil {
		return d.refused(err)
	}
	for _, i := range d.fresh.Known {
		d.lookForMerge(k, i)
	}
	for i := range d.template[k.known:] {
		d.settleID(&d.template[k.known+i].ID)
	}
	rows := d.batch.IDs[k.rows:]
	for i := range rows {
		d.settleID(&rows[i])
	}
	d.fresh.Reset()
	return true
}

func (d *Decoder) settleID(id *point.SeriesID) {
	if *id >= waits {
		*id = d.fresh.IDs[*id&^waits]
	}
}

// note passes the Dict the fields of the line that the key's template lacked: all at once, so that a new key's
// template is allocated once and in its size.
func (d *Decoder) note(k *key) {
	if len(k.fields) > k.known {
		d.prev = d.batch.Dict.ExtendLineAll(k.hash, k.known, k.fields[k.known:])
	}
}

// namesShared bounds the names a Decoder remembers; they are forgotten all at once.
const namesShared = 4096

// sharedName is name as a string that templates share: one allocation and 16 bytes less for each new series.
func (d *Decoder) sharedName(name []byte) string {
	if s, ok := d.names[string(name)]; ok {
		return s
	}
	if len(name) > tokenTextMax {
		return string(name)
	}
	if d.names == nil || len(d.names) >= namesShared {
		d.names = make(map[string]string)
	}
	s := string(name)
	d.names[s] = s
	return s
}

// findField looks for a name among the fields behind the expected one, then among those before it; -1 when it is at
// neither place.
func findField(fields []point.LineField, next int, name []byte) int {
	for i := next; i < min(len(fields), next+fieldsScanned); i++ {
		if fields[i].Name == string(name) {
			return i
		}
	}
	for i := 0; i < min(next, fieldsScanned); i++ {
		if fields[i].Name == string(name) {
			return i
		}
	}
	return -1
}

// hashUnder sums the content under a key: one field's name, or all strings of a line.
func (d *Decoder) hashUnder(h point.Hash, what byte, raw []byte) point.Hash {
	d.sum = binary.LittleEndian.AppendUint64(d.sum[:0], h.Lo)
	d.sum = binary.LittleEndian.AppendUint64(d.sum, h.Hi)
	d.sum = append(append(d.sum, what), raw...)
	return d.batch.Dict.Hash(d.sum)
}

// fieldLabels names the series of a numeric field. It appends the canonical labels to dst; without ok nothing.
func (d *Decoder) fieldLabels(dst []byte, k *key, name []byte) ([]byte, bool) {
	if !k.sorted {
		d.sortShared(k)
	}
	d.metric = append(d.metric[:0], d.measurement...)
	if string(name) != bareField {
		d.metric = append(d.metric, d.Settings.Separator...)
		d.metric = appendUnescaped(d.metric, name, stopName)
	}
	out, ok := d.splice(dst)
	if !ok {
		d.startLabels(k)
		d.labels.Add(metricName, d.metric)
		var labels point.Labels
		if labels, ok = d.finishLabels(); !ok {
			return dst, false
		}
		out = append(dst, labels...)
	}
	if d.texts -= len(out) - len(dst); d.texts < 0 {
		d.over = errLabelsRequest
		return dst, false
	}
	return out, true
}

// sortShared makes canonical labels of the parts that a line's fields share, once for all fields.
func (d *Decoder) sortShared(k *key) {
	k.sorted = true
	if !k.parsed {
		d.parseKey(k, k.at)
	}
	if d.findShared() {
		return
	}
	c := d.shared
	c.raw, c.gap = d.tagsRaw, -1
	d.startLabels(k)
	labels, err := d.labels.Unnamed()
	if err != nil || labels.Len() == point.LabelsMax {
		return
	}
	c.labels = append(c.labels[:0], labels...)
	for rest := labels; ; {
		name, _, next, ok := rest.Next()
		if !ok || name > point.MetricName {
			c.gap = len(labels) - len(rest)
			return
		}
		if name == point.MetricName {
			return
		}
		rest = next
	}
}

// findShared makes d.shared the entry of the last few with the current tags, or the least recently used one.
func (d *Decoder) findShared() (known bool) {
	d.shared = &d.lastShared[0]
	for i := range d.lastShared {
		c := &d.lastShared[i]
		if known = len(d.tagsRaw) > 0 && string(c.raw) == string(d.tagsRaw); known {
			d.shared = c
			break
		}
		if c.used < d.shared.used {
			d.shared = c
		}
	}
	d.clock++
	d.shared.used = d.clock
	return known
}

// splice appends the labels that all fields share, with the metric's name among them; ok is false when there is a
// mistake among them, and dst is then unchanged.
func (d *Decoder) splice(dst []byte) (labels []byte, ok bool) {
	c := d.shared
	if c.gap < 0 || len(d.metric) > point.LabelValueMax || !utf8.Valid(d.metric) {
		return dst, false
	}
	b := append(dst, c.labels[:c.gap]...)
	b = append(append(b, byte(len(metricName))), metricName...)
	b = binary.AppendUvarint(b, uint64(len(d.metric)))
	b = append(append(b, d.metric...), c.labels[c.gap:]...)
	if len(b)-len(dst) > point.LabelsBytesMax {
		return dst, false
	}
	return b, true
}

var metricName = []byte(point.MetricName)

// startLabels puts the tags of the line, and the database where it is asked for, into d.labels.
func (d *Decoder) startLabels(k *key) {
	if !k.parsed {
		d.parseKey(k, k.at)
	}
	d.labels.Reset()
	for _, t := range d.tags {
		d.labels.Add(t.name, t.value)
	}
	if l := d.Settings.DBLabel; l != "" && !d.labels.Has(l) {
		d.labels.Add([]byte(l), []byte(d.Settings.DB))
	}
}

func (d *Decoder) finishLabels() (point.Labels, bool) {
	labels, err := d.labels.Labels()
	if err != nil {
		return "", d.fail(err)
	}
	return labels, true
}

// fail keeps the reason that another package gave.
func (d *Decoder) fail(err error) (ok bool) {
	d.flaw = flaw{err: err}
	return false
}

// refused keeps the reason why the Dict refuses the series.
func (d *Decoder) refused(err error) (ok bool) {
	d.flaw = flaw{err: err, series: true}
	return false
}

// info appends the row of the line's info series: its string fields as labels, with the value 1.
func (d *Decoder) info(k *key) bool {
	if len(d.strings) > point.LabelsMax {
		d.flaw = flaw{why: "too many string fields in one line to be labels"}
		return false
	}
	dict := d.batch.Dict
	h := d.hashStrings(k.hash)
	id, ok := dict.Lookup(h)
	if !ok {
		labels, ok := d.infoLabels(k)
		if !ok {
			return false
		}
		var err error
		if id, err = dict.Intern(h, labels); err != nil {
			return d.refused(err)
		}
	}
	d.batch.IDs = append(d.batch.IDs, id)
	d.batch.Values = append(d.batch.Values, 1)
	return true
}

// hashStrings sums the string fields as written; quotes and equals signs within them are escaped, so that pairs cannot
// run into each other.
func (d *Decoder) hashStrings(h point.Hash) point.Hash {
	from := len(d.text)
	for _, f := range d.strings {
		d.text = append(append(d.text, f.name...), '=', '"')
		d.text = append(append(d.text, f.value...), '"')
	}
	raw := d.text[from:]
	d.text = d.text[:from:cap(d.text)]
	return d.hashUnder(h, 's', raw)
}

// infoLabels names the info series. Of fields with one name the last wins, and a tag wins over any.
func (d *Decoder) infoLabels(k *key) (point.Labels, bool) {
	d.startLabels(k)
	for i := len(d.strings) - 1; i >= 0; i-- {
		f := d.strings[i]
		name := appendUnescaped(nil, f.name, stopName)
		if !d.labels.Has(string(name)) && string(name) != point.MetricName {
			d.labels.Add(name, appendUnquoted(nil, f.value))
		}
	}
	d.metric = append(append(d.metric[:0], d.measurement...), "_info"...)
	d.labels.Add(metricName, d.metric)
	return d.finishLabels()
}
