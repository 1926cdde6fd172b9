package partition

import (
	"slices"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/paged"
	"github.com/spillwaydb/spillway/storage/series"
)

// ids maps the server's series refs to this partition's dense ids and back. Look-ups take no lock; put is for one
// writer at a time. It owns one reference on each of its refs, given back when its last holder lets go: the partition
// is one holder, each view another, so that a view finds all its series by the index also after the partition cooled.
type ids struct {
	index   *series.Index
	holders atomic.Int32
	dense   paged.Map[series.Ref, point.DenseID]
	refs    atomic.Pointer[[]series.Ref] // dense id → ref; grows by append, never changes what was published
}

// newIDs makes an empty one with one holder.
func newIDs(index *series.Index) *ids {
	x := &ids{index: index}
	x.holders.Store(1)
	return x
}

// retain adds a holder; the caller knows that there is one.
func (x *ids) retain() *ids { x.holders.Add(1); return x }

func (x *ids) release() {
	if x.holders.Add(-1) == 0 {
		x.index.Release(x.all()...)
	}
}

// put publishes that the next dense ids belong to refs. The references on them become x's.
func (x *ids) put(refs ...series.Ref) {
	first := x.len()
	list := x.all()
	if first+len(refs) > cap(list) { // to twice the size, where append would take a quarter more, and copy all, four times
		list = slices.Grow(list, max(len(refs), first))
	}
	list = append(list, refs...)
	x.refs.Store(&list)
	for i, ref := range refs {
		x.dense.Put(ref, point.DenseID(first+i))
	}
}

// intern makes the next dense ids mean these labels. The list of refs is scratch and comes back.
func (x *ids) intern(labels []point.Labels, scratch []series.Ref) []series.Ref {
	scratch = x.index.InternAll(labels, scratch[:0])
	x.put(scratch...)
	return scratch
}

func (x *ids) len() int { return len(x.all()) }

// all gives dense id → ref as far as published; read only.
func (x *ids) all() []series.Ref {
	if p := x.refs.Load(); p != nil {
		return *p
	}
	return nil
}
