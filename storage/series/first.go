package series

import (
	"maps"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/labelorder"
)

// FirstChecked gives some of the series in within, among them the first n in label order, and not many more: labelorder.Narrow. The refs must be held by
// references or by a Pin, and within stays as it is. check can end it.
func (x *Index) FirstChecked(within *roaring.Bitmap, n int, check Check) (*roaring.Bitmap, error) {
	if within.GetCardinality() <= uint64(n)+labelorder.Few {
		return within, nil
	}
	x.catchUp()
	x.mu.RLock()
	names := slices.Sorted(maps.Keys(x.mu.names))
	values := make([]int, len(names))
	for i, name := range names {
		values[i] = len(x.mu.names[name].values)
	}
	x.mu.RUnlock()
	return labelorder.Narrow(within, n, values, slices.Index(names, point.MetricName), func(name int, rest *roaring.Bitmap, f func(*roaring.Bitmap) bool) error {
		return x.eachWithin(names[name], rest, check, f)
	})
}

// eachWithin is labelorder.Each.
func (x *Index) eachWithin(name string, rest *roaring.Bitmap, check Check, f func(has *roaring.Bitmap) bool) error {
	// Those that no series has are mostly more than the others, and are not sorted.
	var met []*value
	for section := range slices.Chunk(x.values(name), gatherSection) {
		if err := check(0); err != nil {
			return err
		}
		met = x.appendMet(met, section, rest)
	}
	slices.SortFunc(met, func(a, b *value) int { return strings.Compare(a.text, b.text) })
	for i, v := range met {
		if i%checkEvery == 0 {
			if err := check(0); err != nil {
				return err
			}
		}
		// A value that went and came while we looked is there twice; its series leave rest with the first.
		if has := x.within(v, rest); !has.IsEmpty() && !f(has) {
			break
		}
	}
	return nil
}

func (x *Index) appendMet(met, section []*value, rest *roaring.Bitmap) []*value {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, v := range section {
		if v.meets(rest) {
			met = append(met, v)
		}
	}
	return met
}

func (x *Index) within(v *value, rest *roaring.Bitmap) *roaring.Bitmap {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return v.within(rest)
}
