package partition

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/paged"
	"github.com/spillwaydb/spillway/storage/series"
)

// ids maps the server's series refs to this partition's dense ids and back. Look-ups need no lock; put and revive are for one
// writer at a time. It owns one reference on each of its refs, released with its last holder: the partition
// is one holder, each view another, so that a view finds all its series by the index also after the partition cooled.
type ids struct {
	index   *series.Index
	holders atomic.Int32
	dense   paged.Map[series.Ref, point.DenseID]
	refs    atomic.Pointer[[]atomic.Uint32] // dense id → ref, or quietRef; grows by append
	live    atomic.Int64                    // dense ids that have a ref

	quiet *quiet // constant: finds those that have none by their labels; nil: all have one

	refsOwn atomic.Pointer[ownRefs] // see own
}

// ownRefs caches the set of all refs, as of the moment when the partition had ids dense ids, live of them with a ref.
type ownRefs struct {
	refs *roaring.Bitmap
	ids  int
	live int64
}

// own returns the set of all refs. It is shared and read only. What was put since the last call is added; after a quiet series returned the set is made again.
func (x *ids) own() *roaring.Bitmap {
	live := x.live.Load() // before the list: the set may have more, and is made again then
	list := x.all()
	old := x.refsOwn.Load()
	if old != nil && old.ids == len(list) && (old.live == live || x.quiet == nil) {
		return old.refs
	}
	refs, from := roaring.New(), 0
	if old != nil && x.quiet == nil && old.ids < len(list) {
		refs, from = old.refs.Clone(), old.ids
	}
	for i := from; i < len(list); i++ {
		if ref := list[i].Load(); series.Ref(ref) != quietRef {
			refs.Add(ref)
		}
	}
	x.refsOwn.Store(&ownRefs{refs, len(list), live})
	return refs
}

// quietRef stands for the ref of a series with labels in the segments only (quiet.go).
const quietRef series.Ref = math.MaxUint32

// newIDs makes an empty one with one holder.
func newIDs(index *series.Index) *ids {
	x := &ids{index: index}
	x.holders.Store(1)
	return x
}

// retain adds a holder; the caller makes sure that there is one already.
func (x *ids) retain() *ids { x.holders.Add(1); return x }

func (x *ids) release() {
	if x.holders.Add(-1) > 0 {
		return
	}
	const part = 4096
	var refs []series.Ref
	for list := range slices.Chunk(x.all(), part) {
		refs = refs[:0]
		for i := range list {
			if ref := series.Ref(list[i].Load()); ref != quietRef {
				refs = append(refs, ref)
			}
		}
		x.index.Release(refs...)
	}
}

// put publishes that the next dense ids belong to refs. x owns their references then.
func (x *ids) put(refs ...series.Ref) {
	first := x.len()
	list := x.room(len(refs))
	for i, ref := range refs {
		list[first+i].Store(uint32(ref))
	}
	x.refs.Store(&list)
	x.live.Add(int64(len(refs)))
	for i, ref := range refs {
		x.dense.Put(ref, point.DenseID(first+i))
	}
}

// putQuiet publishes that the next n dense ids have no ref.
func (x *ids) putQuiet(n int) {
	first := x.len()
	list := x.room(n)
	for i := range n {
		list[first+i].Store(uint32(quietRef))
	}
	x.refs.Store(&list)
}

// room returns a list with n more places. The old list, which readers may hold, stays as it is.
func (x *ids) room(n int) []atomic.Uint32 {
	old := x.all()
	first := len(old)
	if first+n <= cap(old) {
		return old[:first+n]
	}
	list := make([]atomic.Uint32, first+n, max(2*first, first+n)) // to twice the size: append would copy all four times
	for i := range old {
		list[i].Store(old[i].Load())
	}
	return list
}

// revive gives a quiet dense id a ref. x owns its reference then.
func (x *ids) revive(id point.DenseID, ref series.Ref) {
	x.all()[id].Store(uint32(ref))
	x.live.Add(1)
	x.dense.Put(ref, id)
}

// intern assigns the next dense ids to these labels. The list of refs is scratch and is returned.
func (x *ids) intern(labels []point.Labels, scratch []series.Ref) []series.Ref {
	scratch = x.index.InternAll(labels, scratch[:0])
	x.put(scratch...)
	return scratch
}

func (x *ids) len() int { return len(x.all()) }

// ref returns a dense id's ref; false for one that is quiet.
func (x *ids) ref(id point.DenseID) (series.Ref, bool) {
	ref := series.Ref(x.all()[id].Load())
	return ref, ref != quietRef
}

// all returns dense id → ref as far as published, quietRef for some; read only.
func (x *ids) all() []atomic.Uint32 {
	if p := x.refs.Load(); p != nil {
		return *p
	}
	return nil
}

// bytes is its memory, beside the labels.
func (x *ids) bytes() int {
	const denseBytes, refBytes = 4, 4
	n := x.len()*refBytes + int(x.live.Load())*denseBytes
	if x.quiet != nil {
		n += x.quiet.bytes()
	}
	if own := x.refsOwn.Load(); own != nil {
		n += int(own.refs.GetSizeInBytes())
	}
	return n
}
