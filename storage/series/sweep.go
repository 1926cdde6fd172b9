package series

import (
	"hash/maphash"

	"github.com/RoaringBitmap/roaring/v2"
)

const (
	// idleMax is the number of idle series after which a Release sweeps: one pass over the postings then serves many.
	idleMax = 1024
	// sweepSection bounds how many series leave the postings under one lock: about 100 µs.
	sweepSection = 128
)

// Pin keeps every ref that is in use when it is acquired from being reused for another series. A reader that keeps a bitmap
// of Match without holding references acquires a Pin before and unpins afterwards. Pins are cheap and must not be
// forgotten: while one is held, no ref freed after it is reused.
type Pin struct {
	x      *Index
	parity uint64
}

// Pin acquires a pin.
func (x *Index) Pin() Pin {
	for {
		e := x.epoch.Load()
		x.pinned[e&1].Add(1)
		if x.epoch.Load() == e {
			return Pin{x, e & 1}
		}
		x.pinned[e&1].Add(-1) // the epoch went on in between: a sweep may have looked before the count rose
	}
}

// Unpin releases the pin; once for each Pin.
func (p Pin) Unpin() { p.x.pinned[p.parity].Add(-1) }

// Sweep frees the series without references, and frees for reuse the refs that no reader can hold any more. Calling it now and
// then, say every minute, frees the last few that Release leaves; it costs nothing when there is nothing to do.
func (x *Index) Sweep() {
	x.sweep.Lock()
	defer x.sweep.Unlock()
	x.sweepLocked()
}

func (x *Index) sweepLocked() {
	x.idle.Lock()
	idle := x.idle.refs
	x.idle.refs = nil
	x.idle.Unlock()
	x.catchUp() // no series waits for longer than from one sweep to the next

	e := x.epoch.Load()
	for len(idle) > 0 {
		n := min(len(idle), sweepSection)
		x.sweep.limbo[e&1] = append(x.sweep.limbo[e&1], x.dismiss(idle[:n])...)
		idle = idle[n:]
	}
	// Twice: without readers the refs freed above can be reused at once.
	x.reclaimLocked()
	x.reclaimLocked()
}

// dismiss removes those of refs that are still idle from the shards, the ranks and the postings. A series must have
// entered the postings before it leaves them. Only a series out of its shard is sure to be counted as come, so catching
// up is done after that: a ref that is listed twice may be another series by now, which is idle too and still waits.
func (x *Index) dismiss(refs []Ref) (gone []Ref) {
	gone = x.forget(refs)
	if len(gone) == 0 {
		return nil
	}
	x.ranks.forget(gone)
	x.catchUp()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.remove(gone, x.Labels)
	x.mu.sweeps++
	return gone
}

// forget removes the refs that are still idle from the shards, so that no Intern finds them.
func (x *Index) forget(refs []Ref) (gone []Ref) {
	for _, ref := range refs {
		e := x.entries.at(ref)
		if e.count.Load() != 0 {
			continue // in use again, or listed twice and freed already; then its labels must not be read
		}
		h := maphash.String(x.seed, string(e.labels))
		sh := &x.shards[h>>shardShift]
		sh.Lock()
		if e.count.CompareAndSwap(0, countFreed) {
			sh.remove(h, ref)
			gone = append(gone, ref)
		}
		sh.Unlock()
	}
	x.live.Add(-int64(len(gone)))
	return gone
}

// reclaimLocked moves on by one epoch if there is no pin in the one before, and then frees for reuse the refs freed in it:
// pins of that epoch or older are gone, and later ones were acquired after those refs had left the postings.
func (x *Index) reclaimLocked() {
	e := x.epoch.Load()
	before := (e + 1) & 1
	if x.pinned[before].Load() != 0 {
		return
	}
	free := x.sweep.limbo[before]
	x.sweep.limbo[before] = nil
	x.epoch.Store(e + 1)
	if len(free) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, ref := range free {
		x.entries.at(ref).labels = ""
	}
	x.mu.free = append(x.mu.free, free...)
}

// bitmapOf makes a bitmap of refs in any order.
func bitmapOf(refs []Ref) *roaring.Bitmap {
	b := roaring.New()
	for _, r := range refs {
		b.Add(uint32(r))
	}
	return b
}
