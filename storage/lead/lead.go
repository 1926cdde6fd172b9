package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	"github.com/spillwaydb/spillway/storage/server"
)

// Maps are the tables as this process sees them; metadata/tables is one.
type Maps interface {
	// At returns a table's newest map and the revision of its row.
	At(table string) (*topology.Map, coord.Revision, bool)
	// Newest names the transaction of a table's newest map.
	Newest(table string) (peer.MapAt, bool)
	Names() []string
	// Changed is closed at the next change of any table.
	Changed() <-chan struct{}
	// Change commits the ops that plan returns for the newest map. plan is not called after Change has returned.
	Change(ctx context.Context, table string, plan func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error)
	// Ready returns when a majority of the table's metadata servers has answered.
	Ready(ctx context.Context, table string) error
	// RuleOut returns when no earlier proposal on the map seq, or an older one, can be committed any more.
	RuleOut(ctx context.Context, table string) (seq uint64, err error)
}

// Deps are the dependencies that the code passes in.
type Deps struct {
	Store coord.Store
	Maps  Maps
	// Brick is opened and locked: no other process uses its directory.
	Brick      *brick.Brick
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Rand makes nonces and the name of this boot. The keeper owns it.
	Rand *rand.Rand
	// Listed answers Relist. Nil: no chains are run here.
	Listed func(p lease.Partition, ask uint64, ok bool, epoch point.Epoch, list []lease.Member)
	// Unload begins or ends the moving of a partition's rows to its heirs; Unloaded answers it. first: no server moved any under an earlier epoch. Nil: they stay where they are.
	Unload func(p lease.Partition, epoch point.Epoch, on, first bool)
	// NoRoom returns the partitions of which copies did not fit on this disk. Nil: there are none.
	NoRoom func() []lease.Partition
	// Clock never goes back and counts suspends. Default keeper.Boottime.
	Clock func() lease.Time
}

// Settings are numbers a user sets.
type Settings struct {
	// Server is this server's name in partition maps.
	Server topology.ServerID
	Keeper keeper.Settings
	// ReconcileEvery is how often everything here is compared with the maps although none changed. Default 30 s. Smaller: changes that a watch missed are seen
	// sooner.
	ReconcileEvery time.Duration
	// BatchFor is how long changes of maps are gathered before the server looks at them, so that it need not look at every
	// transaction separately (C16). Default 50 ms. Larger: partitions are led later.
	BatchFor time.Duration
	// HoldTimeout bounds how long a first insert waits for the in-sync list. Default 2 s.
	HoldTimeout time.Duration
	// Rules are the settings of the machine.
	Rules rules.Settings
}

