package coord

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Rows is a coordination store's rows in memory with their history: the part that the stores of one process share.
// persist, if set, makes a transaction durable before any reader sees it; it is called under the lock that orders them.
type Rows struct {
	persist func(rev Revision, writes []Write) error

	mu struct {
		sync.Mutex
		rows      map[string]Row
		rev       Revision
		history   []Event       // the newest changes, by revision
		changed   chan struct{} // closed and replaced at every commit
		closed    bool
		forgotten Revision // changes up to here are no longer in history
	}
}

// historyMax bounds how far back a watcher may start: each event holds one small row.
const historyMax = 4096

// NewRows starts from rows that were kept. rev is the highest revision ever given.
func NewRows(kept []Row, rev Revision, persist func(Revision, []Write) error) *Rows {
	r := &Rows{persist: persist}
	r.mu.rows = make(map[string]Row, len(kept))
	for _, row := range kept {
		r.mu.rows[row.Key] = row
	}
	r.mu.rev, r.mu.forgotten = rev, rev
	r.mu.changed = make(chan struct{})
	return r
}

var errClosed = fault.Errorf(fault.Unavailable, "the coordination store is closed")

// Get implements Store.
func (r *Rows) Get(ctx context.Context, key string) (Row, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(ctx); err != nil {
		return Row{}, false, err
	}
	row, ok := r.mu.rows[key]
	row.Value = slices.Clone(row.Value)
	return row, ok, nil
}

// List implements Store. Rows are picked under the lock, a few nanoseconds for each row there is, and sorted and copied outside: a list of a
// hundred thousand must not hold up a heartbeat. That works because values are replaced, never changed.
func (r *Rows) List(ctx context.Context, prefix string) ([]Row, Revision, error) {
	rows, rev, err := r.pick(ctx, prefix)
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	for i := range rows {
		if i%pageMax == 0 && ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		rows[i].Value = slices.Clone(rows[i].Value)
	}
	return rows, rev, err
}

// pageMax is how many rows a list copies before it looks whether it is still wanted.
const pageMax = 1000

func (r *Rows) pick(ctx context.Context, prefix string) (rows []Row, _ Revision, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(ctx); err != nil {
		return nil, 0, err
	}
	for key, row := range r.mu.rows {
		if strings.HasPrefix(key, prefix) {
			rows = append(rows, row)
		}
	}
	return rows, r.mu.rev, nil
}

// Commit implements Store.
func (r *Rows) Commit(ctx context.Context, conditions []Condition, writes []Write) (Revision, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(ctx); err != nil {
		return 0, false, err
	}
	for _, c := range conditions {
		if r.mu.rows[c.Key].Revision != c.Revision {
			return 0, false, nil
		}
	}
	rev := r.mu.rev + 1
	if r.persist != nil {
		if err := r.persist(rev, writes); err != nil {
			return 0, false, fault.Wrap(err, fault.Unavailable, "coordination store")
		}
	}
	r.mu.rev = rev
	for _, w := range writes {
		r.applyLocked(w, rev)
	}
	if drop := len(r.mu.history) - historyMax; drop > 0 {
		r.mu.forgotten = r.mu.history[drop-1].Revision
		clear(r.mu.history[:drop]) // their values can be freed; an append that needs room copies only the rest
		r.mu.history = r.mu.history[drop:]
	}
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
	return rev, true, nil
}

func (r *Rows) applyLocked(w Write, rev Revision) {
	e := Event{Row: Row{Key: w.Key, Revision: rev}, Deleted: w.Delete}
	if w.Delete {
		if _, ok := r.mu.rows[w.Key]; !ok {
			return
		}
		delete(r.mu.rows, w.Key)
	} else {
		e.Value = slices.Clone(w.Value)
		r.mu.rows[w.Key] = e.Row
	}
	r.mu.history = append(r.mu.history, e)
}

// Watch implements Store.
func (r *Rows) Watch(ctx context.Context, prefix string, after Revision, f func([]Event) error) error {
	for {
		events, changed, err := r.since(ctx, prefix, &after)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			if err := f(events); err != nil {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Rows) since(ctx context.Context, prefix string, after *Revision) ([]Event, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usableLocked(ctx); err != nil {
		return nil, nil, err
	}
	if *after < r.mu.forgotten {
		return nil, nil, ErrCompacted
	}
	var events []Event
	for _, e := range r.mu.history {
		if e.Revision > *after && strings.HasPrefix(e.Key, prefix) {
			e.Value = slices.Clone(e.Value)
			events = append(events, e)
		}
	}
	*after = r.mu.rev
	return events, r.mu.changed, nil
}

func (r *Rows) usableLocked(ctx context.Context) error {
	if r.mu.closed {
		return errClosed
	}
	return ctx.Err()
}

// Close ends every watch with an Unavailable error.
func (r *Rows) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.closed {
		r.mu.closed = true
		close(r.mu.changed)
	}
	return nil
}
