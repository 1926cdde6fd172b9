package point

import "sync/atomic"

// pages is an array that grows without moving: readers index it without a lock up to a length they have seen.
// Appending is for one writer at a time.
type pages[T any] struct {
	dir atomic.Pointer[[]*[pageLen]T]
	n   atomic.Uint32
}

const pageLen = 1024

func (p *pages[T]) len() int { return int(p.n.Load()) }

func (p *pages[T]) at(i uint32) *T { return &(*p.dir.Load())[i/pageLen][i%pageLen] }

func (p *pages[T]) append(v T) uint32 {
	i := p.reserve()
	*p.at(i) = v
	p.n.Store(i + 1)
	return i
}

// grow appends a zero element, for types that must not be copied.
func (p *pages[T]) grow() uint32 {
	i := p.reserve()
	p.n.Store(i + 1)
	return i
}

func (p *pages[T]) reserve() uint32 {
	i := p.n.Load()
	if i%pageLen == 0 {
		var dir []*[pageLen]T
		if old := p.dir.Load(); old != nil {
			dir = *old
		}
		// Readers of the old directory see its old length, whether or not the array behind it is shared.
		dir = append(dir, new([pageLen]T))
		p.dir.Store(&dir)
	}
	return i
}
