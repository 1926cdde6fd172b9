// Package paged maps small dense numbers to small numbers: stream ids to series refs, series refs to a partition's ids.
//
// A page of 128 numbers exists only where it is used, so a map that uses few of many numbers costs little. A look-up is two
// dependent reads and no lock; numbers that were put never change.
package paged

import "sync/atomic"

const pageLen = 128

type page [pageLen]atomic.Uint32 // V + 1; 0: none

// Map maps K to V. Get and All are for any goroutine, Put for one at a time. The zero Map is empty. V's highest number
// cannot be stored.
type Map[K, V ~uint32] struct {
	dir atomic.Pointer[[]atomic.Pointer[page]] // nil where no number of a page is used
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

func load[K ~uint32](dir []atomic.Pointer[page], k K) uint32 {
	if at := int(k / pageLen); at < len(dir) {
		if p := dir[at].Load(); p != nil {
			return p[k%pageLen].Load()
		}
	}
	return 0
}

// Append appends the numbers of ks to dst and reports whether all of them were there; where one was not, dst holds the
// highest number of V.
func (m *Map[K, V]) Append(dst []V, ks []K) ([]V, bool) {
	var dir []atomic.Pointer[page]
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
	var dir []atomic.Pointer[page]
	if p := m.dir.Load(); p != nil {
		dir = *p
	}
	at := int(k / pageLen)
	if at >= len(dir) {
		dir = m.grow(dir, at)
	}
	p := dir[at].Load()
	if p == nil {
		p = new(page)
		dir[at].Store(p)
	}
	p[k%pageLen].Store(uint32(v) + 1)
}

// grow makes a directory twice as long, or as long as page at needs. Readers of the old one miss at most the numbers that are put from now on.
func (m *Map[K, V]) grow(dir []atomic.Pointer[page], at int) []atomic.Pointer[page] {
	grown := make([]atomic.Pointer[page], max(2*len(dir), at+1))
	for i := range dir {
		grown[i].Store(dir[i].Load())
	}
	m.dir.Store(&grown)
	return grown
}

// Each calls f for every number put, by rising k.
func (m *Map[K, V]) Each(f func(K, V)) {
	p := m.dir.Load()
	if p == nil {
		return
	}
	for at := range *p {
		numbers := (*p)[at].Load()
		for i := 0; numbers != nil && i < pageLen; i++ {
			if v := numbers[i].Load(); v != 0 {
				f(K(at*pageLen+i), V(v-1))
			}
		}
	}
}

// Clear removes all numbers.
func (m *Map[K, V]) Clear() { m.dir.Store(nil) }
