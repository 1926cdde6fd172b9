package budget

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ChunkBytes is how much a Loan books at a time.
const ChunkBytes = 1 << 20

// Loan is the memory that one user of an account holds, a query or a request: it grows in chunks and is released
// whole. Safe for concurrent use; within a chunk Take is one atomic addition.
//
// An account reserves a part for small loans, so that a small request finds memory however many large ones there are:
//
//	0 ─────────────────── 10/12 most ────────── 11/12 most ─────────── most
//	  loans of any size      │ small ones begin    │ small ones grow
//
// A small loan that grows may wait a little while even then; a large one is refused, and releases all it held. So only
// small ones wait for each other, and not for long.
type Loan struct {
	// Constant after Borrow.
	account *Account
	max     int64
	done    <-chan struct{} // of the request
	of      *Loan           // the loan that this is a Part of; nil: of the account

	used atomic.Int64

	mu     sync.Mutex
	held   atomic.Int64 // Invariant: sum of Take <= held; written under mu
	closed bool
}

const (
	// A loan grows as long as it is at most so many times as large as the memory free after it. So n that want all get
	// equal parts, and one more as large as half of theirs is always free for a small one.
	loanPerFree = 2
	// SmallLoan is the size up to which a loan draws on the part reserved for small ones.
	SmallLoan = 4 << 20
	// reservePart is the part of an account that is kept for small loans, and half of that for loans that have begun.
	reservePart = 6
	// growTimeMax is how long a small loan waits to grow. A longer time refuses fewer queries, but later.
	growTimeMax = 2 * time.Second
)

// Borrow begins a loan of at most bytesMax (0: any number, see loanPerFree), and waits for its first chunk. When ctx
// ends, the loan waits for nothing any more. Errors are those of Wait.
func (a *Account) Borrow(ctx context.Context, bytesMax int64) (*Loan, error) {
	return a.borrow(ctx, ctx, bytesMax)
}

// BorrowWithin is Borrow that waits for the first chunk no longer than that. The loan waits to grow as long as ctx lasts, as any other.
func (a *Account) BorrowWithin(ctx context.Context, within time.Duration, bytesMax int64) (*Loan, error) {
	first, stop := context.WithTimeout(ctx, within)
	defer stop()
	return a.borrow(ctx, first, bytesMax)
}

// borrow waits for the first chunk until first ends.
func (a *Account) borrow(ctx, first context.Context, bytesMax int64) (*Loan, error) {
	most, reserve := a.loans()
	if bytesMax == 0 || bytesMax > most {
		bytesMax = most
	}
	chunk := min(ChunkBytes, bytesMax)
	if err := a.wait(first, chunk, reserve/2); err != nil {
		return nil, err
	}
	l := &Loan{account: a, max: bytesMax, done: ctx.Done()}
	l.held.Store(chunk)
	return l, nil
}

// loans returns the largest size of a loan that is alone, and the part reserved for small loans.
func (a *Account) loans() (most, reserve int64) {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	all := a.mostLocked()
	reserve = all / reservePart
	left := all - reserve
	return max(min(ChunkBytes, left), left-left/(loanPerFree+1)), reserve
}

// lend books n more bytes for a loan that holds some. The error is Throttled.
func (a *Account) lend(n, held int64) error {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if a.lendLocked(n, held) {
		return nil
	}
	a.refused++
	return fault.Errorf(fault.Throttled, "no memory left for %s: %d bytes are held, %d more asked for, %d free for all; try again later", a.name, held, n, max(0, a.freeLocked()))
}

// lendLocked lets a small loan pass those that have not begun, so that it ends sooner.
func (a *Account) lendLocked(n, held int64) bool {
	if held+n > SmallLoan {
		left := a.freeLocked() - n - a.mostLocked()/reservePart
		if a.waitedForLocked() || (held+n)/loanPerFree > left {
			return false
		}
	}
	if !a.fitsLocked(n) {
		return false
	}
	a.bookLocked(n)
	return true
}

// lendSoon is lend that may wait, for a small loan; it is served before those that have not begun.
func (a *Account) lendSoon(done <-chan struct{}, n, held int64, wait bool) error {
	err := a.lend(n, held)
	if err == nil || !wait || held+n > SmallLoan {
		return err
	}
	a.tree.mu.Lock()
	if len(a.tree.waiting) >= WaitingMax {
		a.tree.mu.Unlock()
		return err
	}
	w := &waiter{account: a, bytes: n, grows: true, granted: make(chan struct{})}
	a.tree.waiting = slices.Insert(a.tree.waiting, a.tree.grownLocked(), w)
	a.tree.serveLocked()
	a.tree.mu.Unlock()
	timer := time.NewTimer(growTimeMax)
	defer timer.Stop()
	select {
	case <-w.granted:
		return nil
	case <-timer.C:
	case <-done:
	}
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	if !a.tree.leaveLocked(w) {
		return nil // granted meanwhile
	}
	a.tree.serveLocked()
	return err
}

