package partition

import (
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// LabelNames lists the label names of matching series of views of one table, sorted.
func LabelNames(views []*View, ms []*labels.Matcher) ([]string, error) {
	return list(views, &lookup{ms: ms, segment: segment.NamesOf(ms), indexed: (*series.Index).LabelNamesChecked})
}

// LabelValues lists the values that a label has in matching series of views of one table, sorted: the first limit of them, or more (0: all).
func LabelValues(views []*View, ms []*labels.Matcher, name string, limit int) ([]string, error) {
	return list(views, &lookup{ms: ms, limit: limit, segment: segment.ValuesOf(name, ms, limit), indexed: func(x *series.Index, own *roaring.Bitmap, check series.Check) ([]string, error) {
		return x.LabelValuesChecked(name, own, limit, check)
	}})
}

// lookup is a question to the index, for the series of warm views, and to segments, for those of others and quiet ones.
type lookup struct {
	ms      []*labels.Matcher
	limit   int // so many are wanted, or more; 0: all
	segment *segment.Lookup
	indexed func(x *series.Index, own *roaring.Bitmap, check series.Check) ([]string, error)
}

func list(views []*View, l *lookup) ([]string, error) {
	u := union{compare: strings.Compare, limit: l.limit}
	if err := l.askIndex(views, &u); err != nil {
		return nil, err
	}
	for _, v := range views {
		if v.Indexed() {
			continue
		}
		if err := v.grow(0); err != nil {
			return nil, err
		}
		if err := l.askSegments(v, &u); err != nil {
			return nil, err
		}
	}
	return u.sorted(), nil
}

// askIndex asks the index once for the series of all warm views.
func (l *lookup) askIndex(views []*View, u *union) error {
	first := slices.IndexFunc(views, func(v *View) bool { return v.warm })
	if first < 0 {
		return nil
	}
	v := views[first]
	index := v.p.deps.Index // the table's
	// Pinned: references read here stay those of the same series until the names are found.
	defer index.Pin().Unpin()
	own := roaring.New()
	for _, w := range views[first:] {
		if !w.warm {
			continue
		}
		refs, err := w.own()
		if err != nil {
			return err
		}
		own.Or(refs)
	}
	if len(l.ms) > 0 {
		found, err := index.MatchChecked(l.ms, v.grow)
		if err != nil {
			return err
		}
		own.And(found)
	}
	names, err := l.indexed(index, own, v.grow)
	if err != nil {
		return err
	}
	return u.add(names, v.grow)
}

// own returns the refs of a warm partition's series that have rows, or may. It is shared and read only.
func (v *View) own() (*roaring.Bitmap, error) {
	rowless, err := v.rowlessSeries()
	if err != nil || rowless.IsEmpty() {
		return v.ids.own(), err
	}
	own := roaring.New()
	for list, i := v.ids.all(), 0; i < len(list); i++ {
		if ref := list[i].Load(); series.Ref(ref) != quietRef && !rowless.Contains(uint32(i)) {
			own.Add(ref)
		}
	}
	return own, nil
}

// askSegments asks the segments of a view that has series outside the index.
func (l *lookup) askSegments(v *View, u *union) error {
	rowless, err := v.rowlessSeries()
	if err != nil {
		return err
	}
	for _, g := range v.segments {
		if g.info.Definitions == 0 {
			continue
		}
		names, err := g.reader.Look(l.segment, rowless)
		if err != nil {
			return v.failed(err, g)
		}
		if err := u.add(names, v.grow); err != nil {
			return err
		}
	}
	return nil
}

// union joins sorted lists. Each list on the stack is at least as long as the next ones together, so a list is merged few times.
type union struct {
	// Constant.
	compare func(a, b string) int
	limit   int // the first so many are wanted, of each list and of all; 0: all

	stack [][]string
	seen  map[*string]int // first elements of lists that were added, and how long these are: narrow partitions share lists
}

// listedBytes is the memory of a value in the lists here and in the answer.
const listedBytes = 100

func (u *union) add(names []string, grow func(int64) error) error {
	held := len(names) // all stay in memory with the first
	names = u.cut(names)
	if len(names) == 0 || u.seen[&names[0]] == len(names) {
		return nil
	}
	if err := grow(int64(held) * listedBytes); err != nil {
		return err
	}
	if u.seen == nil {
		u.seen = map[*string]int{}
	}
	u.seen[&names[0]] = len(names)
	u.stack = append(u.stack, names)
	for n := len(u.stack); n > 1 && len(u.stack[n-2]) < 2*len(u.stack[n-1]); n-- {
		u.stack = append(u.stack[:n-2], u.merged(u.stack[n-2], u.stack[n-1]))
	}
	return nil
}

func (u *union) cut(list []string) []string {
	if u.limit > 0 && len(list) > u.limit {
		return list[:u.limit]
	}
	return list
}

func (u *union) sorted() []string {
	for n := len(u.stack); n > 1; n-- {
		u.stack = append(u.stack[:n-2], u.merged(u.stack[n-2], u.stack[n-1]))
	}
	if len(u.stack) == 0 {
		return nil
	}
	return slices.Clone(u.stack[0]) // it may be a shared one
}

// merged returns the elements of two sorted lists, each once.
func (u *union) merged(a, b []string) []string {
	most := len(a) + len(b)
	if u.limit > 0 {
		most = min(most, u.limit)
	}
	out := make([]string, 0, max(len(a), len(b)))
	for len(a) > 0 && len(b) > 0 && len(out) < most {
		switch c := u.compare(a[0], b[0]); {
		case c < 0:
			out, a = append(out, a[0]), a[1:]
		case c > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			out, a, b = append(out, a[0]), a[1:], b[1:]
		}
	}
	return u.cut(append(append(out, a...), b...))
}
