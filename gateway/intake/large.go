package intake

import (
	"slices"
	"time"
)

// large gives the requests that need much memory their turns, one at a time. In a process that is never idle a body of 64 MiB hardly ever finds its memory
// free; its sender would repeat it for ever, and everything behind it in the sender's queue would wait.
//
//	large, does not fit ──▶ waits ──▶ has the turn ──▶ its memory is free: decoded ──▶ the turn ends
//	                          ▲            │ meanwhile new requests of large tables
//	                          │            ▼ wait before their bodies are read, at most holdBackMax
//	                          └── the next one has the turn only after a rest as long as others were held back
//
// Memory of the requests that wait for the turn does not count against the one that has it, since none of them ends before it. So the bytes held may exceed the
// bound by a quarter for them, and by three eighths for one request that fits only beside no other; its rows are bounded by their number alone.
//
// It has no clock, lock, I/O or goroutine. The budget books the bytes that it grants.
type large struct {
	holder  *largeRequest   // has the turn
	waiting []*largeRequest // first come first
	bytes   int64           // that those in waiting hold; at most a largeWaitParts-th of the bound

	began    time.Time // of the turn
	heldBack bool      // a request was held back during it
	rest     time.Time // no turn begins before
}

// largeRequest is a request that has or waits for the turn.
type largeRequest struct {
	table string
	held  int64 // bytes; constant while it waits
	need  int64 // bytes that it asks for; 0: it was given them, and works
	rows  bool  // need is for rows, of which admit.Settings.RowsMax bounds the number
	come  chan struct{}
}

const (
	largeParts     = 16 // a request that needs less than so much of the budget finds room by itself
	largeWaitParts = 4  // requests that wait for the turn hold at most so much
	aloneParts     = 8  // a request is as good as alone while others hold no more
	// holdBackMax bounds how long one turn may hold others back. Requests under way end within tens of milliseconds; what holds its memory longer is
	// read over a slow link, and waiting for that would stop all others for the length of a body.
	holdBackMax = time.Second
)

// most is what one request may hold beside no other, but for rows: 32 MiB as they came and the unpacked 64 MiB, while these move to their last buffer.
func most(max int64) int64 { return max + max/4 }

// never reports whether n bytes are more than a request can ever get.
func never(max, held, n int64) bool { return held+n > most(max) }

// ask records a request with its need, and reports whether it may wait.
func (l *large) ask(max int64, r *largeRequest) bool {
	if r == l.holder {
		return true
	}
	if r.held+r.need < max/largeParts || l.bytes+r.held > max/largeWaitParts && (l.holder != nil || len(l.waiting) > 0) {
		return false
	}
	l.waiting = append(l.waiting, r)
	l.bytes += r.held
	return true
}

// step begins the next turn when it is time. The caller books the n bytes that it grants to a request; nil: it grants none.
func (l *large) step(now time.Time, max, used int64) (granted *largeRequest, n int64) {
	if l.holder == nil && len(l.waiting) > 0 && !now.Before(l.rest) {
		l.holder, l.waiting = l.waiting[0], l.waiting[1:]
		l.bytes -= l.holder.held
		l.began, l.heldBack = now, false
	}
	h := l.holder
	if h == nil || h.need == 0 {
		return nil, 0
	}
	others := used - l.bytes - h.held
	fits := others+h.held+h.need <= max
	alone := others <= max/aloneParts && (h.rows || !never(max, h.held, h.need))
	if !fits && !alone {
		return nil, 0
	}
	n = h.need
	h.held, h.need = h.held+n, 0
	return h, n
}

// holdsBack returns how long new requests wait at most, so that memory becomes free.
func (l *large) holdsBack(now time.Time) time.Duration {
	if l.holder == nil || l.holder.need == 0 {
		return 0
	}
	return max(0, holdBackMax-now.Sub(l.began))
}

// leave removes a request that has all it needs, or gives up.
func (l *large) leave(now time.Time, r *largeRequest) {
	if r != l.holder {
		if i := slices.Index(l.waiting, r); i >= 0 {
			l.waiting = slices.Delete(l.waiting, i, i+1)
			l.bytes -= r.held
		}
		return
	}
	l.holder = nil
	if l.heldBack {
		l.rest = now.Add(min(now.Sub(l.began), holdBackMax))
	}
}
