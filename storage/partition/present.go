package partition

import (
	"github.com/RoaringBitmap/roaring/v2"
)

// Where series come and go, a partition defines many times more series than have rows at a time: of ten million in a day perhaps four
// hundred thousand in the last hour. All their labels would be gigabytes, so a look-up that finds many series asks first
// which of them may have rows in its time:
//
//	heads of that time: their series without those that ended before it  ∪  segments of that time: the series of groups of that time  =  present
//
// A segment's groups are neighbours in label order, so of a segment that covers more than the time some series are present without rows there.

// narrowedMin is the number of series from which on a look-up asks which have rows in its time.
const narrowedMin = 1 << 14

// presence is the set of series that may have rows in the time of a view.
type presence struct {
	asked bool
	ids   *roaring.Bitmap // nil: all
}

// presentSeries returns the series that may have rows in the view's time; nil: all. The bitmap is the view's.
func (v *View) presentSeries() (*roaring.Bitmap, error) {
	if v.present.asked {
		return v.present.ids, nil
	}
	ids, narrower := roaring.New(), false
	for _, g := range v.segments {
		switch {
		case g.info.Rows == 0:
			continue
		case g.info.TimeLo > v.hi || g.info.TimeHi < v.lo:
			narrower = true
			continue
		case g.info.TimeLo < v.lo || g.info.TimeHi > v.hi:
			narrower = true
		}
		some, err := g.reader.SeriesIn(v.lo, v.hi)
		if err != nil {
			return nil, v.failed(err, g)
		}
		ids.Or(some)
		if err := v.grow(0); err != nil {
			return nil, err
		}
	}
	for _, h := range v.heads {
		if lo, hi, ok := h.head.TimeBounds(); ok && (lo > v.hi || hi < v.lo) {
			narrower = true
			continue
		}
		some := h.head.SeriesSince(v.lo)
		narrower = narrower || some.GetCardinality() < uint64(h.head.Series())
		ids.Or(some)
	}
	v.present.asked = true
	if narrower {
		v.present.ids = ids
	}
	return v.present.ids, nil
}

// keepPresent removes the series without rows in the view's time from sets.
func (v *View) keepPresent(found []*roaring.Bitmap) error {
	present, err := v.presentSeries()
	if err != nil || present == nil {
		return err
	}
	for _, set := range found {
		set.And(present)
	}
	return nil
}
