package partition

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// A series without rows for a while leaves the memory of a partition that still gets rows of others: its labels, its place in the
// index, its ref. There remain 16 bytes in a table of hashes that finds its dense id if it returns, and 4 for its place among the
// refs. Where every series lives for an hour, a day of 10 million would otherwise be 2.8 GB.
//
//	            no rows for QuietAfter, definition in a segment
//	live ──────────────────────────────────────────────────────▶ quiet: the segments answer matchers
//	  ▲                                                            │
//	  └───────────────────── its next row: found by the hash ──────┘
//
// Invariants:
//   - A dense id means the same labels for ever, whatever is in memory (I4). The hash of 96 bits, under keys of this process,
//     stands for the labels, as in point.Dict.
//   - A quiet series' definition lies in a segment: a series defined only in the log is live.
//   - A head may hold rows of a quiet series (a replay puts them there): a flush writes every series of the head.

// quiet finds dense ids by labels. Safe for concurrent use. Its entries hold for as long as the partition exists, so none is ever
// removed, even when a series returns.
type quiet struct {
	seeds  [2]maphash.Seed
	shards [quietShards]quietShard
}

const (
	quietShards  = 64 // growing one of a million series moves 400 kB
	quietSlotMin = 16
)

type quietShard struct {
	sync.RWMutex
	slots []quietSlot // open addressing; a power of two, at most three quarters in use
	used  int
}

// quietSlot is a series: 96 bits of its labels' hash, and its dense id + 1; 0: free.
type quietSlot struct {
	lo uint64
	hi uint32
	id uint32
}

const quietSlotBytes = 16

func newQuiet() *quiet { return &quiet{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}} }

func (q *quiet) hash(l point.Labels) (lo uint64, hi uint32, sh *quietShard) {
	lo = maphash.String(q.seeds[0], string(l))
	h := maphash.String(q.seeds[1], string(l))
	return lo, uint32(h), &q.shards[h>>32%quietShards]
}

// find returns the dense id of labels that were put.
func (q *quiet) find(l point.Labels) (point.DenseID, bool) {
	lo, hi, sh := q.hash(l)
	sh.RLock()
	defer sh.RUnlock()
	if len(sh.slots) == 0 {
		return 0, false
	}
	s := &sh.slots[sh.place(lo, hi)]
	return point.DenseID(s.id - 1), s.id != 0
}

// put adds labels; labels that are there already stay as they are.
func (q *quiet) put(l point.Labels, id point.DenseID) {
	lo, hi, sh := q.hash(l)
	sh.Lock()
	defer sh.Unlock()
	if (sh.used+1)*4 > len(sh.slots)*3 {
		sh.grow()
	}
	if s := &sh.slots[sh.place(lo, hi)]; s.id == 0 {
		*s = quietSlot{lo, hi, uint32(id) + 1}
		sh.used++
	}
}

// place returns the slot of a hash, or the free one for it.
func (sh *quietShard) place(lo uint64, hi uint32) uint64 {
	mask := uint64(len(sh.slots) - 1)
	i := lo & mask
	for sh.slots[i].id != 0 && (sh.slots[i].lo != lo || sh.slots[i].hi != hi) {
		i = (i + 1) & mask
	}
	return i
}

func (sh *quietShard) grow() {
	old := sh.slots
	sh.slots = make([]quietSlot, max(quietSlotMin, 2*len(old)))
	for _, s := range old {
		if s.id != 0 {
			sh.slots[sh.place(s.lo, s.hi)] = s
		}
	}
}

func (q *quiet) bytes() (n int) {
	for i := range q.shards {
		sh := &q.shards[i]
		sh.RLock()
		n += quietSlotBytes * len(sh.slots)
		sh.RUnlock()
	}
	return n
}

// revive makes the series of a ref live again, if it is a quiet one of the partition. applyMu is held.
func (p *Partition) revive(x *ids, ref series.Ref) (point.DenseID, bool) {
	id, ok := x.quiet.find(p.deps.Index.Labels(ref))
	if !ok {
		return 0, false
	}
	p.deps.Index.Retain(ref)
	x.revive(id, ref)
	p.mu.Lock()
	p.mu.revived = append(p.mu.revived, id)
	p.mu.Unlock()
	p.deps.Metrics.revived.Inc()
	return id, true
}

// silence records which series had rows, and since when. Guarded by flushMu.
type silence struct {
	since   time.Time
	written *roaring.Bitmap // had rows in a head that was flushed since then
}

// listen adds a flushed head's series. It reports whether it is time to release the others.
func (s *silence) listen(h *headRef, now time.Time, after time.Duration) (due bool) {
	if s.written == nil {
		s.since, s.written = now, roaring.New()
	}
	s.written.Or(h.head.SeriesIDs())
	return now.Sub(s.since) >= after
}

