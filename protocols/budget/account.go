package budget

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Share is an account's part of the account above it.
type Share struct {
	// Floor is the bytes that the account may always hold, whatever the others do.
	Floor int64
	// Max is the most it may hold, bytes; 0: as much as the account above it.
	Max int64
}

// Account is a part of the memory of the process. Safe for concurrent use.
type Account struct {
	// Constant after New and Child.
	name   string
	parent *Account // nil: the root
	share  Share
	tree   *tree

	// Guarded by tree.mu.
	used     int64
	peak     int64
	children []*Account
	closed   bool
	granted  uint64 // bytes booked in all
	refused  uint64 // reservations
}

// tree is the state that all accounts of one process share.
type tree struct {
	mu      sync.Mutex
	waiting []*waiter // in the order of their arrival
}

// waiter is one that waits for memory.
type waiter struct {
	account *Account
	bytes   int64
	leave   int64         // bytes that must stay free
	grows   bool          // a loan that began: before all that have not
	granted chan struct{} // closed when the bytes are booked
}

// WaitingMax bounds the requests that wait for memory of one process; the next is refused.
const WaitingMax = 1024

// New makes the account of a process that may use so many bytes.
func New(name string, bytes int64) *Account {
	return &Account{name: name, share: Share{Max: bytes}, tree: &tree{}}
}

// Child makes an account below a and books its floor in a at once. The error is Throttled when a has less than that
// left, and Invalid for a share that makes no sense.
func (a *Account) Child(name string, s Share) (*Account, error) {
	if s.Max == 0 {
		s.Max = a.share.Max
	}
	if s.Floor < 0 || s.Max < s.Floor {
		return nil, fault.Errorf(fault.Invalid, "account %s: a floor of %d bytes and a max of %d", name, s.Floor, s.Max)
	}
	c := &Account{name: name, parent: a, share: s, tree: a.tree}
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if !a.fitsLocked(s.Floor) {
		return nil, fault.Errorf(fault.Throttled, "account %s: its floor of %d bytes does not fit into %s, which holds %d of %d", name, s.Floor, a.name, a.used, a.share.Max)
	}
	a.addLocked(s.Floor)
	a.children = append(a.children, c)
	return c, nil
}

// Close releases the floor of an account, which must be empty and have no children.
func (a *Account) Close() {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if a.used != 0 || len(a.children) > 0 {
		fault.Bug("account %s is closed and holds %d bytes in %d accounts", a.name, a.used, len(a.children))
	}
	if a.closed || a.parent == nil {
		return
	}
	a.closed = true
	siblings := a.parent.children
	for i, c := range siblings {
		if c == a {
			a.parent.children = append(siblings[:i:i], siblings[i+1:]...)
		}
	}
	a.parent.addLocked(-a.share.Floor)
	a.tree.serveLocked()
}

// Share is the account's share.
func (a *Account) Share() Share { return a.share }

// Reserve books n bytes at once. The error is TooLarge for more than the account may ever hold, and Throttled when there
// are too few now, or when others wait for the same account already.
func (a *Account) Reserve(n int64) error {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if !a.waitedForLocked() && a.fitsLocked(n) {
		a.bookLocked(n)
		return nil
	}
	return a.refuseLocked(n)
}

// wait is Wait for memory of which so many bytes more must stay free.
func (a *Account) wait(ctx context.Context, n, leave int64) error {
	w, err := a.join(n, leave)
	if w == nil {
		return err
	}
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if !a.tree.leaveLocked(w) {
		return nil // granted meanwhile
	}
	a.refused++
	a.tree.serveLocked() // those behind may be smaller
	return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for %d bytes of memory for %s", n, a.name)
}

// join books at once, or queues.
func (a *Account) join(n, leave int64) (*waiter, error) {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	switch {
	case !a.waitedForLocked() && a.fitsLocked(n+leave):
		a.bookLocked(n)
		return nil, nil
	case n+leave > a.mostLocked() || len(a.tree.waiting) >= WaitingMax:
		return nil, a.refuseLocked(n)
	}
	w := &waiter{account: a, bytes: n, leave: leave, granted: make(chan struct{})}
	a.tree.waiting = append(a.tree.waiting, w)
	return w, nil
}

