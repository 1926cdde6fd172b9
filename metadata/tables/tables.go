package tables

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/pace"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Tables holds the newest maps. All methods are safe for concurrent use.
type Tables struct {
	// Constant after Open.
	deps     Deps
	settings Settings
	creator  *mapstore.Coordinator
	pace     *pace.Bucket // of tables made for writers

	save chan struct{} // wakes Run: a table is to be written to the cache
	life context.Context
	end  context.CancelFunc

	fetching sync.WaitGroup

	mu struct {
		sync.RWMutex
		tables  map[string]*table
		changed chan struct{} // closed and replaced at every change
		queues  map[string]*queue
		unsaved map[string]bool // to be written to the cache, or forgotten there
		closed  bool
		proven  time.Time // the newest request for all rows that was answered; zero: none was in this life
	}

	random struct {
		sync.Mutex
		rng *rand.Rand
	}
}

// table is one table's machine, and the callers that wait for it to settle.
type table struct {
	Machine
	settled []chan<- error
}

// Open reads all tables. Where the store does not answer, or a table's file cannot be had, the cached map is served
// until Run gets the newest; without a cache the store's error is returned. Call Run to follow changes that other processes make.
func Open(ctx context.Context, d Deps, s Settings) (*Tables, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Metadata == nil {
		return nil, fault.Errorf(fault.Invalid, "tables need a way to reach metadata servers")
	}
	if d.Rand == nil {
		d.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	t := &Tables{deps: d, settings: s, save: make(chan struct{}, 1), pace: pace.New(float64(s.NewPerSecond), NewBurst)}
	t.life, t.end = context.WithCancel(context.Background())
	t.mu.tables, t.mu.queues, t.mu.unsaved = map[string]*table{}, map[string]*queue{}, map[string]bool{}
	t.mu.changed = make(chan struct{})
	t.random.rng = d.Rand
	var err error
	if t.creator, err = mapstore.NewCoordinator(mapstore.Deps{Store: d.Store, Peers: d.Metadata, Log: d.Log, First: d.Own,
		Rand: rand.New(rand.NewPCG(d.Rand.Uint64(), d.Rand.Uint64()))}, mapstore.Settings{}); err != nil {
		return nil, err
	}
	cached := t.loadCache()
	asked := time.Now()
	rows, rev, err := d.Store.List(ctx, mapstore.Prefix)
	switch {
	case err == nil:
	case cached > 0:
		d.Log.Warn("the tables cannot be read; going on with the cached ones", "tables", cached, "error", err)
		return t, nil
	default:
		return nil, fault.Annotate(err, "read the tables")
	}
	t.prove(asked, t.listed(rows, rev))
	t.settle(ctx)
	return t, nil
}

// New returns the settings of tables that are made without their own.
func (t *Tables) New() topology.Config { return t.settings.New }

// openMax bounds how long Open waits for maps. Those that did not come until then come later.
const openMax = 5 * time.Second

// settle waits for the newest map of each table, or until it is clear that it cannot be had now.
func (t *Tables) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, openMax)
	defer cancel()
	t.mu.RLock()
	names := slices.Sorted(maps.Keys(t.mu.tables))
	t.mu.RUnlock()
	for _, name := range names { // all are being fetched at the same time
		if err := t.fetched(ctx, name); err != nil {
			t.deps.Log.Warn("a table's newest map cannot be fetched; the known one, if any, stays in use", "table", name, "error", err)
		}
	}
}

// Close ends background work. Call it after Run has returned.
func (t *Tables) Close() {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.end()
	t.fetching.Wait()
	t.creator.Close()
}

// Get returns the newest map of a table that is here.
func (t *Tables) Get(name string) (*topology.Map, bool) {
	m, _, ok := t.At(name)
	return m, ok
}

// At returns the newest map of a table that is here, and the revision of the row that named it: a caller compares the row in a
// write to the store that is true only by this map (a lease row's birth, package lease). A failed comparison means that this process
// has not received the newest row yet.
func (t *Tables) At(name string) (m *topology.Map, row coord.Revision, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil {
		m, row = v.At()
	}
	return m, row, m != nil
}

