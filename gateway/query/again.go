package query

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// againWithin bounds how long a query may have run that is evaluated again because a server fell silent: a longer one would cost as much once more.
const againWithin = 10 * time.Second

// answer evaluates, and once more if a server fell silent: a server that stood still for a moment answers on the next connection, or another one leads by now.
//
// All queries that waited for that server fail at the same moment. So a second evaluation begins only if no query waits and a place is free at once, and at
// most as many at a time as there are processors. Else, and if the second one is refused, the first error is the answer.
func (q *query) answer(ctx context.Context, start time.Time) *promql.Result {
	e := q.engine
	if err := e.gate.Enter(ctx); err != nil {
		return &promql.Result{Err: err}
	}
	res, publish := q.evaluated(ctx)
	if fellSilent(res.Err) && ctx.Err() == nil && time.Since(start) < againWithin && e.again.TryEnter() {
		defer e.again.Leave()
		if second, publishSecond := q.second(ctx); second != nil && !fault.Is(stored(second.Err), fault.Throttled) {
			res, publish = second, publishSecond
		}
	}
	publish()
	return res
}

// second evaluates again; nil: it cannot, as others wait or no place is free. The first evaluation is over, as it has a result of its own.
func (q *query) second(ctx context.Context) (*promql.Result, func()) {
	if g := q.engine.gate; g.Waiting() > 0 || !g.TryEnter() {
		return nil, nil
	}
	growth := q.usage.growth
	next, err := q.prepare()
	if err != nil {
		q.engine.gate.Leave()
		return nil, nil
	}
	q.usage.growth = growth
	q.Query.Close()
	q.loan.Close()
	q.Query = next
	return q.evaluated(ctx)
}

// Ask calls ask to read the look-up's answer, and once more if a server fell silent, by the rules of queries (query.answer); the look-up keeps its place. Each
// call gets a context with memory and warnings of its own: those of a call that failed do not count.
func (l *Lookup) Ask(ctx context.Context, ask func(context.Context) error) error {
	again, gate := l.reader.engine.again, l.reader.lookups
	publish, err := askOnce(ctx, ask)
	if fellSilent(err) && ctx.Err() == nil && time.Since(l.start) < againWithin && gate.Waiting() == 0 && again.TryEnter() {
		defer again.Leave()
		if publishSecond, second := askOnce(ctx, ask); !fault.Is(stored(second), fault.Throttled) {
			publish, err = publishSecond, second
		}
	}
	publish()
	return err
}

// AskStream is Ask for an answer that is written while it is read: one that was begun is not asked for again.
func (l *Lookup) AskStream(ctx context.Context, begun func() bool, ask func(context.Context) error) (err error) {
	asked := l.Ask(ctx, func(ctx context.Context) error {
		if err = ask(ctx); begun() {
			return nil
		}
		return err
	})
	if begun() {
		return err
	}
	return asked
}

// askOnce asks once. Its warnings become the request's when publish is called.
func askOnce(ctx context.Context, ask func(context.Context) error) (publish func(), err error) {
	part := budget.LoanOf(ctx).Part()
	answered := false
	defer func() {
		if !answered || err != nil { // also after a panic
			part.Close()
		}
	}()
	own, publish := withOwnWarnings(budget.WithLoan(ctx, part))
	err = ask(own)
	answered = true
	return publish, err
}

// withOwnWarnings returns a context whose warnings become those of ctx when publish is called.
func withOwnWarnings(ctx context.Context) (own context.Context, publish func()) {
	own, warnings := WithWarnings(ctx)
	return own, func() {
		for _, text := range warnings.Texts() {
			Warn(ctx, text)
		}
	}
}

// evaluated evaluates once. Its warnings and its explanation become the request's when publish is called.
func (q *query) evaluated(ctx context.Context) (res *promql.Result, publish func()) {
	own, warn := withOwnWarnings(ctx)
	own, how := WithExplained(own)
	res = q.enter(own)
	return res, func() {
		warn()
		explained(ctx).take(how)
	}
}

// fellSilent reports whether a server that was asked sent nothing for too long.
func fellSilent(err error) bool { return errors.Is(stored(err), peer.ErrSilent) }

// stored is the storage's error where the engine wraps one, which does not unwrap; else err.
func stored(err error) error {
	var wrapped promql.ErrStorage
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
