package runner

import (
	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// filter reports whether a frame may have a series with a label: a Bloom filter of the labels of its series. Nil: it may have any. It is made by the
// first read that decodes the frame, so that frames without readers cost nothing.
type filter []uint64

const (
	// filterShare is the size of a frame's filter as a part of the frame's encoded bytes: some 12 bits for each row, and a row defines one label that others do
	// not have where each row is of a series of its own.
	filterShare = 8
	// filterProbes is how many bits a label sets: with 12 bits for each label one read in 150 decodes a frame without need.
	filterProbes = 4
)

// filterOf makes the filter of a decoded frame of so many encoded bytes.
func filterOf(g *frame.Frame, encoded int64) filter {
	f := make(filter, encoded/filterShare/8+1)
	var last point.Labels
	for _, l := range g.Defs { // those of neighbours have the same names, and mostly the same values
		prev := last
		last = l
		for {
			name, value, rest, ok := l.Next()
			if !ok {
				break
			}
			prevName, prevValue, prevRest, _ := prev.Next()
			if name != prevName || value != prevValue {
				f.set(hashOf(name, value))
			}
			l, prev = rest, prevRest
		}
	}
	return f
}

// hashOf multiplies the name's hash by an odd constant (2^64 ÷ the golden ratio), so that x="y" and y="x" have
// different hashes.
func hashOf(name, value string) uint64 {
	const odd = 0x9e3779b97f4a7c15
	return xxhash.Sum64String(name)*odd ^ xxhash.Sum64String(value)
}

// bit is the place of a probe of a hash.
// The probes of a hash are lo, lo+step, lo+2·step … of its two halves (Kirsch and Mitzenmacher: two hashes do for all);
// step is made odd, so that it is never 0. A product with the number of bits, shifted right by 32, maps a probe to a
// bit without a division: of 128 bits, 0x80000000 is bit 64, which is bit 0 of word 1.
func (f filter) bit(h uint64, probe uint32) (word int, mask uint64) {
	at := uint64(uint32(h)+probe*(uint32(h>>32)|1)) * uint64(len(f)*64) >> 32
	return int(at / 64), 1 << (at % 64)
}

func (f filter) set(h uint64) {
	for p := range uint32(filterProbes) {
		word, mask := f.bit(h, p)
		f[word] |= mask
	}
}

// mayHave reports whether the frame may have a series with all of the labels, by their hashes.
func (f filter) mayHave(hashes []uint64) bool {
	if f == nil {
		return true
	}
	for _, h := range hashes {
		for p := range uint32(filterProbes) {
			if word, mask := f.bit(h, p); f[word]&mask == 0 {
				return false
			}
		}
	}
	return true
}

func (f filter) bytes() int64 { return int64(len(f)) * 8 }

// keepFilters keeps the filters that a read made, of the frames that are still held: without rows that were deleted meanwhile, if any.
func (s *Store) keepFilters(of map[staging.ID]filter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range of {
		if h := s.mu.held[id]; h != nil && h.filter == nil {
			h.filter = f
			s.mu.filters += f.bytes()
		}
	}
}
