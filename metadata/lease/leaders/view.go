package leaders

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Deps are the dependencies of a View.
type Deps struct {
	Store      coord.Store
	Log        *slog.Logger
	Rand       *rand.Rand            // belongs to the view from then on
	Registerer prometheus.Registerer // nil: metrics are counted but not registered
	Clock      *clock.Servers        // learns of the servers' clocks, and is judged while the view runs; nil: none is
}

// Settings are numbers a user sets.
type Settings struct {
	// TakeAfter is how long a heartbeat may be seen unchanged before its server counts as dead; the cluster's own
	// (lease.Settings). Default 4 s.
	TakeAfter time.Duration
}

// View is this process's view of the leaders. All methods are safe for concurrent use.
type View struct {
	// Constant after Open.
	store coord.Store
	log   *slog.Logger
	rng   *rand.Rand // owned by Run's follower
	pause *rand.Rand // owned by Run's probe
	clock *clock.Servers

	mu struct {
		sync.RWMutex
		board   *board
		changed chan struct{}  // closed and replaced at every change
		seen    coord.Revision // the watch has brought all changes up to there
		later   chan struct{}  // closed when seen rises; nil: no caller waits
	}
}

// Open reads the existing rows. Call Run to follow changes. Errors are the store's; a caller that can do without a store
// passes one that answers from a cache.
func Open(ctx context.Context, d Deps, s Settings) (*View, error) {
	if s.TakeAfter == 0 {
		s.TakeAfter = 4 * time.Second
	}
	v := &View{store: d.Store, log: d.Log, clock: d.Clock, rng: d.Rand, pause: rand.New(rand.NewPCG(d.Rand.Uint64(), d.Rand.Uint64()))}
	v.mu.board, v.mu.changed = newBoard(s.TakeAfter), make(chan struct{})
	rows, rev, err := d.Store.List(ctx, lease.Prefix)
	if err != nil {
		return nil, fault.Annotate(err, "read the leaders")
	}
	newMetrics(d.Registerer, v)
	return v, follower{v}.Listed(rows, rev)
}

// Run follows the store until ctx ends.
func (v *View) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return coord.Follow(ctx, v.store, lease.Prefix, follower{v}, v.log, v.rng) })
	g.Go(func() error { return v.probe(ctx) })
	if v.clock != nil {
		g.Go(func() error { return v.judgeClock(ctx) })
	}
	return g.Wait()
}

// Find returns the server to ask for a partition of a table. If no server ever led it, that is a guess among its placements,
// and each try (from 0) may return another. Errors are Unavailable and say why there is no leader.
func (v *View) Find(table string, p *topology.Partition, try int) (Lead, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.find(table, p, try)
}

// NeverLed reports whether no server ever led a partition, by the rows seen so far: then it has no rows. This view may be as old as Age.
func (v *View) NeverLed(p lease.Partition) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.neverLed(p)
}

// HadNoRows reports whether a partition has a lease row, and no row of it was acked, by the lease rows seen so far. This view may be as old as Age.
func (v *View) HadNoRows(p lease.Partition) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	return ok && r.empty()
}

// HasNoRows is HadNoRows for callers that do without the leader's word: no transaction of the table's map newer than seq changed the partition, and its leader was seen to
// renew its heartbeat since this view listed all rows. In a coordination store that was restored from a backup the lease rows of dead servers are those of then, and a view that
// ran before lists them anew.
func (v *View) HasNoRows(p lease.Partition, seq uint64) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	if !ok || !r.empty() || r.lease.Seq > seq {
		return false
	}
	hb := v.mu.board.beats[r.lease.Holder]
	return hb.renewed && hb.boot == r.lease.Boot
}

// catchUpMax bounds CaughtUp: a heartbeat comes through the watch about once a second.
const catchUpMax = 1500 * time.Millisecond

// CaughtUp returns when this view has all rows that were in the store when it was called. A watch alone proves nothing: its changes may be on their way.
// It asks the store for its revision; mostly the view has that already, else the next heartbeat shows that it has. Errors are Unavailable (the store
// does not answer, or the watch is late) and Canceled.
func (v *View) CaughtUp(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, catchUpMax)
	defer cancel()
	_, now, err := v.store.List(limit, "nothing/")
	if err != nil {
		return fault.Annotate(err, "whether the view of the leaders is the newest")
	}
	for {
		v.mu.Lock()
		seen := v.mu.seen
		if seen < now && v.mu.later == nil {
			v.mu.later = make(chan struct{})
		}
		later := v.mu.later
		v.mu.Unlock()
		if seen >= now {
			return nil
		}
		select {
		case <-later:
		case <-limit.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fault.Errorf(fault.Unavailable, "the watch of the leaders is at revision %d, the coordination store at %d", seen, now)
		}
	}
}

