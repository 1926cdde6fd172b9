package segment

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/labelorder"
)

// Look-ups of names and values cost what they return, not the number of series: lists of all values read no ids, those of some series read
// the postings of the label, or the definitions of these series if they are in fewer pages. Answers stay in the Cache: a segment never changes.

// names reads the record of names, with its further parts if it has any. It is shared and read only.
func (r *Reader) names() (names []labelName, err error) {
	k := pageKey{reader: r, group: namesGroup}
	if p, ok := r.cache.page(k); ok {
		return p.names, nil
	}
	// The callback overwrites more; a part that is missing leaves it false, so that the walk ends.
	more := false
	parse := func(v []byte) error {
		names, more, err = parseNames(names, v, r.cache.decoder)
		return err
	}
	_, err = r.get([]byte{keyNames}, func(v []byte) error {
		if p := r.cache.commonOf(namesGroup, v); p != nil {
			names = p.names
			return nil
		}
		if err := parse(v); err != nil || more {
			return err
		}
		r.cache.putCommon(namesGroup, v, &cached{names: names}, namesBytes(names))
		return nil
	})
	for part := uint32(0); more && err == nil; part++ {
		more = false
		_, err = r.get(keyPosting(nil, moreNames, part), parse)
	}
	if err == nil {
		r.cache.putNames(k, names)
	}
	return names, err
}

// all gives every series defined here. Their ids have no gaps but in files of other tools, which are walked.
func (r *Reader) all() (*roaring.Bitmap, error) {
	out := roaring.New()
	first, last, err := r.definedRange()
	if err != nil || r.info.Definitions == 0 {
		return out, err
	}
	if uint64(last)-uint64(first)+1 == r.info.Definitions {
		out.AddRange(uint64(first), uint64(last)+1)
		return out, nil
	}
	return out, r.LendDefinitions(func(id point.DenseID, _ point.Labels) error {
		out.Add(uint32(id))
		return nil
	})
}

// definedRange returns the first and the last id that are defined here, if any is.
// definedRange costs two seeks: the first key has the first id, and the page below maxID the last.
func (r *Reader) definedRange() (first, last point.DenseID, err error) {
	if err := r.acquire(); err != nil {
		return 0, 0, err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return 0, 0, err
	}
	if t.seek([]byte{keyDefinitions}) && len(t.key) == 5 && t.key[0] == keyDefinitions {
		first = point.DenseID(binary.BigEndian.Uint32(t.key[1:]))
		defs, derr := r.definitionsAt(t, maxID, true)
		if err = derr; err == nil {
			last, _ = defs.last()
		}
	}
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return first, last, err
}

// maxID is greater than every id: the writer refuses 2^32-1.
// It leaves room for the 1 that definitionsAt adds.
const maxID = 1<<32 - 2

// Lookup asks which label names, or which values of a label, series have. Safe for concurrent use.
// One Lookup is asked of each segment of each partition that a request visits.
type Lookup struct {
	label string // "": names
	ms    []*labels.Matcher
	limit int    // so many of the answer are wanted, or more; 0: all
	key   string // of answers in the Cache; "": too long
}

// lookupKeyMax bounds the key of an answer that is kept: answers to longer questions are computed each time.
const lookupKeyMax = 1 << 10

// NamesOf asks for the names of labels of the series that fulfil all matchers.
func NamesOf(ms []*labels.Matcher) *Lookup { return &Lookup{ms: ms, key: keyOf("", ms)} }

// ValuesOf asks for the values of a label of the series that fulfil all matchers, the first limit of them (0: all) or more.
func ValuesOf(label string, ms []*labels.Matcher, limit int) *Lookup {
	l := &Lookup{label: label, ms: ms, limit: limit, key: keyOf(label, ms)}
	if limit > 0 && l.key != "" {
		l.key += "," + strconv.Itoa(limit) // a matcher would begin with a quotation mark
	}
	return l
}

