package mapstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Coordinator runs transactions: it performs the effects of a Txn. A process that keeps no files has one to make tables
// and to change their lists of servers; Server is one too. All methods are safe for concurrent use.
//
//	caller ─run─▶ drive: one goroutine for a transaction, which alone steps its Txn
//	                │ effects                    ▲ answers
//	                ▼                            │
//	              a goroutine each: the row (coordination store), files (metadata servers), the own disk
//
// The transaction is committed by one write, Swap of the table's row, after a majority of the servers has its file
// durably. A crash of the coordinator before it leaves files that no row names, which other proposals overtake; after
// it, a committed transaction whose caller has no answer.
type Coordinator struct {
	// Constant after NewCoordinator.
	deps     Deps
	settings Settings
	metrics  *metrics
	cache    *cache
	keep     func(ctx context.Context, f *peer.File, m *topology.Map) error // on the own disk; nil: there is none
	shelf    func(table string, txn peer.TxnID) []Link                      // of the own disk
	newest   func(table string) (peer.TxnID, *topology.Map)                 // on the own disk; nil: there is none
	life     context.Context                                                // of work that goes on after the caller was answered
	end      context.CancelFunc

	// Counts transactions. Add comes under mu together with the look at closed, so that none begins once Close waits.
	running sync.WaitGroup

	// mu is held for a few instructions, and never while a server, the store or the disk is asked.
	mu struct {
		sync.Mutex
		rng    *rand.Rand
		stores map[topology.ServerID]*storePlaces
		closed bool

		fetching map[topology.ServerID]chan struct{} // places of fetches under way
	}
}

// NewCoordinator makes a coordinator without a disk. Errors are Invalid.
func NewCoordinator(d Deps, s Settings) (*Coordinator, error) {
	d.Self, d.Disk = "", nil
	return newCoordinator(d, s)
}

func newCoordinator(d Deps, s Settings) (*Coordinator, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{deps: d, settings: s, metrics: newMetrics(d.Registerer), cache: newCache(s.CacheBytes)}
	c.mu.rng, c.mu.stores, c.mu.fetching = d.Rand, map[topology.ServerID]*storePlaces{}, map[topology.ServerID]chan struct{}{}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close ends requests to other servers that are still under way, and waits for them.
func (c *Coordinator) Close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.end()
	c.running.Wait()
}

// NewTxnID draws the name of a transaction.
func (c *Coordinator) NewTxnID() (id peer.TxnID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return NewTxnID(c.mu.rng)
}

// NewTxnID draws the name of a transaction.
func NewTxnID(rng *rand.Rand) (id peer.TxnID) {
	for i := range id {
		id[i] = byte(rng.Uint32())
	}
	return id
}

// Create makes a table with the map's configuration and keeps its files on the servers. Errors are Stale (there is one:
// read it), Unavailable (no majority of the servers, or the store; it may or may not be made), Invalid or Canceled.
func (c *Coordinator) Create(ctx context.Context, m *topology.Map, servers []topology.ServerID) (Done, error) {
	if err := CheckName(m.Table); err != nil {
		return Done{}, err
	}
	if len(servers) == 0 || len(servers) > ServersMax {
		return Done{}, fault.Errorf(fault.Unavailable, "table %q: %d servers to keep its METADATA file on, one to %d are needed", m.Table, len(servers), ServersMax)
	}
	return c.run(ctx, m.Table, NewCreate(c.NewTxnID(), m, servers))
}

// BeginDrop marks a table as being dropped: from then on a change that makes partitions is Stale. One that is marked, or
// dropped, is fine. Errors are those of NewBeginDrop's transaction: NotFound, Unavailable or Canceled.
func (c *Coordinator) BeginDrop(ctx context.Context, table string) (Done, error) {
	return c.run(ctx, table, NewBeginDrop(table))
}

// Drop marks a table as dropped, if at is still its committed transaction. Its partitions should be gone by then. Errors
// are Stale, NotFound, Unavailable or Canceled.
func (c *Coordinator) Drop(ctx context.Context, table string, at peer.TxnID) (Done, error) {
	return c.run(ctx, table, NewDrop(table, at))
}

// RuleOut returns when no change of a table that was proposed before can be committed any more on the transaction that the
// given row names, or on one before it (NewRuleOut). Errors are NotFound, Unavailable or Canceled.
func (c *Coordinator) RuleOut(ctx context.Context, table string) (Done, error) {
	return c.run(ctx, table, NewRuleOut(table))
}

// Join makes s a metadata server of a table: it gets the committed file, then its place in the list (C11). One that is in
// the list is fine. Errors are Unavailable, NotFound, Invalid or Canceled.
func (c *Coordinator) Join(ctx context.Context, table string, s topology.ServerID) error {
	_, err := c.run(ctx, table, NewJoin(table, s))
	return err
}

