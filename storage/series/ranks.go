package series

import (
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/point"
)

// ranks store the places of series in label order, so that the same million need not be sorted for each partition that
// has their rows: places are numbers. They are assigned when many series without one are sorted. 8 bytes a series.
type ranks struct {
	sync.RWMutex
	sorted []Ref    // in label order; some freed since
	place  []uint32 // by ref: its place in sorted, from 1; 0: none
}

const (
	learnMin   = 4096 // fewer series without a place are not worth placing all again
	learnShare = 64   // nor are fewer than this part of the placed ones
)

// SortRefs sorts ids by the labels of their refs, on each of which the caller holds a reference.
func SortRefs[T ~uint32](x *Index, ids []T, ref func(T) Ref) {
	known, fresh, total := splitRanked(x, ids, ref)
	labels := func(id T) point.Labels { return x.Labels(ref(id)) }
	SortByLabels(fresh, labels)
	if len(fresh) >= max(learnMin, total/learnShare) {
		refs := make([]Ref, len(fresh))
		for i, id := range fresh {
			refs[i] = ref(id)
		}
		x.learn(refs)
	}
	copy(ids, Merge(known, fresh, func(a, b T) int { return labels(a).Compare(labels(b)) }))
}

// splitRanked returns the ids that have places, in order, and the others; total is the number of places.
func splitRanked[T ~uint32](x *Index, ids []T, ref func(T) Ref) (known, fresh []T, total int) {
	keys := make([]uint64, 0, len(ids)) // place, and id
	x.ranks.RLock()
	total = len(x.ranks.sorted)
	for _, id := range ids {
		if p := x.ranks.placeLocked(ref(id)); p != 0 {
			keys = append(keys, uint64(p)<<32|uint64(id))
		} else {
			fresh = append(fresh, id)
		}
	}
	x.ranks.RUnlock()
	sortKeys(keys)
	known = make([]T, len(keys))
	for i, k := range keys {
		known[i] = T(k)
	}
	return known, fresh, total
}

func (r *ranks) placeLocked(ref Ref) uint32 {
	if int(ref) < len(r.place) {
		return r.place[ref]
	}
	return 0
}

// sortKeys sorts by the high half of the keys: large lists digit by digit.
func sortKeys(keys []uint64) {
	if len(keys) < 1<<12 {
		slices.Sort(keys)
		return
	}
	const digit = 11
	spare := make([]uint64, len(keys))
	for shift := 32; shift < 32+3*digit; shift += digit {
		var count [1 << digit]int
		for _, k := range keys {
			count[k>>shift&(1<<digit-1)]++
		}
		at := 0
		for d, n := range count {
			count[d], at = at, at+n
		}
		for _, k := range keys {
			d := k >> shift & (1<<digit - 1)
			spare[count[d]] = k
			count[d]++
		}
		keys, spare = spare, keys
	}
	copy(spare, keys) // three passes: the last wrote to the original spare
}

// learn places refs, which are in label order and held.
func (x *Index) learn(refs []Ref) {
	r := &x.ranks
	r.Lock()
	defer r.Unlock()
	top := len(r.place)
	for _, ref := range refs {
		top = max(top, int(ref)+1)
	}
	r.place = append(r.place, make([]uint32, top-len(r.place))...)
	kept := make([]Ref, 0, len(r.sorted))
	for i, ref := range r.sorted {
		if r.place[ref] == uint32(i)+1 {
			kept = append(kept, ref)
		}
	}
	// Another goroutine may have placed some meanwhile; a clone, as the caller keeps the list.
	fresh := slices.DeleteFunc(slices.Clone(refs), func(ref Ref) bool { return r.place[ref] != 0 })
	r.sorted = Merge(kept, fresh, func(a, b Ref) int { return x.Labels(a).Compare(x.Labels(b)) })
	for i, ref := range r.sorted {
		r.place[ref] = uint32(i) + 1
	}
}

// forget removes freed series' places, before their refs can mean others.
func (r *ranks) forget(refs []Ref) {
	r.Lock()
	defer r.Unlock()
	for _, ref := range refs {
		if int(ref) < len(r.place) {
			r.place[ref] = 0
		}
	}
}
