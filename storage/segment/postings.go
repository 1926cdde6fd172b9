package segment

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// postings collects, while definitions come in, which series have which label. Ids come in rising order.
type postings struct {
	names  map[string]map[string]*runs
	last   []lastPosting // by the label's number in its set
	labels int           // of the series before
}

// lastPosting is the label that the series before had in a place: neighbours share most labels, and comparing strings is cheaper
// than looking them up (building postings: 310 ns a series of ten labels, 1.2 µs without).
type lastPosting struct {
	name, value string
	values      map[string]*runs
	runs        *runs
}

// runs is a rising set of ids as (gap, length) pairs, which is also its form on disk: a host's series follow each
// other, so most sets are one pair.
// The ids 3, 4, 5, 9 as an example: gap 3, length 3, gap 3 (6, 7, 8 are left out), length 1: 03 03 03 01.
type runs struct {
	buf         []byte
	count       int
	start, next uint32 // the open run is [start, next); next 0 and start 0: none yet
	prev        uint32 // end of the run before it

	value string // of which this is the set
	after *runs  // of the value that last came behind it: the metrics of the next host mostly come in the same order
}

// add adds an id that is greater than all before.
func (r *runs) add(id uint32) {
	r.count++
	if r.next > r.start && id == r.next {
		r.next++
		return
	}
	r.flush()
	r.start, r.next = id, id+1
}

// flush writes the open run. The last id of all, 2^32-1, would make next wrap: the writer refuses it.
func (r *runs) flush() {
	if r.next > r.start {
		r.buf = binary.AppendUvarint(r.buf, uint64(r.start-r.prev))
		r.buf = binary.AppendUvarint(r.buf, uint64(r.next-r.start))
		r.prev = r.next
		r.start = r.next
	}
}

// add adds a series, of which the labels from an offset on are those of the series before (sharedRest). In both branches last[i] ends as the i-th label of
// this series: names and runs of labels that are equal are used again without a look-up.
func (p *postings) add(id point.DenseID, l point.Labels, shared int) {
	i := 0
	if shared > 0 {
		for k := range p.last[1:p.labels] {
			p.last[1+k].runs.add(uint32(id))
		}
		l = l[:shared] // all labels but the first are those of the series before
	} else {
		p.labels = l.Len()
	}
	l.Range(func(name, value string) bool {
		if i == len(p.last) {
			p.last = append(p.last, lastPosting{})
		}
		p.find(&p.last[i], name, value).add(uint32(id))
		i++
		return true
	})
}

// find returns the runs of a label. It goes through the maps only where name or value differ from those of the series before.
func (p *postings) find(last *lastPosting, name, value string) *runs {
	if last.name == name && last.value == value && last.runs != nil {
		return last.runs
	}
	if last.name != name || last.values == nil {
		last.name, last.values, last.runs = name, p.names[name], nil
		if last.values == nil {
			last.values = map[string]*runs{}
			p.names[strings.Clone(name)] = last.values
		}
	}
	before := last.runs
	if before != nil && before.after != nil && before.after.value == value {
		last.value, last.runs = value, before.after
		return last.runs
	}
	last.value, last.runs = value, last.values[value]
	if last.runs == nil {
		last.runs = &runs{value: strings.Clone(value)} // not a piece of the labels, which it would hold in memory
		last.values[last.runs.value] = last.runs
	}
	if before != nil {
		before.after = last.runs
	}
	return last.runs
}

// Bounds of a page of postings.
const (
	pageValues      = 512
	pagePostings    = 64 << 10  // bytes of values and runs at which a page is closed
	postingsMax     = 128 << 20 // bytes of one page: the runs of a single value can be long
	valueBytesMax   = pagePostings + point.LabelValueMax
	pagePostingsMin = 3 // least bytes of a value
)

// write puts the record of names, the pages of each name in order, and further parts of the record where it is long.
// The order of calls is that of keys: 'b' alone, 'b' with name and page, 'b' with ffffffff and the part.
func (p *postings) write(put func(key, value []byte) error, pk *packer) error {
	names := slices.Sorted(maps.Keys(p.names))
	var pages [][][]byte
	lines := make([]labelName, 0, len(names))
	for _, name := range names {
		ps, firsts := packValues(p.names[name], pk)
		pages = append(pages, ps)
		lines = append(lines, labelName{name: name, values: len(p.names[name]), firsts: firsts})
	}
	// A further part is read only if the one before it is long (parseNames): so nearly all files have one.
	parts := packNames(lines, namesPart)
	if err := put([]byte{keyNames}, packRecord(parts[0], pk)); err != nil {
		return err
	}
	for n, ps := range pages {
		for k, page := range ps {
			if err := put(keyPosting(nil, uint32(n), uint32(k)), page); err != nil {
				return err
			}
		}
	}
	for i, part := range parts[1:] {
		if err := put(keyPosting(nil, moreNames, uint32(i)), packRecord(part, pk)); err != nil {
			return err
		}
	}
	return nil
}