// Look answers a Lookup about the series defined here, but for those in without. The list is sorted and may be shared: read only. Segments with
// equal answers share one as long as it stays in the Cache.
func (r *Reader) Look(l *Lookup, without *roaring.Bitmap) ([]string, error) {
	if l.key == "" || !without.IsEmpty() {
		return r.look(l, without)
	}
	k := pageKey{reader: r, group: answersGroup, at: r.cache.hash(l.key)}
	if p, ok := r.cache.page(k); ok && p.asked == l.key {
		return p.values, nil
	}
	found, err := r.look(l, without)
	if err != nil {
		return nil, err
	}
	return r.cache.putAnswer(k, l.key, joined(found)), nil
}

// joined returns copies, parts of one string: strings that were read from pages are parts of the pages' strings, which would stay in memory with them,
// uncounted.
func joined(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	size := 0
	for _, v := range values {
		size += len(v)
	}
	var b strings.Builder
	b.Grow(size)
	for _, v := range values {
		b.WriteString(v)
	}
	all, out := b.String(), make([]string, len(values))
	for i, v := range values {
		out[i], all = all[:len(v)], all[len(v):]
	}
	return out
}

// look chooses the way: without matchers the postings say all, with matchers the series that fulfil them are found first. without are the
// series that have lost all their rows: values that no other series has are left out.
func (r *Reader) look(l *Lookup, without *roaring.Bitmap) ([]string, error) {
	if len(l.ms) > 0 {
		within, err := r.Match(l.ms)
		if err != nil {
			return nil, err
		}
		within.AndNot(without)
		if l.label == "" {
			return r.namesWithin(within)
		}
		return r.valuesWithin(l, within)
	}
	names, err := r.names()
	switch {
	case err != nil:
		return nil, err
	case l.label == "":
		return r.namesWithout(names, without)
	}
	n := findName(names, l.label)
	switch {
	case n == nil:
		return nil, nil
	case without.IsEmpty():
		return r.values(n, l.limit)
	}
	var out []string
	err = r.eachUsed(n, without, func(value string) bool {
		out = append(out, value)
		return len(out) != l.limit
	})
	return out, err
}

// namesWithout gives the names that series outside without have: of each name, values are read up to the first that one of them has.
func (r *Reader) namesWithout(names []labelName, without *roaring.Bitmap) ([]string, error) {
	out := make([]string, 0, len(names))
	for i := range names {
		used := without.IsEmpty()
		if !used {
			if err := r.eachUsed(&names[i], without, func(string) bool { used = true; return false }); err != nil {
				return nil, err
			}
		}
		if used {
			out = append(out, names[i].name)
		}
	}
	return out, nil
}

