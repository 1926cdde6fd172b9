package lead

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	"github.com/spillwaydb/spillway/storage/server"
)

// Run keeps the leases of srv until ctx ends. It returns an error when the store is fenced: then the process must stop,
// and its leases expire.
func (l *Lead) Run(ctx context.Context, srv *server.Server) error {
	g, ctx := errgroup.WithContext(ctx)
	r := &runner{Lead: l, srv: srv, g: g, slots: make(chan struct{}, slotsMax)}
	g.Go(func() error { return l.keeper.Run(ctx) })
	g.Go(func() error { return r.discover(ctx) })
	g.Go(func() error { return r.perform(ctx) })
	g.Go(func() error { return r.publish(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-l.deps.Brick.Fenced():
			return fault.Annotate(l.deps.Brick.Err(), "the store is fenced")
		}
	})
	return g.Wait()
}

// step gives the machine an input. Run performs its effects.
func (l *Lead) step(in rules.Input) {
	l.mu.Lock()
	before := len(l.mu.effects)
	l.mu.effects = l.mu.machine.Step(l.deps.Clock(), in, l.mu.effects)
	if rules.MayChangeChains(in) {
		l.steps.Add(1) // behind the step, within the lock: who reads the number and then the leases misses none
	}
	more := len(l.mu.effects) > before
	for _, e := range l.mu.effects[before:] {
		if e, ok := e.(rules.Changed); ok && l.mu.waiting[e.Partition] != nil {
			close(l.mu.waiting[e.Partition])
			delete(l.mu.waiting, e.Partition)
		}
	}
	l.mu.Unlock()
	if more {
		l.wake()
	}
}

func (l *Lead) wake() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// Leads implements keeper.Handler.
func (l *Lead) Leads(e lease.Leads) { l.step(rules.LeaseBegan{Leads: e}) }

// Stops implements keeper.Handler.
func (l *Lead) Stops(e lease.Stops) { l.step(rules.LeaseEnded{Stops: e}) }

// EverLed implements keeper.Handler.
func (l *Lead) EverLed(e lease.EverLed) { l.step(rules.EverLed{EverLed: e}) }

// InSyncSet implements keeper.Handler.
func (l *Lead) InSyncSet(e lease.InSyncSet) { l.step(rules.InSyncAnswered{InSyncSet: e}) }

// runner is a Lead while it runs.
type runner struct {
	*Lead
	srv   *server.Server
	g     *errgroup.Group
	slots chan struct{} // in use by questions to the store or the disk

	damaged []lease.Partition // as last sent; perform's alone
}

// slotsMax bounds the simultaneous questions to store and disk.
const slotsMax = 32

// perform performs effects in order, and gives the machine a Tick when it asks for one.
func (r *runner) perform(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.news:
		case <-timer.C:
			r.step(rules.Tick{})
		}
		r.mu.Lock()
		effects := r.mu.effects
		r.mu.effects = nil
		wait := r.mu.machine.Wake() - r.deps.Clock()
		r.mu.Unlock()
		for _, e := range effects {
			if err := r.do(ctx, e); err != nil {
				return nil // shutdown: there is no receiver any more
			}
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// do performs one effect; slow ones run in the background and are answered. Errors are Canceled.
func (r *runner) do(ctx context.Context, e rules.Effect) error {
	switch e := e.(type) {
	case rules.Assign: // the machine reads no disk: the highest epoch that the brick saw of each placement (I3) is filled in here
		for i := range e.All {
			e.All[i].BrickEpoch = r.deps.Brick.HighestEpoch(e.All[i].Placement)
		}
		if err := r.tellDamaged(ctx); err != nil { // before a lease is acquired
			return err
		}
		return r.keeper.Send(ctx, lease.Assignments{All: e.All})
	case rules.LeaseInput:
		switch e.Input.(type) {
		case lease.SetInSync:
			r.metrics.holds.Inc()
		case lease.Loaded: // once a second
			if err := r.tellDamaged(ctx); err != nil {
				return err
			}
		}
		return r.keeper.Send(ctx, e.Input)
	case rules.Seal:
		r.srv.Seal(e.Partition.Table, e.Partition.ID)
	case rules.Open:
		r.srv.Unseal(e.Partition.Table, e.Partition.ID)
	case rules.HandOver:
		r.srv.HandOver(e.Partition.Table, e.Partition.ID)
	case rules.TakeBack:
		r.srv.TakeBack(e.Partition.Table, e.Partition.ID)
	case rules.Doubt:
		r.srv.Doubt(e.Partition.Table, e.Partition.ID, e.Seq)
	case rules.Settle:
		r.srv.Settle(e.Partition.Table, e.Partition.ID, e.Seq)
	case rules.Forget:
		r.srv.Forget(e.Partition.Table, e.Partition.ID)
	case rules.Unload:
		r.deps.Unload(e.Partition, e.Epoch, e.On, e.First)
	case rules.Alarmed:
		r.deps.Log.Error("what is here does not agree with the map", "partition", e.Partition.String(), "reason", e.Why)
	case rules.Note:
		r.note(e)
	case rules.Listed:
		if r.deps.Listed != nil {
			r.deps.Listed(e.Partition, e.Ask, e.OK, e.Epoch, e.List)
		}
	case rules.Changed:
	default:
		r.g.Go(func() error {
			if in := r.answer(ctx, e); ctx.Err() == nil {
				r.step(in)
			}
			return nil
		})
	}
	return nil
}

// tellDamaged gives the lease machine the partitions with damaged files here, if they are others than before.
func (r *runner) tellDamaged(ctx context.Context) error {
	var all []lease.Partition
	for _, p := range r.srv.Damaged() {
		all = append(all, lease.Partition{Table: p.Table, ID: p.Partition})
	}
	if slices.Equal(all, r.damaged) {
		return nil
	}
	r.damaged = all
	return r.keeper.Send(ctx, lease.Damaged{All: all})
}

func (r *runner) note(e rules.Note) {
	p := e.Partition.String()
	switch e.What {
	case rules.SplitDone:
		r.metrics.handed.Inc()
		r.deps.Log.Info("partition was split", "partition", p)
	case rules.UnloadDone:
		r.metrics.handed.Inc()
		r.deps.Log.Info("partition is out of the map: it has no rows, or those that took over have all of them", "partition", p)
	case rules.AttemptFailed:
		r.metrics.retried.Inc()
		r.deps.Log.Warn("a hand-over is not done; it is tried again", "partition", p, "reason", e.Why)
	case rules.StopTimedOut:
		r.deps.Log.Warn(e.Why, "partition", p)
	case rules.RoundFailed:
		r.metrics.failed.Inc()
		r.deps.Log.Warn("discovery is not done; it is tried again", "table", e.Partition.Table, "reason", e.Why)
	}
}

// failed logs a failure for a person, and reports whether there was one.
func (r *runner) failed(ctx context.Context, what string, p lease.Partition, err error) bool {
	if err != nil && ctx.Err() == nil {
		r.metrics.failed.Inc()
		r.deps.Log.Warn(what+" failed; it is tried again", "partition", p.String(), "error", err)
	}
	return err != nil
}
