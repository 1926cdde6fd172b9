package pathtest

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/fanout"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestCopiesEvaluateWhatOneProcessDoes sends random queries to one server, and to three that have two or three copies of each partition, while the three
// fail at random: they may lack rows, break off in the middle of an answer, are away or silent.
func TestCopiesEvaluateWhatOneProcessDoes(t *testing.T) {
	one := openSpread(t, 1, true, 100*time.Second, 1)
	all, ring := openSpreadOf(t, 3, true, 400*time.Second, 1, 3), openSpreadOf(t, 3, true, 400*time.Second, 4, 2)
	defer func() { one.must(errors.Join(one.close(), all.close(), ring.close())) }()
	rng := rand.New(rand.NewPCG(27, 28))
	for range 30 {
		b := randomBatch(rng)
		b.Hists, b.Exemplars = nil, nil
		for _, s := range []*spread{one, all, ring} {
			one.must(s.insert(t.Context(), b))
		}
	}
	all.copyRows()
	ring.copyRows()
	onAll, onRing := failing(all), failing(ring)
	alone := readerOf(t, one.parts["n1"].server)
	readers := map[*failingServers]*query.Reader{onAll: readerOf(t, onAll.source), onRing: readerOf(t, onRing.source)}
	for i := range 200 {
		q := randomQuery(rng)
		want := q.run(t, alone)
		for name, s := range map[string]*failingServers{"three copies": onAll, "two copies and a cut ring": onRing} {
			s.fail(rng, i%4 == 0)
			got := q.run(t, readers[s])
			if d := querytest.Diff(want, got, 1e-12); d != "" {
				t.Errorf("%s on %s, failures %v: %s", q, name, s.how, d)
			}
		}
	}
	for name, s := range map[string]*failingServers{"three copies": onAll, "a cut ring": onRing} {
		if n := plansOf(t, s.reg, "divided"); n < 40 {
			t.Errorf("%s: only %v plans were divided", name, n)
		}
		if len(s.met) < 5 || s.together < 3 {
			t.Errorf("%s: only %v was met, and at most %d evaluations travelled together", name, s.met, s.together)
		}
	}
}

// copyRows copies the rows of each partition from its leader to its other placements.
func (s *spread) copyRows() {
	s.tb.Helper()
	m, ok := s.tables.Get(promqlsuite.Table)
	if !ok {
		s.tb.Fatal("there is no map")
	}
	for _, p := range m.Overlapping(math.MinInt64, math.MaxInt64) {
		set, err := s.parts[p.Placements[0].Server].server.Select(s.tb.Context(), &peer.Select{Table: promqlsuite.Table, Partitions: []point.PartitionID{p.ID}, Lo: math.MinInt64, Hi: math.MaxInt64})
		s.must(err)
		b := point.GetBatch(point.NewDict(0))
		for set.Next() {
			id := querytest.Intern(b.Dict, set.At().Labels)
			for i, at := range set.At().Times {
				b.Append(id, at, set.At().Values[i])
			}
		}
		s.must(errors.Join(set.Err(), set.Close()))
		if len(b.Times) == 0 {
			continue
		}
		for _, other := range p.Placements[1:] {
			s.must(querytest.Inserter(s.parts[other.Server].server, promqlsuite.Table, p.ID)(s.tb.Context(), b))
		}
	}
}

// failure is a server's answer to a question.
type failure string

const (
	unsure   failure = "may lack rows"
	away     failure = "is away"
	breaks   failure = "breaks off"
	silent   failure = "is silent"
	stranger failure = "knows no evaluations"
)

// failingServers are servers of a spread, as its gateway sees them.
type failingServers struct {
	of     *spread
	source *fanout.Source
	reg    *prometheus.Registry

	mu  sync.Mutex
	how map[topology.ServerID]failure
	met map[failure]int // by evaluations

	together int // the most evaluations of a request
}

