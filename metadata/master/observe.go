package master

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/registry"
)

// Observe looks at a cluster once, from outside: for a dry run, and for people. It watches until the heartbeat of every
// registered server has changed, but no longer than wait; a server without a change by then counts as silent. The length of its
// silence before comes from the wall clock in its last heartbeat, which is good enough for people (C113). The caller fills Tables
// and Sizes of the state. Errors are the store's.
func Observe(ctx context.Context, store coord.Store, servers []registry.Server, wait time.Duration, log *slog.Logger, rng *rand.Rand) (State, *Rows, error) {
	rows := NewRows(keeper.Boottime, wait+time.Hour)
	list, rev, err := store.List(ctx, lease.Prefix)
	if err != nil {
		return State{}, nil, err
	}
	if err := rows.Listed(list, rev); err != nil {
		return State{}, nil, err
	}
	listening, stop := context.WithTimeout(ctx, wait)
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return coord.Follow(listening, store, lease.Prefix, rows, log, rng) })
	for !rows.allBeat(servers) && listening.Err() == nil {
		select {
		case <-listening.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	stop()
	err = errors.Join(g.Wait(), ctx.Err())
	s := State{Now: time.Now().UnixNano()}
	rows.Fill(&s, servers)
	for i := range s.Servers {
		srv := &s.Servers[i]
		switch srv.Live = rows.changed(srv.Server); {
		case srv.Live:
			srv.For = time.Hour // settled, as far as an observer can see
		case srv.Beat.Time.IsZero():
			srv.For = time.Since(srv.Since)
		default:
			srv.For = time.Since(srv.Beat.Time)
		}
	}
	return s, rows, err
}

// allBeat reports whether the heartbeat of every server was seen to change.
func (r *Rows) allBeat(servers []registry.Server) bool {
	for _, s := range servers {
		if !r.changed(s) {
			return false
		}
	}
	return true
}

// changed reports whether a server's heartbeat changed since it was first seen.
func (r *Rows) changed(s registry.Server) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.mu.beats[s.ID]
	return b != nil && b.moved
}
