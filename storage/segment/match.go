package segment

import (
	"encoding/binary"
	"sort"
	"strconv"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Labels gives the labels of a series if its definition is held here; ok is false when it is in a segment before.
func (r *Reader) Labels(id point.DenseID) (l point.Labels, ok bool, err error) {
	if err := r.acquire(); err != nil {
		return "", false, err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return "", false, err
	}
	defer func() {
		if cerr := t.close(); err == nil {
			err = cerr
		}
	}()
	defs, err := r.definitionsAt(t, id, true)
	if err != nil {
		return "", false, err
	}
	l, ok = defs.find(id)
	return l, ok, nil
}

// EachLabels calls f with those of the series that have their labels here, in rising order of ids. Each page of
// definitions is opened once. f's error ends the walk and is returned as it is.
func (r *Reader) EachLabels(ids *roaring.Bitmap, f func(id point.DenseID, l point.Labels) error) error {
	return r.visitLabels(ids, true, f)
}

// visitLabels is EachLabels; keep says whether pages of definitions that are opened stay in the Cache.
func (r *Reader) visitLabels(ids *roaring.Bitmap, keep bool, f func(id point.DenseID, l point.Labels) error) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	err = r.eachLabels(t, ids, keep, f)
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return err
}

func (r *Reader) eachLabels(t *tableIter, ids *roaring.Bitmap, keep bool, f func(id point.DenseID, l point.Labels) error) error {
	// Ids rise, so a page is found once and serves all of its ids.
	defs := &definitions{} // the page that holds the id before
	for it := ids.Iterator(); it.HasNext(); {
		id := point.DenseID(it.Next())
		if last, ok := defs.last(); !ok || last < id {
			next, err := r.after(defs, id), error(nil)
			if next == nil {
				next, err = r.definitionsAt(t, id, keep)
			}
			if err != nil {
				return err
			}
			defs = next
		}
		l, ok := defs.find(id)
		if !ok {
			continue
		}
		if err := f(id, l); err != nil {
			return err
		}
	}
	return nil
}

// afterMost is how many pages after looks at: each costs a third of a seek in the file's index.
const afterMost = 3

// after returns the page of id if the Cache has it and those between it and defs, else nil. Pages mostly follow one another without a gap.
func (r *Reader) after(defs *definitions, id point.DenseID) *definitions {
	for range afterMost {
		last, ok := defs.last()
		if !ok || last == maxID {
			return nil
		}
		p, ok := r.cache.page(pageKey{reader: r, group: definitionsGroup, page: uint32(last + 1)})
		if !ok {
			return nil
		}
		if defs = p.defs; defs.from(id) < defs.len() {
			return defs
		}
	}
	return nil
}

// definitionsAt opens the page that holds the definition of id, if any does: the last that begins at or before it.
func (r *Reader) definitionsAt(t *tableIter, id point.DenseID, keep bool) (*definitions, error) {
	kv := t.it.SeekLT(key32(nil, keyDefinitions, uint32(id)+1), 0)
	if kv == nil || len(kv.K.UserKey) != 5 || kv.K.UserKey[0] != keyDefinitions {
		return &definitions{}, t.failed()
	}
	k := pageKey{reader: r, group: definitionsGroup, page: binary.BigEndian.Uint32(kv.K.UserKey[1:])}
	if p, ok := r.cache.page(k); ok {
		return p.defs, nil
	}
	v, _, err := kv.Value(nil)
	if err != nil {
		return nil, diskError(err, r.path)
	}
	defs, err := parseDefinitions(v, r.cache.decoder)
	if err != nil {
		return nil, r.corrupt(kv.K.UserKey, err)
	}
	page := newDefinitions(defs)
	if keep {
		page = r.cache.putDefinitions(k, page)
	}
	return page, nil
}

