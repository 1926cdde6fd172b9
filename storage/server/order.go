package server

import (
	"slices"
	"sort"
	"sync"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// order caches the label order of series, so that a select of many need not compare their labels again: that costs 200
// ns and is done n log n times, while places are numbers. Series are learnt when a select finds many new ones.
type order struct {
	mu struct {
		sync.RWMutex
		sorted []ranked
		// 0: the ref has none. int32, since refs are dense and there are at most some ten millions.
		place []int32 // by ref: place in sorted, from 1
	}
}

type ranked struct {
	ref    series.Ref
	labels point.Labels
}

const (
	orderMin   = 64  // fewer series are sorted as they are
	learnMin   = 256 // fewer new ones are not worth numbering all again
	learnShare = 64  // nor are fewer than this part of the placed ones
)

// sort puts series into label order. live is how many series there are in all.
func (o *order) sort(all []found, live int) {
	if len(all) < orderMin {
		slices.SortFunc(all, compareFound)
		return
	}
	known, fresh, total := o.split(all)
	slices.SortFunc(fresh, compareFound)
	if len(fresh) > max(learnMin, total/learnShare) {
		o.learn(fresh, live)
	}
	merge(all, known, fresh, compareFound)
}

func compareFound(a, b found) int { return a.labels.Compare(b.labels) }

// split returns the series with places, in order, and the others; total is the number of places.
func (o *order) split(all []found) (known, fresh []found, total int) {
	keys := make([]uint64, 0, len(all)) // place, and index into all
	o.mu.RLock()
	total = len(o.mu.sorted)
	for i := range all {
		if p, ok := o.placeLocked(&all[i]); ok {
			// The place is in the high half, so sorting plain integers orders the series, and the low half leads back
			// to them: place 3 of series 7 is 0x0000000300000007.
			keys = append(keys, uint64(p)<<32|uint64(i))
		} else {
			fresh = append(fresh, all[i])
		}
	}
	o.mu.RUnlock()
	slices.Sort(keys)
	known = make([]found, len(keys))
	for i, k := range keys {
		known[i] = all[uint32(k)]
	}
	return known, fresh, total
}

// placeLocked looks a series up. Its ref may mean another series by now, so labels are compared. Unless it does, they
// lie at the same address and are equal without being read.
func (o *order) placeLocked(f *found) (int32, bool) {
	if !f.known || int(f.ref) >= len(o.mu.place) {
		return 0, false
	}
	p := o.mu.place[f.ref] - 1
	return p, p >= 0 && o.mu.sorted[p].labels == f.labels
}

// learn adds series, which are in order, and numbers all places again. When most places must be of series that are gone,
// all are dropped, and assigned again by the next selects.
func (o *order) learn(fresh []found, live int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Refs of series that are gone are given to others; their old places would only be compared in vain.
	if len(o.mu.sorted) > 2*live {
		o.mu.sorted, o.mu.place = nil, nil
	}
	add := make([]ranked, 0, len(fresh))
	top := len(o.mu.place)
	for i := range fresh {
		f := &fresh[i]
		if _, ok := o.placeLocked(f); f.known && !ok {
			add = append(add, ranked{f.ref, f.labels})
			top = max(top, int(f.ref)+1)
		}
	}
	old := o.keptLocked(add)
	o.mu.sorted = make([]ranked, len(old)+len(add))
	merge(o.mu.sorted, old, add, func(a, b ranked) int { return a.labels.Compare(b.labels) })
	o.mu.place = append(make([]int32, 0, top+top/8), o.mu.place...)[:top]
	clear(o.mu.place)
	for i, r := range o.mu.sorted {
		o.mu.place[r.ref] = int32(i + 1)
	}
}

// keptLocked returns the places that stay beside those of add: a ref has one place.
func (o *order) keptLocked(add []ranked) []ranked {
	again := make(map[series.Ref]bool)
	for _, r := range add {
		if int(r.ref) < len(o.mu.place) && o.mu.place[r.ref] != 0 {
			again[r.ref] = true
		}
	}
	if len(again) == 0 {
		return o.mu.sorted
	}
	return slices.DeleteFunc(slices.Clone(o.mu.sorted), func(r ranked) bool { return again[r.ref] })
}

// merge writes two ordered lists into dst, which may be neither. The second is the shorter: its places are searched for.
// Each search covers the rest of a, and whole runs of it are copied: with b much shorter that is len(b)·log len(a)
// comparisons instead of len(a)+len(b).
func merge[T any](dst, a, b []T, compare func(T, T) int) {
	n := 0
	for len(b) > 0 {
		i := sort.Search(len(a), func(i int) bool { return compare(a[i], b[0]) > 0 })
		n += copy(dst[n:], a[:i])
		dst[n] = b[0]
		n, a, b = n+1, a[i:], b[1:]
	}
	copy(dst[n:], a)
}
