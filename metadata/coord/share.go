package coord

import (
	"context"
	"slices"
	"sync"
)

// Share returns a store in which the watches of one prefix share one watch of s, however many there are: in a process several parts
// follow the same rows, and every watch costs the store a message for each change.
//
//	store ──one watch──▶ the newest changes ──each at its own pace──▶ Watch, Watch, Watch
//
// Store's promise for a watch holds: every change after its revision, in order, none left out. A watch from before
// the kept changes begin, and one that stays behind them, gets ErrCompacted. When the watch of s ends, all end as it did.
func Share(s Store) Store {
	sh := &shared{Store: s}
	sh.mu.watches = map[string]*sharedWatch{}
	return sh
}

type shared struct {
	Store

	mu struct {
		sync.Mutex
		watches map[string]*sharedWatch // by prefix
	}
}

// sharedWatch is the watch of one prefix. Every field that changes is under shared.mu.
type sharedWatch struct {
	// Constant.
	prefix string
	stop   context.CancelFunc
	ended  chan struct{} // closed when no change comes any more

	users     int
	events    []Event // the newest, in order
	first     int     // how many came before them
	bytes     int     // of values in events
	forgotten Revision
	changed   chan struct{} // closed and replaced when something came, or the watch ended
	err       error         // it ended so
}

const (
	// sharedMax bounds the changes kept for slow watches: those of a thousand partitions that move, twice over.
	sharedMax = 4096
	// sharedBytesMax bounds their values.
	sharedBytesMax = 4 << 20
)

// Watch implements Store.
func (s *shared) Watch(ctx context.Context, prefix string, after Revision, f func([]Event) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w, next, err := s.join(ctx, prefix, after)
	if err != nil {
		return err
	}
	defer s.leave(w)
	for {
		events, changed, err := s.since(w, &next, after)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case len(events) > 0:
			if err := f(events); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// join returns the watch of a prefix and the number of the first change that may be needed.
func (s *shared) join(ctx context.Context, prefix string, after Revision) (*sharedWatch, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.mu.watches[prefix]
	if w == nil {
		w = s.watchLocked(ctx, prefix, after)
	}
	if after < w.forgotten {
		return nil, 0, ErrCompacted // a list is newer than every change that this watch has sent
	}
	w.users++
	return w, w.first, nil
}

// watchLocked begins a watch. It lives as long as it has users, and no longer than it can.
func (s *shared) watchLocked(ctx context.Context, prefix string, after Revision) *sharedWatch {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &sharedWatch{prefix: prefix, stop: stop, ended: make(chan struct{}), forgotten: after, changed: make(chan struct{})}
	s.mu.watches[prefix] = w
	go func() {
		defer close(w.ended)
		defer stop()
		err := s.Store.Watch(life, prefix, after, func(events []Event) error {
			s.took(w, events)
			return nil
		})
		s.end(w, err)
	}()
	return w
}

// took records changes, and forgets old ones where there are too many.
func (s *shared) took(w *sharedWatch, events []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.events = append(w.events, events...)
	for _, e := range events {
		w.bytes += len(e.Value)
	}
	drop := max(0, len(w.events)-sharedMax)
	for i := range drop {
		w.bytes -= len(w.events[i].Value)
	}
	for ; w.bytes > sharedBytesMax && drop < len(w.events)-1; drop++ {
		w.bytes -= len(w.events[drop].Value)
	}
	if drop > 0 {
		w.forgotten, w.first = w.events[drop-1].Revision, w.first+drop
		w.events = slices.Delete(w.events, 0, drop)
	}
	w.tellLocked()
}

func (s *shared) end(w *sharedWatch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.err = err
	if s.mu.watches[w.prefix] == w {
		delete(s.mu.watches, w.prefix)
	}
	w.tellLocked()
}

func (w *sharedWatch) tellLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// leave ends the watch of s when it has no users any more, and waits for that.
func (s *shared) leave(w *sharedWatch) {
	s.mu.Lock()
	w.users--
	last := w.users == 0
	if last && s.mu.watches[w.prefix] == w {
		delete(s.mu.watches, w.prefix)
	}
	s.mu.Unlock()
	if last {
		w.stop()
		<-w.ended
	}
}

// since gives the changes from number *next on that came after a revision, as copies, and where to wait for more; the
// error says that there will be none.
func (s *shared) since(w *sharedWatch, next *int, after Revision) (events []Event, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *next < w.first {
		return nil, nil, ErrCompacted
	}
	for _, e := range w.events[*next-w.first:] {
		if e.Revision > after {
			e.Value = slices.Clone(e.Value)
			events = append(events, e)
		}
	}
	*next = w.first + len(w.events)
	return events, w.changed, w.err
}
