package series

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Ref numbers a series of one table on one server, from 0, densely; numbers of freed series are used again.
type Ref uint32

// Index is the set of series of a table on this server. All methods may be called from many goroutines.
type Index struct {
	seed   maphash.Seed // constant after New
	shards [shards]shard

	entries entries // grown under mu
	live    atomic.Int64
	made    atomic.Uint64 // series that were ever new; raised under mu, once other goroutines can find them

	epoch  atomic.Uint64
	pinned [2]atomic.Int64 // Pins by the parity of their epoch

	mu struct { // guards its fields; acquired before a shard's lock, never after
		sync.RWMutex
		postings // of all series but those that wait
		free     []Ref
		next     Ref
		sweeps   uint64     // passes that removed refs from the postings
		waiting  []refRange // live, and not in the postings yet; in the order in which they came
	}
	// Of those that had to wait, ever: how many came, and how many have entered the postings. Written under mu.
	// Invariant: entered <= came <= entered + waitingMax, and a ref is counted as come before it is returned.
	came, entered atomic.Uint64

	idle struct {
		sync.Mutex
		refs []Ref // their count fell to 0 at least once since the last look at them
	}

	sweep struct {
		sync.Mutex
		limbo [2][]Ref // freed in the epoch of this parity, and perhaps still used by a reader
	}

	ranks ranks
}

// 64 shards keep writers of new series from blocking readers of existing ones.
const (
	shards     = 64
	shardShift = 64 - 6
)

type shard struct {
	sync.RWMutex
	slots
	_ [8]byte // a cache line of its own
}

// entry is one series. It is constant from before its ref is given out until no goroutine can hold the ref any more.
type entry struct {
	labels point.Labels
	count  atomic.Int32 // references; countFreed from when a sweep frees it
}

const countFreed = math.MinInt32 / 2

// New makes an empty index.
func New() *Index {
	x := &Index{seed: maphash.MakeSeed()}
	x.mu.postings = newPostings()
	return x
}

// Len is the number of series that are not freed.
func (x *Index) Len() int { return int(x.live.Load()) }

// Intern gives labels their ref, a new one if need be, and acquires a reference on that: the caller owes one Release. The
// labels are kept while the series lives. Existing series need no exclusive lock.
func (x *Index) Intern(l point.Labels) Ref {
	return x.InternAll([]point.Labels{l}, make([]Ref, 0, 1))[0]
}

// InternAll is Intern for many at once, which costs a third for those that are new. It appends the refs to dst, in the
// order of the labels.
func (x *Index) InternAll(ls []point.Labels, dst []Ref) []Ref {
	return x.internAll(ls, dst, true)
}

// TakeAll is InternAll for series that are there. The others are not made: their ref is None.
func (x *Index) TakeAll(ls []point.Labels, dst []Ref) []Ref {
	return x.internAll(ls, dst, false)
}

func (x *Index) internAll(ls []point.Labels, dst []Ref, makes bool) []Ref {
	var s section
	for len(ls) > 0 {
		n := min(len(ls), internSection)
		from := len(dst)
		for i, l := range ls[:n] {
			s.hashes[i] = maphash.String(x.seed, string(l))
			dst = append(dst, None)
		}
		s.sort(n)
		made := x.made.Load() // before looking
		if s.take(x, ls[:n], dst[from:]); s.n > 0 && makes {
			x.internNew(&s, made, ls[:n], dst[from:])
		}
		ls = ls[n:]
	}
	return dst
}

// None is the ref of a series that has none.
const None Ref = math.MaxUint32

// internNew gives refs to the unknown series. They enter the postings later, see catchUp, or now if too many wait. Then
// another Intern may get such a ref before all are in the postings, but readers of the postings wait for the lock held
// here.
func (x *Index) internNew(s *section, made uint64, ls []point.Labels, refs []Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.made.Load() == made && !s.twice() {
		x.makeAllLocked(s.n, ls, refs)
		s.put(x, refs)
	} else {
		for i, l := range ls {
			if refs[i] == None {
				refs[i] = x.internNewLocked(s.hashes[i], l)
			}
		}
	}
	x.made.Add(uint64(s.n))
	x.mu.settle()
}

// waitingMax bounds the series that wait to enter the postings, and so the wait of the first query after many new
// series: 30 to 50 ms. Series beyond it enter at once: their labels are in the processor's cache, those of the oldest
// are not any more.
const waitingMax = 128 << 10

// catchUp enters the series that came before the call into the postings. They are entered late because the postings
// cost as much as all else here, and the sender of new series waits for its ack, while mostly no query runs at that
// moment. Every reader of postings calls it first; it is one look when no series waits.
func (x *Index) catchUp() { x.Enter(x.came.Load()) }

// Came counts the series that had to wait for the postings, ever.
func (x *Index) Came() uint64 { return x.came.Load() }

// Waiting is the number of series that are not in the postings yet: the next reader of postings enters them.
func (x *Index) Waiting() int {
	entered := x.entered.Load() // first: it never exceeds came
	return int(x.came.Load() - entered)
}

// Enter enters the first upTo of the series that had to wait, as Came counts them, into the postings, so that no reader pays
// for them. It enters a section at a time, as readers wait meanwhile.
func (x *Index) Enter(upTo uint64) {
	upTo = min(upTo, x.came.Load())
	for x.entered.Load() < upTo {
		x.mu.Lock()
		if x.entered.Load() < upTo { // another goroutine may have done it
			x.enterLocked(internSection)
		}
		x.mu.Unlock()
	}
}

