package columns

import (
	"sync"
)

// turns lets the workers go on in the order of their pages.
type turns struct {
	mu struct {
		sync.Mutex
		next  int
		ended bool
	}
	changed *sync.Cond
}

func newTurns() *turns {
	t := &turns{}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// wait waits for the turn of page n; false when there will be none.
func (t *turns) wait(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.mu.next != n && !t.mu.ended {
		t.changed.Wait()
	}
	return !t.mu.ended
}

// All are woken, as each waits for a number of its own; there are as many as processors.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.next++
	t.changed.Broadcast()
}

// end ends all turns after an error.
func (t *turns) end(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ended = true
	t.changed.Broadcast()
}
