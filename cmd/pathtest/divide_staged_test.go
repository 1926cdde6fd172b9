package pathtest

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/fanout"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// waiting is a spread with staged rows, as its gateway sees it. They move to their partitions while queries are evaluated: at every call of a server some may.
type waiting struct {
	of     *spread
	source *fanout.Source
	reg    *prometheus.Registry

	mu       sync.Mutex // also held while rows move
	rng      *rand.Rand // decides what moves; nil: nothing does
	frames   []waitingFrame
	staged   uint64 // frames so far
	answered bool   // times of staged rows were answered within the query
	moved    int    // frames that moved after that
}

// waitingFrame is rows that are staged on a server.
type waitingFrame struct {
	at   topology.ServerID
	id   staging.ID
	rows *point.Batch
}

func stagedRows(s *spread) *waiting {
	w := &waiting{of: s, reg: prometheus.NewRegistry()}
	all := func(string) []topology.ServerID { return s.peers.All() }
	w.source = fanout.New(fanout.Deps{Tables: s.tables, Leaders: s.leaders, Servers: w, Staged: all, Log: slog.New(slog.DiscardHandler), Registerer: w.reg},
		fanout.Settings{Patience: time.Second, StretchTime: time.Nanosecond})
	return w
}

// stage stages rows on a server, as a gateway does before it acks them.
func (w *waiting) stage(at topology.ServerID, b *point.Batch) {
	w.of.tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.staged++
	n := w.staged << 10
	f := &frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: point.Stamp(n), Times: b.Times, Values: b.Values}
	ids := map[point.SeriesID]point.DenseID{}
	for _, id := range b.IDs {
		dense, ok := ids[id]
		if !ok {
			dense = point.DenseID(len(f.Defs))
			ids[id], f.Defs = dense, append(f.Defs, b.Dict.Labels(id))
		}
		f.IDs = append(f.IDs, dense)
	}
	of := &peer.Staging{Do: peer.Stage, Nonce: n, Holders: []string{string(at)}}
	w.of.must(w.of.parts[at].staged.Stage(w.of.tb.Context(), promqlsuite.Table, 1, of, f))
	w.frames = append(w.frames, waitingFrame{at, staging.ID{Stamp: f.Stamp, Nonce: n}, b})
}

// moves gives some staged rows to the leaders of their partitions, and has their holders forget them when those have acked.
func (w *waiting) moves() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rng == nil || len(w.frames) == 0 || w.rng.IntN(6) > 0 {
		return
	}
	if w.answered {
		w.moved++
	}
	i := w.rng.IntN(len(w.frames))
	f := w.frames[i]
	w.of.must(w.of.insert(w.of.tb.Context(), f.rows))
	w.of.must(w.of.parts[f.at].staged.Forget(f.id))
	w.frames = slices.Delete(w.frames, i, i+1)
}

// Server implements fanout.Servers.
func (w *waiting) Server(id topology.ServerID) (peer.Storage, bool) {
	st, ok := w.of.peers.Server(id)
	return &waitingServer{st, w}, ok
}

// All implements fanout.Servers.
func (w *waiting) All() []topology.ServerID { return w.of.peers.All() }

type waitingServer struct {
	peer.Storage
	of *waiting
}

// StagedTimes implements peer.StagedRanger.
func (s *waitingServer) StagedTimes(ctx context.Context, table string) (lo, hi point.Nanos, err error) {
	s.of.moves()
	lo, hi, err = s.Storage.(peer.StagedRanger).StagedTimes(ctx, table)
	s.of.mu.Lock()
	s.of.answered = true
	s.of.mu.Unlock()
	s.of.moves()
	return lo, hi, err
}

// Select implements peer.Storage.
func (s *waitingServer) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	s.of.moves()
	in, err := s.Storage.Select(ctx, q)
	s.of.moves()
	return in, err
}

// Evaluate implements peer.Evaluator, which makes a storage one that evaluates.
func (s *waitingServer) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	return s.Storage.(peer.Evaluator).Evaluate(ctx, q, request, give)
}

// EvaluateAll implements peer.Evaluations.
func (s *waitingServer) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	s.of.moves()
	s.Storage.(peer.Evaluations).EvaluateAll(ctx, all)
	s.of.moves()
}

