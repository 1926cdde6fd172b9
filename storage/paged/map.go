// Package paged maps small dense numbers to small numbers: stream ids to series refs, series refs to a partition's ids.
//
// A page of 1024 numbers exists only where it is used, so a map that uses few of many numbers costs little (DESIGN
// §5.4). A look-up is two dependent reads and no lock; numbers that were put never change.
package paged

import (
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/memory"
)

const pageLen = 1024

// Map maps K to V. Get and All are for any goroutine, Put for one at a time. The zero Map is empty. V's highest number
// cannot be stored.
type Map[K, V ~uint32] struct {
	dir atomic.Pointer[[]*[pageLen]atomic.Uint32] // V + 1; 0: none
}

// Get looks k up.
func (m *Map[K, V]) Get(k K) (V, bool) {
	p := m.dir.Load()
	if p == nil {
		return 0, false
	}
	v := load(*p, k)
	return V(v - 1), v != 0
}

func load[K ~uint32](dir []*[pageLen]atomic.Uint32, k K) uint32 {
	if at := int(k / pageLen); at < len(dir) && dir[at] != nil {
		return dir[at][k%pageLen].Load()
	}
	return 0
}

// Append appends the numbers of ks to dst and reports whether all of them were there; where one was not, dst holds the
// highest number of V.
func (m *Map[K, V]) Append(dst []V, ks []K) ([]V, bool) {
	var dir []*[pageLen]atomic.Uint32
	if p := m.dir.Load(); p != nil {
		dir = *p
	}
	all := true
	for _, k := range ks {
		v := load(dir, k)
		all = all && v != 0
		dst = append(dst, V(v-1))
	}
	return dst, all
}

// Put sets the number of k.
func (m *Map[K, V]) Put(k K, v V) {
	var dir []*[pageLen]atomic.Uint32
	if p := m.dir.Load(); p != nil {
		dir = *p
	}
	at := int(k / pageLen)
	if at >= len(dir) || dir[at] == nil {
		grown := make([]*[pageLen]atomic.Uint32, max(len(dir), at+1))
		copy(grown, dir)
		grown[at] = new([pageLen]atomic.Uint32)
		memory.Touch(grown[at][:])
		m.dir.Store(&grown)
		dir = grown
	}
	dir[at][k%pageLen].Store(uint32(v) + 1)
}

// Each calls f for every number put, by rising k.
func (m *Map[K, V]) Each(f func(K, V)) {
	p := m.dir.Load()
	if p == nil {
		return
	}
	for at, page := range *p {
		for i := 0; page != nil && i < pageLen; i++ {
			if v := page[i].Load(); v != 0 {
				f(K(at*pageLen+i), V(v-1))
			}
		}
	}
}

// Clear forgets everything.
func (m *Map[K, V]) Clear() { m.dir.Store(nil) }
