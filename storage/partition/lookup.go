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
	if len(views) == 0 {
		return nil, nil
	}
	return u.sorted(views[0].grow)
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

// union joins sorted lists. Each list on the stack is at least as long as the next ones together, so that a list is merged few times. Values of merged lists are copies: thousands
// of segments are asked, and one value of a list, which is a part of a string with all others, would keep all of it.
//
//	lists that came ─▶ recent: narrow partitions share lists ─▶ stack: merged, the longest first
//
// The lists in these two are booked.
type union struct {
	// Constant.
	compare func(a, b string) int
	limit   int // the first so many are wanted, of each list and of all; 0: all

	stack  []*listed
	recent []*listed // those that came last, oldest first
}

// listed is a list with its memory.
type listed struct {
	values []string
	bytes  int64
	uses   int  // by stack and recent
	own    bool // values are in no other list's memory
}

const (
	// listedBytes is the memory of a value in the lists here and in the answer, without its text.
	listedBytes = 64
	// recentMax and recentBytesMax bound the lists that are remembered because they may come again.
	recentMax      = 16
	recentBytesMax = 4 << 20
)

func (u *union) add(names []string, grow func(int64) error) error {
	if len(names) == 0 || u.cameBefore(names) {
		return nil
	}
	l := &listed{values: names, bytes: bytesOf(names)} // all stay in memory with the first
	if err := grow(l.bytes); err != nil {
		return err
	}
	if err := u.remember(l, grow); err != nil {
		return err
	}
	l.uses++
	u.stack = append(u.stack, l)
	for n := len(u.stack); n > 1 && len(u.stack[n-2].values) < 2*len(u.stack[n-1].values); n-- {
		if err := u.mergeLast(grow); err != nil {
			return err
		}
	}
	return nil
}

// bytesOf is the memory of a list.
func bytesOf(values []string) int64 {
	n := int64(len(values)) * listedBytes
	for _, v := range values {
		n += int64(len(v))
	}
	return n
}

func (u *union) cameBefore(names []string) bool {
	return slices.ContainsFunc(u.recent, func(l *listed) bool { return &l.values[0] == &names[0] && len(l.values) == len(names) })
}

// remember keeps a list as the newest of those that came.
func (u *union) remember(l *listed, grow func(int64) error) error {
	l.uses++
	u.recent = append(u.recent, l)
	most := recentMax
	if u.limit > 0 {
		most = 1
	}
	bytes := int64(0)
	for _, l := range u.recent {
		bytes += l.bytes
	}
	for len(u.recent) > most || len(u.recent) > 1 && bytes > recentBytesMax {
		oldest := u.recent[0]
		bytes -= oldest.bytes
		u.recent = slices.Delete(u.recent, 0, 1)
		if err := grow(-oldest.leave()); err != nil {
			return err
		}
	}
	return nil
}

// leave ends a use, and returns the memory that is free then.
func (l *listed) leave() int64 {
	if l.uses--; l.uses > 0 {
		return 0
	}
	return l.bytes
}

// mergeLast merges the last two lists of the stack.
func (u *union) mergeLast(grow func(int64) error) error {
	n := len(u.stack)
	a, b := u.stack[n-2], u.stack[n-1]
	out := &listed{values: u.merged(a, b), uses: 1, own: true}
	out.bytes = bytesOf(out.values)
	u.stack = append(u.stack[:n-2], out)
	return grow(out.bytes - a.leave() - b.leave())
}

// sorted returns the elements of all lists, and gives back the memory of the others.
func (u *union) sorted(grow func(int64) error) ([]string, error) {
	for len(u.stack) > 1 {
		if err := u.mergeLast(grow); err != nil {
			return nil, err
		}
	}
	if u.limit > 0 && len(u.stack) == 1 && !u.stack[0].own {
		u.stack = append(u.stack, &listed{})
		if err := u.mergeLast(grow); err != nil {
			return nil, err
		}
	}
	left := int64(0)
	for _, l := range u.recent {
		left += l.leave()
	}
	u.recent = nil
	if err := grow(-left); err != nil || len(u.stack) == 0 {
		return nil, err
	}
	return slices.Clone(u.stack[0].values), nil // it may be a shared one
}

// merged returns the elements of two sorted lists, each once: with a limit the first. Values of lists that are not merged ones are copied.
func (u *union) merged(x, y *listed) []string {
	a, b := x.values, y.values
	most := len(a) + len(b)
	if u.limit > 0 {
		most = min(most, u.limit)
	}
	copied := func(of *listed, s string) string {
		if of.own {
			return s
		}
		return strings.Clone(s)
	}
	out := make([]string, 0, min(most, max(len(a), len(b))))
	for len(a)+len(b) > 0 && len(out) < most {
		c := len(b) - len(a) // of two that one is empty
		if len(a) > 0 && len(b) > 0 {
			c = u.compare(a[0], b[0])
		}
		if c > 0 {
			out, b = append(out, copied(y, b[0])), b[1:]
			continue
		}
		out, a = append(out, copied(x, a[0])), a[1:]
		if c == 0 {
			b = b[1:]
		}
	}
	return out
}
