package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// View is this process's list of the servers. All methods are safe for concurrent use.
type View struct {
	// Constant after Open.
	store coord.Store
	log   *slog.Logger
	rng   *rand.Rand // owned by Run

	catching chan struct{} // full while CatchUp reads the rows

	mu struct {
		sync.RWMutex
		servers map[topology.ServerID]Server
		at      map[topology.ServerID]coord.Revision // of their rows
		proven  time.Time                            // the rows are those of then, or newer
		changed chan struct{}                        // closed and replaced at every change
		staging []Server                             // those that announce staged rows
	}
}

// Open reads the servers there are. Call Run to follow changes. The view keeps rng. Errors are the store's.
func Open(ctx context.Context, store coord.Store, log *slog.Logger, rng *rand.Rand) (*View, error) {
	v := &View{store: store, log: log, rng: rng, catching: make(chan struct{}, 1)}
	v.mu.servers, v.mu.at, v.mu.changed = map[topology.ServerID]Server{}, map[topology.ServerID]coord.Revision{}, make(chan struct{})
	rows, rev, err := store.List(ctx, Prefix)
	if err != nil {
		return nil, fault.Annotate(err, "read the servers")
	}
	return v, follower{v}.Listed(rows, rev)
}

// How often Prove reads the rows, and for how long it waits for them.
const (
	proveEvery   = time.Second
	proveTimeout = 3 * time.Second
)

// Prove reads the rows from a store again and again until ctx ends. A watch that is silent does not show whether there is nothing new, or it is behind. The store is
// to have no cache.
func (v *View) Prove(ctx context.Context, store coord.Store) error {
	tick := time.NewTicker(proveEvery)
	defer tick.Stop()
	for {
		_ = v.prove(ctx, store) // Age shows that it failed
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// CatchUp returns when this view has all rows that were in the store at a moment that has passed; callers at about the same time share one read. The store is to have no cache. Errors are
// the store's, and Canceled.
func (v *View) CatchUp(ctx context.Context, store coord.Store, since time.Time) error {
	select {
	case v.catching <- struct{}{}:
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "read the servers")
	}
	defer func() { <-v.catching }()
	if v.Age(since) < 0 {
		return nil
	}
	return v.prove(ctx, store)
}

func (v *View) prove(ctx context.Context, store coord.Store) error {
	ctx, stop := context.WithTimeout(ctx, proveTimeout)
	defer stop()
	asked := time.Now()
	rows, _, err := store.List(ctx, Prefix)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := false
	for _, row := range rows { // those that are gone are left to the watch
		changed = v.learnLocked(row) || changed
	}
	if v.mu.proven = asked; changed {
		v.announceLocked()
	}
	return nil
}

// AllEndSlices reports whether all registered servers run builds that name the sender of a slice and end slices of earlier leaders. A server with an unreadable row counts as none of these.
func (v *View) AllEndSlices() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for id := range v.mu.at {
		if s, ok := v.mu.servers[id]; !ok || !s.Slices {
			return false
		}
	}
	return true
}

// Age is for how long a row of a server may have changed unseen, while Prove runs; without it, for ever.
func (v *View) Age(now time.Time) time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return now.Sub(v.mu.proven)
}

// Run follows the store until ctx ends.
func (v *View) Run(ctx context.Context) error {
	return coord.Follow(ctx, v.store, Prefix, follower{v}, v.log, v.rng)
}

// Get gives a server's row.
func (v *View) Get(id topology.ServerID) (Server, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s, ok := v.mu.servers[id]
	return s, ok
}

// All lists the servers by id.
func (v *View) All() []Server {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.SortedFunc(maps.Values(v.mu.servers), func(a, b Server) int { return strings.Compare(string(a.ID), string(b.ID)) })
}

// Changed gives a channel that is closed at the next change.
func (v *View) Changed() <-chan struct{} {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.changed
}

// follower records changes.
type follower struct{ *View }

// Listed implements coord.Follower. A row that cannot be read is left out, and logged. Prove may have read rows that are newer than the list: those stay.
func (v follower) Listed(rows []coord.Row, rev coord.Revision) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	listed := map[topology.ServerID]bool{}
	for _, row := range rows {
		listed[topology.ServerID(strings.TrimPrefix(row.Key, Prefix))] = true
	}
	for id, at := range v.mu.at {
		if !listed[id] && at <= rev {
			delete(v.mu.servers, id)
			delete(v.mu.at, id)
		}
	}
	for _, row := range rows {
		v.learnLocked(row)
	}
	v.announceLocked()
	return nil
}

// Changed implements coord.Follower.
func (v follower) Changed(events []coord.Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		if e.Deleted {
			if id := topology.ServerID(strings.TrimPrefix(e.Key, Prefix)); e.Revision > v.mu.at[id] { // Prove may have read a later row
				delete(v.mu.servers, id)
				delete(v.mu.at, id)
			}
		} else {
			v.learnLocked(e.Row)
		}
	}
	v.announceLocked()
	return nil
}

