package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// ErrSilent is the cause of an attempt's context that ended because the server gives no sign of life.
var ErrSilent = errors.New("the server gives no sign of life")

// ErrMoved is the cause of an attempt's context that ended because another server leads.
var ErrMoved = errors.New("another server leads the partition by now")

// Attempt is a question under way: one server, asked for one partition or several.
//
//	Begin ─▶ ask under Context ─▶ End ─▶ Close
//
// One goroutine at a time calls its methods; but Close may be called from any, and twice, where the attempt is not of BeginOne.
type Attempt struct {
	// Constant after Begin.
	runner     *Runner
	table      string
	partitions []*topology.Partition
	one        [1]*topology.Partition
	ctx        context.Context
	cancel     context.CancelCauseFunc
	timer      *time.Timer // nil: silence is not watched

	// Owned by the goroutine that begins it.
	pooled bool // it goes back to the pool when it is closed
	quiet  bool // watch did not run, and never will

	mu      sync.Mutex // guards the fields below
	machine follow.Attempt
	server  topology.ServerID
	ended   chan struct{} // not nil: a goroutine watches until it is closed
}

// Begin begins to ask a server for partitions, which stay the caller's. The question runs under Context.
func (r *Runner) Begin(ctx context.Context, table string, server topology.ServerID, partitions []*topology.Partition) *Attempt {
	a := &Attempt{runner: r, table: table, partitions: partitions, machine: r.Policy.Begin(server), server: server}
	a.begin(ctx)
	return a
}

// BeginOne is Begin for one partition. The attempt is not used after Close: it comes from a pool, because every insert makes one.
func (r *Runner) BeginOne(ctx context.Context, table string, server topology.ServerID, p *topology.Partition) *Attempt {
	a, _ := r.attempts.Get().(*Attempt)
	if a == nil {
		a = &Attempt{runner: r, pooled: true}
		a.partitions = a.one[:]
	}
	a.table, a.one[0], a.machine, a.server = table, p, r.Policy.Begin(server), server
	a.begin(ctx)
	return a
}

func (a *Attempt) begin(ctx context.Context) {
	a.ctx = ctx
	if a.quiet = !a.machine.Watches(); a.quiet { // else End says so: one that is closed without it, as by a panic, is not used again
		return
	}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	if a.timer == nil {
		a.timer = time.AfterFunc(follow.SilenceMax, a.watch)
	} else {
		a.timer.Reset(follow.SilenceMax)
	}
}

// Context ends when the attempt is closed, or another server leads and this one is silent.
func (a *Attempt) Context() context.Context { return a.ctx }

// End handles the end of the question. Answers that go on keep the context; Close ends it.
func (a *Attempt) End(err error) (follow.Verdict, follow.Reason) {
	if a.timer != nil {
		a.quiet = a.timer.Stop()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended != nil {
		close(a.ended)
		a.ended = nil
	}
	return a.machine.Answer(err)
}

// Close ends the context. Call it once nothing is read under it any more.
func (a *Attempt) Close() {
	if a.cancel != nil {
		a.cancel(nil)
	}
	if a.pooled && a.quiet {
		a.ctx, a.cancel, a.one[0] = nil, nil, nil
		a.runner.attempts.Put(a)
	}
}

// watch looks at the leaders after a silence, until the answer. It runs in the timer's goroutine.
func (a *Attempt) watch() {
	a.mu.Lock()
	if !a.machine.Silent() {
		a.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	a.ended = ended
	a.mu.Unlock()
	last, again := time.Now().Add(-follow.SilenceMax), time.NewTimer(0)
	defer again.Stop()
	if a.runner.Ping == nil || a.runner.Policy.StageAfter == 0 {
		again.Stop()
	}
	for {
		changed := a.runner.Leaders.Changed()
		if a.moved() {
			a.cancel(ErrMoved)
			return
		}
		select {
		case <-changed:
		case <-again.C:
			next, deaf := a.listen(&last)
			if deaf {
				a.cancel(ErrSilent)
				return
			}
			again.Reset(next)
		case <-ended:
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// listen listens for signs of life of the server; last is the newest, or when it was asked. If the server is deaf the attempt is left, else listen is called again after next.
func (a *Attempt) listen(last *time.Time) (next time.Duration, deaf bool) {
	a.mu.Lock()
	ping, next := a.machine.Listen(a.silence(last))
	a.mu.Unlock()
	if !ping {
		return next, false
	}
	began := time.Now()
	ctx, stop := context.WithTimeout(a.ctx, follow.PingMax)
	defer stop()
	switch err := a.runner.Ping(ctx, a.server); {
	case err == nil:
		*last = time.Now()
		return follow.SilenceMax, false
	case a.ctx.Err() != nil:
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return 0, a.machine.Deaf(a.silence(last), time.Since(began))
}

// silence is for how long nothing has come from the server since the question.
func (a *Attempt) silence(last *time.Time) time.Duration {
	if a.runner.LastReceived != nil {
		if at := a.runner.LastReceived(a.server); at.After(*last) {
			*last = at
		}
	}
	return time.Since(*last)
}

// moved reports whether another server leads one of the partitions; the attempt is left then.
func (a *Attempt) moved() bool {
	for _, p := range a.partitions {
		l := a.runner.lead(a.table, p, 0)
		a.mu.Lock()
		left := a.machine.Look(l)
		a.mu.Unlock()
		if left {
			return true
		}
	}
	return false
}