func (s *Settings) setDefaults() {
	def(&s.ReconcileEvery, 30*time.Second)
	def(&s.BatchFor, 50*time.Millisecond)
	def(&s.HoldTimeout, 2*time.Second)
	def(&s.Keeper.Lease.LoadMax, 0.9)
	def(&s.Rules.LoadMax, s.Keeper.Lease.LoadMax)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports every mistake. Errors are Invalid.
func (s Settings) Validate() error {
	var errs []error
	if s.Server == "" {
		errs = append(errs, fault.Errorf(fault.Invalid, "a storage server needs a name: set server"))
	}
	for name, d := range map[string]time.Duration{"reconcile every": s.ReconcileEvery, "batch for": s.BatchFor, "hold timeout": s.HoldTimeout} {
		if d <= 0 {
			errs = append(errs, fault.Errorf(fault.Invalid, "lead: %s must be positive, is %v", name, d))
		}
	}
	return errors.Join(errs...)
}

// Lead keeps one server's leases. New, then server.Open with it as Leadership, then Run. All methods may be called from any
// goroutine.
type Lead struct {
	// Constant after New.
	deps     Deps
	settings Settings
	store    lease.StoreID
	keeper   *keeper.Keeper
	metrics  *metrics
	news     chan struct{} // has room for one: effects are waiting
	began    time.Time

	steps atomic.Uint64 // of the machine that may have changed a lease

	mu struct {
		// The keeper is never called under it: it calls back (Handler) from its own goroutine under its own lock, and the two would wait for each other.
		sync.Mutex // guards this struct; held for microseconds
		machine    *rules.Machine
		effects    []rules.Effect // to be performed by Run, in order; bounded by the number of placements here
		// One channel for all callers that wait for a partition's row. It is closed and removed when the row changes; callers that still wait make another.
		waiting map[lease.Partition]chan struct{}
	}
}

var (
	_ server.Leadership = (*Lead)(nil)
	_ keeper.Handler    = (*Lead)(nil)
)

// New makes the leases of a server without any yet. Errors are Invalid, Corrupt and Unavailable.
func New(d Deps, s Settings) (*Lead, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Clock == nil {
		d.Clock = keeper.Boottime
	}
	l := &Lead{began: time.Now(), deps: d, settings: s, store: lease.StoreID(d.Brick.ID().String()), news: make(chan struct{}, 1)}
	s.Rules.Unload = d.Unload != nil
	seen, err := loadSeen(d.Brick)
	if err != nil {
		return nil, err
	}
	l.mu.machine = rules.New(s.Server, l.store, s.Rules, seen, rand.New(rand.NewPCG(d.Rand.Uint64(), d.Rand.Uint64())))
	l.mu.waiting = map[lease.Partition]chan struct{}{}
	self := lease.Self{Server: s.Server, Boot: lease.Boot(fmt.Sprintf("%016x", d.Rand.Uint64())), Store: l.store}
	l.keeper, err = keeper.New(keeper.Deps{Store: d.Store, Handler: l, Log: d.Log, Metrics: d.Registerer, Rand: d.Rand, Clock: d.Clock}, self, s.Keeper)
	if err != nil {
		return nil, err
	}
	l.metrics = newMetrics(d.Registerer, l)
	return l, nil
}

// MayAct implements server.Leadership.
func (l *Lead) MayAct(table string, id point.PartitionID) (point.Epoch, bool) {
	return l.keeper.MayAct(lease.Partition{Table: table, ID: id})
}

// Alone implements server.Leadership. This server does not reach the coordination store; a server that does cannot acquire a partition of which this one alone
// is in sync. The right ends when a heartbeat proves good: then the lease rows decide again.
func (l *Lead) Alone(table string, id point.PartitionID) (point.Epoch, bool) {
	l.mu.Lock()
	epoch, ok := l.mu.machine.Alone(lease.Partition{Table: table, ID: id})
	l.mu.Unlock()
	return epoch, ok && !l.keeper.Status().Good
}

// Wanted implements server.Leadership.
func (l *Lead) Wanted(table string, id point.PartitionID) {
	l.step(rules.Early{Partition: lease.Partition{Table: table, ID: id}})
}

// Why implements server.Leadership.
func (l *Lead) Why(table string, id point.PartitionID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.machine.Why(lease.Partition{Table: table, ID: id})
}

// Servers gives the registered storage servers. It may be called at any time, from any goroutine.
func (l *Lead) Servers(all []rules.Server) { l.step(rules.Servers{All: all}) }

// newFor is how long after its start a server waits for others to show signs of life before it refuses a first row because too few are live: where a whole cluster
// starts, each is ready before it has seen the next heartbeat of the others.
const newFor = 10 * time.Second

// lookAgain is how often a first row that waits looks at which servers are live.
const lookAgain = 50 * time.Millisecond

// Hold implements server.Leadership: the in-sync list becomes that of the placements on live servers, or this one alone, and the mark that the partition is
// empty is removed, in one change of the row as it was. A move of an empty partition changes that row too, so that one of both fails.
// Many may wait for one change.
func (l *Lead) Hold(ctx context.Context, table string, id point.PartitionID, epoch point.Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, l.settings.HoldTimeout)
	defer cancel()
	p := lease.Partition{Table: table, ID: id}
	for {
		placed := l.keeper.Placed(p)
		l.step(rules.Want{Partition: p, Epoch: epoch, Placed: placed})
		l.mu.Lock()
		live, least, short := l.mu.machine.Short(p, placed)
		held, over := l.mu.machine.Holding(p, epoch)
		changed := l.mu.waiting[p]
		if changed == nil && !held && !over {
			changed = make(chan struct{})
			l.mu.waiting[p] = changed
		}
		l.mu.Unlock()
		switch {
		case held:
			return nil
		case over:
			return fault.Errorf(fault.Stale, "epoch %d of partition %v is over", epoch, p)
		}
		var again <-chan time.Time // a heartbeat of another server is no change of the row
		var few error
		if short {
			again = time.After(lookAgain)
			few = fault.Errorf(fault.Unavailable, "partition %v: %d of its servers live, and at least %d must keep each row", p, live, least)
		}
		if short && time.Since(l.began) > newFor {
			return few
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			if short {
				return few
			}
			return fault.Errorf(fault.Stale, "partition %v: the lease table did not take the in-sync list in time; nothing was written", p)
		}
	}
}

// Unloaded reports that a partition's heirs have all its rows, as moved under an epoch. It may be called from any goroutine.
func (l *Lead) Unloaded(p lease.Partition, epoch point.Epoch) {
	l.step(rules.Unloaded{Partition: p, Epoch: epoch})
}

// Now is the time by the median of the servers' clocks.
func (l *Lead) Now() point.Nanos { return l.keeper.Now() }

// Latest is the latest time that it may be, as keeper.Latest.
func (l *Lead) Latest() point.Nanos { return l.keeper.Latest() }

// ClocksKnown reports whether Now and Latest go by the clocks of all live servers, as keeper.ClocksKnown.
func (l *Lead) ClocksKnown() bool { return l.keeper.ClocksKnown() }

// Status is this server's view of its leases, for people.
func (l *Lead) Status() lease.Status { return l.keeper.Status() }

// Drain releases the partitions that another server can acquire, one after the other (C124); off undoes it.
// Errors are Canceled.
func (l *Lead) Drain(ctx context.Context, on bool) error {
	return l.keeper.Send(ctx, lease.Drain{On: on})
}

// Leave releases all leases and returns when others may acquire them; Run must go on meanwhile. With a fenced store it is refused: the process may have been
// about to ack rows, so its leases must expire. Errors are Canceled and Unavailable (fenced).
func (l *Lead) Leave(ctx context.Context) error {
	if err := l.deps.Brick.Err(); err != nil {
		return fault.Annotate(err, "leases run out")
	}
	return l.keeper.Leave(ctx)
}