// Remove removes s from a table's list, once a majority of the others has the committed file (C12). Errors are Unavailable
// (no such majority), Invalid (s is the only one), NotFound or Canceled.
func (c *Coordinator) Remove(ctx context.Context, table string, s topology.ServerID) error {
	_, err := c.run(ctx, table, NewRemove(table, s))
	return err
}

// run runs a transaction until it is done or ctx ends. It goes on without the caller: writes on their way to disks and to
// the store are not undone when the caller leaves.
func (c *Coordinator) run(ctx context.Context, table string, t *Txn) (Done, error) {
	// One slot: the result never waits for a caller that has left.
	result := make(chan Done, 1)
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return Done{}, fault.Errorf(fault.Unavailable, "this metadata server is stopping")
	}
	c.running.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.running.Done()
		began := time.Now()
		c.drive(table, t, func(d Done) {
			c.metrics.seconds.Observe(time.Since(began).Seconds())
			c.metrics.transactions.WithLabelValues(resultName(d.Err, "committed")).Inc()
			result <- d
		})
	}()
	select {
	case d := <-result:
		return d, d.Err
	case <-ctx.Done():
		return Done{}, fault.Annotate(ctx.Err(), "table %q: it may or may not be committed", table)
	}
}

func resultName(err error, ok string) string {
	if err == nil {
		return ok
	}
	return fault.KindOf(err).String()
}

// drive feeds a transaction with answers until it is done and nothing is under way any more.
// The caller is answered at Done; drive goes on until every question that it asked has come back, so a late answer is
// never sent to a channel without a reader. Expired is an input once: the machine then gives up, with the error that
// says how much is known of the outcome.
func (c *Coordinator) drive(table string, t *Txn, done func(Done)) {
	ctx, cancel := limited(c.life, c.settings.ChangeTimeout)
	defer cancel()
	// under counts the questions without an answer. Only this goroutine changes it, so a question's goroutine always
	// finds a reader.
	answers := make(chan Input) // every sender waits until its answer is read, so that none is lost
	under, ended := 0, false
	ask := func(f func() Input) {
		under++
		go func() { answers <- f() }()
	}
	expired := ctx.Done()
	var in Input = Begin{}
	var effects []Effect
	for {
		effects = t.Step(in, effects[:0])
		for _, e := range effects {
			switch e := e.(type) {
			case Alarm:
				c.metrics.alarms.Inc()
				c.deps.Log.Error("METADATA alarm", "table", e.Table, "server", e.Server, "alarm", e.Text)
			case Done:
				ended = true
				done(e)
			default:
				ask(func() Input { return c.perform(ctx, table, e) })
			}
		}
		if ended && under == 0 {
			return
		}
		select {
		case in = <-answers:
			under--
		case <-expired:
			in, expired = Expired{}, nil
		}
	}
}

func (c *Coordinator) perform(ctx context.Context, table string, e Effect) Input {
	switch e := e.(type) {
	case ReadRow:
		// 40 ms after the first failure, doubled up to 1.28 s, each more or less by a half: coordinators that collided
		// must not meet again at once.
		if e.Failed > 0 {
			c.pause(ctx, 20*time.Millisecond<<min(e.Failed, 6))
		}
		limit, cancel := limited(ctx, c.settings.StoreTimeout)
		defer cancel()
		row, ok, err := c.deps.Store.Get(limit, Key(table))
		return RowRead{Row: row, OK: ok, Err: err}
	case Load:
		f, m, err := c.load(ctx, Wanted{Table: e.Table, Txn: e.Txn, Seq: e.Seq, Servers: e.Servers})
		return Loaded{File: f, Map: m, Err: err}
	case Store:
		return Stored{Round: e.Round, Server: e.Server, Err: c.store(ctx, e)}
	// An error leaves it open whether the store has the write: the machine reads the row again to find out.
	case Swap:
		limit, cancel := limited(ctx, c.settings.StoreTimeout)
		defer cancel()
		rev, ok, err := c.deps.Store.Commit(limit, e.Conditions, e.Writes)
		return Swapped{OK: ok, Revision: rev, Err: err}
	case ReadGuards:
		rows, err := c.readRows(ctx, e.Keys)
		return GuardsRead{Round: e.Round, Rows: rows, Err: err}
	case MarkRows:
		limit, cancel := limited(ctx, c.settings.StoreTimeout)
		defer cancel()
		_, ok, err := c.deps.Store.Commit(limit, e.Conditions, e.Writes)
		return RowsMarked{Round: e.Round, OK: ok, Err: err}
	case Look:
		return History{Links: c.look(ctx, e)}
	}
	fault.Bug("no effect %T", e)
	return nil
}

// readsMax bounds the rows read at a time.
const readsMax = 16

