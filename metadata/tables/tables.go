package tables

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
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

const rowPrefix = "tables/"

// Deps are what the tables need of others.
type Deps struct {
	Store coord.Store
	Log   *slog.Logger
	// Place chooses the servers of a new partition.
	Place func(table string, p point.PartitionID) []topology.ServerID
	// Metadata reaches a metadata server: this process's own by a call, others by the network.
	Metadata func(topology.ServerID) (peer.Metadata, bool)
	// Own is the metadata server in this process, asked first; empty: there is none.
	Own topology.ServerID
	// Servers lists who may be metadata servers of a new table, the best first.
	Servers func() []topology.ServerID
	// Rand makes transaction ids, placement ids and jitter. The tables keep it.
	Rand *rand.Rand
}

// Settings are numbers a user sets.
type Settings struct {
	// New is the configuration of tables made without one of their own.
	New topology.Config
	// CreateOnWrite lets Ensure make tables that do not exist.
	CreateOnWrite bool
	// TablesMax bounds how many tables writers can bring into being. Default 10,000.
	TablesMax int
}

// Tables knows the newest maps. All methods are safe for concurrent use.
type Tables struct {
	// Constant after Open.
	deps     Deps
	settings Settings

	mu struct {
		sync.RWMutex
		maps map[string]*topology.Map
		rows map[string]coord.Revision
		rev  coord.Revision // of the store, as far as the watch has come

		changed chan struct{} // closed and replaced at every change
	}
}

// Open reads all tables. Call Run to follow changes that other processes make.
func Open(ctx context.Context, d Deps, s Settings) (*Tables, error) {
	if s.TablesMax == 0 {
		s.TablesMax = 10_000
	}
	if err := s.New.Validate(); err != nil {
		return nil, fault.Annotate(err, "configuration of new tables")
	}
	t := &Tables{deps: d, settings: s}
	t.mu.maps, t.mu.rows, t.mu.changed = map[string]*topology.Map{}, map[string]coord.Revision{}, make(chan struct{})
	return t, t.reload(ctx)
}

func (t *Tables) reload(ctx context.Context) error {
	rows, rev, err := t.deps.Store.List(ctx, rowPrefix)
	if err != nil {
		return fault.Annotate(err, "read the tables")
	}
	seen := map[string]bool{}
	for _, row := range rows {
		seen[strings.TrimPrefix(row.Key, rowPrefix)] = true
		if err := t.learn(row); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.rev = rev
	for name, made := range t.mu.rows {
		if !seen[name] && made <= rev { // one that is newer than the list was made by this process meanwhile
			t.forgetLocked(name)
		}
	}
	return nil
}

// learn takes a row's map in unless a newer one is known.
func (t *Tables) learn(row coord.Row) error {
	name := strings.TrimPrefix(row.Key, rowPrefix)
	m, err := topology.Decode(row.Value)
	if err != nil {
		return fault.Annotate(err, "table %q", name)
	}
	t.put(name, m, row.Revision)
	return nil
}

func (t *Tables) put(name string, m *topology.Map, rev coord.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rev > t.mu.rows[name] {
		t.mu.maps[name], t.mu.rows[name] = m, rev
		t.announceLocked()
	}
}

func (t *Tables) announceLocked() {
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

// forget takes in that a table was deleted at rev, unless it was made again since.
func (t *Tables) forget(name string, rev coord.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.rows[name] < rev {
		t.forgetLocked(name)
	}
}

func (t *Tables) forgetLocked(name string) {
	delete(t.mu.maps, name)
	delete(t.mu.rows, name)
	t.announceLocked()
}

// Run follows the store until ctx ends: changes of other processes become visible here. A watch that fell too far
// behind is answered by reading everything anew (C15).
func (t *Tables) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		t.mu.RLock()
		rev := t.mu.rev
		t.mu.RUnlock()
		err := t.deps.Store.Watch(ctx, rowPrefix, rev, t.follow)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, coord.ErrCompacted) {
			t.deps.Log.Warn("following the tables was interrupted; reading them anew", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second/2 + rand.N(time.Second)):
		}
		if err := t.reload(ctx); err != nil {
			t.deps.Log.Warn("the tables cannot be read; going on with what is known", "error", err)
		}
	}
	return nil
}

func (t *Tables) follow(events []coord.Event) error {
	for _, e := range events {
		if e.Deleted {
			t.forget(strings.TrimPrefix(e.Key, rowPrefix), e.Revision)
		} else if err := t.learn(e.Row); err != nil {
			return err
		}
		t.mu.Lock()
		t.mu.rev = max(t.mu.rev, e.Revision)
		t.mu.Unlock()
	}
	return nil
}

// Get gives a table's newest known map.
func (t *Tables) Get(name string) (*topology.Map, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m, ok := t.mu.maps[name]
	return m, ok
}

// At gives a table's newest known map and the revision of the row that named it: whoever writes to the store what is true
// only by this map compares the row (a lease row's birth, package lease).
func (t *Tables) At(name string) (m *topology.Map, row coord.Revision, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m, ok = t.mu.maps[name]
	return m, t.mu.rows[name], ok
}

// Changed gives a channel that is closed at the next change of any table: take it first, then look.
func (t *Tables) Changed() <-chan struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.changed
}

// Names lists the tables, sorted.
func (t *Tables) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.mu.maps))
}

// Ensure gives a table's map and makes the table if writers may do that. Errors are NotFound (they may not), Throttled
// (too many tables), or the store's.
func (t *Tables) Ensure(ctx context.Context, name string) (*topology.Map, error) {
	if m, ok := t.Get(name); ok {
		return m, nil
	}
	if !t.settings.CreateOnWrite {
		return nil, fault.Errorf(fault.NotFound, "table %q does not exist and is not created on write", name)
	}
	return t.Create(ctx, name, t.settings.New)
}

