package segment

import (
	"encoding/binary"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// span is the time from the lowest to the highest row of a group. The spans of a segment are read once, when a look-up first needs
// them, and stay: 16 bytes for at least 32 series.
type span struct{ lo, hi point.Nanos }

// SeriesIn gives the ids that may have rows in [lo, hi]: those of groups that reach into it. The bitmap belongs to the caller.
// Times between the rows of a group count as its own: the answer may have series too many, and never too few.
func (r *Reader) SeriesIn(lo, hi point.Nanos) (*roaring.Bitmap, error) {
	switch {
	case r.info.Rows == 0 || lo > hi || hi < r.info.TimeLo || lo > r.info.TimeHi:
		return roaring.New(), nil
	case lo <= r.info.TimeLo && hi >= r.info.TimeHi:
		return r.SeriesIDs()
	}
	spans, err := r.groupSpans()
	if err != nil {
		return nil, err
	}
	out := roaring.New()
	var some []uint32
	err = r.each(keyPlace, func(key, page []byte) error {
		if len(key) != 5 {
			return r.corrupt(key, errForm("key of a page of places"))
		}
		first := point.DenseID(binary.BigEndian.Uint32(key[1:])) * pagePlaces
		some = some[:0]
		for i := range point.DenseID(pagePlaces) {
			at, ok, err := lookupPlace(page, first+i)
			switch {
			case err != nil:
				return r.corrupt(key, err)
			case !ok:
				continue
			case int(at.group()) >= len(spans):
				return r.corrupt(key, errForm("page of places: there is no such group"))
			}
			if s := spans[at.group()]; s.lo <= hi && s.hi >= lo {
				some = append(some, uint32(first+i))
			}
		}
		out.AddMany(some)
		return nil
	})
	return out, err
}

// groupSpans returns the span of each group.
func (r *Reader) groupSpans() ([]span, error) {
	if s := r.spans.Load(); s != nil {
		return *s, nil
	}
	if err := r.acquire(); err != nil {
		return nil, err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return nil, err
	}
	var all []span
	var key []byte
	var record groupRecord
	for number := uint32(0); ; number++ {
		// Groups are numbered without gaps: the first that is missing is the end.
		if key = keyOfGroup(key, number, kindRecord); !t.find(key) {
			break
		}
		if err := record.parse(t.val); err != nil {
			_ = t.close()
			return nil, r.corrupt(key, err)
		}
		s := span{record.blocks[0].lo, record.blocks[0].hi}
		for _, b := range record.blocks[1:] {
			s.hi = max(s.hi, b.hi)
		}
		all = append(all, s)
	}
	if err := t.close(); err != nil {
		return nil, err
	}
	all = slices.Clip(all)
	// Two reads may compute it at once: the results are equal.
	r.spans.Store(&all)
	return all, nil
}
