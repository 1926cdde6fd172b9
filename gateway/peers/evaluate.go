package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Evaluate implements peer.Evaluator.
func (c *conn) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	at, ok := c.peer.(peer.Evaluator)
	if !ok {
		return columns.SendOutcome(columns.Unknown, give)
	}
	return c.call(func() error { return at.Evaluate(ctx, q, request, give) })
}

// EvaluateAll implements peer.Evaluations. To the breaker it is one call.
func (c *conn) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	at, ok := c.peer.(peer.Evaluations)
	if !ok {
		for _, e := range all {
			e.End(c.Evaluate(ctx, e.Select, e.Request, e.Give))
		}
		return
	}
	began := time.Now()
	if err := c.breaker.enter(began); err != nil {
		c.metrics.refused.Inc()
		for _, e := range all {
			e.End(fault.Annotate(err, "server %s at %s", c.id, c.addr))
		}
		return
	}
	var together outcome
	mine := make([]*peer.Evaluation, len(all))
	for i, e := range all {
		mine[i] = &peer.Evaluation{Select: e.Select, Request: e.Request, Give: e.Give, End: func(err error) {
			together.add(err)
			e.End(fault.Annotate(err, "server %s", c.id))
		}}
	}
	at.EvaluateAll(ctx, mine)
	err := together.error()
	c.breaker.leave(began, time.Now(), err, rand.Float64())
	if fault.Is(err, fault.Unavailable) {
		c.metrics.failed.Inc()
	}
}

// outcome sums up the ends of a request's evaluations: the server answers, if any was answered.
type outcome struct {
	mu    sync.Mutex
	ended bool
	err   error
}

func (o *outcome) add(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended || silence(err) < silence(o.err) {
		o.ended, o.err = true, err
	}
}

func (o *outcome) error() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// silence is 0 for an end that only an answer has, 1 for one without an answer, and 2 if the caller left, which shows nothing.
func silence(err error) int {
	switch {
	case fault.Is(err, fault.Unavailable), errors.Is(err, context.DeadlineExceeded):
		return 1
	case fault.Is(err, fault.Canceled):
		return 2
	}
	return 0
}
