package fanout

import (
	"context"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// A server with staged rows that has not begun to answer after spareAfter is cut off where the answer is whole without it: fewer servers are missing, those that
// are late included, than hold each frame. So one that is slow, or frozen, costs a question a quarter of a second at most, also when a query asks several one after the
// other: when rows are staged, for these rows, for those of partitions. One that owes a sign of life costs nothing. Where it is needed it is waited for: on a busy machine, with a server lost and every row of a table
// staged, all holders may be late, and no other one has their rows. The connection to one that is frozen is given up after two seconds (peer.ErrSilent), and the query is evaluated
// once more (package query), so that one which stood still for a moment answers. An asker that accepts an answer that is not whole waits for stagedTimeout.

// stagedTimeout is how long a server with staged rows may need to begin its answer where that need not be whole, and to say that it is there, before a
// deletion.
const stagedTimeout = time.Second

// spareAfter is how long one may need that is not needed.
const spareAfter = stagedTimeout / 4

// patience is the wait for the answers of servers with staged rows.
type patience struct {
	// Constant.
	holders int                          // of each frame, at least
	partial bool                         // the answer need not be whole
	silent  func(topology.ServerID) bool // a server gives no sign of life

	mu      sync.Mutex
	open    map[topology.ServerID]context.CancelFunc // those that have not begun to answer
	missing int
	late    bool // spareAfter is over
	overdue bool // stagedTimeout is over
}

// wait cuts servers off until ctx ends.
func (p *patience) wait(ctx context.Context) {
	for _, step := range [...]struct {
		pause time.Duration
		over  *bool
	}{{spareAfter, &p.late}, {stagedTimeout - spareAfter, &p.overdue}} {
		timer := time.NewTimer(step.pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		p.mu.Lock()
		*step.over = true
		p.spareLocked()
		p.mu.Unlock()
	}
}

// spareLocked cuts off all that are late or give no sign of life if the answer is whole without all that are open, and all that are overdue if it need not be.
func (p *patience) spareLocked() {
	if whole := p.missing+len(p.open) < p.holders; !whole && !(p.partial && p.overdue) {
		return
	}
	for id, cut := range p.open {
		if !p.late && !p.silent(id) {
			continue
		}
		cut()
		delete(p.open, id)
		p.missing++
	}
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
		return fault.Errorf(fault.Unavailable, "server %s did not answer in time", id)
	}
	delete(p.open, id)
	if err != nil {
		p.missing++
	}
	p.spareLocked()
	return err
}
