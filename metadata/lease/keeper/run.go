package keeper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Handler receives the machine's decisions, in order, from one goroutine: that of the loop, which reads no input meanwhile. So it must not block, or leases are not
// renewed, and must not wait for Send, which waits for the loop.
type Handler interface {
	Leads(lease.Leads)
	Stops(lease.Stops)
	InSyncSet(lease.InSyncSet)
	EverLed(lease.EverLed)
}

// Deps are the dependencies that the code passes in.
type Deps struct {
	Store   coord.Store
	Handler Handler
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Rand makes jitter and nonces. The keeper owns it.
	Rand *rand.Rand
	// Clock never goes back and counts suspends. Default Boottime.
	Clock func() lease.Time
}

// Settings are numbers a user sets.
type Settings struct {
	Lease lease.Settings
	// RequestTimeout ends a request that has no answer. Default 1 s. Larger: fewer attempts before leases are lost.
	RequestTimeout time.Duration
}

// Keeper keeps leases. All methods are safe for concurrent use.
//
//	watch ────── Listed, Watched ─▶┐
//	callers ──── Send ────────────▶┼─▶ loop: machine.Step ─▶ effects ─▶ Handler
//	timer ────── Tick ────────────▶│                            └────▶ requests to the store, a goroutine each
//	requests ─── Answer ──────────▶┘                                       │
//	    ▲──────────────────────────────────────────────────────────────────┘
//
// All channels into the loop are unbuffered: an input waits in the goroutine that brings it, and the loop waits for none of them, so nothing is stuck. A slow store
// thus has at most as many goroutines here as the machine allows requests in flight.
type Keeper struct {
	// Constant after New.
	deps     Deps
	settings Settings
	metrics  *metrics
	inputs   chan lease.Input
	left     chan struct{} // closed when everything was released after Leave
	ended    chan struct{} // closed when Run has ended

	// mu is held by the loop for one Step, and never while effects are performed.
	mu struct {
		sync.RWMutex
		machine *lease.Machine
	}
}

// New makes a keeper; Run runs it. Errors are Invalid.
func New(d Deps, self lease.Self, s Settings) (*Keeper, error) {
	if s.RequestTimeout == 0 {
		s.RequestTimeout = time.Second
	}
	if d.Clock == nil {
		d.Clock = Boottime
	}
	m, err := lease.New(self, s.Lease, d.Rand)
	if err != nil {
		return nil, err
	}
	k := &Keeper{deps: d, settings: s, metrics: newMetrics(d.Metrics), inputs: make(chan lease.Input), left: make(chan struct{}), ended: make(chan struct{})}
	k.mu.machine = m
	return k, nil
}

// MayAct reports whether this process may act for a partition now, and at which epoch (C105). It goes by the machine and the clock alone: it may say yes before the
// handler was called for the beginning, and says no from the moment at which the lease ends, also while the loop is late to say so.
//
// The clock is read under the lock: a time from before a wait for it could lie in a lease that is over by now.
func (k *Keeper) MayAct(p lease.Partition) (point.Epoch, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.MayAct(p, k.deps.Clock())
}

// Now is the time by the median of the servers' clocks, or by our own while there is none.
func (k *Keeper) Now() point.Nanos {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if now, ok := k.mu.machine.Clock(k.deps.Clock()); ok {
		return now
	}
	return time.Now().UnixNano()
}

// Latest is the latest time that it may be by the servers' clocks, as lease.Machine.Latest.
func (k *Keeper) Latest() point.Nanos {
	wall := time.Now().UnixNano()
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.Latest(k.deps.Clock(), wall)
}

// ClocksKnown is lease.Machine.ClocksKnown.
func (k *Keeper) ClocksKnown() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.ClocksKnown()
}

// Placed returns the live placements of a partition, with their directories, as this process sees them; its own first.
func (k *Keeper) Placed(p lease.Partition) []lease.Member {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.Placed(p)
}

// Slow returns those of the members that are on servers with slow disks, as this process sees them.
func (k *Keeper) Slow(all []lease.Member) []lease.Member {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.Slow(all)
}

// Status is this process's view of its leases, for people.
func (k *Keeper) Status() lease.Status {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.machine.Status()
}