// Replicas is how many placements a new partition of a table has by its newest map here; 1: there is none.
func (t *Tables) Replicas(name string) int {
	if m, ok := t.Get(name); ok {
		return m.Config.Replicas
	}
	return 1
}

// Dropped reports whether a table was dropped, and at which sequence number: absence alone does not show it.
func (t *Tables) Dropped(name string) (seq uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil && v.Row().Dropped {
		return v.Row().Seq, true
	}
	return 0, false
}

// Life returns the newest map of a table that is here, nil if there is none, and the sequence number below which maps are of tables of that
// name that were dropped; 0: unknown.
func (t *Tables) Life(name string) (m *topology.Map, begun uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.mu.tables[name]
	if v == nil {
		return nil, 0
	}
	m, _ = v.At()
	row := v.Row()
	if row.Dropped {
		return m, row.Seq + 1
	}
	return m, row.Begun
}

// Dropping reports whether a table is being dropped: nothing is written to it until that has ended.
func (t *Tables) Dropping(name string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.mu.tables[name]
	return v != nil && v.Dropping()
}

// Changed gives a channel that is closed at the next change of any table: take it first, then look.
func (t *Tables) Changed() <-chan struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.changed
}

// Names lists the tables: sorted, and those whose names begin with an underscore last, since they are about the process and not of its
// users.
func (t *Tables) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	names := make([]string, 0, len(t.mu.tables))
	for name, v := range t.mu.tables {
		if m, _ := v.At(); m != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		own, other := strings.HasPrefix(a, "_"), strings.HasPrefix(b, "_")
		switch {
		case own == other:
			return strings.Compare(a, b)
		case own:
			return 1
		}
		return -1
	})
	return names
}

// Refresh returns a table's map at seq minSeq or newer: the one here if it is new enough, else the one in the store; 0 asks
// the store in any case. Callers use it after a Stale answer. Errors are NotFound, Unavailable (the store or
// the metadata servers do not answer, or have none that new) or Canceled.
func (t *Tables) Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error) {
	if m, ok := t.Get(name); ok && minSeq > 0 && m.Seq >= minSeq {
		return m, nil
	}
	row, ok, err := t.deps.Store.Get(ctx, mapstore.Key(name))
	if err != nil {
		return nil, fault.Annotate(err, "read table %q", name)
	}
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "table %q does not exist", name)
	}
	if err := t.learn(row); err != nil {
		return nil, err
	}
	if err := t.fetched(ctx, name); err != nil {
		return nil, err
	}
	m, ok := t.Get(name)
	switch {
	case !ok:
		return nil, fault.Errorf(fault.NotFound, "table %q was dropped", name)
	case m.Seq < minSeq:
		return nil, fault.Errorf(fault.Unavailable, "table %q is at transaction %d, not yet at %d", name, m.Seq, minSeq)
	}
	return m, nil
}

// learn takes a row in; its map is fetched then, unless it is here.
func (t *Tables) learn(row coord.Row) error {
	r, err := mapstore.DecodeRow(row)
	if err != nil {
		return err
	}
	t.learnRow(mapstore.TableOf(row.Key), r, row.Revision)
	return nil
}

func (t *Tables) learnRow(name string, r mapstore.Row, rev coord.Revision) {
	t.step(name, RowRead{r, rev})
}

// listed takes in all rows of a list as of a revision: a table missing from it does not exist. This build never deletes rows of tables,
// but people may. It returns the tables with unreadable rows.
func (t *Tables) listed(rows []coord.Row, rev coord.Revision) (unread []string) {
	seen := map[string]bool{}
	for _, row := range rows {
		name := mapstore.TableOf(row.Key)
		seen[name] = true
		if t.hasRow(name, row.Revision) {
			continue
		}
		if err := t.learn(row); err != nil {
			t.deps.Log.Error("a table's row cannot be read; the newest map that is known of it stays in use, if there is one", "table", name, "error", err)
			unread = append(unread, name)
		}
	}
	t.mu.RLock()
	names := slices.Collect(maps.Keys(t.mu.tables))
	t.mu.RUnlock()
	for _, name := range names {
		if !seen[name] {
			t.step(name, RowGone{rev})
		}
	}
	return unread
}

