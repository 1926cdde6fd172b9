package api

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/gateway/query"
)

// readGates are the gates for remote reads and exports: one a table, and behind it one for all of them, with half as many places more. A client that reads its answers slowly keeps
// its places; those of one table must not keep all others out, and those of all tables must leave look-ups some of the places that they share with these.
type readGates struct {
	running int
	every   *query.Gate

	mu  sync.Mutex
	all map[string]*readGate // by table; those in use
}

type readGate struct {
	*query.Gate
	users int // inside or waiting; guarded by readGates.mu
}

func newReadGates(running int) *readGates {
	every := running + max(1, running/2)
	return &readGates{running: running, every: query.NewGate(every, 10*every), all: map[string]*readGate{}}
}

// enter waits for a place at a table's gate. The caller then calls leave. Errors are those of query.Gate.
func (g *readGates) enter(ctx context.Context, table string) (leave func(), err error) {
	gate := g.use(table)
	if err := gate.Enter(ctx); err != nil {
		g.unuse(table, gate)
		return nil, err
	}
	if err := g.every.Enter(ctx); err != nil {
		gate.Leave()
		g.unuse(table, gate)
		return nil, err
	}
	return func() {
		g.every.Leave()
		gate.Leave()
		g.unuse(table, gate)
	}, nil
}

func (g *readGates) use(table string) *readGate {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := g.all[table]
	if gate == nil {
		gate = &readGate{Gate: query.NewGate(g.running, 10*g.running)}
		g.all[table] = gate
	}
	gate.users++
	return gate
}

func (g *readGates) unuse(table string, gate *readGate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gate.users--; gate.users == 0 {
		delete(g.all, table)
	}
}