func failing(s *spread) *failingServers {
	f := &failingServers{of: s, reg: prometheus.NewRegistry(), how: map[topology.ServerID]failure{}, met: map[failure]int{}}
	copies := func(p lease.Partition) (on []topology.ServerID) {
		m, _ := s.tables.Get(p.Table)
		at, _ := m.ByID(p.ID)
		for _, pl := range at.Placements {
			on = append(on, pl.Server)
		}
		return on
	}
	f.source = fanout.New(fanout.Deps{Tables: s.tables, Leaders: s.leaders, Servers: f, Copies: copies, Log: slog.New(slog.DiscardHandler), Registerer: f.reg},
		fanout.Settings{Patience: time.Second, HedgeAfter: 20 * time.Millisecond, StretchTime: time.Nanosecond})
	return f
}

// fail has one server fail, or none.
func (f *failingServers) fail(rng *rand.Rand, none bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.how)
	if !none {
		at := topology.ServerID([]string{"n1", "n2", "n3"}[rng.IntN(3)])
		f.how[at] = []failure{unsure, away, breaks, silent, stranger}[rng.IntN(5)]
	}
}

// Server implements fanout.Servers.
func (f *failingServers) Server(id topology.ServerID) (peer.Storage, bool) {
	st, ok := f.of.peers.Server(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	how := f.how[id]
	if how == stranger {
		f.met[how]++
		return struct{ peer.Storage }{st}, ok
	}
	return &failingServer{st, f, how}, ok
}

// All implements fanout.Servers.
func (f *failingServers) All() []topology.ServerID { return f.of.peers.All() }

type failingServer struct {
	peer.Storage
	of  *failingServers
	how failure
}

func (s *failingServer) refuse(ctx context.Context, q *peer.Select) error {
	switch {
	case s.how == unsure && q.Copies != peer.UnsureCopies:
		return peer.Unsure(fault.Errorf(fault.Stale, "it may lack rows"))
	case s.how == away:
		return fault.Errorf(fault.Unavailable, "it is away")
	case s.how == silent:
		select {
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.Canceled, "it is silent")
		case <-time.After(200 * time.Millisecond): // as connections do, after a longer time
			return fault.Errorf(fault.Unavailable, "it is silent")
		}
	}
	return nil
}

// Select implements peer.Storage.
func (s *failingServer) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if err := s.refuse(ctx, q); err != nil {
		return nil, err
	}
	return s.Storage.Select(ctx, q)
}

// Evaluate implements peer.Evaluator.
func (s *failingServer) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	s.of.mu.Lock()
	s.of.met[s.how]++
	s.of.mu.Unlock()
	if err := s.refuse(ctx, q); err != nil {
		return err
	}
	return s.Storage.(peer.Evaluator).Evaluate(ctx, q, request, s.breaking(give))
}

// breaking breaks off in the middle of an answer, if the server does.
func (s *failingServer) breaking(give func([]byte) error) func([]byte) error {
	sent := 0
	return func(b []byte) error {
		if s.how == breaks && sent+len(b) > 40 {
			if err := give(b[:len(b)/2]); err != nil {
				return err
			}
			return fault.Errorf(fault.Unavailable, "it broke off")
		}
		sent += len(b)
		return give(b)
	}
}

// EvaluateAll implements peer.Evaluations. Every second evaluation fails as the server does.
func (s *failingServer) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	s.of.mu.Lock()
	s.of.met[s.how]++
	s.of.together = max(s.of.together, len(all))
	s.of.mu.Unlock()
	var refused sync.WaitGroup
	defer refused.Wait()
	var rest []*peer.Evaluation
	for i, e := range all {
		if i%2 > 0 {
			rest = append(rest, e)
			continue
		}
		if s.how != unsure && s.how != away && s.how != silent || s.how == unsure && e.Select.Copies == peer.UnsureCopies {
			rest = append(rest, &peer.Evaluation{Select: e.Select, Request: e.Request, Give: s.breaking(e.Give), End: e.End})
			continue
		}
		refused.Go(func() { e.End(s.refuse(ctx, e.Select)) })
	}
	if len(rest) > 0 {
		s.Storage.(peer.Evaluations).EvaluateAll(ctx, rest)
	}
}
