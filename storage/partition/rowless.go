package partition

import "github.com/RoaringBitmap/roaring/v2"

// A series with all rows deleted keeps its definition: the dense ids of a major have no gaps, because a frame of the log or
// a head may name any of them. So look-ups ask which of the defined series have rows:
//
//	defined by the major ── its set of series with rows ── those of later segments ── those of heads = rowless
//
// Only majors can have such series, and their Info says whether they do: nothing is read for a partition without deletions.
// A minor defines a series because of its rows, or of its exemplars.

// rowlessSeries returns the series of the view that are defined and have no rows. The bitmap is the view's.
func (v *View) rowlessSeries() (*roaring.Bitmap, error) {
	if v.rowless != nil {
		return v.rowless, nil
	}
	rowless := roaring.New()
	for _, g := range v.segments { // the major is the first
		if g.info.Major {
			of, err := g.rowlessSeries()
			if err != nil {
				return nil, v.failed(err, g)
			}
			rowless = of.Clone()
		}
		if rowless.IsEmpty() {
			break
		}
		if !g.info.Major {
			ids, err := g.reader.SeriesIDs()
			if err != nil {
				return nil, v.failed(err, g)
			}
			rowless.AndNot(ids)
		}
	}
	if !rowless.IsEmpty() {
		for _, h := range v.heads {
			rowless.AndNot(h.head.SeriesIDs())
		}
	}
	v.rowless = rowless
	return rowless, nil
}

// rowlessSeries returns the series that a major defines and has no rows of. The bitmap must not be changed.
func (g *segmentRef) rowlessSeries() (*roaring.Bitmap, error) {
	if set := g.rowless.Load(); set != nil {
		return set, nil
	}
	set := roaring.New()
	if g.info.Definitions > g.info.Series {
		ids, err := g.reader.SeriesIDs()
		if err != nil {
			return nil, err
		}
		set.AddRange(0, g.info.Definitions)
		set.AndNot(ids)
		set.RunOptimize()
	}
	g.rowless.Store(set)
	return set, nil
}
