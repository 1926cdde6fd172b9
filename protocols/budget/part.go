package budget

import "github.com/spillwaydb/spillway/protocols/fault"

// Part begins a loan within l, of what one try of a request needs: all that it books is booked in l, and its Close gives that back and leaves the rest of l. Take
// fails after Close. A nil Loan has nil parts.
func (l *Loan) Part() *Loan {
	if l == nil {
		return nil
	}
	return &Loan{of: l}
}

// whole is the loan that l is a part of, or l.
func (l *Loan) whole() *Loan {
	for l.of != nil {
		l = l.of
	}
	return l
}

// takePart is take for a part of a loan.
func (l *Loan) takePart(n int64, wait bool) error {
	if err := l.of.take(n, wait); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && n > 0 {
		l.of.Give(n)
		return fault.Errorf(fault.Canceled, "the memory was given back already")
	}
	l.used.Add(n)
	return nil
}

// givePart is Give for a part of a loan: after Close there is nothing to give.
func (l *Loan) givePart(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.used.Add(-n)
		l.of.Give(n)
	}
}

// closePart is Close for a part of a loan.
func (l *Loan) closePart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.of.Give(l.used.Swap(0))
	}
}
