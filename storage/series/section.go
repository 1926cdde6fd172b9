package series

import "github.com/spillwaydb/spillway/protocols/point"

// internSection bounds the series that are made, or enter the postings, under one lock, so that other goroutines wait for less than 100 µs.
const internSection = 256

// section is the part of an InternAll that is done at once. It goes shard by shard: a lock for all series of a shard, and their slots,
// which are in no cache when there are many series, come together instead of one after the other.
type section struct {
	hashes [internSection]uint64 // of the labels
	order  [internSection]uint8  // the labels by shard; after take the unknown ones
	n      int                   // of order
	warmth uint64                // keeps the compiler from leaving reads out
}

// sort orders n labels by their shards.
func (s *section) sort(n int) {
	s.n = n
	if n == 1 {
		s.order[0] = 0
		return
	}
	var next [shards + 1]uint16
	for _, h := range s.hashes[:n] {
		next[h>>shardShift+1]++
	}
	for i := 1; i < len(next); i++ {
		next[i] += next[i-1]
	}
	for i, h := range s.hashes[:n] {
		at := &next[h>>shardShift]
		s.order[*at] = uint8(i)
		*at++
	}
}

// sameShard is the end of the run in order that begins at from.
func (s *section) sameShard(from int) (shard uint64, to int) {
	shard = s.hashes[s.order[from]] >> shardShift
	for to = from + 1; to < s.n && s.hashes[s.order[to]]>>shardShift == shard; to++ {
	}
	return shard, to
}

// take finds the existing series and acquires a reference on each; the others stay in order.
func (s *section) take(x *Index, ls []point.Labels, refs []Ref) {
	fresh := 0
	for from := 0; from < s.n; {
		shard, to := s.sameShard(from)
		fresh = s.takeOf(x, &x.shards[shard], s.order[from:to], ls, refs, fresh)
		from = to
	}
	s.n = fresh
}

// takeOf is take for the labels of one shard.
func (s *section) takeOf(x *Index, sh *shard, of []uint8, ls []point.Labels, refs []Ref, fresh int) int {
	sh.RLock()
	defer sh.RUnlock()
	if sh.used > 0 && len(of) > 1 {
		for _, i := range of {
			s.warmth += sh.list[s.hashes[i]&sh.mask()]
		}
	}
	for _, i := range of {
		ref, ok := x.findLocked(sh, s.hashes[i], ls[i])
		if !ok {
			s.order[fresh] = i // never beyond the entries read
			fresh++
			continue
		}
		x.entries.at(ref).count.Add(1) // under the lock: a sweep frees a series only under the lock of its shard
		refs[i] = ref
	}
	return fresh
}

// twice reports whether one of those in order may be there twice.
func (s *section) twice() bool {
	for from := 0; from < s.n; {
		_, to := s.sameShard(from)
		for i := from + 1; i < to; i++ {
			for j := from; j < i; j++ {
				if s.hashes[s.order[i]] == s.hashes[s.order[j]] {
					return true
				}
			}
		}
		from = to
	}
	return false
}

// put enters the series in order into their shards; they are new and different.
func (s *section) put(x *Index, refs []Ref) {
	for from := 0; from < s.n; {
		shard, to := s.sameShard(from)
		sh := &x.shards[shard]
		sh.Lock()
		for _, i := range s.order[from:to] {
			sh.put(s.hashes[i], refs[i])
		}
		sh.Unlock()
		from = to
	}
}