// grownLocked is the place in the queue behind those loans that began and wait to grow.
func (t *tree) grownLocked() int {
	i := slices.IndexFunc(t.waiting, func(w *waiter) bool { return !w.grows })
	if i < 0 {
		return len(t.waiting)
	}
	return i
}

// Take books n more bytes. The error is TooLarge beyond the maximum of this loan, and Throttled when the account has
// no more; then nothing was booked. A nil Loan grants everything.
func (l *Loan) Take(n int64) error { return l.take(n, false) }

// TakeSoon is Take that waits up to two seconds for the memory that a small loan needs. The caller may hold only locks
// that are used by this loan's own users.
func (l *Loan) TakeSoon(n int64) error { return l.take(n, true) }

// TakeSpare is Take for memory that the user can do without: the error is Throttled unless half of the account is free.
func (l *Loan) TakeSpare(n int64) error {
	if l == nil {
		return nil
	}
	if account := l.whole().account; !account.plenty() {
		return fault.Errorf(fault.Throttled, "%s has little left, and %d bytes can be done without", account.name, n)
	}
	return l.Take(n)
}

// plenty reports whether half of an account is free.
func (a *Account) plenty() bool {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	return a.freeLocked() >= a.mostLocked()/2
}

func (l *Loan) take(n int64, wait bool) error {
	if l != nil && l.of != nil {
		return l.takePart(n, wait)
	}
	if l == nil || l.used.Add(n) <= l.held.Load() {
		return nil
	}
	if err := l.grow(wait); err != nil {
		l.used.Add(-n)
		return err
	}
	return nil
}

// grow books chunks until they cover the bytes used.
func (l *Loan) grow(wait bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	used, held := l.used.Load(), l.held.Load()
	switch {
	case l.closed:
		return fault.Errorf(fault.Canceled, "the memory was given back already")
	case used <= held:
		return nil
	case used > l.max:
		return fault.Errorf(fault.TooLarge, "more than %d bytes of memory are needed for %s, the most for one", l.max, l.account.name)
	}
	chunk := min((used-held+ChunkBytes-1)/ChunkBytes*ChunkBytes, l.max-held)
	if err := l.account.lend(chunk, held); err != nil {
		chunk = used - held
		if err := l.account.lendSoon(l.done, chunk, held, wait); err != nil {
			if used > l.max/8*7 { // to come again would not help
				return fault.Wrap(err, fault.TooLarge, "%d bytes of memory are needed for %s, about the most for one", used, l.account.name)
			}
			return err
		}
	}
	l.held.Store(held + chunk)
	return nil
}

// Give returns n bytes to the loan for its next Take. The excess over two chunks goes back to the account.
func (l *Loan) Give(n int64) {
	switch {
	case l == nil:
		return
	case l.of != nil:
		l.givePart(n)
		return
	}
	if l.used.Add(-n)+2*ChunkBytes >= l.held.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held.Load()
	keep := max(l.used.Load(), 0) + ChunkBytes
	if l.closed || held <= keep {
		return
	}
	l.held.Store(keep)
	// A Take before that found enough, and is counted now; a later one grows the loan, after this.
	if used := l.used.Load(); used > keep {
		keep = min(used, held)
		l.held.Store(keep)
	}
	l.account.Release(held - keep)
}

// Used is how many bytes are booked and not returned.
func (l *Loan) Used() int64 {
	if l == nil {
		return 0
	}
	return l.used.Load()
}

// Held is how much the account has booked for the loan; of a Part, for the loan that it is a part of.
func (l *Loan) Held() int64 {
	if l == nil {
		return 0
	}
	return l.whole().held.Load()
}

// Close returns everything. Take of more than zero bytes fails from now on.
func (l *Loan) Close() {
	switch {
	case l == nil:
		return
	case l.of != nil:
		l.closePart()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.account.Release(l.held.Swap(0))
}

type loanKey struct{}

// WithLoan returns a context under which LoanOf finds the loan: all work for a request draws on the request's loan,
// in whichever package.
func WithLoan(ctx context.Context, l *Loan) context.Context {
	return context.WithValue(ctx, loanKey{}, l)
}

// LoanOf is the loan of the request that ctx belongs to, or nil, which grants everything.
func LoanOf(ctx context.Context) *Loan {
	l, _ := ctx.Value(loanKey{}).(*Loan)
	return l
}
