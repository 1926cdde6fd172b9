package runner

import (
	"context"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/storage/chain"
)

const (
	// quietLookEvery is how often the leases and maps of quiet chains are read: one goroutine does that for all, and their own timers are slow.
	quietLookEvery = time.Second
	// sureWait bounds how long a read waits for a quiet placement to be sure: some round trips. After it the reader asks other copies.
	sureWait = 300 * time.Millisecond
)

// woke arms an earlier tick and lets reads go on once the machine is sure; the lock is held.
func (x *placement) woke() {
	if x.mu.machine.Wake() < x.mu.armed {
		select {
		case x.sooner <- struct{}{}:
		default:
		}
	}
	if len(x.mu.sure) > 0 && x.mu.machine.Sure(x.c.deps.Clock()) {
		for _, done := range x.mu.sure {
			close(done)
		}
		x.mu.sure = nil
	}
}

// countLocked counts the placement among those that ping, or no longer; the lock is held.
func (x *placement) countLocked(awake bool) {
	switch {
	case awake && !x.mu.awake:
		x.c.awake.Add(1)
	case !awake && x.mu.awake:
		x.c.awake.Add(-1)
	}
	x.mu.awake = awake
}

// quietLead reports whether a placement leads a chain that is quiet.
func (x *placement) quietLead() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, leads := x.mu.machine.Epoch()
	return leads && x.mu.machine.Quiet()
}

// tendQuiet gives the quiet chains that are led here their leases and placements. Run calls it.
func (c *Chains) tendQuiet() {
	now := time.Now()
	if now.Sub(c.quietLooked) < quietLookEvery {
		return
	}
	c.quietLooked = now
	for _, x := range c.all() {
		if x.quietLead() {
			x.post(event{tick: true})
		}
	}
}

// linked wakes the chains with a placement on a server whose link is new or has ended: its process may be a new one, or may have ended. Its silence counts from
// then on, so that no row waits for it later.
func (c *Chains) linked(server topology.ServerID) {
	for _, x := range c.all() {
		x.mu.Lock()
		quiet := x.mu.machine.Quiet()
		x.mu.Unlock()
		if quiet {
			x.post(event{in: chain.Linked{Server: server}})
		}
	}
}

// Sure reports whether a placement surely has all rows that were acknowledged.
func (c *Chains) Sure(key lease.Partition) bool {
	x := c.find(key)
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.machine.Sure(c.deps.Clock())
}

// Wake wakes the chains of placements that are quiet, which needs some round trips, and waits until the placements are sure, at most sureWait. A read calls it before Sure.
func (c *Chains) Wake(ctx context.Context, keys []lease.Partition) {
	var waits []wait
	for _, key := range keys {
		if x := c.find(key); x != nil {
			if done, ok := x.awaitSure(); ok {
				waits = append(waits, wait{x, done})
			}
		}
	}
	if len(waits) == 0 {
		return
	}
	limit := time.NewTimer(sureWait)
	defer limit.Stop()
	for i, w := range waits {
		select {
		case <-w.done:
			continue
		case <-limit.C:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
		for _, w := range waits[i:] {
			w.of.unwait(w.done)
		}
		return
	}
}

// wait is a read that waits for a placement to be sure.
type wait struct {
	of   *placement
	done chan struct{}
}

// awaitSure wakes a quiet placement; ok: it is about to be sure, and done is closed then.
func (x *placement) awaitSure() (done chan struct{}, ok bool) {
	x.mu.Lock()
	quiet := x.mu.machine.Quiet()
	if x.mu.machine.Sure(x.c.deps.Clock()) || !quiet && len(x.mu.sure) == 0 {
		x.mu.Unlock()
		return nil, false
	}
	done = make(chan struct{})
	x.mu.sure = append(x.mu.sure, done)
	x.mu.Unlock()
	if quiet {
		x.post(event{in: chain.Wanted{}})
	}
	return done, true
}

// unwait ends a read's wait.
func (x *placement) unwait(done chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.sure = slices.DeleteFunc(x.mu.sure, func(o chan struct{}) bool { return o == done })
}
