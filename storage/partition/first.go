package partition

import (
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// First lists the first n series in label order that Match finds in views of one table. Their labels alone are in memory, and those of few others: the index, and each segment
// with series outside of it, finds its own first n by postings.
//
// order sorts series of the index, of which it is given n and a few more.
func First(views []*View, ms []*labels.Matcher, of *segment.Selector, n int, order func([]Series)) ([]point.Labels, error) {
	u := union{compare: func(a, b string) int { return point.Labels(a).Compare(point.Labels(b)) }, limit: n}
	live := make([]*roaring.Bitmap, len(views))
	for i := range live {
		live[i] = roaring.New()
	}
	if err := firstIndexed(views, live, ms, n, order, &u); err != nil {
		return nil, err
	}
	for i, v := range views {
		if v.Indexed() {
			continue
		}
		if err := v.first(live[i], ms, of, n, &u); err != nil {
			return nil, err
		}
	}
	if len(views) == 0 {
		return nil, nil
	}
	list, err := u.sorted(views[0].grow)
	if err != nil {
		return nil, err
	}
	out := make([]point.Labels, len(list))
	for i, l := range list {
		out[i] = point.Labels(l)
	}
	return out, nil
}

// firstIndexed asks the index once for the series of all warm views. Into live, by view, it puts the dense ids of those that it found: segments are asked for the others.
func firstIndexed(views []*View, live []*roaring.Bitmap, ms []*labels.Matcher, n int, order func([]Series), u *union) error {
	first := slices.IndexFunc(views, func(v *View) bool { return v.warm })
	if first < 0 {
		return nil
	}
	check, index := views[first].grow, views[first].p.deps.Index // the table's
	defer index.Pin().Unpin()                                    // no ref becomes another series before its labels are read
	found, err := index.MatchChecked(ms, check)
	if err != nil {
		return err
	}
	own := roaring.New()
	for i, v := range views {
		if !v.warm {
			continue
		}
		if !v.Indexed() {
			live[i] = v.liveOf(found) // before own: a quiet series that returns now is found in its segment, or in both
		}
		refs, err := v.ownPresent(min(int(found.GetCardinality()), v.ids.len()))
		if err != nil {
			return err
		}
		own.Or(refs)
	}
	own.And(found)
	if own, err = index.FirstChecked(own, n, check); err != nil {
		return err
	}
	if err := check(int64(own.GetCardinality()) * matchedBytes); err != nil {
		return err
	}
	all := make([]Series, 0, own.GetCardinality())
	for it := own.Iterator(); it.HasNext(); {
		ref := series.Ref(it.Next())
		all = append(all, Series{Ref: ref, Known: true, Labels: index.Labels(ref)})
	}
	order(all)
	list := make([]string, min(n, len(all)))
	for i := range list {
		list[i] = string(all[i].Labels)
	}
	if err := u.add(list, check); err != nil {
		return err
	}
	return check(-int64(len(all)) * matchedBytes)
}

// ownPresent is own, but of a view in which so many series may match that it asks which may have rows in its time, those.
func (v *View) ownPresent(most int) (*roaring.Bitmap, error) {
	own, err := v.own()
	if err != nil || !v.timed || most < narrowedMin {
		return own, err
	}
	present, err := v.presentSeries()
	if err != nil || present == nil {
		return own, err
	}
	refs := roaring.New()
	for it := present.Iterator(); it.HasNext(); {
		if id := point.DenseID(it.Next()); int(id) < v.ids.len() {
			if ref, ok := v.ids.ref(id); ok && own.Contains(uint32(ref)) {
				refs.Add(uint32(ref))
			}
		}
	}
	return refs, nil
}

// first adds the first series of a view that are not in live, which the index has.
func (v *View) first(live *roaring.Bitmap, ms []*labels.Matcher, of *segment.Selector, n int, u *union) error {
	rowless, err := v.rowlessSeries()
	if err != nil {
		return err
	}
	found, narrowed, err := v.matchSegments(ms, live, rowless, v.timed)
	if err != nil {
		return err
	}
	all := rowless.IsEmpty() && live.IsEmpty() && !narrowed
	for i, g := range v.segments {
		list, err := g.reader.First(of, found[i], all, n, v.grow)
		if err != nil {
			return v.failed(err, g)
		}
		if err := u.add(list, v.grow); err != nil {
			return err
		}
	}
	return nil
}

// liveOf returns the dense ids of the view's series among refs.
func (v *View) liveOf(refs *roaring.Bitmap) *roaring.Bitmap {
	live := roaring.New()
	for it := refs.Iterator(); it.HasNext(); {
		if id, ok := v.ids.dense.Get(series.Ref(it.Next())); ok {
			live.Add(uint32(id))
		}
	}
	return live
}