// packRecord makes a value of one frame with its raw length before it.
func packRecord(raw []byte, pk *packer) []byte {
	return pk.append(binary.AppendUvarint(nil, uint64(len(raw))), raw)
}

// packNames writes the record of names, in parts that are closed at a size. A name with a line that does not fit goes
// on in the next part, without counting its values again.
func packNames(lines []labelName, size int) (parts [][]byte) {
	var body []byte
	names := 0
	end := func() {
		parts = append(parts, append(binary.AppendUvarint(nil, uint64(names)), body...))
		body, names = nil, 0
	}
	// At least one first value a part, so that a name with long values makes progress in each.
	for _, l := range lines {
		values, firsts := l.values, l.firsts
		for {
			room, n := size-len(body), 0
			for n < len(firsts) && (room > 0 || n == 0) {
				room -= len(firsts[n])
				n++
			}
			body = appendString(body, l.name)
			body = binary.AppendUvarint(body, uint64(values))
			body = binary.AppendUvarint(body, uint64(n))
			for _, first := range firsts[:n] {
				body = appendString(body, first)
			}
			names++
			values, firsts = 0, firsts[n:]
			if len(body) >= size {
				end()
			}
			if len(firsts) == 0 {
				break
			}
		}
	}
	if names > 0 || len(parts) == 0 {
		end()
	}
	return parts
}

// appendString is the form str of FORMAT.md.
func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// packValues makes the pages of one name, and returns for each a mark between the values before it and its own: its
// first value, or a beginning of it.
func packValues(values map[string]*runs, pk *packer) (pages [][]byte, firsts []string) {
	sorted := slices.Sorted(maps.Keys(values))
	last := ""
	for len(sorted) > 0 {
		var heads, strs, ids []byte
		n := 0
		for n < len(sorted) && n < pageValues && len(strs)+len(ids) < pagePostings {
			v := sorted[n]
			r := values[v]
			r.flush()
			heads = binary.AppendUvarint(heads, uint64(len(v)))
			heads = binary.AppendUvarint(heads, uint64(len(r.buf)))
			strs, ids = append(strs, v...), append(ids, r.buf...)
			n++
		}
		page := binary.AppendUvarint(nil, uint64(n))
		for _, part := range [][]byte{heads, strs, ids} {
			page = binary.AppendUvarint(page, uint64(len(part)))
			page = pk.append(page, part)
		}
		pages, firsts = append(pages, page), append(firsts, separator(last, sorted[0]))
		last, sorted = sorted[n-1], sorted[n:]
	}
	return pages, firsts
}

// separator gives a beginning of first that is greater than last, which is less than first. Every query reads all of them:
// long ones are cut, so that values of kilobytes are not there in full.
// An example with a bound of 4 instead of 64 bytes: between "/api/v1/items" and "/api/v2/users" it is "/api/v2".
func separator(last, first string) string {
	if len(first) <= separatorWhole {
		return first
	}
	n := 0
	for n < len(last) && last[n] == first[n] {
		n++
	}
	return first[:max(n+1, separatorWhole)]
}

const separatorWhole = 64 // bytes of a value that are never cut

// labelName is one name's line in the record of names.
type labelName struct {
	name   string
	number uint32
	values int
	firsts []string // of each page: greater than all values before it, not greater than its own
}

// Bounds of the record of names, raw.
const (
	namesPart = 16 << 20  // a part is closed at this size
	namesMax  = 64 << 20  // a part; one of earlier versions is the whole record
	moreNames = 1<<32 - 1 // in place of a name's number: the further parts
)

// parseNames reads a part of the record of names and appends its lines to names, which are those of the parts before
// it. more reports that another may follow.
func parseNames(names []labelName, b []byte, d *zstd.Decoder) (_ []labelName, more bool, err error) {
	c := cursor{b: b}
	raw, _ := c.frame(d, c.count(namesMax), nil)
	if !c.end() {
		return nil, false, errForm("record of label names")
	}
	c = cursor{b: raw}
	before := len(names)
	for i := range c.count(len(raw)) {
		n := labelName{name: string(c.bytes(c.count(point.LabelNameMax))), number: uint32(len(names)), values: c.count(1 << 32)}
		for range c.count(len(c.b)) {
			n.firsts = append(n.firsts, string(c.bytes(c.count(point.LabelValueMax))))
			if c.bad {
				break
			}
		}
		last := len(names) - 1
		switch {
		case c.bad, last >= 0 && n.name < names[last].name, i > 0 && n.name == names[last].name:
			return nil, false, errForm("record of label names")
		case last >= 0 && last == before-1 && n.name == names[last].name: // it goes on
			names[last].values += n.values
			names[last].firsts = append(names[last].firsts, n.firsts...)
		default:
			names = append(names, n)
		}
	}
	if !c.end() {
		return nil, false, errForm("record of label names")
	}
	return names, len(raw) >= namesPart, nil
}