// enterLocked enters the n series that have waited longest, or all if they are fewer.
func (x *Index) enterLocked(n int) {
	n = min(n, int(x.came.Load()-x.entered.Load()))
	for range n {
		w := &x.mu.waiting[0]
		x.mu.add(w.from, x.entries.at(w.from).labels)
		if w.from++; w.from == w.to {
			x.mu.waiting = x.mu.waiting[1:]
		}
	}
	x.mu.settle()
	x.entered.Add(uint64(n))
}

// refRange is neighbours, [from, to).
type refRange struct{ from, to Ref }

// waitLocked adds a ref to those that wait. It is not given out yet, and counted as come.
func (x *Index) waitLocked(ref Ref) {
	if n := len(x.mu.waiting); n > 0 && x.mu.waiting[n-1].to == ref {
		x.mu.waiting[n-1].to++
		return
	}
	x.mu.waiting = append(x.mu.waiting, refRange{ref, ref + 1})
}

// internNewLocked is for a series that another goroutine may have made since it was looked up.
func (x *Index) internNewLocked(h uint64, l point.Labels) Ref {
	sh := &x.shards[h>>shardShift]
	sh.Lock()
	defer sh.Unlock()
	if ref, ok := x.findLocked(sh, h, l); ok { // another goroutine was faster, or it is there twice
		x.entries.at(ref).count.Add(1)
		return ref
	}
	refs := [1]Ref{None}
	x.makeAllLocked(1, []point.Labels{l}, refs[:])
	sh.put(h, refs[0])
	return refs[0]
}

// makeAllLocked makes the n unknown series, before they enter their shards. The caller gets the first reference on each.
func (x *Index) makeAllLocked(n int, ls []point.Labels, refs []Ref) {
	room := min(n, waitingMax-int(x.came.Load()-x.entered.Load()))
	x.came.Add(uint64(room))
	x.live.Add(int64(n))
	for i, l := range ls {
		if refs[i] != None {
			continue
		}
		ref := x.takeLocked()
		e := x.entries.at(ref)
		e.labels = l
		e.count.Store(1)
		if room > 0 {
			x.waitLocked(ref)
			room--
		} else {
			x.mu.add(ref, l)
		}
		refs[i] = ref
	}
}

// findLocked looks labels up in their shard.
func (x *Index) findLocked(sh *shard, h uint64, l point.Labels) (Ref, bool) {
	if sh.used == 0 {
		return 0, false
	}
	for i := h & sh.mask(); sh.list[i] != 0; i = (i + 1) & sh.mask() {
		if slot := sh.list[i]; slot>>32 == h&math.MaxUint32 {
			if ref := Ref(uint32(slot) - 1); x.entries.at(ref).labels == l {
				return ref, true
			}
		}
	}
	return 0, false
}

// takeLocked returns an unused ref.
func (x *Index) takeLocked() Ref {
	if n := len(x.mu.free); n > 0 {
		ref := x.mu.free[n-1]
		x.mu.free = x.mu.free[:n-1]
		return ref
	}
	ref := x.mu.next
	x.mu.next++
	x.entries.grow(ref)
	return ref
}

// Labels returns the labels of a ref. The caller must hold a reference on that, or the Pin under which it was matched. No lock is acquired.
func (x *Index) Labels(ref Ref) point.Labels { return x.entries.at(ref).labels }

// Retain acquires one more reference on each ref; one must be held already.
func (x *Index) Retain(refs ...Ref) {
	for _, ref := range refs {
		if x.entries.at(ref).count.Add(1) <= 1 {
			fault.Bug("series %d is retained, but had no reference", ref)
		}
	}
}

// Release releases one reference on each ref. A series without references stays until a Sweep; Release itself sweeps
// when there are idleMax such series.
func (x *Index) Release(refs ...Ref) {
	var idle []Ref
	for _, ref := range refs {
		switch n := x.entries.at(ref).count.Add(-1); {
		case n == 0:
			idle = append(idle, ref)
		case n < 0:
			fault.Bug("series %d is released more often than it was taken", ref)
		}
	}
	if len(idle) == 0 {
		return
	}
	x.idle.Lock()
	x.idle.refs = append(x.idle.refs, idle...)
	full := len(x.idle.refs) >= idleMax
	x.idle.Unlock()
	if full && x.sweep.TryLock() {
		x.sweepLocked()
		x.sweep.Unlock()
	}
}

// entries is an array that grows without moving, so that reading needs no lock.
type entries struct {
	dir atomic.Pointer[[]*[entriesPage]entry]
}

const entriesPage = 128 // 3 kB: thousands of tables have a few series each

func (p *entries) at(ref Ref) *entry { return &(*p.dir.Load())[ref/entriesPage][ref%entriesPage] }

// grow makes room for ref, the first one never used; for one caller at a time.
func (p *entries) grow(ref Ref) {
	if ref%entriesPage != 0 {
		return
	}
	var dir []*[entriesPage]entry
	if old := p.dir.Load(); old != nil {
		dir = *old
	}
	// Readers of the old directory see its old length, whether or not the array behind it is shared.
	dir = append(dir, new([entriesPage]entry))
	p.dir.Store(&dir)
}
