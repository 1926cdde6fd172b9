package budget

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ChunkBytes is how much a Loan books at a time.
const ChunkBytes = 1 << 20

// Loan is what one user of an account holds, a query or a request: it grows in chunks and goes back whole. Safe for
// concurrent use; within a chunk Take is one atomic addition.
type Loan struct {
	// Constant after Borrow.
	account *Account
	max     int64

	used atomic.Int64

	mu     sync.Mutex
	held   atomic.Int64 // Invariant: what was taken <= held; written under mu
	closed bool
}

// A loan grows as long as it is at most so many times as large as what is free after it. So n that want all get equal
// parts, and one more as large as half of theirs is always free for a small one.
const loanPerFree = 2

// Borrow begins a loan of at most bytesMax (0: any number, see loanPerFree), of which the first chunk is waited for.
// Errors are those of Wait.
func (a *Account) Borrow(ctx context.Context, bytesMax int64) (*Loan, error) {
	if most := a.largestLoan(); bytesMax == 0 || bytesMax > most {
		bytesMax = most
	}
	first := min(ChunkBytes, bytesMax)
	if err := a.Wait(ctx, first); err != nil {
		return nil, err
	}
	l := &Loan{account: a, max: bytesMax}
	l.held.Store(first)
	return l, nil
}

// largestLoan is what a loan that is alone may be.
func (a *Account) largestLoan() int64 {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	most := a.mostLocked()
	return max(min(ChunkBytes, most), most-most/(loanPerFree+1))
}

// lend books n more bytes for a loan that holds some. The error is Throttled.
func (a *Account) lend(n, held int64) error {
	a.tree.mu.Lock()
	defer a.tree.mu.Unlock()
	free := a.freeLocked()
	if a.waitedForLocked() || !a.fitsLocked(n) || (held+n)/loanPerFree > free-n {
		a.refused++
		return fault.Errorf(fault.Throttled, "no memory left for %s: %d bytes are held, %d more asked for, %d free for all; try again later", a.name, held, n, max(0, free))
	}
	a.bookLocked(n)
	return nil
}

// Take books n more bytes. The error is TooLarge beyond what this loan may be, and Throttled when the account has no
// more; then nothing was taken. A nil Loan takes anything.
func (l *Loan) Take(n int64) error {
	if l == nil || l.used.Add(n) <= l.held.Load() {
		return nil
	}
	if err := l.grow(); err != nil {
		l.used.Add(-n)
		return err
	}
	return nil
}

// grow books chunks until what is used is held.
func (l *Loan) grow() error {
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
		if chunk = used - held; l.account.lend(chunk, held) != nil {
			if used > l.max/8*7 { // to come again would not help
				return fault.Wrap(err, fault.TooLarge, "%d bytes of memory are needed for %s, about the most for one", used, l.account.name)
			}
			return err
		}
	}
	l.held.Store(held + chunk)
	return nil
}

// Give takes n bytes back for what the same loan takes next. The account gets what is more than two chunks.
func (l *Loan) Give(n int64) {
	if l == nil {
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
	// Who took before that found enough, and is counted now; who takes later grows, after this.
	if used := l.used.Load(); used > keep {
		keep = min(used, held)
		l.held.Store(keep)
	}
	l.account.Release(held - keep)
}

// Used is how much was taken and not given back.
func (l *Loan) Used() int64 {
	if l == nil {
		return 0
	}
	return l.used.Load()
}

// Held is how much the account has booked for the loan.
func (l *Loan) Held() int64 {
	if l == nil {
		return 0
	}
	return l.held.Load()
}

// Close gives everything back. Takes fail from now on, but for what fits into nothing.
func (l *Loan) Close() {
	if l == nil {
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

// WithLoan gives a context under which LoanOf finds the loan: what works for a request draws on the request's loan,
// whichever package it is in.
func WithLoan(ctx context.Context, l *Loan) context.Context {
	return context.WithValue(ctx, loanKey{}, l)
}

// LoanOf is the loan of the request that ctx belongs to, or nil, from which anything can be taken.
func LoanOf(ctx context.Context) *Loan {
	l, _ := ctx.Value(loanKey{}).(*Loan)
	return l
}
