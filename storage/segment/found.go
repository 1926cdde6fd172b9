package segment

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A query asks each of many narrow partitions for the same series, and each of their segments numbers them in its own way. What a selector finds in a
// segment stays in the Cache, in label order. Segments with the same labels share one list of them, so that a reader sees at once that two segments have
// the same series:
//
//	segment 1: ids, places ─┐
//	segment 2: ids, places ─┼─▶ labels
//	segment 3: ids, places ─┘
//	segment 4: ids, places ───▶ labels, one more

// Selector is matchers that are asked of many segments. Safe for concurrent use.
type Selector struct {
	ms  []*labels.Matcher
	key string // of answers in the Cache; "": too long
}

// NewSelector makes one of matchers.
func NewSelector(ms []*labels.Matcher) *Selector { return &Selector{ms: ms, key: keyOf("", ms)} }

// Found is the series defined in a segment that a selector finds, in label order. Shared and read only.
type Found struct {
	IDs    []point.DenseID
	Places []Place
	labels []string
	column *Column // nil: not asked for yet
}

// Place is where a segment has a series' rows; 0: it was not looked up.
type Place uint32

// noRows is the Place of a series without rows. Others are a place and 2.
const noRows Place = 1

// Labels are those of series i.
func (f *Found) Labels(i int) point.Labels { return point.Labels(f.labels[i]) }

// Same reports whether two share their list of labels: those with equal ones mostly do.
func (f *Found) Same(g *Found) bool {
	return len(f.labels) == len(g.labels) && (len(f.labels) == 0 || &f.labels[0] == &g.labels[0])
}

// Bounds of what stays in the Cache of a selector, as parts of its decoded parts: of a segment, and of a list of labels.
const (
	foundPart       = 64
	foundLabelsPart = 4
)

// foundBytes is the size of a found series in the Cache without its labels.
const foundBytes = 8

// Find returns what a selector finds; nil: so many series that they would not stay in the Cache.
func (r *Reader) Find(of *Selector) (*Found, error) {
	if of.key == "" {
		return nil, nil
	}
	k := pageKey{reader: r, group: foundGroup, at: r.cache.hash(of.key)}
	if p, column := r.cache.found(k, of.key); p != nil {
		return &Found{IDs: p.ids, Places: p.places, labels: p.values, column: column}, nil
	}
	found, err := r.find(of)
	if found == nil || err != nil {
		return nil, err
	}
	found.labels = r.cache.putFound(k, of.key, found)
	return found, nil
}

// find is Find without the Cache. It gives up early: cardinality and labels are bounded before places are read and anything is sorted.
func (r *Reader) find(of *Selector) (*Found, error) {
	ids, err := r.Match(of.ms)
	if err != nil || int64(ids.GetCardinality())*foundBytes > r.cache.pagesMax/foundPart {
		return nil, err
	}
	if ids.IsEmpty() { // most narrow partitions that a selector is asked of may have nothing
		return &Found{}, nil
	}
	type one struct {
		id     point.DenseID
		at     Place
		labels point.Labels
	}
	all := make([]one, 0, ids.GetCardinality())
	bytes := int64(0)
	err = r.labelsOf(of, ids, func(id point.DenseID, l point.Labels) error {
		all = append(all, one{id, noRows, l})
		bytes += listedBytes(string(l))
		return nil
	})
	if err != nil || len(all) == 0 || bytes > r.cache.pagesMax/foundLabelsPart {
		return nil, err
	}
	out := &Found{IDs: make([]point.DenseID, len(all)), Places: make([]Place, len(all)), labels: make([]string, len(all))}
	for i := range all {
		out.IDs[i] = all[i].id
	}
	if err := r.findPlaces(out.IDs, func(i int, at place) { all[i].at = Place(at) + noRows + 1 }); err != nil {
		return nil, err
	}
	// From the order of ids into that of labels: lists of segments with other ids become equal by it, and can be shared.
	slices.SortFunc(all, func(a, b one) int { return a.labels.Compare(b.labels) })
	for i, o := range all {
		out.IDs[i], out.Places[i], out.labels[i] = o.id, o.at, string(o.labels)
	}
	return out, nil
}

// labelsOf is EachLabels of what a selector matches, in the way that reads fewer pages. It calls f with none if they have more bytes than stay in the Cache.
func (r *Reader) labelsOf(of *Selector, ids *roaring.Bitmap, f func(id point.DenseID, l point.Labels) error) error {
	names, err := r.names()
	if err != nil {
		return err
	}
	runBytes := assembles(names, ids)
	if runBytes == 0 {
		return r.EachLabels(ids, f)
	}
	list := ids.ToArray()
	all, short, err := r.assemble(names, list, of.ms, r.cache.pagesMax/foundLabelsPart, runBytes, nil)
	if short {
		return r.EachLabels(ids, f)
	}
	for i := range all {
		if err := f(point.DenseID(list[i]), all[i]); err != nil {
			return err
		}
	}
	return err
}

// findPlaces is eachPlace in a walk of its own.
func (r *Reader) findPlaces(ids []point.DenseID, f func(i int, at place)) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	err = r.eachPlace(t, ids, f)
	return cmp.Or(err, t.close())
}

// keyOf names a question in the Cache; "": it is too long to stay there.
func keyOf(label string, ms []*labels.Matcher) string {
	var b strings.Builder
	b.WriteString(strconv.Quote(label))
	for _, m := range ms {
		b.WriteByte(',')
		b.WriteString(strconv.Quote(m.Name))
		b.WriteString(m.Type.String())
		b.WriteString(strconv.Quote(m.Value))
		if b.Len() > lookupKeyMax {
			return ""
		}
	}
	return b.String()
}