// Match returns the series, among those defined here, for which all matchers hold; an absent label has the value "". No
// matchers: all of them. The bitmap belongs to the caller.
func (r *Reader) Match(ms []*labels.Matcher) (*roaring.Bitmap, error) {
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	var out *roaring.Bitmap
	// An example, {job="api", host!="h1"}: the first matcher gives series to keep. The second holds for the absent label, too, so it gives the
	// series to remove, those with host="h1": a set of the others would name nearly all. Without a positive matcher all are kept first.
	var without []*roaring.Bitmap // to be removed
	for _, m := range ms {
		set, negative, err := r.matching(names, m)
		switch {
		case err != nil:
			return nil, err
		case negative:
			without = append(without, set)
		case out == nil:
			// The set may be the Cache's.
			out = set.Clone()
		default:
			out.And(set)
		}
		if out != nil && out.IsEmpty() { // whatever the other matchers say
			return out, nil
		}
	}
	if out == nil {
		if out, err = r.all(); err != nil {
			return nil, err
		}
	}
	for _, set := range without {
		out.AndNot(set)
	}
	return out, nil
}

// matching is matchOne with an answer that may be the Cache's: read only. Queries of narrow partitions ask each of many segments the same.
func (r *Reader) matching(names []labelName, m *labels.Matcher) (set *roaring.Bitmap, negative bool, err error) {
	if len(m.Name)+len(m.Value) > lookupKeyMax {
		return r.matchOne(names, m)
	}
	// Names may have any character: without the comma "=" before a name that begins with ~ is "=~".
	asked := strconv.Itoa(len(m.Name)) + m.Type.String() + "," + m.Name + m.Value
	k := pageKey{reader: r, group: setsGroup, at: r.cache.hash(asked)}
	if p, ok := r.cache.page(k); ok && p.asked == asked {
		return p.set, p.negative, nil
	}
	if set, negative, err = r.matchOne(names, m); err == nil {
		r.cache.putSet(k, asked, set, negative)
	}
	return set, negative, err
}

// matchOne gives the series for which m holds, or, when m holds for "" too, those for which it does not (negative).
// Examples of m and the collected ids: host="h1" the ids of h1, host!="h1" those of h1 (negative), host=~"h.*" all values that match,
// host="" all values (negative).
func (r *Reader) matchOne(names []labelName, m *labels.Matcher) (set *roaring.Bitmap, negative bool, err error) {
	set, negative = roaring.New(), m.Matches("")
	n := findName(names, m.Name)
	if n == nil {
		return set, negative, nil
	}
	if m.Type == labels.MatchEqual && !negative {
		return set, false, r.equal(n, m.Value, set)
	}
	var bad error
	err = r.eachValue(n, 0, len(n.firsts), func(value string, ids cursor) bool {
		if m.Matches(value) != negative {
			bad = addRuns(set, ids)
		}
		return bad == nil
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return set, negative, err
}

// equal reads only the page in which the value must be.
func (r *Reader) equal(n *labelName, want string, set *roaring.Bitmap) error {
	// A page begins at its mark, which is not greater than its first value: it is the last one with a mark up to the value.
	page := sort.SearchStrings(n.firsts, want)
	if page == len(n.firsts) || n.firsts[page] != want {
		page--
	}
	if page < 0 {
		return nil
	}
	key := keyPosting(nil, n.number, uint32(page))
	var bad error
	found, err := r.get(key, func(b []byte) error {
		runs, found, err := posting(b, r.cache, want)
		if err == nil && found {
			bad = addRuns(set, runs)
		}
		return err
	})
	switch {
	case err == nil && !found:
		err = r.corrupt(key, errForm("table: the key is missing"))
	case err == nil && bad != nil:
		err = r.corrupt(key, bad)
	}
	return err
}

// eachValue calls f for the values in pages [from, to) of a name, in order, until f returns false.
func (r *Reader) eachValue(n *labelName, from, to int, f func(value string, ids cursor) bool) error {
	more := true
	for page := from; page < to && more; page++ {
		key := keyPosting(nil, n.number, uint32(page))
		found, err := r.get(key, func(v []byte) error {
			return eachPosting(v, r.cache.decoder, func(value string, ids cursor) bool {
				more = f(value, ids)
				return more
			})
		})
		if err == nil && !found {
			err = r.corrupt(key, errForm("table: the key is missing"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func findName(names []labelName, name string) *labelName {
	i := sort.Search(len(names), func(i int) bool { return names[i].name >= name })
	if i == len(names) || names[i].name != name {
		return nil
	}
	return &names[i]
}
