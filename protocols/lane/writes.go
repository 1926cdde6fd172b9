package lane

import "sync/atomic"

// Writes counts the writes that use a processor at the moment, for New's busy. The zero value has none; nil counts none. Safe for concurrent use.
type Writes struct{ running atomic.Int64 }

// Busy reports whether one does.
func (w *Writes) Busy() bool { return w != nil && w.running.Load() > 0 }

// Begin counts a write until it ends.
func (w *Writes) Begin() {
	if w != nil {
		w.running.Add(1)
	}
}

// End ends a write, or its use of a processor: one that waits for a disk or for another server uses none.
func (w *Writes) End() {
	if w != nil {
		w.running.Add(-1)
	}
}

// Until begins a write that ends at the first of several calls of end: before it waits, or when it returns.
func (w *Writes) Until() (end func()) {
	if w == nil {
		return func() {}
	}
	w.Begin()
	var ended atomic.Bool
	return func() {
		if ended.CompareAndSwap(false, true) {
			w.End()
		}
	}
}
