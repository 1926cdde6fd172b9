package fanout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// together gathers the first evaluations of several divisions, so that each server gets one request. Each division decides by itself which server is
// asked for what, as without the others; its questions only travel with theirs. Whatever is asked later travels by itself.
//
//	division 1 ─ ask n1, n2 ─┐ once each division has said how many questions it has,
//	division 2 ─ ask n1     ─┼▶ and each question was put or came to nothing ──▶ n1: 3 evaluations
//	division 3 ─ ask n1     ─┘                                                 ▶ n2: 1 evaluation
type together struct {
	ctx    context.Context // of all divisions
	staged knownTimes      // of their table

	mu struct {
		sync.Mutex
		waited int // divisions that have not said how many questions they have, and questions that were not put
		left   int // divisions that have not begun
		put    map[topology.ServerID]*errand
	}
}

// errand is the evaluations that go to one server together.
type errand struct {
	server peer.Evaluations
	all    []*traveller
}

// traveller is an evaluation that is put by one division.
type traveller struct {
	// Constant.
	ctx     context.Context // of the question
	q       *peer.Select
	request []byte
	take    func([]byte) error
	done    chan struct{} // closed when it has ended; then err is constant too
	err     error

	mu   sync.Mutex
	over bool // no division waits for it
}

type togetherKey struct{}

// Together implements query.Divider.
func (s *Source) Together(ctx context.Context, divisions int) context.Context {
	t := &together{ctx: ctx}
	t.mu.waited, t.mu.left = divisions, divisions
	return context.WithValue(ctx, togetherKey{}, t)
}

// alone gathers the questions of one division.
func alone(ctx context.Context) *together {
	t := &together{ctx: ctx}
	t.mu.waited = 1
	return t
}

// begin is called by a division. Nil: it travels by itself.
func begin(ctx context.Context) *together {
	t, _ := ctx.Value(togetherKey{}).(*together)
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.left == 0 {
		return nil
	}
	t.mu.left--
	return t
}

// ticket is a place among those that are waited for. Its holder puts an evaluation or leaves.
type ticket struct {
	of   *together
	used atomic.Bool
}

// tickets exchanges a division for so many questions.
func (t *together) tickets(n int) []*ticket {
	out := make([]*ticket, n)
	for i := range out {
		out[i] = &ticket{of: t}
	}
	t.change(n-1, nil)
	return out
}

// leave says that nothing will be put; it may have been.
func (k *ticket) leave() {
	if k != nil && k.used.CompareAndSwap(false, true) {
		k.of.change(-1, nil)
	}
}

// put evaluates together with others, if it is the first to use the ticket; ok is false if the caller has to ask by itself.
func (k *ticket) put(ctx context.Context, id topology.ServerID, server peer.Storage, q *peer.Select, request []byte, give func([]byte) error) (ok bool, err error) {
	if k == nil || !k.used.CompareAndSwap(false, true) {
		return false, nil
	}
	many, ok := server.(peer.Evaluations)
	if !ok {
		k.of.change(-1, nil)
		return false, nil
	}
	t := &traveller{ctx: ctx, q: q, request: request, take: give, done: make(chan struct{})}
	k.of.change(-1, func(put map[topology.ServerID]*errand) {
		if put[id] == nil {
			put[id] = &errand{server: many}
		}
		put[id].all = append(put[id].all, t)
	})
	return true, t.wait()
}

// change adds to waited, puts evaluations, and sends all when nothing is waited for any more.
func (t *together) change(n int, put func(map[topology.ServerID]*errand)) {
	t.mu.Lock()
	if put != nil {
		if t.mu.put == nil {
			t.mu.put = map[topology.ServerID]*errand{}
		}
		put(t.mu.put)
	}
	var ready map[topology.ServerID]*errand
	if t.mu.waited += n; t.mu.waited == 0 {
		ready, t.mu.put = t.mu.put, nil
	}
	t.mu.Unlock()
	for _, e := range ready {
		for all := e.all; len(all) > 0; {
			n := min(len(all), peer.EvaluationsMax)
			go e.run(t.ctx, all[:n])
			all = all[n:]
		}
	}
}

// run asks a server. The request ends when no division waits for any of its evaluations.
func (e *errand) run(ctx context.Context, all []*traveller) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var open atomic.Int64
	var deserted atomic.Bool
	open.Store(int64(len(all)))
	evaluations := make([]*peer.Evaluation, len(all))
	for i, t := range all {
		stop := context.AfterFunc(t.ctx, func() {
			if deserted.Store(true); open.Add(-1) == 0 {
				cancel()
			}
		})
		evaluations[i] = &peer.Evaluation{Select: t.q, Request: t.request, Give: t.give, End: func(err error) {
			if stop() && open.Add(-1) == 0 && deserted.Load() {
				cancel()
			}
			t.err = err
			close(t.done)
		}}
	}
	e.server.EvaluateAll(ctx, evaluations)
}

// wait returns when the evaluation has ended, or its question. Nothing is given afterwards.
func (t *traveller) wait() error {
	select {
	case <-t.done:
		return t.err
	case <-t.ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	err := t.ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(err, fault.Unavailable, "an evaluation had no answer in time")
	}
	return fault.Wrap(err, fault.Canceled, "an evaluation")
}

func (t *traveller) give(b []byte) (err error) {
	defer fault.Caught(&err)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return fault.Wrap(context.Cause(t.ctx), fault.Canceled, "an evaluation that no request waits for")
	}
	return t.take(b)
}
