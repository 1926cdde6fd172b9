package tables

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/pace"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Tables knows the newest maps. All methods are safe for concurrent use.
type Tables struct {
	// Constant after Open.
	deps     Deps
	settings Settings
	creator  *files.Coordinator
	fetches  singleflight.Group
	pace     *pace.Bucket // of tables made for writers

	wanted chan struct{} // wakes Run: a row names a transaction whose map is not known
	save   chan struct{} // wakes Run: a map changed that the cache should have

	mu struct {
		sync.RWMutex
		tables  map[string]*table
		changed chan struct{} // closed and replaced at every change
		queues  map[string]*queue
		unsaved map[string]bool
		since   time.Time // when what is known was last known to be the newest; zero: it is now
	}

	random struct {
		sync.Mutex
		rng *rand.Rand
	}
}

// table is what is known of one. A table that was dropped has no map.
//
// Invariant: seq never goes down.
type table struct {
	m    *topology.Map
	row  files.Row      // as of m
	rev  coord.Revision // of the newest row that named m; 0: only a cache did
	want files.Row      // the newest row
	at   coord.Revision // of want

	lacking time.Time // when a row first named a newer map than m
}

// Open reads all tables. Where the store does not answer, or a table's file cannot be had, what the cache has is served
// until Run gets it; without a cache the store's error is returned. Call Run to follow changes that others make.
func Open(ctx context.Context, d Deps, s Settings) (*Tables, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Metadata == nil {
		return nil, fault.Errorf(fault.Invalid, "tables need a way to reach metadata servers")
	}
	if d.Rand == nil {
		d.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	t := &Tables{deps: d, settings: s, wanted: make(chan struct{}, 1), save: make(chan struct{}, 1),
		pace: pace.New(float64(s.NewPerSecond), NewBurst)}
	t.mu.tables, t.mu.queues, t.mu.unsaved = map[string]*table{}, map[string]*queue{}, map[string]bool{}
	t.mu.changed = make(chan struct{})
	t.random.rng = d.Rand
	var err error
	if t.creator, err = files.NewCoordinator(files.Deps{Store: d.Store, Peers: d.Metadata, Log: d.Log, First: d.Own,
		Rand: rand.New(rand.NewPCG(d.Rand.Uint64(), d.Rand.Uint64()))}, files.Settings{}); err != nil {
		return nil, err
	}
	cached := t.loadCache()
	rows, _, err := d.Store.List(ctx, files.Prefix)
	switch {
	case err == nil:
	case cached > 0:
		d.Log.Warn("the tables cannot be read; going on with the cached ones", "tables", cached, "error", err)
		return t, nil
	default:
		return nil, fault.Annotate(err, "read the tables")
	}
	t.listed(rows)
	t.fetchWanted(ctx)
	return t, nil
}

// Close ends what goes on behind a table that was made. Call it after Run has returned.
func (t *Tables) Close() { t.creator.Close() }

// Get gives a table's newest known map.
func (t *Tables) Get(name string) (*topology.Map, bool) {
	m, _, ok := t.At(name)
	return m, ok
}

// At gives a table's newest known map and the revision of the row that named it: whoever writes to the store what is true
// only by this map compares the row (a lease row's birth, package lease). A comparison that fails says that this process
// has not heard of the newest row yet.
func (t *Tables) At(name string) (m *topology.Map, row coord.Revision, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil && v.m != nil {
		return v.m, v.rev, true
	}
	return nil, 0, false
}

// Dropped reports whether a table was dropped, and at which sequence number: absence alone does not say so.
func (t *Tables) Dropped(name string) (seq uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil && v.row.Dropped {
		return v.row.Seq, true
	}
	return 0, false
}

// Dropping reports whether a table is being dropped: nothing is written to it until that has ended.
func (t *Tables) Dropping(name string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.mu.tables[name]
	return v != nil && v.dropping()
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
	names := make([]string, 0, len(t.mu.tables))
	for name, v := range t.mu.tables {
		if v.m != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Since tells how old the picture may be: the zero time while the store is followed and every map is here, else when that
// ended, or when the cache was written.
func (t *Tables) Since() time.Time {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.since
}

// Refresh gives a table's map at seq minSeq or newer: the known one if it is new enough, else what the store has; 0 asks
// the store in any case. It is what to do about an answer that is Stale. Errors are NotFound, Unavailable (the store or
// the metadata servers do not answer, or have nothing that new) or Canceled.
func (t *Tables) Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error) {
	if m, ok := t.Get(name); ok && minSeq > 0 && m.Seq >= minSeq {
		return m, nil
	}
	row, ok, err := t.deps.Store.Get(ctx, files.Key(name))
	if err != nil {
		return nil, fault.Annotate(err, "read table %q", name)
	}
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "table %q does not exist", name)
	}
	if err := t.learn(row); err != nil {
		return nil, err
	}
	if err := t.fetch(ctx, name); err != nil {
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

// learn takes a row in; its map is wanted then, unless it is known.
func (t *Tables) learn(row coord.Row) error {
	r, err := files.DecodeRow(row)
	if err != nil {
		return err
	}
	t.learnRow(files.TableOf(row.Key), r, row.Revision)
	return nil
}

func (t *Tables) learnRow(name string, r files.Row, rev coord.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.mu.tables[name]
	if v == nil {
		v = &table{}
		t.mu.tables[name] = v
	}
	if rev <= v.at {
		return
	}
	if !v.lacks() {
		v.lacking = time.Now()
	}
	v.want, v.at = r, rev
	switch {
	case r.Dropped && r.Seq >= v.row.Seq:
		v.m, v.row, v.rev = nil, r, rev
		t.announceLocked(name)
	case v.m != nil && r.Txn == v.row.Txn:
		v.row, v.rev = r, rev
		t.announceLocked(name)
	case r.Seq > v.row.Seq || v.m == nil:
		wake(t.wanted)
	}
}

// publish takes a map in unless a newer one is known. rev is 0 where only the transaction is known.
func (t *Tables) publish(m *topology.Map, row files.Row, rev coord.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.mu.tables[m.Table]
	if v == nil {
		v = &table{}
		t.mu.tables[m.Table] = v
	}
	if row.Seq < v.row.Seq || row.Seq == v.row.Seq && v.m != nil || v.row.Dropped && row.Seq == v.row.Seq {
		return
	}
	if row.Txn == v.want.Txn {
		row, rev = v.want, v.at
	}
	row.Round = max(row.Round, v.row.Round, v.want.Round)
	if row.Servers == nil {
		row.Servers, row.Dropping = v.row.Servers, v.dropping()
		if v.at > v.rev { // the newest row is of a transaction in between, and its list is the newer one
			row.Servers = v.want.Servers
		}
	}
	v.m, v.row, v.rev = m, row, max(rev, v.rev)
	t.announceLocked(m.Table)
}

func (t *Tables) announceLocked(name string) {
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
	if t.deps.Cache != nil {
		t.mu.unsaved[name] = true
		wake(t.save)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// listed takes all rows in: a table that is not among them is none. Rows of tables are never deleted by this build, but by
// people.
func (t *Tables) listed(rows []coord.Row) {
	seen := map[string]bool{}
	var newest coord.Revision
	for _, row := range rows {
		seen[files.TableOf(row.Key)] = true
		newest = max(newest, row.Revision)
		if err := t.learn(row); err != nil {
			t.deps.Log.Error("a table cannot be read; it is served as it was known, if it was", "table", files.TableOf(row.Key), "error", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, v := range t.mu.tables {
		if !seen[name] && v.at <= newest { // one that is newer than the list was made meanwhile
			t.forgetLocked(name)
		}
	}
}

func (t *Tables) forgetLocked(name string) {
	delete(t.mu.tables, name)
	t.announceLocked(name)
}

// fetchMax bounds the maps that are fetched at a time.
const fetchMax = 8

// fetchWanted fetches the maps that rows name and that are not known. It reports whether it got them all.
func (t *Tables) fetchWanted(ctx context.Context) bool {
	t.mu.RLock()
	var names []string
	for name, v := range t.mu.tables {
		if v.lacks() {
			names = append(names, name)
		}
	}
	t.mu.RUnlock()
	var g errgroup.Group
	g.SetLimit(fetchMax)
	for _, name := range names {
		g.Go(func() error {
			err := t.fetch(ctx, name)
			if err != nil && ctx.Err() == nil {
				t.deps.Log.Warn("a table's newest map cannot be had; going on with the one that is known, if any", "table", name, "error", err)
			}
			return err
		})
	}
	return g.Wait() == nil
}

// dropping reports whether the newest row says that the table is being dropped.
func (v *table) dropping() bool {
	if v.at > v.rev {
		return v.want.Dropping
	}
	return v.row.Dropping
}

// lacks reports whether the newest row names a map that is not here.
func (v *table) lacks() bool {
	return v.at > 0 && !v.want.Dropped && (v.m == nil || v.want.Seq > v.row.Seq)
}

// fetch gets the map that the newest known row of a table names, unless it is known. Whoever asks at the same time waits
// for the same answer.
func (t *Tables) fetch(ctx context.Context, name string) error {
	t.mu.RLock()
	v := t.mu.tables[name]
	if v == nil || !v.lacks() {
		t.mu.RUnlock()
		return nil
	}
	want, at := v.want, v.at
	var since peer.TxnID
	have := v.m
	if have != nil {
		since = v.row.Txn
	}
	t.mu.RUnlock()
	result := t.fetches.DoChan(name+string(want.Txn[:]), func() (any, error) {
		m, err := t.fetchFrom(context.WithoutCancel(ctx), name, want, since, have)
		if err != nil {
			return nil, err
		}
		t.publish(m, want, at)
		return nil, nil
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// have gives the newest known map of a table, and its transaction; nil: none is known.
func (t *Tables) have(name string) (peer.TxnID, *topology.Map) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil && v.m != nil {
		return v.row.Txn, v.m
	}
	return peer.TxnID{}, nil
}

func (t *Tables) fetchFrom(ctx context.Context, name string, want files.Row, since peer.TxnID, have *topology.Map) (*topology.Map, error) {
	_, m, err := t.creator.Fetch(ctx, files.Wanted{Table: name, Txn: want.Txn, Seq: want.Seq, Servers: want.Servers, Since: since, Have: have})
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

// loadCache takes in what was known in an earlier life, and says of how many tables.
func (t *Tables) loadCache() int {
	if t.deps.Cache == nil {
		return 0
	}
	cached, err := t.deps.Cache.Load()
	if err != nil {
		t.deps.Log.Warn("the cache of maps cannot be read", "error", err)
	}
	for _, c := range cached {
		row, err := files.DecodeRow(coord.Row{Key: files.Key(c.Table), Value: c.Row})
		if err != nil {
			t.deps.Log.Warn("a cached map is left out", "table", c.Table, "error", err)
			continue
		}
		m, err := topology.Decode(c.Map)
		if err != nil || m.Table != c.Table || m.Seq != row.Seq {
			t.deps.Log.Warn("a cached map is left out", "table", c.Table, "error", err)
			continue
		}
		t.mu.tables[c.Table] = &table{m: m, row: row, want: row}
		if t.mu.since.IsZero() || c.At.Before(t.mu.since) {
			t.mu.since = c.At
		}
	}
	return len(t.mu.tables)
}

// saveCache gives the cache what changed.
func (t *Tables) saveCache(now time.Time) {
	t.mu.Lock()
	unsaved := slices.Collect(maps.Keys(t.mu.unsaved))
	clear(t.mu.unsaved)
	t.mu.Unlock()
	for _, name := range unsaved {
		t.mu.RLock()
		v := t.mu.tables[name]
		var m *topology.Map
		var row files.Row
		if v != nil {
			m, row = v.m, v.row
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
