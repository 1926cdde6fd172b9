package segment

import (
	"encoding/binary"
	"slices"
	"sort"

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
	defs, err := r.definitionsAt(t, id)
	if err != nil {
		return "", false, err
	}
	i, ok := slices.BinarySearchFunc(defs, id, func(d definition, id point.DenseID) int { return int(int64(d.id) - int64(id)) })
	if !ok {
		return "", false, nil
	}
	return defs[i].labels, true, nil
}

// EachLabels calls f with those of the series that have their labels here, in rising order of ids. Each page of
// definitions is opened once. f's error ends the walk and is returned as it is.
func (r *Reader) EachLabels(ids *roaring.Bitmap, f func(id point.DenseID, l point.Labels) error) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	err = r.eachLabels(t, ids, f)
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return err
}

func (r *Reader) eachLabels(t *tableIter, ids *roaring.Bitmap, f func(id point.DenseID, l point.Labels) error) error {
	var defs []definition // of the page that holds the id before, from there on
	for it := ids.Iterator(); it.HasNext(); {
		id := point.DenseID(it.Next())
		if n := len(defs); n == 0 || defs[n-1].id < id {
			var err error
			if defs, err = r.definitionsAt(t, id); err != nil {
				return err
			}
		}
		i, ok := slices.BinarySearchFunc(defs, id, func(d definition, id point.DenseID) int { return int(int64(d.id) - int64(id)) })
		defs = defs[i:]
		if !ok {
			continue
		}
		if err := f(id, defs[0].labels); err != nil {
			return err
		}
	}
	return nil
}

// definitionsAt opens the page that holds the definition of id, if any does: the last that begins at or before it.
func (r *Reader) definitionsAt(t *tableIter, id point.DenseID) ([]definition, error) {
	kv := t.it.SeekLT(key32(nil, keyDefinitions, uint32(id)+1), 0)
	if kv == nil || len(kv.K.UserKey) != 5 || kv.K.UserKey[0] != keyDefinitions {
		return nil, t.failed()
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
	r.cache.putDefinitions(k, defs)
	return defs, nil
}

// Match returns the series, among those defined here, for which all matchers hold; an absent label has the value "". No
// matchers: all of them. The bitmap belongs to the caller.
func (r *Reader) Match(ms []*labels.Matcher) (*roaring.Bitmap, error) {
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	var out *roaring.Bitmap
	var without []*roaring.Bitmap // to be taken away
	for _, m := range ms {
		set, negative, err := r.matchOne(names, m)
		switch {
		case err != nil:
			return nil, err
		case negative:
			without = append(without, set)
		case out == nil:
			out = set
		default:
			out.And(set)
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

// matchOne gives the series for which m holds, or, when m holds for "" too, those for which it does not (negative).
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
	page := sort.SearchStrings(n.firsts, want)
	if page == len(n.firsts) || n.firsts[page] != want {
		page--
	}
	if page < 0 {
		return nil
	}
	var bad error
	err := r.eachValue(n, page, page+1, func(value string, ids cursor) bool {
		if value == want {
			bad = addRuns(set, ids)
		}
		return value < want
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, uint32(page)), bad)
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

// names reads the record of names, with its further parts if it has any.
func (r *Reader) names() (names []labelName, err error) {
	more := false
	parse := func(v []byte) error {
		names, more, err = parseNames(names, v, r.cache.decoder)
		return err
	}
	_, err = r.get([]byte{keyNames}, parse)
	for part := uint32(0); more && err == nil; part++ {
		more = false
		_, err = r.get(keyPosting(nil, moreNames, part), parse)
	}
	return names, err
}

// all gives every series defined here.
func (r *Reader) all() (*roaring.Bitmap, error) {
	out := roaring.New()
	return out, r.EachDefinition(func(id point.DenseID, _ point.Labels) error {
		out.Add(uint32(id))
		return nil
	})
}

// LabelNames gives the names of all labels held here, sorted, but for those that only series in without have.
func (r *Reader) LabelNames(without *roaring.Bitmap) ([]string, error) {
	names, err := r.names()
	out := make([]string, 0, len(names))
	for i := range names {
		if err != nil {
			return nil, err
		}
		used := without.IsEmpty()
		if !used {
			err = r.eachUsed(&names[i], without, func(string) bool { used = true; return false })
		}
		if used {
			out = append(out, names[i].name)
		}
	}
	return out, err
}

// LabelValues gives the values of a label held here, sorted, but for those that only series in without have.
func (r *Reader) LabelValues(name string, without *roaring.Bitmap) ([]string, error) {
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	n := findName(names, name)
	if n == nil {
		return nil, nil
	}
	var out []string
	err = r.eachUsed(n, without, func(value string) bool {
		out = append(out, value)
		return true
	})
	return out, err
}

// eachUsed calls f for the values of a name that series outside without have, in order, until f returns false.
func (r *Reader) eachUsed(n *labelName, without *roaring.Bitmap, f func(value string) bool) error {
	all := without.IsEmpty()
	of := roaring.New()
	var bad error
	err := r.eachValue(n, 0, len(n.firsts), func(value string, ids cursor) bool {
		if !all {
			of.Clear()
			if bad = addRuns(of, ids); bad != nil {
				return false
			}
			if of.AndNot(without); of.IsEmpty() {
				return true
			}
		}
		return f(value)
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return err
}
