package point

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// Both tables below are read without a lock: a slot is written once, its id last and atomically. Writers of one shard
// exclude each other; a shard that grows publishes a new array, and a reader of the old one misses at most the ids added
// since, which the writer's own look-up under the lock finds.

const tableShards = 64 // a shard of a million series holds 16 k of them: growing moves 400 kB, well under a millisecond

// table maps Hash → uint32.
type table struct{ shards [tableShards]shard }

type shard struct {
	buckets atomic.Pointer[[]bucket]
	mu      struct {
		sync.Mutex
		used int
	}
}

const bucketSlots = 3

// bucket is one cache line, so that a look-up of a series that was not asked for lately costs one miss. Slots are filled
// in order; an id that finds its bucket full goes to the next.
type bucket struct {
	h  [bucketSlots]Hash
	id [bucketSlots]atomic.Uint32 // id+1; 0: free
	_  uint32
}

func (t *table) shard(h Hash) *shard { return &t.shards[h.Hi%tableShards] }

func (t *table) get(h Hash) (uint32, bool) {
	p := t.shard(h).buckets.Load()
	if p == nil {
		return 0, false
	}
	buckets := *p
	for i := h.Lo & uint64(len(buckets)-1); ; i = (i + 1) & uint64(len(buckets)-1) {
		b := &buckets[i]
		for k := range b.id {
			id := b.id[k].Load()
			if id == 0 {
				return 0, false
			}
			if b.h[k] == h {
				return id - 1, true
			}
		}
	}
}

// warm reads from the buckets of all hs, so that their cache lines load at once and not one after the other. The sum keeps
// the compiler from leaving the reads out.
func (t *table) warm(hs []Hash) (sum uint32) {
	for _, h := range hs {
		if p := t.shard(h).buckets.Load(); p != nil {
			sum += (*p)[h.Lo&uint64(len(*p)-1)].id[0].Load()
		}
	}
	return sum
}

// put maps h to id unless h is mapped already: the first mapping stays. It reports whether it added one.
func (t *table) put(h Hash, id uint32) bool {
	sh := t.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, ok := t.get(h); ok {
		return false
	}
	p := sh.buckets.Load()
	if p == nil || (sh.mu.used+1)*4 > len(*p)*bucketSlots*3 { // at most three quarters full
		p = sh.growLocked(p)
	}
	insert(*p, h, id)
	sh.mu.used++
	return true
}

func (sh *shard) growLocked(old *[]bucket) *[]bucket {
	n := 4
	if old != nil {
		n = 2 * len(*old)
	}
	next := memory.Touch(make([]bucket, n))
	if old != nil {
		for i := range *old {
			b := &(*old)[i]
			for k := range b.id {
				if id := b.id[k].Load(); id != 0 {
					insert(next, b.h[k], id-1)
				}
			}
		}
	}
	sh.buckets.Store(&next)
	return &next
}

func insert(buckets []bucket, h Hash, id uint32) {
	for i := h.Lo & uint64(len(buckets)-1); ; i = (i + 1) & uint64(len(buckets)-1) {
		b := &buckets[i]
		for k := range b.id {
			if b.id[k].Load() == 0 {
				b.h[k] = h
				b.id[k].Store(id + 1)
				return
			}
		}
	}
}

// labelTable maps labels → the number of their series. It keeps 32 bits of their hash and compares the labels
// themselves: 8 bytes a slot, for a table that is asked only about new spellings of a series.
type labelTable struct{ shards [tableShards]labelShard }

type labelShard struct {
	slots atomic.Pointer[[]atomic.Uint64] // 32 bits of the hash, then id+1; 0: free
	used  int                             // owned by the writer
}

// The upper 6 bits of a hash choose the shard; the lower 32 are kept, and choose the slot.
func (t *labelTable) shard(hash uint64) *labelShard {
	return &t.shards[bits.RotateLeft64(hash, 6)%tableShards]
}

// get finds labels with that hash; series are those numbered so far.
func (t *labelTable) get(hash uint64, labels []byte, series *pages[Labels]) (uint32, bool) {
	p := t.shard(hash).slots.Load()
	if p == nil {
		return 0, false
	}
	slots := *p
	for i := hash & uint64(len(slots)-1); ; i = (i + 1) & uint64(len(slots)-1) {
		s := slots[i].Load()
		if s == 0 {
			return 0, false
		}
		if s>>32 == hash&0xffffffff && string(*series.at(uint32(s) - 1)) == string(labels) {
			return uint32(s) - 1, true
		}
	}
}

// warm reads from the slots of all hashes, as table.warm does.
func (t *labelTable) warm(hashes []uint64) (sum uint64) {
	for _, hash := range hashes {
		if p := t.shard(hash).slots.Load(); p != nil {
			sum += (*p)[hash&uint64(len(*p)-1)].Load()
		}
	}
	return sum
}

// putLocked maps labels with that hash, which must not be mapped yet, to id; for one caller at a time.
func (t *labelTable) putLocked(hash uint64, id uint32) {
	sh := t.shard(hash)
	p := sh.slots.Load()
	if p == nil || (sh.used+1)*4 > len(*p)*3 {
		p = sh.growLocked(p)
	}
	insertLabels(*p, hash<<32|uint64(id+1))
	sh.used++
}

func (sh *labelShard) growLocked(old *[]atomic.Uint64) *[]atomic.Uint64 {
	n := 16
	if old != nil {
		n = 2 * len(*old)
	}
	next := memory.Touch(make([]atomic.Uint64, n))
	if old != nil {
		for i := range *old {
			if s := (*old)[i].Load(); s != 0 {
				insertLabels(next, s)
			}
		}
	}
	sh.slots.Store(&next)
	return &next
}

func insertLabels(slots []atomic.Uint64, s uint64) {
	i := s >> 32 & uint64(len(slots)-1)
	for slots[i].Load() != 0 {
		i = (i + 1) & uint64(len(slots)-1)
	}
	slots[i].Store(s)
}
