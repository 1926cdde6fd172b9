package tables_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

var daily = topology.Config{PartitionWidth: 24 * time.Hour}

// site is a coordination store and metadata servers s1, s2, … that run; each may be away.
type site struct {
	t     *testing.T
	store coord.Store

	mu      sync.Mutex
	servers map[topology.ServerID]*mapstore.Server
	away    map[topology.ServerID]bool
}

func newSite(t *testing.T, n int) *site {
	s := &site{t: t, store: coordmem.New(), servers: map[topology.ServerID]*mapstore.Server{}, away: map[topology.ServerID]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range n {
		id := topology.ServerID(fmt.Sprint("s", i+1))
		f, err := mapstore.New(mapstore.Deps{
			Store: s.store, Peers: s.metadata, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(rand.Uint64(), 1)), Self: id, Disk: mem.New(),
		}, mapstore.Settings{CatchUpGrace: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		s.servers[id] = f
		running.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		for _, f := range s.servers {
			f.Close()
		}
	})
	return s
}

func (s *site) metadata(id topology.ServerID) (peer.Metadata, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.servers[id]
	if s.away[id] {
		return nil, false
	}
	return f, ok
}

func (s *site) setAway(away bool, ids ...topology.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.away[id] = away
	}
}

// has waits until a metadata server has the file of a map.
func (s *site) has(id topology.ServerID, at peer.MapAt) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := s.servers[id].Fetch(s.t.Context(), &peer.FileQuery{Table: "t", Txn: at.Txn})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s never gets transaction %d: %v", id, at.Seq, err)
		}
	}
}

func (s *site) deps() tables.Deps {
	return tables.Deps{
		Store: s.store, Log: slog.New(slog.DiscardHandler), Metadata: s.metadata,
		Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{"s1"} },
		Servers: func() []topology.ServerID {
			var ids []topology.ServerID
			for id := range s.servers {
				ids = append(ids, id)
			}
			return ids
		},
	}
}

func (s *site) open(set tables.Settings) *tables.Tables {
	s.t.Helper()
	return s.openWith(s.deps(), set)
}

func (s *site) openWith(d tables.Deps, set tables.Settings) *tables.Tables {
	s.t.Helper()
	set.New = daily
	got, err := tables.Open(s.t.Context(), d, set)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(got.Close)
	return got
}

// run follows until the test ends.
func (s *site) run(tb *tables.Tables) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tb.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}

// until waits for a condition that some change brings about.
func until(t *testing.T, tb *tables.Tables, what string, cond func() bool) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		changed := tb.Changed()
		if cond() {
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// away is a store that does not answer.
type away struct{ coord.Store }

var errAway = fault.Errorf(fault.Unavailable, "the store does not answer")

func (away) Get(context.Context, string) (coord.Row, bool, error) { return coord.Row{}, false, errAway }
func (away) List(context.Context, string) ([]coord.Row, coord.Revision, error) {
	return nil, 0, errAway
}
func (away) Commit(context.Context, []coord.Condition, []coord.Write) (coord.Revision, bool, error) {
	return 0, false, errAway
}
func (away) Watch(context.Context, string, coord.Revision, func([]coord.Event) error) error {
	return errAway
}