// Create makes a table; one that exists is given as it is.
func (t *Tables) Create(ctx context.Context, name string, c topology.Config) (*topology.Map, error) {
	if m, ok := t.Get(name); ok {
		return m, nil
	}
	if n := len(t.Names()); n >= t.settings.TablesMax {
		return nil, fault.Errorf(fault.Throttled, "there are %d tables, at most %d are made", n, t.settings.TablesMax)
	}
	m, err := topology.New(name, c)
	if err != nil {
		return nil, err
	}
	rev, ok, err := t.deps.Store.Commit(ctx, []coord.Condition{{Key: rowPrefix + name}}, []coord.Write{{Key: rowPrefix + name, Value: m.Encode()}})
	if err == nil && ok {
		t.deps.Log.Info("table created", "table", name, "retention", c.Retention, "partition_width", c.PartitionWidth)
		t.put(name, m, rev)
		return m, nil
	}
	// Somebody else made it, or the answer was lost: either way the row tells (C08).
	return t.refresh(ctx, name)
}

// Refresh gives a table's map at seq minSeq or newer: the known one if it is new enough, else what the store has. It is
// what to do about an answer that is Stale. Errors are NotFound, Unavailable (the store does not answer, or has nothing
// that new) or Canceled.
func (t *Tables) Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error) {
	if m, ok := t.Get(name); ok && minSeq > 0 && m.Seq >= minSeq {
		return m, nil
	}
	m, err := t.refresh(ctx, name)
	if err == nil && m.Seq < minSeq {
		err = fault.Errorf(fault.Unavailable, "table %q is at transaction %d, not yet at %d", name, m.Seq, minSeq)
	}
	return m, err
}

// DropTable takes a table away with all its partitions. One that does not exist is fine. Errors are Unavailable.
func (t *Tables) DropTable(ctx context.Context, name string) error {
	for {
		row, ok, err := t.deps.Store.Get(ctx, rowPrefix+name)
		if err != nil || !ok {
			return err
		}
		rev, ok, err := t.deps.Store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Delete: true}})
		if err != nil {
			return err
		}
		if ok {
			t.forget(name, rev)
			return nil
		}
	}
}

// Change commits the ops that plan makes of the newest map, as one transaction, and gives the map they lead to. plan is
// called again on a newer map whenever another change was faster, so it must only look at its map; no ops end the
// change with the map as it is. Errors are plan's, Invalid (an op refuses), NotFound, Unavailable (the change may or may
// not be committed: look, then plan anew) or Canceled.
func (t *Tables) Change(ctx context.Context, name string, plan func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error) {
	return t.change(ctx, name, func(m *topology.Map) (*topology.Map, error) {
		ops, err := plan(m)
		if err != nil || len(ops) == 0 {
			return m, err
		}
		return m.Apply(ops...)
	})
}

func (t *Tables) refresh(ctx context.Context, name string) (*topology.Map, error) {
	row, ok, err := t.deps.Store.Get(ctx, rowPrefix+name)
	if err != nil {
		return nil, fault.Annotate(err, "read table %q", name)
	}
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "table %q does not exist", name)
	}
	if err := t.learn(row); err != nil {
		return nil, err
	}
	m, _ := t.Get(name)
	return m, nil
}

// Cover gives a map in which a partition holds each of the times, making partitions as needed.
func (t *Tables) Cover(ctx context.Context, name string, times []point.Nanos) (*topology.Map, error) {
	return t.change(ctx, name, func(m *topology.Map) (*topology.Map, error) {
		return m.Apply(m.Covering(times, func(p point.PartitionID) []topology.Placement {
			var placed []topology.Placement
			for _, s := range t.deps.Place(name, p) {
				placed = append(placed, topology.Placement{ID: point.PlacementID(rand.Uint64()), Server: s})
			}
			return placed
		}))
	})
}

// Drop takes partitions out of the map; servers that hold them then delete them.
func (t *Tables) Drop(ctx context.Context, name string, ids ...point.PartitionID) (*topology.Map, error) {
	return t.change(ctx, name, func(m *topology.Map) (*topology.Map, error) { return m.Drop(ids...), nil })
}

// SetConfig changes a table's configuration.
func (t *Tables) SetConfig(ctx context.Context, name string, c topology.Config) (*topology.Map, error) {
	return t.change(ctx, name, func(m *topology.Map) (*topology.Map, error) {
		return m.WithConfig(c)
	})
}

// change commits op's result by compare-and-swap, on the newest map each time. A lost race means that another change
// was committed, so the loop ends: with every round somebody has moved on.
func (t *Tables) change(ctx context.Context, name string, op func(*topology.Map) (*topology.Map, error)) (*topology.Map, error) {
	for {
		t.mu.RLock()
		m, rev := t.mu.maps[name], t.mu.rows[name]
		t.mu.RUnlock()
		if m == nil {
			return nil, fault.Errorf(fault.NotFound, "table %q does not exist", name)
		}
		next, err := op(m)
		if err != nil || next == m {
			return m, err
		}
		if err := next.Check(); err != nil {
			fault.Bug("I2: an op broke the map of %q: %v", name, err)
		}
		key := rowPrefix + name
		committed, ok, err := t.deps.Store.Commit(ctx, []coord.Condition{{Key: key, Revision: rev}}, []coord.Write{{Key: key, Value: next.Encode()}})
		if err == nil && ok {
			t.put(name, next, committed)
			return next, nil
		}
		if _, rerr := t.refresh(ctx, name); rerr != nil {
			return nil, errors.Join(err, rerr)
		}
		if err != nil {
			return nil, err
		}
	}
}
