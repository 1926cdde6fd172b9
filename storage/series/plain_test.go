package series

import (
	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// Look-ups without a check.

func unchecked(int64) error { return nil }

func (x *Index) LabelNames(within *roaring.Bitmap) []string {
	out, _ := x.LabelNamesChecked(within, unchecked)
	return out
}

func (x *Index) LabelValues(label string, within *roaring.Bitmap) []string {
	out, _ := x.LabelValuesChecked(label, within, 0, unchecked)
	return out
}

func (x *Index) Match(ms []*labels.Matcher) *roaring.Bitmap {
	b, _ := x.MatchChecked(ms, unchecked)
	return b
}
