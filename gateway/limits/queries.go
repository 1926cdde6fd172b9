package limits

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// queries bounds the queries of a table that run at once, and those that wait.
type queries struct {
	places  atomic.Pointer[places] // nil: no bound
	running atomic.Int64
}

// places are those of one setting: queries that run when it changes keep theirs.
type places struct {
	slots   *semaphore.Weighted
	most    int64
	waiting atomic.Int64
}

// queriesWaiting is how many queries may wait for each that may run.
const queriesWaiting = 10

func (q *queries) set(most int64) {
	switch old := q.places.Load(); {
	case most == 0:
		q.places.Store(nil)
	case old == nil || old.most != most:
		q.places.Store(&places{slots: semaphore.NewWeighted(most), most: most})
	}
}

// EnterQuery waits until a query of a table may run, and gives the context that ends it at its time-out, waiting included,
// and the function that ends it. The error is Throttled when too many wait already, and Canceled when ctx ended first.
func (r *Registry) EnterQuery(ctx context.Context, table string) (_ context.Context, leave func(), err error) {
	if r == nil {
		return ctx, func() {}, nil
	}
	end, v := func() {}, r.values(table)
	if v.QueryTimeout > 0 && !v.DryRun {
		ctx, end = context.WithTimeout(ctx, time.Duration(v.QueryTimeout))
	}
	t := r.Known(table)
	ctx = context.WithValue(ctx, queryKey{}, &Query{name: table, table: t, values: v})
	if t == nil {
		return ctx, end, nil
	}
	start := time.Now()
	out, err := t.enterQuery(ctx)
	if err != nil {
		end()
		return nil, nil, err
	}
	return ctx, func() {
		out()
		if most := time.Duration(t.force.Load().QueryTimeout); most > 0 && time.Since(start) >= most {
			t.Refused(QueryTimeout, 0)
		}
		end()
	}, nil
}

func (t *Table) enterQuery(ctx context.Context) (leave func(), err error) {
	f, p := t.force.Load(), t.queries.places.Load()
	t.counts.queries.Add(1)
	held := p != nil && p.slots.TryAcquire(1)
	switch {
	case p == nil || held:
	case f.DryRun:
		t.Refused(QueryConcurrency, 0)
	default:
		if err := t.await(ctx, p); err != nil {
			return nil, err
		}
		held = true
	}
	t.queries.running.Add(1)
	return func() {
		t.queries.running.Add(-1)
		if held {
			p.slots.Release(1)
		}
	}, nil
}

func (t *Table) await(ctx context.Context, p *places) error {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > queriesWaiting*p.most {
		t.Refused(QueryConcurrency, 0)
		return refusal(t.name, QueryConcurrency, fault.Throttled, time.Second, "%d of its queries run and %d wait; try again later", p.most, queriesWaiting*p.most)
	}
	return fault.Wrap(p.slots.Acquire(ctx, 1), fault.Canceled, "waiting for other queries of table %q to end", t.name)
}