// Send passes the machine an input. It waits until Run has read that; errors are Canceled, also once Run has ended.
func (k *Keeper) Send(ctx context.Context, in lease.Input) error {
	select {
	case k.inputs <- in:
		return nil
	case <-k.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave releases everything, so that others need not wait, and returns when that is in the store. Errors are Canceled:
// other servers acquire unreleased leases when they have expired.
func (k *Keeper) Leave(ctx context.Context) error {
	if err := k.Send(ctx, lease.Leave{}); err != nil {
		return err
	}
	select {
	case <-k.left:
		return nil
	case <-k.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errEnded = fault.Errorf(fault.Canceled, "the lease keeper has ended")

// Run keeps leases until ctx ends. It does not release them: call Leave first for that. The error is coord.ErrSetBack where the store was set back.
func (k *Keeper) Run(ctx context.Context) error {
	defer close(k.ended)
	g, ctx := errgroup.WithContext(ctx)
	answers := make(chan lease.Answer)
	seen := make(chan lease.Input)
	g.Go(func() error { return k.watch(ctx, seen) })
	g.Go(func() error { return k.loop(ctx, g, seen, answers) })
	if err := g.Wait(); !fault.Is(err, fault.Canceled) {
		return err
	}
	return nil
}

// wakeMin keeps a machine that asks to be woken at once from using a whole core.
const wakeMin = time.Millisecond

// loop ends with ctx. It starts requests in the group that it is part of itself, so that Run returns only when they have ended, too.
func (k *Keeper) loop(ctx context.Context, g *errgroup.Group, seen <-chan lease.Input, answers chan lease.Answer) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var effects []lease.Effect
	for {
		var in lease.Input
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			in = lease.Tick{Wall: time.Now()}
		case in = <-k.inputs:
		case in = <-seen:
		case in = <-answers:
		}
		var sleep time.Duration
		effects, sleep = k.step(in, effects[:0])
		timer.Reset(max(sleep, wakeMin))
		for _, e := range effects {
			k.perform(ctx, g, e, answers)
		}
	}
}

// step gives the machine an input. The effects are performed after the lock is released: a handler may ask MayAct.
func (k *Keeper) step(in lease.Input, out []lease.Effect) ([]lease.Effect, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.deps.Clock()
	out = k.mu.machine.Step(now, in, out)
	s := k.mu.machine.Status()
	k.metrics.held.Set(float64(s.Held))
	k.metrics.share.Set(float64(s.Share))
	k.metrics.clockAhead.Set(k.mu.machine.ClockAhead().Seconds())
	k.metrics.good.Set(map[bool]float64{true: 1}[s.Good])
	k.metrics.clockOff.Set(map[bool]float64{true: 1}[s.ClockOff])
	k.metrics.diskSlow.Set(map[bool]float64{true: 1}[s.SlowDisk])
	return out, k.mu.machine.Wake() - now
}

func (k *Keeper) perform(ctx context.Context, g *errgroup.Group, e lease.Effect, answers chan<- lease.Answer) {
	// The machine bounds its requests in flight, and so the goroutines here.
	request := func(p lease.Priority, limit time.Duration, f func(context.Context) lease.Answer) {
		g.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			a := f(limited)
			k.metrics.requests.WithLabelValues(p.String(), outcomeNames[a.Outcome]).Inc()
			select {
			case answers <- a:
			case <-ctx.Done(): // of Run, not of the request: the loop may have ended, and reads no answers any more
			}
			return nil
		})
	}
	switch e := e.(type) {
	case lease.Commit:
		request(e.Priority, k.settings.RequestTimeout, func(ctx context.Context) lease.Answer {
			rev, ok, err := k.deps.Store.Commit(ctx, e.Conditions, e.Writes)
			return lease.Answer{ID: e.ID, Outcome: outcome(ok, err), Revision: rev}
		})
	case lease.List:
		request(e.Priority, k.listTimeout(e.Prefix), func(ctx context.Context) lease.Answer {
			rows, rev, err := k.deps.Store.List(ctx, e.Prefix)
			return lease.Answer{ID: e.ID, Outcome: outcome(true, err), Revision: rev, Rows: rows}
		})
	case lease.Leads:
		k.metrics.leads.Inc()
		k.deps.Log.Info("lease begins", "partition", e.Partition.String(), "epoch", e.Epoch, "in_sync", len(e.Lease.InSync))
		k.deps.Handler.Leads(e)
	case lease.Stops:
		k.metrics.stops.Inc()
		k.deps.Log.Info("lease ends", "partition", e.Partition.String(), "reason", e.Why)
		k.deps.Handler.Stops(e)
	case lease.InSyncSet:
		k.deps.Handler.InSyncSet(e)
	case lease.EverLed:
		k.deps.Handler.EverLed(e)
	case lease.Left:
		close(k.left)
	case lease.SetBack: // the error ends the group, and so Run
		g.Go(func() error {
			return coord.SetBack("it has an older heartbeat of this server than it had before")
		})
	}
}

// listAllTimeout ends a list of all rows. The store lists page by page, each within its own time limit, so this is for a store
// that keeps answering and never finishes: a table of any size must be done before.
const listAllTimeout = 5 * time.Minute

func (k *Keeper) listTimeout(prefix string) time.Duration {
	if prefix == lease.Prefix {
		return listAllTimeout
	}
	return k.settings.RequestTimeout
}

var outcomeNames = [...]string{lease.Unknown: "unknown", lease.Done: "done", lease.Conflict: "conflict", lease.Throttled: "throttled"}

// outcome is Unknown after an error: a commit without an answer may have been carried out, or may be yet. The machine reads the row before it goes on.
func outcome(ok bool, err error) lease.Outcome {
	switch {
	case fault.Is(err, fault.Throttled):
		return lease.Throttled
	case err != nil:
		return lease.Unknown
	case !ok:
		return lease.Conflict
	}
	return lease.Done
}

// watch lists, then follows changes, and starts again whenever it missed some. Where the store has compacted the missing changes, the list is made at once: until then the
// machine goes by rows that others may have changed. After other errors it waits, since a store that refuses would be asked without a pause.
func (k *Keeper) watch(ctx context.Context, seen chan<- lease.Input) error {
	pass := func(in lease.Input) error {
		select {
		case seen <- in:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		err := k.follow(ctx, pass)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.metrics.relists.Inc()
		if errors.Is(err, coord.ErrCompacted) {
			continue
		}
		k.deps.Log.Debug("the watch of the lease table begins anew", "error", err)
		select {
		case <-time.After(k.settings.RequestTimeout / 2):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow watches from the revision of the list on, so that no change falls between the two. One goroutine passes both, in their order.
func (k *Keeper) follow(ctx context.Context, pass func(lease.Input) error) error {
	limited, cancel := context.WithTimeout(ctx, listAllTimeout)
	rows, rev, err := k.deps.Store.List(limited, lease.Prefix)
	cancel()
	if err != nil {
		return err
	}
	if err := pass(lease.Listed{Rows: rows, Revision: rev}); err != nil {
		return err
	}
	return k.deps.Store.Watch(ctx, lease.Prefix, rev, func(events []coord.Event) error {
		return pass(lease.Watched{Events: events})
	})
}