// learnLocked adopts a row, unless a newer one was seen.
func (v *View) learnLocked(row coord.Row) (changed bool) {
	id := topology.ServerID(strings.TrimPrefix(row.Key, Prefix))
	if row.Revision <= v.mu.at[id] {
		return false
	}
	v.mu.at[id] = row.Revision
	s, err := Decode(row)
	if err != nil {
		v.log.Error("a server's row cannot be read; the server is left out until it registers again", "error", err)
		delete(v.mu.servers, id)
		return true
	}
	v.mu.servers[s.ID] = s
	return true
}

// Staging lists the servers on which rows of a table may be staged.
func (v *View) Staging(table string) (all []topology.ServerID) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for i := range v.mu.staging {
		if v.mu.staging[i].Stages(table) {
			all = append(all, v.mu.staging[i].ID)
		}
	}
	return all
}

func (v *View) announceLocked() {
	v.mu.staging = nil
	for _, s := range v.mu.servers {
		if s.Staging != "" {
			v.mu.staging = append(v.mu.staging, s)
		}
	}
	slices.SortFunc(v.mu.staging, func(a, b Server) int { return strings.Compare(string(a.ID), string(b.ID)) })
	close(v.mu.changed)
	v.mu.changed = make(chan struct{})
}

// List reads the rows of all servers from the store: none that was written before the call is missed. Errors are the store's.
func List(ctx context.Context, store coord.Store) ([]Server, error) {
	rows, _, err := store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	all := make([]Server, 0, len(rows))
	for _, row := range rows {
		s, err := Decode(row)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Register writes a server's row, keeping Drain, Moves and Unfilled, which persons and the master set, Life, and, for the same directory, Since and Staging. A server of
// the same id with another directory is replaced only when replace is set: two processes that share an id by
// mistake must not alternate. lost, unless it is nil, receives Staging, and reports whether the directory lacks some of those rows: then Since begins anew.
// Errors are Invalid (another directory), or the store's.
func Register(ctx context.Context, store coord.Store, s Server, replace bool, lost func(staging string) bool) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return change(ctx, store, s.ID, func(old Server, there bool) (Server, error) {
		next := s
		if there {
			next.Drain, next.Moves, next.Unfilled, next.Life = old.Drain, old.Moves, old.Unfilled, old.Life
			next.WasReached = s.Unreached != "" && (old.Unreached == "" || old.WasReached)
			if old.Store == s.Store {
				if next.Staging = old.Staging; lost == nil || !lost(old.Staging) {
					next.Since = old.Since
				}
			} else if !replace {
				return old, fault.Errorf(fault.Invalid,
					"server %q is registered with store directory %s at %s, this one is %s: choose another --id, or start once with --replace-store if that directory is gone for good",
					s.ID, old.Store, old.Addr, s.Store)
			}
		}
		return next, nil
	})
}

// Change changes a server's row by compare-and-swap. Errors are NotFound, TooLarge, f's, or the store's.
func Change(ctx context.Context, store coord.Store, id topology.ServerID, f func(*Server)) error {
	return change(ctx, store, id, func(s Server, there bool) (Server, error) {
		if !there {
			return s, fault.Errorf(fault.NotFound, "server %q is not registered", id)
		}
		f(&s)
		return s, nil
	})
}

// changeTries bounds how often a lost race is run again; rows of servers change rarely.
const changeTries = 10

func change(ctx context.Context, store coord.Store, id topology.ServerID, f func(Server, bool) (Server, error)) error {
	var failed error
	for range changeTries {
		row, there, err := store.Get(ctx, Key(id))
		if err != nil {
			return fault.Annotate(errors.Join(err, failed), "register server %q", id)
		}
		var old Server
		if there {
			if old, err = Decode(row); err != nil {
				return err
			}
		}
		next, err := f(old, there)
		if err != nil {
			return err
		}
		value := next.Encode()
		if there && string(value) == string(row.Value) {
			return nil // also the answer to a commit that got no answer (C08)
		}
		if len(value) > RowMax { // it would not be read
			return fault.Errorf(fault.TooLarge, "the row of server %q would have %d bytes, at most %d are read: end or cancel some of its moves", id, len(value), RowMax)
		}
		_, ok, err := store.Commit(ctx, []coord.Condition{{Key: Key(id), Revision: row.Revision}}, []coord.Write{{Key: Key(id), Value: value}})
		if err == nil && ok {
			return nil
		}
		failed = err
	}
	return fault.Annotate(errors.Join(fault.Errorf(fault.Unavailable, "the row of server %q kept changing", id), failed), "register")
}
