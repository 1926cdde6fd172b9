package segment

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/labelorder"
)

// First returns the labels of the first n series, in label order, of those in within, which stays as it is; of more where a list of all is at hand. They are strings of
// labels, may be shared, and are read only. all says that within is all that the selector matches here: then a short answer stays in the Cache. grow books the
// memory of labels while they are read and sorted, and can end it. The caller books the answer.
func (r *Reader) First(of *Selector, within *roaring.Bitmap, all bool, n int, grow func(bytes int64) error) ([]string, error) {
	if !all || of.key == "" {
		return r.first(of, within, n, grow)
	}
	if within.GetCardinality()/findPerFirst <= uint64(n) {
		found, err := r.Find(of)
		if err != nil {
			return nil, err
		}
		if found != nil {
			return found.labels, nil
		}
	}
	asked := strconv.Itoa(n) + of.key // which begins with a quotation mark, as that of a Lookup does
	k := pageKey{reader: r, group: answersGroup, at: r.cache.hash(asked)}
	if p, ok := r.cache.page(k); ok && p.asked == asked {
		return p.values, nil
	}
	found, err := r.first(of, within, n, grow)
	if err != nil {
		return nil, err
	}
	bytes := int64(0)
	for _, l := range found {
		bytes += listedBytes(l)
	}
	if bytes > r.cache.pagesMax/foundPart {
		return found, nil
	}
	return r.cache.putAnswer(k, asked, found), nil
}

// findPerFirst is for how many series found, of each one that is wanted, all are put in order: that list is the one of queries, and stays in the Cache for both.
const findPerFirst = 4

// firstBytes is the memory of a series until it is sorted, without its labels.
const firstBytes = 32

func (r *Reader) first(of *Selector, within *roaring.Bitmap, n int, grow func(bytes int64) error) ([]string, error) {
	if within.IsEmpty() {
		return nil, nil
	}
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	values := make([]int, len(names))
	for i := range names {
		values[i] = names[i].values
	}
	metric := slices.IndexFunc(names, func(n labelName) bool { return n.name == point.MetricName })
	some, err := labelorder.Narrow(within, n, values, metric, func(name int, rest *roaring.Bitmap, f func(*roaring.Bitmap) bool) error {
		return r.eachWithin(&names[name], rest, grow, f)
	})
	if err != nil {
		return nil, err
	}
	found := make([]string, 0, some.GetCardinality())
	bytes := int64(0)
	err = r.eachLabelsOf(of, names, some, grow, func(l point.Labels) error {
		found = append(found, string(l))
		bytes += firstBytes + int64(len(l))
		return grow(firstBytes + int64(len(l)))
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b string) int { return point.Labels(a).Compare(point.Labels(b)) })
	if len(found) > n {
		found = joined(found[:n]) // they may be parts of one string with all that were read
	}
	return found, grow(-bytes)
}

// checkEvery is how many values are read between two checks, some 100 µs.
const checkEvery = 512

// eachWithin is labelorder.Each.
func (r *Reader) eachWithin(n *labelName, rest *roaring.Bitmap, grow func(bytes int64) error, f func(has *roaring.Bitmap) bool) error {
	var bad, ended error
	read := 0
	err := r.eachValue(n, 0, len(n.firsts), func(_ string, runs cursor) bool {
		var has *roaring.Bitmap
		if has, bad = common(runs, rest); bad != nil {
			return false
		}
		read++
		if !has.IsEmpty() || read%checkEvery == 0 {
			if ended = grow(0); ended != nil {
				return false
			}
		}
		return has.IsEmpty() || f(has)
	})
	if err == nil && bad != nil {
		err = r.corrupt(keyPosting(nil, n.number, 0), bad)
	}
	return cmp.Or(err, ended)
}

// eachLabelsOf is EachLabels of some series that a selector matches, in the way that reads fewer pages.
func (r *Reader) eachLabelsOf(of *Selector, names []labelName, some *roaring.Bitmap, grow func(bytes int64) error, f func(l point.Labels) error) error {
	if runBytes := assembles(names, some); runBytes > 0 {
		all, _, err := r.assemble(names, some.ToArray(), of.ms, r.cache.pagesMax/foundLabelsPart, runBytes, grow)
		for i := range all {
			err = cmp.Or(err, f(all[i]))
		}
		if all != nil || err != nil {
			return err
		}
	}
	return r.EachLabels(some, func(_ point.DenseID, l point.Labels) error { return f(l) })
}

// common returns the ids that a posting and a set have in common.
func common(c cursor, of *roaring.Bitmap) (*roaring.Bitmap, error) {
	var ids []uint32
	it, at := of.Iterator(), uint64(0)
	for len(c.b) > 0 && it.HasNext() {
		lo := at + c.uvarint()
		at = lo + c.uvarint()
		if c.bad || lo > 1<<32 || at <= lo || at > 1<<32 {
			return nil, errForm("posting")
		}
		if lo > uint64(it.PeekNext()) {
			it.AdvanceIfNeeded(uint32(min(lo, 1<<32-1)))
		}
		for it.HasNext() && uint64(it.PeekNext()) < at {
			ids = append(ids, it.Next())
		}
	}
	return roaring.BitmapOf(ids...), nil
}
