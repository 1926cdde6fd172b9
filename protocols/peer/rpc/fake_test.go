package rpc

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// memory is a storage of one table "t" that can be set to fail, to wait and to count. Its answers are set by the test;
// cmd/clustertest tests how a real one answers.
type memory struct {
	noRoom bool // for series of odd numbers that are offered

	mu      sync.Mutex
	fail    error         // the answer of every call
	clock   point.Nanos   // stamps ahead of it are sent back; 0: none are
	newest  point.Stamp   // stamps below it are sent back; 0: none are
	gate    chan struct{} // inserts wait until it is closed; nil: they do not
	waiting int           // inserts at the gate
	got     []peer.Insert // copies
	defs    map[point.SeriesID]point.Labels
	streams int           // open
	sets    int           // open
	series  []peer.Series // the answer of Select
	setErr  error         // after that
	last    any           // the last request
	file    *peer.File
	changed *peer.Changed
	rows    []point.MetadataRow
	ex      []peer.SeriesExemplars
	st      *peer.Stats
	names   []string
}

func newMemory() *memory {
	return &memory{defs: map[point.SeriesID]point.Labels{}, st: &peer.Stats{}, file: &peer.File{}, changed: &peer.Changed{}}
}

func (m *memory) note(q any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = q
	return m.fail
}

func (m *memory) OpenStream(_ context.Context, table string) (peer.Stream, error) {
	if err := m.note(table); err != nil {
		return nil, err
	}
	if table != "t" {
		return nil, fault.Errorf(fault.Stale, "table %q is not known here", table)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams++
	return &memoryStream{m}, nil
}

type memoryStream struct{ m *memory }

func (s *memoryStream) Define(_ context.Context, defs []peer.Def) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, d := range defs {
		s.m.defs[d.ID] = d.Labels
	}
	return s.m.fail
}

func (s *memoryStream) Insert(ctx context.Context, in *peer.Insert) error {
	s.m.mu.Lock()
	if s.m.clock != 0 && rank.Ahead(in.Stamp, s.m.clock) {
		defer s.m.mu.Unlock()
		return peer.NewAhead(s.m.clock)
	}
	if s.m.newest != 0 && in.Stamp < s.m.newest {
		defer s.m.mu.Unlock()
		return peer.NewLate(s.m.newest)
	}
	gate, err := s.m.gate, s.m.fail
	s.m.waiting++
	s.m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.waiting--
	c := *in
	c.IDs, c.Times, c.Values = slices.Clone(in.IDs), slices.Clone(in.Times), slices.Clone(in.Values)
	c.Exemplars = slices.Clone(in.Exemplars)
	c.Hists = nil
	for _, h := range in.Hists {
		h.H = slices.Clone(h.H)
		c.Hists = append(c.Hists, h)
	}
	s.m.got = append(s.m.got, c)
	return err
}

func (s *memoryStream) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.streams--
	return nil
}

func (m *memory) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if err := m.note(q); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets++
	return &memorySet{m: m, ctx: ctx, rest: m.series, err: m.setErr}, nil
}

type memorySet struct {
	m    *memory
	ctx  context.Context
	rest []peer.Series
	now  *peer.Series
	err  error
	n    int
}

func (s *memorySet) Next() bool {
	if len(s.rest) == 0 || s.ctx.Err() != nil {
		return false
	}
	s.now, s.rest = &s.rest[0], s.rest[1:]
	s.n++
	return true
}
func (s *memorySet) At() *peer.Series { return s.now }
func (s *memorySet) Err() error       { return cmp.Or(s.ctx.Err(), s.err) }
func (s *memorySet) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.sets--
	return nil
}

func (m *memory) LabelNames(_ context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	return m.names, limit == 7, m.note(q)
}

func (m *memory) LabelValues(_ context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	return append([]string{name}, m.names...), limit == 7, m.note(q)
}

func (m *memory) Exemplars(_ context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	return m.ex, m.note([]any{q, sets})
}

func (m *memory) PutMetadata(_ context.Context, table string, rows []point.MetadataRow) error {
	return m.note([]any{table, rows})
}

func (m *memory) GetMetadata(_ context.Context, table, metric string) ([]point.MetadataRow, error) {
	return m.rows, m.note([]any{table, metric})
}

func (m *memory) DeleteSeries(_ context.Context, q *peer.Select) error { return m.note(q) }

func (m *memory) CleanTombstones(_ context.Context, q *peer.Select) error { return m.note(q) }

func (m *memory) Stats(_ context.Context, table string, n int) (*peer.Stats, error) {
	return m.st, m.note([]any{table, n})
}

func (m *memory) Change(_ context.Context, c *peer.Change) (*peer.Changed, error) {
	return m.changed, m.note(c)
}
func (m *memory) Store(_ context.Context, f *peer.File) error { return m.note(f) }
func (m *memory) Fetch(_ context.Context, q *peer.FileQuery) (*peer.File, error) {
	return m.file, m.note(q)
}

// until waits for a condition that holds m's lock.
func (m *memory) until(t testing.TB, what string, f func() bool) {
	t.Helper()
	until(t, what, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return f()
	})
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