// eachPosting calls f for every value of a page with its runs, until f returns false. The value and the runs are valid
// during the call.
// A page is read whole: values and ids are frames of their own, so that a list of values need not open the ids.
func eachPosting(b []byte, d *zstd.Decoder, f func(value string, ids cursor) bool) error {
	c := cursor{b: b}
	n := c.count(pageValues)
	heads, _ := c.frame(d, c.count(2*5*pageValues), nil)
	strs, _ := c.frame(d, c.count(valueBytesMax), nil)
	ids, _ := c.frame(d, c.count(postingsMax), nil)
	if !c.end() {
		return errForm("page of postings")
	}
	h, all := cursor{b: heads}, string(strs)
	for range n {
		size := h.count(len(all))
		run := h.count(len(ids))
		if h.bad {
			return errForm("page of postings")
		}
		if !f(all[:size], cursor{b: ids[:run]}) {
			return nil
		}
		all, ids = all[size:], ids[run:]
	}
	if !h.end() || all != "" || len(ids) > 0 {
		return errForm("page of postings")
	}
	return nil
}

// posting returns the runs of a value of a page, and whether it is there. The ids are opened only then: most segments that a query looks at have no such
// value. The runs are valid as long as b.
func posting(b []byte, cache *Cache, want string) (runs cursor, found bool, err error) {
	c := cursor{b: b}
	n := c.count(pageValues)
	heads := c.commonFrame(cache, c.count(2*5*pageValues))
	strs := c.commonFrame(cache, c.count(valueBytesMax))
	if c.bad {
		return cursor{}, false, errForm("page of postings")
	}
	h, before, run, passed := cursor{b: heads}, 0, 0, false
	for range n {
		size := h.count(len(strs))
		run = h.count(postingsMax)
		if h.bad {
			return cursor{}, false, errForm("page of postings")
		}
		if value := strs[:size]; string(value) >= want {
			found, passed = string(value) == want, true
			break
		}
		strs = strs[size:]
		before += run
	}
	if !passed && (!h.end() || len(strs) > 0) { // as valuesOfPage: it has more values than it says
		return cursor{}, false, errForm("page of postings")
	}
	if !found {
		return cursor{}, false, nil
	}
	ids, _ := c.frame(cache.decoder, c.count(postingsMax), nil)
	if !c.end() || len(ids) < before+run {
		return cursor{}, false, errForm("page of postings")
	}
	return cursor{b: ids[before : before+run]}, true, nil
}

// valuesOfPage appends the values of a page. The ids are not opened.
func valuesOfPage(out []string, b []byte, cache *Cache) ([]string, error) {
	c := cursor{b: b}
	n := c.count(pageValues)
	heads := c.commonFrame(cache, c.count(2*5*pageValues))
	strs := c.commonFrame(cache, c.count(valueBytesMax))
	if c.bad {
		return nil, errForm("page of postings")
	}
	h, all := cursor{b: heads}, string(strs)
	for range n {
		size := h.count(len(all))
		h.uvarint()
		if h.bad {
			return nil, errForm("page of postings")
		}
		out, all = append(out, all[:size]), all[size:]
	}
	if !h.end() || all != "" {
		return nil, errForm("page of postings")
	}
	return out, nil
}

// addRuns puts the ids of a posting into a bitmap. Short runs go in together: a range alone makes room for itself in its container, which cost
// two thirds of the time of a look-up of one metric of 10,000 hosts.
func addRuns(to *roaring.Bitmap, c cursor) error {
	const short = 16
	var few [256]uint32
	n, at := 0, uint64(0)
	for len(c.b) > 0 {
		lo := at + c.uvarint()
		at = lo + c.uvarint()
		if c.bad || lo > 1<<32 || at <= lo || at > 1<<32 {
			return errForm("posting")
		}
		if at-lo > short {
			to.AddRange(lo, at)
			continue
		}
		if n+short > len(few) {
			to.AddMany(few[:n])
			n = 0
		}
		for ; lo < at; lo++ {
			few[n] = uint32(lo)
			n++
		}
	}
	to.AddMany(few[:n])
	return nil
}
