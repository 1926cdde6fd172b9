package query

import (
	"context"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Gate bounds the queries that run at once, and those that wait for a turn; it refuses further ones.
type Gate struct {
	slots      chan struct{}
	waiting    atomic.Int64
	waitingMax int64
}

// NewGate makes a Gate for runningMax at once and waitingMax behind them.
func NewGate(runningMax, waitingMax int) *Gate {
	return &Gate{slots: make(chan struct{}, runningMax), waitingMax: int64(waitingMax)}
}

// Enter waits for a place. The caller then calls Leave. The error is Throttled when too many wait already, and Canceled when
// ctx ended first.
func (g *Gate) Enter(ctx context.Context) error {
	if g.TryEnter() {
		return nil
	}
	if g.waiting.Add(1) > g.waitingMax {
		g.waiting.Add(-1)
		return fault.Errorf(fault.Throttled, "%d queries run and %d wait already; try again later", cap(g.slots), g.waitingMax)
	}
	defer g.waiting.Add(-1)
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for other queries to end")
	}
}

// TryEnter reports whether there was a place at once. If so, the caller then calls Leave.
func (g *Gate) TryEnter() bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// Leave releases the place.
func (g *Gate) Leave() { <-g.slots }

// Running is how many are inside now.
func (g *Gate) Running() int { return len(g.slots) }

// Waiting is how many wait to get in now.
func (g *Gate) Waiting() int { return int(g.waiting.Load()) }