// Force books n bytes that are there already, whether they fit or not.
func (a *Account) Force(n int64) {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	a.bookLocked(n)
}

// Release gives n bytes back.
func (a *Account) Release(n int64) {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if n < 0 || n > a.used {
		fault.Bug("account %s holds %d bytes and releases %d", a.name, a.used, n)
	}
	a.addLocked(-n)
	a.tree.serveLocked()
}

// Used is how much is booked now, floors of children included.
func (a *Account) Used() int64 {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	return a.used
}

// Free is how much could be reserved now.
func (a *Account) Free() int64 {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	return max(0, a.freeLocked())
}

// Limit is how much the account may hold now: its bytes and those that are free, at least its floor. Where Force exceeded the account above, it is less than the account holds.
func (a *Account) Limit() int64 {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	limit := a.share.Max
	if a.parent != nil {
		limit = min(limit, a.chargeLocked()+a.parent.freeLocked())
	}
	return max(limit, a.share.Floor)
}

// chargeLocked is the amount that the account above books for this one.
func (a *Account) chargeLocked() int64 { return max(a.used, a.share.Floor) }

// freeLocked may be negative after Force.
func (a *Account) freeLocked() int64 {
	free := a.share.Max - a.used
	if a.parent != nil {
		free = min(free, max(0, a.share.Floor-a.used)+max(0, a.parent.freeLocked()))
	}
	return free
}

// fitsLocked reports whether n more bytes keep every account within its max. The rest of a floor stays available even
// where Force exceeded a max.
func (a *Account) fitsLocked(n int64) bool {
	if n < 0 {
		fault.Bug("account %s: reservation of %d bytes", a.name, n)
	}
	if n == 0 || a.parent == nil || n > a.share.Max-a.used {
		return n <= max(0, a.share.Max-a.used)
	}
	above := a.used + n - a.chargeLocked()
	return above <= 0 || a.parent.fitsLocked(above)
}

// mostLocked is the amount that the account could hold if no other held more than its floor.
func (a *Account) mostLocked() int64 {
	if a.parent == nil {
		return a.share.Max
	}
	others := int64(0)
	for _, c := range a.parent.children {
		if c != a {
			others += c.share.Floor
		}
	}
	return min(a.share.Max, max(a.share.Floor, a.parent.mostLocked()-others))
}

func (a *Account) bookLocked(n int64) {
	a.addLocked(n)
	a.granted += uint64(n)
}

func (a *Account) addLocked(n int64) {
	before := a.chargeLocked()
	a.used += n
	a.peak = max(a.peak, a.used)
	if d := a.chargeLocked() - before; a.parent != nil && d != 0 {
		a.parent.addLocked(d)
	}
}

func (a *Account) refuseLocked(n int64) error {
	a.refused++
	if most := a.mostLocked(); n > most {
		return fault.Errorf(fault.TooLarge, "%d bytes of memory for %s are more than the %d there can be", n, a.name, most)
	}
	return fault.Errorf(fault.Throttled, "no memory left for %s: %d bytes are asked for, %d are free; try again later", a.name, n, max(0, a.freeLocked()))
}

// waitedForLocked reports whether a loan waits for this account.
func (a *Account) waitedForLocked() bool {
	for _, w := range a.tree.waiting {
		if w.account == a {
			return true
		}
	}
	return false
}

// serveLocked books for the waiting loans as far as they now fit. Each account serves its waiters in order of arrival;
// other accounts do not wait for it, as it may be short only of its own share.
func (t *tree) serveLocked() {
	if len(t.waiting) == 0 {
		return
	}
	passed := map[*Account]bool{}
	left := t.waiting[:0]
	for _, w := range t.waiting {
		if passed[w.account] || !w.account.fitsLocked(w.bytes+w.leave) {
			passed[w.account] = true
			left = append(left, w)
			continue
		}
		w.account.bookLocked(w.bytes)
		close(w.granted)
	}
	clear(t.waiting[len(left):])
	t.waiting = left
}

// leaveLocked removes a waiter; false when it was already served.
func (t *tree) leaveLocked(w *waiter) bool {
	for i, other := range t.waiting {
		if other == w {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			return true
		}
	}
	return false
}