// readRows reads rows one by one; absent rows are missing in the result.
func (c *Coordinator) readRows(ctx context.Context, keys []string) (map[string]coord.Row, error) {
	ctx, cancel := limited(ctx, c.settings.StoreTimeout)
	defer cancel()
	read := make([]coord.Row, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsMax)
	for i, key := range keys {
		g.Go(func() (err error) {
			read[i], _, err = c.deps.Store.Get(ctx, key)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	rows := make(map[string]coord.Row, len(keys))
	for _, row := range read {
		// Rows that are there have a revision of at least 1.
		if row.Revision != 0 {
			rows[row.Key] = row
		}
	}
	return rows, nil
}

// pause waits for d, more or less by a half, unless ctx ends.
func (c *Coordinator) pause(ctx context.Context, d time.Duration) {
	c.mu.Lock()
	d = d/2 + time.Duration(c.mu.rng.Int64N(int64(d)))
	c.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// store asks a server to keep a file.
func (c *Coordinator) store(ctx context.Context, e Store) error {
	if c.keep != nil && e.Server == c.deps.Self {
		return c.keep(ctx, e.Whole, e.Map)
	}
	p, ok := c.deps.Peers(e.Server)
	if !ok {
		return fault.Errorf(fault.Unavailable, "%s is not known or not connected", e.Server)
	}
	leave, err := c.enter(ctx, e.Server)
	if err != nil {
		return err
	}
	defer leave()
	limit, cancel := limited(ctx, c.settings.PeerTimeout)
	defer cancel()
	return p.Store(limit, e.File)
}

// storePlaces are the places of one server.
type storePlaces struct {
	places  chan struct{} // a value for each file on its way
	waiting int           // files for which there is no place yet; guarded by Coordinator.mu
}

// enter waits for a place at a server, until ctx ends; leave gives it back. Two hundred tenants that write their first rows at once make
// two hundred tables: their files wait here, where their writers would be refused. A server that has hung keeps its places for PeerTimeout
// at a time: a majority commits without it, and the files that wait for it, mostly as ops, do so until their transaction's time is over and
// are bounded. Errors are Unavailable: as many wait already, or this one waited until then.
func (c *Coordinator) enter(ctx context.Context, s topology.ServerID) (leave func(), err error) {
	c.mu.Lock()
	p := c.mu.stores[s]
	if p == nil {
		p = &storePlaces{places: make(chan struct{}, c.settings.PeerQueueMax)}
		c.mu.stores[s] = p
	}
	if p.waiting >= c.settings.PeerWaitingMax {
		c.mu.Unlock()
		return nil, fault.Errorf(fault.Unavailable, "%s has not taken %d files yet", s, c.settings.PeerWaitingMax)
	}
	p.waiting++
	c.mu.Unlock()
	select {
	case p.places <- struct{}{}:
	case <-ctx.Done():
		err = fault.Wrap(ctx.Err(), fault.Unavailable, "%s had no place for a file until the time of its transaction was over", s)
	}
	c.mu.Lock()
	p.waiting--
	c.mu.Unlock()
	return func() { <-p.places }, err
}

// load finds a file: in memory, on the own disk, else at the servers. The results are shared.
func (c *Coordinator) load(ctx context.Context, w Wanted) (*peer.File, *topology.Map, error) {
	if f, m, err := c.own(w.Table, w.Txn); err == nil {
		return f, m, nil
	}
	w.Servers = slices.DeleteFunc(slices.Clone(w.Servers), func(s topology.ServerID) bool { return s == c.deps.Self && c.deps.Disk != nil })
	if c.newest != nil {
		w.Since, w.Have = c.newest(w.Table)
	}
	return c.Fetch(ctx, w)
}

// own gives a file that is in memory or on the own disk, without its encoded map. The results are shared.
func (c *Coordinator) own(table string, txn peer.TxnID) (*peer.File, *topology.Map, error) {
	if f, m, ok := c.cache.get(table, txn); ok {
		return f, m, nil
	}
	if c.deps.Disk == nil {
		return nil, nil, fault.Errorf(fault.NotFound, "this process keeps no METADATA files")
	}
	f, m, err := c.deps.Disk.Get(table, txn)
	if err != nil {
		return nil, nil, err
	}
	c.cache.put(f, m)
	return headOf(f, m), m, nil
}

// look returns the remembered steps to a transaction and those before it, until it comes upon the sought one.
func (c *Coordinator) look(ctx context.Context, e Look) []Link {
	var links []Link
	for txn := e.Txn; txn != (peer.TxnID{}) && len(links) < lookMax; txn = links[len(links)-1].Base {
		var next []Link
		if c.shelf != nil {
			next = c.shelf(e.Table, txn)
		}
		if len(next) == 0 {
			l, err := c.link(ctx, e.Table, txn, e.Servers)
			if err != nil {
				c.deps.Log.Debug("the history of a table ends early", "table", e.Table, "error", err)
				return links
			}
			next = []Link{l}
		}
		links = append(links, next...)
		if slices.ContainsFunc(next, func(l Link) bool { return l.Txn == e.Sought || l.Base == e.Base }) {
			break
		}
	}
	return links
}

// lookMax bounds how far back look goes: beyond it, the caller has to look at the newest map anyway.
const lookMax = 256
