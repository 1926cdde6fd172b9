package api

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/gateway/query"
)

// readGates are the gates for remote reads and exports, one a table: a client that reads its answers slowly keeps its places, and must not keep those of other tables.
type readGates struct {
	running int

	mu  sync.Mutex
	all map[string]*readGate // by table; those in use
}

type readGate struct {
	*query.Gate
	users int // inside or waiting; guarded by readGates.mu
}

// enter waits for a place at a table's gate. The caller then calls leave. Errors are those of query.Gate.
func (g *readGates) enter(ctx context.Context, table string) (leave func(), err error) {
	gate := g.use(table)
	if err := gate.Enter(ctx); err != nil {
		g.unuse(table, gate)
		return nil, err
	}
	return func() {
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
