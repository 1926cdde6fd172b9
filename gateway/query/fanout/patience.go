package fanout

import (
	"context"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// A server with staged rows that has not begun to answer after stagedTimeout is cut off where the answer is whole without it: fewer servers are missing, those that
// are late included, than hold each frame. So one that is slow, or frozen, costs a query a second at most. Where it is needed it is waited for as long as it answers
// pings: on a busy machine, with a server lost and every row of a table staged, all holders may be late, and no other one has their rows.
// An asker that accepts an answer that is not whole is not kept waiting.

// stagedTimeout is how long a server with staged rows may need to begin its answer where others have its rows. So long is a ping waited for, too.
const stagedTimeout = time.Second

// patience is the wait for the answers of servers with staged rows.
type patience struct {
	// Constant.
	source  *Source
	holders int  // of each frame, at least
	partial bool // the answer need not be whole

	mu      sync.Mutex
	open    map[topology.ServerID]context.CancelFunc // those that have not begun to answer
	missing int
	late    bool // stagedTimeout is over
}

// wait runs until ctx ends. It cuts servers off.
func (p *patience) wait(ctx context.Context) {
	tick := time.NewTicker(stagedTimeout)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, id := range p.slow() {
			go p.ping(ctx, id)
		}
	}
}

// slow returns the servers that are late, and still waited for.
func (p *patience) slow() (ids []topology.ServerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = true
	p.spareLocked()
	for id := range p.open {
		ids = append(ids, id)
	}
	return ids
}

// spareLocked cuts off all that are late if the answer is whole without them.
func (p *patience) spareLocked() {
	if !p.late || !p.partial && p.missing+len(p.open) >= p.holders {
		return
	}
	for id := range p.open {
		p.cutLocked(id)
	}
}

func (p *patience) cutLocked(id topology.ServerID) {
	if cut := p.open[id]; cut != nil {
		cut()
		delete(p.open, id)
		p.missing++
	}
}

// ping cuts a server off that does not answer a ping either.
func (p *patience) ping(ctx context.Context, id topology.ServerID) {
	if p.source.deps.Ping == nil {
		return
	}
	within, stop := context.WithTimeout(ctx, stagedTimeout)
	defer stop()
	if p.source.deps.Ping(within, id) == nil || ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked(id)
	p.spareLocked()
}

// begin is called before a server is asked, under a context of its own.
func (p *patience) begin(id topology.ServerID, cut context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[id] = cut
}

// over is called with a server's answer, and returns its error: another one if the server was cut off.
func (p *patience) over(id topology.ServerID, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[id] == nil {
		return fault.Errorf(fault.Unavailable, "server %s did not answer in %v", id, stagedTimeout)
	}
	delete(p.open, id)
	if err != nil {
		p.missing++
	}
	p.spareLocked()
	return err
}
