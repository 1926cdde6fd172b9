package budget

import "sync/atomic"

// Held counts bytes that a part of the process holds, and reports growth before the bytes are allocated. The zero value is ready. Safe for
// concurrent use.
type Held struct {
	n     atomic.Int64
	grows atomic.Pointer[func(to int64)]
}

// OnGrowth registers f, a quick function: it is called, from any goroutine, with the bytes held, each time they become more.
func (h *Held) OnGrowth(f func(to int64)) { h.grows.Store(&f) }

// Add counts n more bytes before they are allocated, or -n that were freed.
func (h *Held) Add(n int64) {
	to := h.n.Add(n)
	if f := h.grows.Load(); f != nil && n > 0 {
		(*f)(to)
	}
}

// Load returns the bytes held now.
func (h *Held) Load() int64 { return h.n.Load() }
