package tables_test

import (
	"context"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/tables"
)

// slow is a store with lists that arrive late and a first watch that breaks.
type slow struct {
	coord.Store
	once   sync.Once
	late   func() // between the making of a list and its arrival
	arrive chan struct{}
}

func (s *slow) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	broken := false
	s.once.Do(func() { broken = true })
	if broken {
		return coord.ErrCompacted
	}
	close(s.arrive) // the list before it has been taken in
	<-ctx.Done()    // and no event arrives that could repair the damage
	return ctx.Err()
}

func (s *slow) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	rows, rev, err := s.Store.List(ctx, prefix)
	if s.late != nil {
		s.late()
	}
	return rows, rev, err
}

func TestATableMadeWhileTheListIsReadIsNotForgotten(t *testing.T) {
	site := newSite(t, 1)
	store := &slow{Store: site.store, arrive: make(chan struct{})}
	d := site.deps()
	d.Store = store
	tb := site.openWith(d, tables.Settings{CreateOnWrite: true})
	if _, err := tb.Ensure(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	store.late = func() {
		if _, err := tb.Ensure(t.Context(), "new"); err != nil {
			t.Error(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- tb.Run(ctx) }()
	<-store.arrive
	for _, name := range []string{"old", "new"} {
		if _, ok := tb.Get(name); !ok {
			t.Errorf("table %q was forgotten", name)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
