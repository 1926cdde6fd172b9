package budget

import (
	"sync"
	"sync/atomic"
)

// Ahead books memory for something that grows in small steps and has a bound of its own. It books in quanta and before the growth, so
// that others that ask for memory see it as used. It books even beyond the account's max: the grower's own bound refuses.
//
//	0 ───── held ─────────── booked       booked - held is between one and two quanta while it grows
//
// A step that a quantum covers costs one atomic load. Safe for concurrent use.
type Ahead struct {
	account *Account // constant
	quantum int64    // constant

	mu     sync.Mutex
	booked atomic.Int64 // written under mu
}

// NewAhead books for an account, in quanta of so many bytes.
func NewAhead(a *Account, quantum int64) *Ahead { return &Ahead{account: a, quantum: max(quantum, 1)} }

// Cover is called with the bytes held now, or soon.
func (a *Ahead) Cover(held int64) {
	if held+a.quantum <= a.booked.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bookLocked(held + 2*a.quantum)
}

// Trim releases the bookings beyond two quanta, and all bookings where nothing is held.
func (a *Ahead) Trim(held int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	want := held + 2*a.quantum
	if held <= 0 {
		want = 0
	}
	if d := a.booked.Load() - want; d > 0 {
		a.account.Release(d)
		a.booked.Store(want)
	}
}

// bookLocked books until it is so much.
func (a *Ahead) bookLocked(want int64) {
	if d := want - a.booked.Load(); d > 0 {
		a.account.Force(d)
		a.booked.Store(want)
	}
}
