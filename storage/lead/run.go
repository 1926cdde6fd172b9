package lead

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/server"
)

// Run keeps the leases of srv until ctx ends. It returns an error when the store is fenced: then the process must stop,
// and its leases run out.
func (l *Lead) Run(ctx context.Context, srv *server.Server) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.keeper.Run(ctx) })
	g.Go(func() error { return l.discover(ctx, srv) })
	g.Go(func() error { return l.answerStops(ctx, srv) })
	g.Go(func() error { return l.publish(ctx, srv) })
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

// discover holds what is here against the maps: at every change, some of them at a time, and slowly even if none is heard of (C15, C16).
func (l *Lead) discover(ctx context.Context, srv *server.Server) error {
	all := true
	slow := time.NewTimer(l.jitter(l.settings.ReconcileEvery))
	defer slow.Stop()
	for {
		changed := l.deps.Maps.Changed()
		if err := l.reconcile(ctx, srv, all); err != nil && ctx.Err() == nil {
			l.metrics.failed.Inc()
			l.deps.Log.Warn("discovery is not done; it is tried again", "error", err)
		}
		all = false
		select {
		case <-ctx.Done():
			return nil
		case <-slow.C:
			slow.Reset(l.jitter(l.settings.ReconcileEvery))
			all = true
			continue
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.jitter(l.settings.BatchFor)):
		}
	}
}

// jitter gives d, give or take a tenth.
func (l *Lead) jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// stopsAtOnce bounds how many partitions are waited for side by side.
const stopsAtOnce = 16

// answerStops tells the keeper when nothing acts any more for what it lost.
func (l *Lead) answerStops(ctx context.Context, srv *server.Server) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.stopped:
		}
		l.mu.Lock()
		stops := l.mu.stops
		l.mu.stops = nil
		l.mu.Unlock()
		var g errgroup.Group
		g.SetLimit(stopsAtOnce)
		for _, s := range stops {
			g.Go(func() error { return l.answerStop(ctx, srv, s) })
		}
		_ = g.Wait() // what failed was cancelled, and so are we
	}
}

func (l *Lead) answerStop(ctx context.Context, srv *server.Server, s lease.Stops) error {
	answer := lease.Stopped{Partition: s.Partition}
	if !s.Lapsed { // after a lapse whoever is alone in sync goes on: its ends are not final
		limited, cancel := context.WithTimeout(ctx, l.settings.StopTimeout)
		defer cancel()
		var err error
		if answer.Ends, err = srv.Quiesce(limited, s.Partition.Table, s.Partition.ID); err != nil && ctx.Err() == nil {
			l.deps.Log.Warn("changes under way did not end in time; they will not be acked", "partition", s.Partition.String())
		}
	}
	return l.keeper.Tell(ctx, answer)
}

// publishEvery is how often the load is told to the keeper, which sends it with the next heartbeat.
const publishEvery = time.Second

// publish tells how busy the server is, and offers a partition to others when that is too much for long (C110).
func (l *Lead) publish(ctx context.Context, srv *server.Server) error {
	var over time.Time // since when
	good := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.jitter(publishEvery)):
		}
		was := good
		if good = l.keeper.Status().Good; good && was {
			l.heard()
		}
		load := srv.HeadLoad()
		if err := l.keeper.Tell(ctx, lease.Loaded{Load: load}); err != nil {
			return nil // the end
		}
		now := time.Now()
		switch {
		case load < l.settings.Keeper.Lease.LoadMax:
			over = time.Time{}
		case over.IsZero():
			over = now
		case now.Sub(over) >= l.settings.OverloadFor:
			over = now
			if p, ok := l.spare(); ok {
				_ = l.keeper.Tell(ctx, lease.Offer{Partition: p, Why: "the server is overloaded"})
			}
		}
	}
}

// heard ends what is allowed while nothing is heard: the rows were read since, and say who leads.
func (l *Lead) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.records {
		r.lapsed = r.lapsed && r.leading
	}
}

// spare finds a partition that another placement could take: one without rows.
func (l *Lead) spare() (lease.Partition, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, r := range l.mu.records {
		if r.leading && !r.alone && r.members > 1 {
			return p, true
		}
	}
	return lease.Partition{}, false
}