// pure gives each row a value that follows from its series and time, so that it does not matter in which order rows are written, and times from lo on.
func pure(b *point.Batch, lo, width time.Duration) *point.Batch {
	for i := range b.Times {
		b.Times[i] = int64(lo) + b.Times[i]%int64(width)
		b.Values[i] = float64((uint64(b.Times[i]/1e9)*7919 + b.Dict.Labels(b.IDs[i]).RingPoint()) % 1000)
	}
	b.Hists, b.Exemplars = nil, nil
	return b
}

// TestServersEvaluateBesideStagedRows sends random queries to one server that has all rows, and to three on which some are staged, which move to their partitions
// meanwhile. No answer lacks a row or has one twice, and servers evaluate the steps that staged rows do not touch.
func TestServersEvaluateBesideStagedRows(t *testing.T) {
	one, three, ring := openSpread(t, 1, true, 100*time.Second, 1), openSpread(t, 3, true, 400*time.Second, 1), openSpread(t, 3, true, 800*time.Second, 4)
	defer func() { one.must(errors.Join(one.close(), three.close(), ring.close())) }()
	alone, clusters := readerOf(t, one.parts["n1"].server), []*waiting{stagedRows(three), stagedRows(ring)}
	readers := []*query.Reader{readerOf(t, clusters[0].source), readerOf(t, clusters[1].source)}
	rng := rand.New(rand.NewPCG(41, 42))
	for range 30 {
		b := pure(randomBatch(rng), 0, 2700*time.Second)
		for _, s := range []*spread{one, three, ring} {
			one.must(s.insert(t.Context(), b))
		}
	}
	for i := range 120 {
		if i%2 == 0 {
			b := pure(randomBatch(rng), time.Duration(rng.IntN(2600))*time.Second, time.Duration(1+rng.IntN(60))*time.Second)
			one.must(one.insert(t.Context(), b))
			for _, w := range clusters {
				w.stage(topology.ServerID([]string{"n1", "n2", "n3"}[rng.IntN(3)]), b)
			}
		}
		q, seed := randomQuery(rng), rng.Uint64()
		want := q.run(t, alone)
		for n, w := range clusters {
			w.mu.Lock()
			w.answered, w.rng = false, rand.New(rand.NewPCG(seed, uint64(n)))
			w.mu.Unlock()
			if d := querytest.Diff(want, q.run(t, readers[n]), 1e-12); d != "" {
				t.Errorf("%d: %s on cluster %d: %s", i, q, n, d)
			}
		}
	}
	for n, w := range clusters {
		t.Logf("cluster %d: %v plans were divided, %d times rows moved after the question for their times", n, plansOf(t, w.reg, "divided"), w.moved)
		if plansOf(t, w.reg, "divided") < 20 || w.moved < 5 {
			t.Errorf("cluster %d: that is too few to prove anything", n)
		}
	}
}

// TestStepsThatNoStagedRowTouchesAreEvaluatedByServers: rows of a minute are staged. The steps before and after are not read as rows.
func TestStepsThatNoStagedRowTouchesAreEvaluatedByServers(t *testing.T) {
	s := openSpread(t, 3, true, 4000*time.Second, 1)
	defer func() { s.must(s.close()) }()
	rng := rand.New(rand.NewPCG(43, 44))
	for range 10 {
		s.must(s.insert(t.Context(), pure(randomBatch(rng), 0, 2700*time.Second)))
	}
	w := stagedRows(s)
	b := pure(randomBatch(rng), 2000*time.Second, time.Minute)
	b.Times[0], b.Times[1] = 2000e9, 2059e9
	w.stage("n2", b)
	r, err := query.New(query.Deps{Source: w.source}, query.Settings{})
	s.must(err)
	q, err := r.Engine().NewRangeQuery(t.Context(), r.Table(promqlsuite.Table), nil, "sum by (i) (rate(m1[2m]))", time.Unix(300, 0), time.Unix(2600, 0), 20*time.Second)
	s.must(err)
	ctx, explained := query.WithExplained(t.Context())
	s.must(q.Exec(ctx).Err)
	type part struct {
		what     string
		from, to int64
	}
	var got []part
	for _, p := range explained.Show().Parts {
		got = append(got, part{p.What, p.From / 1000, p.To / 1000})
	}
	slices.SortFunc(got, func(a, b part) int { return int(a.from - b.from) })
	// From and to are the first and the last evaluated step, and the times of rows: those of the windows of the steps from 2000 on, to 2160.
	want := []part{{"evaluated", 300, 1980}, {"rows", 1880, 2160}, {"evaluated", 2180, 2600}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
