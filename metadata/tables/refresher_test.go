package tables_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// silentStore has one table and answers refreshes only after the test allows it.
type silentStore struct {
	known  *topology.Map
	asked  atomic.Int32
	answer chan struct{}
}

func (s *silentStore) Get(name string) (*topology.Map, bool) { return s.known, s.known.Table == name }

func (s *silentStore) Refresh(ctx context.Context, _ string, minSeq uint64) (*topology.Map, error) {
	s.asked.Add(1)
	if minSeq != 0 {
		return nil, errors.New("the map that is known was good enough")
	}
	select {
	case <-s.answer:
		return s.known, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Learn gives a map of the transaction that was named.
func (s *silentStore) Learn(_ context.Context, name string, at peer.MapAt) (*topology.Map, error) {
	if at.Seq > 8 {
		return nil, errors.New("nobody has it")
	}
	s.known = &topology.Map{Table: name, Seq: at.Seq}
	return s.known, nil
}

// TestAMapThatAServerNamedNeedsNoStore: the store does not answer.
func TestAMapThatAServerNamedNeedsNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := silent(7)
		from := time.Now()
		r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 7}, peer.MapAt{Seq: 8})
		if n, took := s.asked.Load(), time.Since(from); n != 0 || took != 0 || s.known.Seq != 8 {
			t.Errorf("asked the store %d times, took %v, map %d", n, took, s.known.Seq)
		}
		r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 8}, peer.MapAt{Seq: 9})
		if n := s.asked.Load(); n != 1 {
			t.Errorf("the named map was nowhere: asked the store %d times", n)
		}
	})
}

func silent(seq uint64) (*silentStore, *tables.Refresher) {
	s := &silentStore{known: &topology.Map{Table: "cpu", Seq: seq}, answer: make(chan struct{})}
	return s, tables.NewRefresher(s, slog.New(slog.DiscardHandler))
}

func TestRefreshAsksOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := silent(7)
		var g sync.WaitGroup
		for range 10 {
			g.Go(func() { r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 7}, peer.MapAt{}) })
		}
		synctest.Wait()
		close(s.answer)
		g.Wait()
		if n := s.asked.Load(); n != 1 {
			t.Errorf("ten requests asked %d times", n)
		}
		r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 7}, peer.MapAt{})
		if n := s.asked.Load(); n != 2 {
			t.Errorf("one that came later: asked %d times in all", n)
		}
	})
}

func TestRefreshNeedsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := silent(7)
		r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 6}, peer.MapAt{})  // a newer one is here
		r.Refresh(t.Context(), "disk", &topology.Map{Seq: 6}, peer.MapAt{}) // dropped
		if n := s.asked.Load(); n != 0 {
			t.Errorf("asked %d times", n)
		}

		from := time.Now()
		r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 7}, peer.MapAt{})
		if took := time.Since(from); took != time.Second {
			t.Errorf("nobody answered: it took %v", took)
		}

		// A caller that leaves early does not take the answer away from others.
		leaving, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		from = time.Now()
		var stays sync.WaitGroup
		r1 := make(chan time.Duration, 1)
		stays.Go(func() { r.Refresh(leaving, "cpu", &topology.Map{Seq: 7}, peer.MapAt{}); r1 <- time.Since(from) })
		synctest.Wait()
		stays.Go(func() { r.Refresh(t.Context(), "cpu", &topology.Map{Seq: 7}, peer.MapAt{}) })
		if took := <-r1; took != time.Millisecond {
			t.Errorf("the one who left waited %v", took)
		}
		close(s.answer)
		stays.Wait()
		if took := time.Since(from); took != time.Millisecond || s.asked.Load() != 2 {
			t.Errorf("the one who stayed waited %v; asked %d times in all", took, s.asked.Load())
		}
	})
}