// fetched waits until the map of the newest row is here, or cannot be had.
func (t *Tables) fetched(ctx context.Context, name string) error {
	settled := make(chan error, 1)
	t.mu.Lock()
	v := t.mu.tables[name]
	if v == nil {
		t.mu.Unlock()
		return nil
	}
	v.settled = append(v.settled, settled)
	t.stepLocked(name, v, Wanted{})
	t.mu.Unlock()
	select {
	case err := <-settled:
		return err
	case <-ctx.Done():
		return fault.Annotate(ctx.Err(), "the newest map of table %q", name)
	}
}

// have returns the newest map of a table here, and its transaction; nil: there is none.
func (t *Tables) have(name string) (peer.TxnID, *topology.Map) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil {
		if m, _ := v.At(); m != nil {
			return v.Row().Txn, m
		}
	}
	return peer.TxnID{}, nil
}

func (t *Tables) fetchFrom(ctx context.Context, name string, want mapstore.Row, since peer.TxnID, have *topology.Map) (*topology.Map, error) {
	_, m, err := t.creator.Fetch(ctx, mapstore.Wanted{Table: name, Txn: want.Txn, Seq: want.Seq, Servers: want.Servers, Since: since, Have: have})
	return m, fault.Annotate(err, "the map of transaction %d of table %q", want.Seq, name)
}

// order is the servers as they are asked: the own one first, the others as it comes.
func (t *Tables) order(servers []topology.ServerID) []topology.ServerID {
	servers = slices.Clone(servers)
	t.random.Lock()
	t.random.rng.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	t.random.Unlock()
	if i := slices.Index(servers, t.deps.Own); i > 0 {
		servers[0], servers[i] = servers[i], servers[0]
	}
	return servers
}

// loadCache takes in the maps that an earlier process cached, and returns the number of tables.
func (t *Tables) loadCache() int {
	if t.deps.Cache == nil {
		return 0
	}
	cached, err := t.deps.Cache.Load()
	if err != nil {
		t.deps.Log.Warn("the cache of maps cannot be read", "error", err)
	}
	for _, c := range cached {
		row, err := mapstore.DecodeRow(coord.Row{Key: mapstore.Key(c.Table), Value: c.Row})
		if err != nil {
			t.deps.Log.Warn("a cached map is left out", "table", c.Table, "error", err)
			continue
		}
		m, err := topology.Decode(c.Map)
		if err != nil || m.Table != c.Table || m.Seq != row.Seq {
			t.deps.Log.Warn("a cached map is left out", "table", c.Table, "error", err)
			continue
		}
		t.step(c.Table, FromCache{m, row, c.At})
	}
	return len(t.mu.tables)
}

// saveCache gives changed tables to the cache.
func (t *Tables) saveCache(now time.Time) {
	t.mu.Lock()
	unsaved := slices.Collect(maps.Keys(t.mu.unsaved))
	clear(t.mu.unsaved)
	t.mu.Unlock()
	for _, name := range unsaved {
		t.mu.RLock()
		v := t.mu.tables[name]
		var m *topology.Map
		var row mapstore.Row
		if v != nil {
			m, _ = v.At()
			row = v.Row()
		}
		t.mu.RUnlock()
		var err error
		if m == nil {
			err = t.deps.Cache.Forget(name)
		} else {
			err = t.deps.Cache.Save(Cached{Table: name, Row: row.Encode(), Map: m.Encode(), At: now})
		}
		if err != nil {
			t.deps.Log.Warn("a map could not be cached", "table", name, "error", err)
		}
	}
}