// hush releases the series without rows since the last time, below the dense id defined, which segments define. It gives up when ctx ends:
// a walk over ten million series lasts seconds. The flush lock is held.
func (p *Partition) hush(ctx context.Context, defined int, now time.Time) {
	written := p.silence.written
	p.silence = silence{since: now, written: roaring.New()}
	x := p.holdIDs() // the partition may cool meanwhile
	defer x.release()
	if x.len() < defined {
		return // cold: only deletions were flushed
	}
	going := 0
	for id := range point.DenseID(min(defined, x.len())) {
		if _, live := x.ref(id); live && !written.Contains(uint32(id)) {
			going++
		}
	}
	if going < p.settings.QuietSeriesMin || going < int(x.live.Load())/quietShare {
		return
	}
	y, whole := p.without(ctx, x, defined, written)
	if !whole || !p.swapIDs(x, y, defined) {
		y.release()
		return
	}
	x.release()
	p.deps.Metrics.quieted.Add(float64(going))
	p.log.Info("series without rows left memory", "series", going, "live", y.live.Load(), "after", p.settings.QuietAfter)
}

// holdIDs returns the present ids with one holder more.
func (p *Partition) holdIDs() *ids {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids.Load().retain()
}

// quietShare is the part of the live series that must be quiet before releasing them is worth the copy.
const quietShare = 16

// without copies x, but for the refs of the series below defined that had no rows; whole is false if ctx ended before.
func (p *Partition) without(ctx context.Context, x *ids, defined int, written *roaring.Bitmap) (y *ids, whole bool) {
	y = newIDs(x.index)
	if y.quiet = x.quiet; y.quiet == nil {
		y.quiet = newQuiet()
	}
	y.putQuiet(defined)
	for id := range point.DenseID(defined) {
		if id%giveUpEvery == 0 && ctx.Err() != nil {
			return y, false
		}
		ref, live := x.ref(id)
		switch {
		case !live:
		case written.Contains(uint32(id)):
			x.index.Retain(ref)
			y.revive(id, ref)
		default:
			y.quiet.put(x.index.Labels(ref), id)
		}
	}
	return y, true
}

// swapIDs replaces x by y, a copy of it, after adding the changes made meanwhile: series that came, and those that have rows in the active head by now.
func (p *Partition) swapIDs(x, y *ids, defined int) bool {
	order := p.liveOrder(y)
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped || !p.mu.warm || p.ids.Load() != x {
		return false
	}
	for id := point.DenseID(defined); int(id) < x.len(); id++ {
		ref, _ := x.ref(id) // not quiet: no segment defines it
		x.index.Retain(ref)
		y.put(ref)
	}
	for it := p.mu.active.head.SeriesIDs().Iterator(); it.HasNext(); {
		id := point.DenseID(it.Next())
		if _, live := y.ref(id); live {
			continue
		}
		if ref, live := x.ref(id); live {
			x.index.Retain(ref)
			y.revive(id, ref)
			p.mu.revived = append(p.mu.revived, id)
		}
	}
	p.mu.order = order
	p.ids.Store(y)
	return true
}

// liveOrder is the partition's order without the series that are quiet in y. The flush lock is held.
func (p *Partition) liveOrder(y *ids) []point.DenseID {
	p.mu.Lock()
	old := p.mu.order
	p.mu.Unlock()
	order := make([]point.DenseID, 0, min(len(old), int(y.live.Load())))
	for _, id := range old {
		if _, live := y.ref(id); live {
			order = append(order, id)
		}
	}
	return order
}

// loadQuiet loads the series that a segment defines without their labels.
func (x *ids) loadQuiet(g *segmentRef) error {
	n := x.len()
	err := g.reader.LendDefinitions(func(id point.DenseID, l point.Labels) error {
		if int(id) != n {
			return outOfOrder(g, id, n)
		}
		x.quiet.put(l, id)
		n++
		return nil
	})
	x.putQuiet(n - x.len())
	return err
}

// labelsOf returns a series' labels, for messages: "" if they cannot be read.
func (p *Partition) labelsOf(x *ids, id point.DenseID) point.Labels {
	l, _ := p.readLabels(x, id)
	return l
}

// readLabels returns a series' labels, of a quiet one from the segment that defines it. Errors: Corrupt, Unavailable.
func (p *Partition) readLabels(x *ids, id point.DenseID) (point.Labels, error) {
	if ref, live := x.ref(id); live {
		return p.deps.Index.Labels(ref), nil
	}
	p.mu.Lock()
	segments := p.mu.segments
	p.mu.Unlock()
	why := fault.Errorf(fault.Corrupt, "no segment defines it")
	for _, g := range segments {
		l, ok, err := g.reader.Labels(id)
		if ok && err == nil {
			return l, nil
		}
		if err != nil {
			why = err
		}
	}
	return "", fault.Annotate(why, "partition %s/%d: the labels of series %d", p.ident.Table, p.ident.Partition, id)
}
