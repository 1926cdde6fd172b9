package process

import (
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/storage/server"
)

// heapLimit is the collector's limit: what the budget leaves beside the rows in heads, which lie outside its heap. It follows what the heads
// hold, so that memory that they do not use is there for queries, and a step ahead of them, so that the collector begins before it is needed.
//
//	storage.memory_bytes ─┬─ what heads hold ─┬─ 1 to 2 steps ─┬─ limit of the collector ─┬─ 1/8: the collector may be late
//	                      0                   └──── at most storage.head_bytes_max          │
//
// Raising the limit costs nothing; lowering it makes the next collections come sooner, and queries whose memory the heads need are ended
// by their guard, which compares with the limit as it is (gateway/query).
type heapLimit struct {
	// Constant after limitHeap.
	budget int64
	most   int64 // of the heads; 0: the process has none
	set    func(limit int64)

	reserved atomic.Int64 // for the heads; written under mu
	mu       sync.Mutex
	extra    int64 // added to the limit: the ballast. Guarded by mu
}

const (
	hugeMost   = 4 << 30 // addresses only, but the collector notes 8 bytes for each 8 KiB
	collectAt  = 60      // percent of garbage relative to the live heap: steady state allocates next to nothing, so it costs little
	limitSlack = 8       // part of its share by which the heap may outgrow its limit: where the processors are busy, the collector is late
	headSteps  = 16      // in which the heads' part of the budget is reserved
)

// newHeapLimit reserves all that heads may hold, until the heads report their size: a start reads them from the log.
func newHeapLimit(budget, heads int64, set func(limit int64)) *heapLimit {
	l := &heapLimit{budget: budget, most: heads, set: set}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserveLocked(heads)
	return l
}

// limitHeap gives the collector its part of the budget, and asks for huge pages where they help; heads are those of a storage server. Go's own
// environment variables win.
func (c *config) limitHeap(heads setting.Bytes) {
	hugeHeap(min(int64(c.Storage.MemoryBytes-c.Storage.HeadBytesMax), settings.MemoryOfMachine()/2, hugeMost))
	set := func(limit int64) { debug.SetMemoryLimit(limit) }
	if os.Getenv("GOMEMLIMIT") != "" {
		set = func(int64) {}
	}
	c.heap = newHeapLimit(int64(c.Storage.MemoryBytes), int64(heads), set)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// idleHeap is the size up to which a small process may treat its heap as alive: collectAt percent of that are garbage that
// need not be collected. Otherwise a heap that grows from nothing to 100 MB, as after a start, is collected five times.
func (c *config) idleHeap() int64 { return min(int64(c.Storage.MemoryBytes)/32, 64<<20) }

// ballast gives idleHeap its effect for as long as the caller keeps the result alive: it counts as memory in use, but as it is never touched the
// system provides none. The collector's limit rises by as much.
func (c *config) ballast() []byte {
	c.heap.widen(c.idleHeap())
	debug.FreeOSMemory()
	return untouched(c.idleHeap())
}

// untouched makes n bytes for which the system provides no memory until they are used. Go clears all of an allocation of which one page was written before: after a
// collection that had freed the end of the heap a start wrote gigabytes (hugeHeap). Pages that the system has back need no clearing, so callers that allocate much give
// them back first, and in pieces: a page may be freed in between.
func untouched(n int64) []byte { return make([]byte, n) }

// widen raises the limit by n for good.
func (l *heapLimit) widen(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extra += n
	l.reserveLocked(l.reserved.Load())
}

// Cover is called with what the heads hold now, or soon. Where a step covers it, it costs one atomic load. Safe for concurrent use.
func (l *heapLimit) Cover(held int64) {
	if min(held+l.step(), l.most) <= l.reserved.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if want := l.want(held); want > l.reserved.Load() {
		l.reserveLocked(want)
	}
}

// Trim releases the reservation beyond two steps, once that is a step.
func (l *heapLimit) Trim(held int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if want := l.want(held); want <= l.reserved.Load()-l.step() {
		l.reserveLocked(want)
	}
}

func (l *heapLimit) step() int64 { return max(l.most/headSteps, 1) }

func (l *heapLimit) want(held int64) int64 { return min(held+2*l.step(), l.most) }

func (l *heapLimit) reserveLocked(heads int64) {
	l.reserved.Store(heads)
	part := l.budget - heads
	l.set(part - part/limitSlack + l.extra)
}

// heads follows the rows in heads of a server: in their account, and in the collector's limit where there is one.
func (c *config) heads(account *budget.Account, s *server.Server) followed {
	all := aheads{budget.NewAhead(account, account.Share().Floor/quantumParts)}
	if c.heap != nil {
		all = append(all, c.heap)
	}
	s.OnHeadGrowth(all.Cover)
	return followed{s.HeadBytes, all}
}

// aheads are several that follow the same part.
type aheads []booker

func (a aheads) Cover(held int64) {
	for _, b := range a {
		b.Cover(held)
	}
}

func (a aheads) Trim(held int64) {
	for _, b := range a {
		b.Trim(held)
	}
}
