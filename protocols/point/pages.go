package point

import "sync/atomic"

// pages is an array that grows without moving: readers index it without a lock up to a length they have seen.
// Appending is for one writer at a time.
type pages[T any] struct {
	dir atomic.Pointer[[]*[pageLen]T]
	n   atomic.Uint32
}

const pageLen = 128 // a page of labels is 2 kB: thousands of tables have a few series each

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

// firstHashes are hashes by series number. A page exists only where there is one: series of line protocol are found by
// other means. set is for one writer at a time, by rising number.
type firstHashes struct {
	dir atomic.Pointer[[]*[pageLen]Hash]
	n   atomic.Uint32 // 1 + the highest number that was set
}

// is reports whether h was set for i.
func (p *firstHashes) is(i uint32, h Hash) bool {
	if i >= p.n.Load() {
		return false
	}
	page := (*p.dir.Load())[i/pageLen]
	return page != nil && page[i%pageLen] == h
}

func (p *firstHashes) set(i uint32, h Hash) {
	dir := p.dir.Load()
	if dir == nil || int(i/pageLen) >= len(*dir) {
		dir = p.grow(int(i / pageLen))
	}
	(*dir)[i/pageLen][i%pageLen] = h
	p.n.Store(i + 1)
}

// grow makes the page at. Pages are made by rising number, so that a directory that others read never gets a new one.
func (p *firstHashes) grow(at int) *[]*[pageLen]Hash {
	var dir []*[pageLen]Hash
	if old := p.dir.Load(); old != nil {
		dir = *old
	}
	for len(dir) < at {
		dir = append(dir, nil)
	}
	dir = append(dir, new([pageLen]Hash))
	p.dir.Store(&dir)
	return &dir
}