// saw records that the watch has brought all changes up to a revision.
func (v *View) saw(rev coord.Revision) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if rev <= v.mu.seen {
		return
	}
	v.mu.seen = rev
	if v.mu.later != nil {
		close(v.mu.later)
		v.mu.later = nil
	}
}

// Leader returns the server that holds a partition's lease row; false when none does.
func (v *View) Leader(p lease.Partition) (topology.ServerID, point.Epoch, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	if !ok || r.err != nil || r.lease.State != lease.Held || r.lease.Offline != nil {
		return "", 0, false
	}
	return r.lease.Holder, r.lease.Epoch, true
}

// Holders returns the servers that hold leases of other partitions of p's table for which may is true, each once, in no order. The rows are those of one moment, at which
// p was held by a server under an epoch, so after it acquired p. known is false if this view does not show that p is, or cannot tell who holds a partition: its row cannot be read, or
// was deleted.
func (v *View) Holders(p lease.Partition, by topology.ServerID, epoch point.Epoch, may func(point.PartitionID) bool) (servers []topology.ServerID, known bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.holders(p, by, epoch, may)
}

// Lease returns a partition's row; for pages and people.
func (v *View) Lease(p lease.Partition) (lease.Lease, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	return r.lease, ok && r.err == nil
}

// InSync returns the servers that a partition's row lists in sync; none if there are not several, no row of the partition was acked yet (then they
// have no copy, and its leader answers), there is no lease row, or it was
// made offline by hand.
func (v *View) InSync(p lease.Partition) []topology.ServerID {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	if !ok || r.err != nil || r.lease.Offline != nil || r.lease.Empty || len(r.lease.InSync) < 2 {
		return nil // also where the leader alone has the rows: nothing is allocated
	}
	servers := make([]topology.ServerID, len(r.lease.InSync))
	for i, m := range r.lease.InSync {
		servers[i] = m.Server
	}
	return servers
}

// Live reports whether a server's heartbeat was seen to change lately. While the store is away nothing grows older.
func (v *View) Live(s topology.ServerID) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.live(s)
}

// LeadAge returns for how long a partition's epoch has been seen, counted while the store answered; 0 if no server leads.
func (v *View) LeadAge(p lease.Partition) time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.mu.board.rows[p]
	if !ok || r.err != nil || r.lease.State != lease.Held {
		return 0
	}
	return v.mu.board.reachable.total - r.since
}

// Load is a server's load by its newest heartbeat; 1 is its full capacity.
func (v *View) Load(s topology.ServerID) float64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.beats[s].load
}

// Room is for how many more bytes a server's disk has room beside its reserve, by its newest heartbeat; 0: it is not known.
func (v *View) Room(s topology.ServerID) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.beats[s].room
}

// ReadOnly is the reason why a server accepts no rows, by its newest heartbeat; "": it accepts them.
func (v *View) ReadOnly(s topology.ServerID) string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.board.beats[s].readOnly
}

// Age returns the time since the last answer of the store: how old this view may be.
func (v *View) Age() time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return time.Since(v.mu.board.reachable.last)
}

// Changed returns a channel that is closed when a lease row changes next, or a server comes up. Fetch it before looking.
func (v *View) Changed() <-chan struct{} {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.mu.changed
}

// probe asks the store when the watch is silent: that silence is the servers' only if the store is there. It reads the
// heartbeats, so that a silent watch does not make live servers look dead.
func (v *View) probe(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second*4/5 + time.Duration(v.pause.Int64N(int64(time.Second*2/5)))):
		}
		if v.Age() < time.Second {
			continue
		}
		asking, stop := context.WithTimeout(ctx, time.Second)
		rows, _, err := v.store.List(asking, lease.BeatPrefix)
		stop()
		if err == nil {
			v.update(func(b *board) bool { return b.beatsRead(time.Now(), rows) })
		}
	}
}

// follower applies changes.
type follower struct{ *View }

// Listed implements coord.Follower.
func (v follower) Listed(rows []coord.Row, rev coord.Revision) error {
	v.update(func(b *board) bool { b.list(time.Now(), rows); return true })
	v.clocksListed(rows)
	v.saw(rev)
	return nil
}

// Changed implements coord.Follower.
func (v follower) Changed(events []coord.Event) error {
	v.update(func(b *board) bool { return b.change(time.Now(), events) })
	v.clocksObserved(events)
	if len(events) > 0 {
		v.saw(events[len(events)-1].Revision)
	}
	return nil
}

func (v *View) update(f func(*board) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f(v.mu.board) {
		close(v.mu.changed)
		v.mu.changed = make(chan struct{})
	}
}
