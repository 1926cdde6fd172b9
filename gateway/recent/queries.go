package recent

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// slowAfter is from when on a query counts as slow.
const slowAfter = time.Second

// queriesKept bounds the slow and failed queries that are kept, runningShown those that are listed while they run: as
// many run and wait by default.
const (
	queriesKept  = 200
	runningShown = 220
	textBytesMax = 2 << 10
)

// Query is one query, as it is shown.
type Query struct {
	Table   string    `json:"table"`
	Text    string    `json:"query"` // cut at textBytesMax
	Kind    string    `json:"kind"`  // instant or range
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"` // so far, or until its end; waiting included
	Waits   bool      `json:"waits,omitempty"`
	Bytes   int64     `json:"bytes"`           // of memory that it holds, or held at its end
	Error   string    `json:"error,omitempty"` // "": none
}

// Queries are those of a process. Safe for concurrent use; nil keeps nothing.
type Queries struct {
	mu struct {
		sync.Mutex
		running map[*Running]struct{}
		ended   list[Query]
	}
}

// NewQueries makes an empty list.
func NewQueries() *Queries {
	q := &Queries{}
	q.mu.running = map[*Running]struct{}{}
	q.mu.ended = list[Query]{max: queriesKept, table: func(e Query) string { return e.Table }}
	return q
}

// Running is a query that has not ended. Every method may be called on nil.
type Running struct {
	of    *Queries
	query Query        // guarded by of.mu
	holds func() int64 // bytes of memory; nil: not measured. Guarded by of.mu
}

// Begin notes a query that waits for its turn. The caller ends it.
func (q *Queries) Begin(table, kind, text string, now time.Time) *Running {
	if q == nil {
		return nil
	}
	// A copy: the text may be a part of a large request.
	r := &Running{of: q, query: Query{Table: table, Text: strings.Clone(clip(text, textBytesMax)), Kind: kind, Began: now, Waits: true}}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.running[r] = struct{}{}
	return r
}

// Runs records that the query's turn came; holds returns its memory, from any goroutine.
func (r *Running) Runs(holds func() int64) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.query.Waits, r.holds = false, holds
}

// End records the end of a query. It is kept if it was slow, or failed for any reason but a client that went away.
func (r *Running) End(now time.Time, err error, abandoned bool) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.mu.running, r)
	took := now.Sub(r.query.Began)
	if took < slowAfter && (err == nil || abandoned) {
		return
	}
	e := r.shownLocked(now)
	e.Waits = false
	if err != nil {
		e.Error = clip(err.Error(), textBytesMax)
	}
	r.of.mu.ended.add(e)
}

func (r *Running) shownLocked(now time.Time) Query {
	e := r.query
	e.Seconds = now.Sub(e.Began).Seconds()
	if r.holds != nil {
		e.Bytes = r.holds()
	}
	return e
}

// QueryLists are the queries that a reader may see.
type QueryLists struct {
	Running []Query `json:"running"` // the oldest first
	Ended   []Query `json:"ended"`   // slow and failed ones, the newest first
}

// Lists gives the queries of the tables that shown names.
func (q *Queries) Lists(now time.Time, shown func(table string) bool) QueryLists {
	out := QueryLists{Running: []Query{}, Ended: []Query{}}
	if q == nil {
		return out
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.mu.running {
		if shown(r.query.Table) {
			out.Running = append(out.Running, r.shownLocked(now))
		}
	}
	slices.SortFunc(out.Running, func(a, b Query) int { return a.Began.Compare(b.Began) })
	out.Running = out.Running[:min(len(out.Running), runningShown)]
	for _, e := range slices.Backward(q.mu.ended.of) {
		if shown(e.Table) {
			out.Ended = append(out.Ended, e)
		}
	}
	return out
}
