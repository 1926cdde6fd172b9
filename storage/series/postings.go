package series

import (
	"slices"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// postings list the series of each label pair. They have no lock: Index.mu guards them.
type postings struct {
	names map[string]*name
	all   *roaring.Bitmap // every ref

	// recent holds, by position in the label set, the pair last added there and the series that wait to enter it. Series that are new come
	// host by host: most pairs of one are those of the one before, comparing two short strings is a tenth of two look-ups, and a row of
	// series enters a list or a bitmap at once. If the rest of a label set equals the rest of the one before, it is not parsed.
	recent []run
	begun  struct{ from, to uint32 } // of all
}

// run is a row of series [from, to) that wait to enter a pair. Between two locks all are empty: settle.
type run struct {
	pair     *value
	from, to uint32
	left     point.Labels // from this pair on, of the set that was here last; the runs after it are of that set, too
	last     bool         // of that set
}

// name is one label name. Its list may be read without the lock once its header was copied under it: elements are
// appended, and a compaction makes a new list.
type name struct {
	text   string
	values map[string]*value
	list   []*value // with those that became empty since the last compaction
	empty  int
}

// value is one label pair and the series that have it: a list, in the order in which they came, while they are few, a bitmap once they are
// many, with a list of those that came last and are not in the bitmap yet. A bitmap of one costs 170 bytes and five allocations, a list of
// one is part of the value; a bitmap of many makes intersections quick, but adding one ref at a time to it costs ten times as much as
// adding a list.
type value struct {
	of    *name  // constant
	text  string // constant
	list  []uint32
	many  *roaring.Bitmap // nil: see list
	next  *value          // that followed last time at the same position: the metrics of a host come in one order
	gone  bool            // dropped from its name; only next may still lead here
	first [2]uint32       // memory of list while it holds at most two
}

const listMax = 256

func newPostings() postings {
	return postings{names: make(map[string]*name), all: roaring.New()}
}

// add enters a series under each of its pairs. Readers find it after settle.
func (p *postings) add(ref Ref, l point.Labels) {
	if p.begun.to != uint32(ref) {
		p.all.AddRange(uint64(p.begun.from), uint64(p.begun.to))
		p.begun.from = uint32(ref)
	}
	p.begun.to = uint32(ref) + 1
	for i := 0; ; i++ {
		if i == len(p.recent) {
			p.recent = append(p.recent, run{})
		}
		r := &p.recent[i]
		if r.pair != nil && r.left == l {
			p.extend(i, uint32(ref))
			return
		}
		n, v, rest, ok := l.Next()
		if !ok {
			return
		}
		if r.pair == nil || r.pair.text != v || r.pair.of.text != n {
			r.settle()
			r.pair = p.pair(r.pair, n, v)
		}
		r.left, r.last = l, len(rest) == 0
		r.extend(uint32(ref))
		if r.last {
			return
		}
		l = rest
	}
}

// extend adds a series to the runs from the i-th to the last of the set that is there.
func (p *postings) extend(i int, ref uint32) {
	for ; ; i++ {
		r := &p.recent[i]
		r.extend(ref)
		if r.last {
			return
		}
	}
}

// extend adds a series to the run, or begins a new run.
func (r *run) extend(ref uint32) {
	if r.to != ref {
		r.settle()
		r.from = ref
	}
	r.to = ref + 1
}

// settle enters the series that wait. A caller of add calls it before other goroutines may look.
func (p *postings) settle() {
	p.all.AddRange(uint64(p.begun.from), uint64(p.begun.to))
	p.begun.from, p.begun.to = 0, 0
	for i := range p.recent {
		p.recent[i].settle()
	}
}

func (r *run) settle() {
	if r.from < r.to {
		r.pair.add(r.from, r.to)
	}
	r.from, r.to = 0, 0
}

// pair finds or makes the value; near is a pair that probably has the same name, and that it followed before.
func (p *postings) pair(near *value, n, v string) *value {
	if near != nil && near.next != nil && near.next.text == v && near.next.of.text == n && !near.next.gone {
		return near.next
	}
	found := p.look(near, n, v)
	if near != nil {
		near.next = found
	}
	return found
}

func (p *postings) look(near *value, n, v string) *value {
	var of *name
	if near != nil && near.of.text == n {
		of = near.of
	} else if of = p.names[n]; of == nil {
		of = &name{text: n, values: make(map[string]*value)}
		p.names[n] = of
	}
	pair := of.values[v]
	if pair == nil {
		pair = &value{of: of, text: v}
		pair.list = pair.first[:0]
		of.values[v] = pair
		of.list = append(of.list, pair)
	}
	return pair
}

// find gives a pair, or nil.
func (p *postings) find(n, v string) *value {
	if of := p.names[n]; of != nil {
		return of.values[v]
	}
	return nil
}

// runWorth is the length from which a run enters a bitmap as such.
const runWorth = 32

// add adds the series [from, to).
func (v *value) add(from, to uint32) {
	if v.many != nil && to-from >= runWorth {
		v.many.AddRange(uint64(from), uint64(to))
		return
	}
	for ; from < to; from++ {
		v.list = append(v.list, from)
		if len(v.list) <= listMax {
			continue
		}
		if v.many == nil {
			v.many = roaring.New()
		}
		v.many.AddMany(v.list)
		v.list = v.list[:0]
	}
}

// len counts the series; a bitmap counts its containers.
func (v *value) len() int {
	n := len(v.list)
	if v.many != nil {
		n += int(v.many.GetCardinality())
	}
	return n
}

// or adds the series to b.
func (v *value) or(b *roaring.Bitmap) {
	if v.many != nil {
		b.Or(v.many)
	}
	b.AddMany(v.list)
}

// andNot removes the series from b.
func (v *value) andNot(b *roaring.Bitmap) {
	if v.many != nil {
		b.AndNot(v.many)
	}
	for _, ref := range v.list {
		b.Remove(ref)
	}
}

// and leaves in b only the series.
func (v *value) and(b *roaring.Bitmap) {
	kept := roaring.New()
	for _, ref := range v.list {
		if b.Contains(ref) {
			kept.Add(ref)
		}
	}
	if v.many != nil {
		b.And(v.many)
	} else {
		b.Clear()
	}
	b.Or(kept)
}

// within gives the series that are in b.
func (v *value) within(b *roaring.Bitmap) *roaring.Bitmap {
	has := roaring.New()
	if v.many != nil {
		has = roaring.And(v.many, b)
	}
	for _, ref := range v.list {
		if b.Contains(ref) {
			has.Add(ref)
		}
	}
	return has
}

// meets reports whether any of the series is in b.
func (v *value) meets(b *roaring.Bitmap) bool {
	return v.many != nil && v.many.Intersects(b) || slices.ContainsFunc(v.list, b.Contains)
}

// remove removes series everywhere; labels returns their labels.
func (p *postings) remove(refs []Ref, labels func(Ref) point.Labels) {
	gone := bitmapOf(refs)
	p.all.AndNot(gone)
	touched := make(map[*value]struct{}, 4*len(refs))
	for _, ref := range refs {
		labels(ref).Range(func(n, v string) bool {
			if pair := p.find(n, v); pair != nil {
				touched[pair] = struct{}{}
			}
			return true
		})
	}
	for pair := range touched {
		pair.remove(gone)
		if pair.len() == 0 {
			p.drop(pair)
		}
	}
	clear(p.recent) // it may name dropped pairs
}

func (v *value) remove(gone *roaring.Bitmap) {
	v.list = slices.DeleteFunc(v.list, gone.Contains)
	if v.many == nil {
		return
	}
	v.many.AndNot(gone)
	if v.len() <= listMax/2 { // half: a pair near the bound must not change its form each time
		v.list, v.many = append(v.many.ToArray(), v.list...), nil
	}
}

// drop forgets an empty pair, and the name with its last pair. Readers may still hold the old list.
func (p *postings) drop(pair *value) {
	of := pair.of
	pair.gone = true
	delete(of.values, pair.text)
	if len(of.values) == 0 {
		delete(p.names, of.text)
		return
	}
	if of.empty++; of.empty*2 > len(of.list) {
		of.list = slices.Collect(func(yield func(*value) bool) {
			for _, v := range of.list {
				if v.len() > 0 && !yield(v) {
					return
				}
			}
		})
		of.empty = 0
	}
}