// values gives the values of a name: all (limit 0), or those of the first pages that have so many. No ids are read.
func (r *Reader) values(n *labelName, limit int) ([]string, error) {
	pages := len(n.firsts)
	if limit > 0 {
		pages = min(pages, limit)
	}
	// The number of values comes from the file: it is bounded by that of the pages.
	out := make([]string, 0, min(n.values, pageValues*pages))
	for page := 0; page < pages && (limit == 0 || len(out) < limit); page++ {
		key := keyPosting(nil, n.number, uint32(page))
		found, err := r.get(key, func(v []byte) (err error) {
			out, err = valuesOfPage(out, v, r.cache)
			return err
		})
		if err == nil && !found {
			err = r.corrupt(key, errForm("table: the key is missing"))
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// eachUsed calls f for the values of a name that series outside without have, in order, until f returns false.
func (r *Reader) eachUsed(n *labelName, without *roaring.Bitmap, f func(value string) bool) error {
	of := roaring.New()
	var bad error
	err := r.eachValue(n, 0, len(n.firsts), func(value string, ids cursor) bool {
		of.Clear()
		if bad = addRuns(of, ids); bad != nil {
			return false
		}
		if of.AndNot(without); of.IsEmpty() {
			return true
		}
		return f(value)
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return err
}

// namesWithin gives the names of the labels that series in within have.
func (r *Reader) namesWithin(within *roaring.Bitmap) ([]string, error) {
	names, err := r.names()
	if err != nil || within.IsEmpty() {
		return nil, err
	}
	// A page of definitions costs about as much as a page of postings, and each name has one at least.
	if pagesOf(within, len(names)) < len(names) {
		return r.seen(within, 0, func(l point.Labels, seen *labelorder.Values) {
			l.Range(func(name, _ string) bool {
				seen.Add(name)
				return true
			})
		})
	}
	var out []string
	ids := within.ToArray()
	for i := range names {
		if err := r.eachMeeting(&names[i], ids, nil, func(string) bool {
			out = append(out, names[i].name)
			return false
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// valuesWithin gives the values of a label that series in within, which fulfil the matchers, have.
func (r *Reader) valuesWithin(l *Lookup, within *roaring.Bitmap) (out []string, err error) {
	names, err := r.names()
	if err != nil || within.IsEmpty() {
		return nil, err
	}
	n := findName(names, l.label)
	if n == nil {
		return nil, nil
	}
	if pagesOf(within, len(n.firsts)) < len(n.firsts) {
		return r.seen(within, l.limit, func(of point.Labels, seen *labelorder.Values) {
			if v := of.Get(l.label); v != "" {
				seen.Add(v)
			}
		})
	}
	// Matchers of other labels are settled by within already. Those of this label spare reading the ids of values that cannot be in it.
	own := slices.DeleteFunc(slices.Clone(l.ms), func(m *labels.Matcher) bool { return m.Name != l.label })
	err = r.eachMeeting(n, within.ToArray(), own, func(value string) bool {
		out = append(out, value)
		return len(out) != l.limit
	})
	return out, err
}

// seen reads the labels of series and returns what see puts into the set, sorted, the first limit (0: all). Their pages would displace the answers of other segments from the Cache.
func (r *Reader) seen(within *roaring.Bitmap, limit int, see func(l point.Labels, set *labelorder.Values)) ([]string, error) {
	set := labelorder.Values{Limit: limit}
	err := r.visitLabels(within, false, func(_ point.DenseID, l point.Labels) error {
		see(l, &set)
		return nil
	})
	return set.Sorted(), err
}

// pagesOf guesses how many pages of definitions the series are in, up to most.
func pagesOf(within *roaring.Bitmap, most int) (n int) {
	for it := within.Iterator(); n < most && it.HasNext(); n++ {
		// The last id of the page, if pages were full and began at multiples of 256.
		end := it.Next() | (pageDefinitions - 1)
		if end == 1<<32-1 {
			return n + 1
		}
		it.AdvanceIfNeeded(end + 1)
	}
	return n
}

// eachMeeting calls f for the values of a name that a series in ids, which rise, has, in order, until f returns false. The series fulfil ms, which are
// about this name: runs of other values are not read.
func (r *Reader) eachMeeting(n *labelName, ids []uint32, ms []*labels.Matcher, f func(value string) bool) error {
	var bad error
	err := r.eachValue(n, 0, len(n.firsts), func(value string, runs cursor) bool {
		for _, m := range ms {
			if !m.Matches(value) {
				return true
			}
		}
		met := false
		if met, bad = meets(runs, ids); bad != nil {
			return false
		}
		return !met || f(value)
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return err
}

// meets reports whether a posting has one of the ids, which rise. It reads no further than the first.
func meets(c cursor, ids []uint32) (bool, error) {
	at := uint64(0)
	for len(c.b) > 0 {
		lo := at + c.uvarint()
		at = lo + c.uvarint()
		if c.bad || lo > 1<<32 || at <= lo || at > 1<<32 {
			return false, errForm("posting")
		}
		ids = ids[gallop(ids, lo):]
		if len(ids) == 0 {
			return false, nil
		}
		if uint64(ids[0]) < at {
			return true, nil
		}
	}
	return false, nil
}

// gallop returns the place of the first id that is not below lo: mostly a near one.
func gallop(ids []uint32, lo uint64) int {
	// Doubling from the front, then halving within the last step: log of the distance, and not of the length.
	end := 1
	for end < len(ids) && uint64(ids[end]) < lo {
		end *= 2
	}
	from := end / 2
	at, _ := slices.BinarySearchFunc(ids[from:min(end+1, len(ids))], lo, func(id uint32, lo uint64) int {
		switch {
		case uint64(id) < lo:
			return -1
		case uint64(id) > lo:
			return 1
		}
		return 0
	})
	return from + at
}
