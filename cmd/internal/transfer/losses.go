package transfer

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
)

// Losses counts rows that were left out or refused, by reason. The zero value is ready. Safe for concurrent use.
type Losses struct {
	mu struct {
		sync.Mutex
		by   map[string]*loss
		left int64 // rows that were left out
	}
}

type loss struct {
	count   int64
	example string
}

// lossReasonsMax bounds the reasons that have a count of their own.
const lossReasonsMax = 50

// Add counts n losses with a reason; the first example is kept.
func (l *Losses) Add(reason string, n int64, example string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.by == nil {
		l.mu.by = map[string]*loss{}
	}
	if l.mu.by[reason] == nil {
		if len(l.mu.by) >= lossReasonsMax {
			reason, example = "for other reasons", ""
		}
		if l.mu.by[reason] == nil {
			l.mu.by[reason] = &loss{example: example}
		}
	}
	l.mu.by[reason].count += n
}

// LeaveOut counts n rows that are not written, as Add does.
func (l *Losses) LeaveOut(reason string, n int64, example string) {
	l.Add(reason, n, example)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.left += n
}

// left is the number of rows that were left out.
func (l *Losses) left() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.left
}

// snapshot returns a function that restores the counts of now.
func (l *Losses) snapshot() (undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, left := map[string]*loss{}, l.mu.left
	for reason, of := range l.mu.by {
		copied := *of
		was[reason] = &copied
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.by, l.mu.left = was, left
	}
}

// Any reports whether there was a loss.
func (l *Losses) Any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.by) > 0
}

// Print writes a line for each reason, the most frequent first.
func (l *Losses) Print(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, reason := range slices.SortedFunc(maps.Keys(l.mu.by), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.mu.by[b].count, l.mu.by[a].count), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(w, "%d %s", l.mu.by[reason].count, reason)
		if e := l.mu.by[reason].example; e != "" {
			fmt.Fprintf(w, "; the first: %s", e)
		}
		fmt.Fprintln(w)
	}
}
