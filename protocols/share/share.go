// Package share divides something limited, such as memory, among tables: a table may use all that the others do not need,
// and no table causes the refusal of others that hold less than their share.
//
//	0 ──────────────────── ¾ most ───────────── 15/16 most ───── most
//	  every member           │ members within     │ small       │ none
//	                         │ their share        │ members     │
//
// Up to three quarters every member is admitted. Beyond, one is admitted only while it holds less than its share of the rest, and the
// last sixteenth is for those that hold less than most/256 (admits). So the whole never exceeds most by more than the requests
// on their way, and a member is refused because of others only if it holds most/256 or all is held by members that are as
// small. A member that is alone gets everything, where memory is soon released; else the last quarter waits for others.
//
// A member of weight n counts as n members of weight 1.
package share

import (
	"sync"
	"sync/atomic"
)

// Pool is the shared quantity. Safe for concurrent use.
type Pool struct {
	most    int64 // constant
	reserve bool  // constant: the last quarter is never for one alone
	used    atomic.Int64
	grows   atomic.Pointer[func(to int64)]
	members atomic.Int64 // the weights of those that hold more than most/worth
}

// worth is the part of a pool below which a member does not count as sharing: thousands of tables of a few rows each do not
// reduce the share of others.
const worth = 1024

// New makes a pool of so much.
func New(most int64) *Pool { return &Pool{most: most} }

// NewReserved is New for things held for long: the last quarter is kept for members that are not there yet.
func NewReserved(most int64) *Pool { return &Pool{most: most, reserve: true} }

// Most is how much there is.
func (p *Pool) Most() int64 { return p.most }

// OnGrowth registers f, a quick function: it is called, from any goroutine, with the total that all members hold, each time a member adds more.
func (p *Pool) OnGrowth(f func(to int64)) { p.grows.Store(&f) }

// Used is how much all members hold.
func (p *Pool) Used() int64 { return p.used.Load() }

// Members counts those that hold enough to share, each as often as its weight.
func (p *Pool) Members() int64 { return p.members.Load() }

// Member makes one that holds nothing, of weight 1.
func (p *Pool) Member() *Member {
	m := &Member{of: p}
	m.weight.Store(1)
	return m
}

// Member is one of those that share a pool. Safe for concurrent use.
type Member struct {
	of     *Pool // constant
	used   atomic.Int64
	weight atomic.Int64

	mu      sync.Mutex
	counted int64 // of the weight, in of.members; guarded by mu
}

// SetWeight changes the weight, which is at least 1.
func (m *Member) SetWeight(w int64) {
	if w = max(w, 1); m.weight.Load() != w {
		m.weight.Store(w)
		m.count()
	}
}

// count brings the pool's sum of weights up to date.
func (m *Member) count() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := int64(0)
	if m.used.Load() > m.of.most/worth {
		now = m.weight.Load()
	}
	m.of.members.Add(now - m.counted)
	m.counted = now
}

// Fair is the member's part if all want more.
func (m *Member) Fair() int64 {
	w := m.weight.Load()
	return int64(float64(m.of.most) * float64(w) / float64(max(w, m.of.members.Load())))
}

// Add counts n more, or returns -n, whether or not it was admitted.
func (m *Member) Add(n int64) {
	to := m.of.used.Add(n)
	if f := m.of.grows.Load(); f != nil && n > 0 {
		(*f)(to)
	}
	least := m.of.most / worth
	now := m.used.Add(n)
	if was := now - n; (was > least) != (now > least) {
		m.count()
	}
}

// Used is how much the member holds.
func (m *Member) Used() int64 { return m.used.Load() }

// Admits says whether the member may add more.
func (m *Member) Admits() bool {
	p := m.of
	all := p.used.Load()
	if all < p.most/4*3 {
		return true
	}
	used, w, n := m.used.Load(), m.weight.Load(), p.members.Load()
	if used <= p.most/worth {
		n += w // it shares, though it does not count
	}
	if n <= w && (p.reserve || used < all) {
		n = w + 1
	}
	return admits(p.most, all, used, w, n)
}

// small is the part of a pool below which a member is always admitted.
const small = 256

// admits is the rule: all is in use of most, used of it by the member that asks, with weight w of n.
func admits(most, all, used, w, n int64) bool {
	shared := most / 16 * 15
	switch {
	case all >= most:
		return false
	case n <= w || all < most/4*3 || used < most/small:
		return true
	}
	return all < shared && float64(used) <= 4*float64(shared-all)*float64(w)/float64(n)
}
