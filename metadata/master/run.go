package master

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Tables are the partition maps; package tables implements it. Change commits the result of f for the newest map, by
// compare-and-swap: f may be called again with a newer map.
type Tables interface {
	Names() []string
	Get(name string) (*topology.Map, bool)
	Change(ctx context.Context, name string, f func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error)
	// EndDrop ends the drop of a table that has no partitions in its map any more. It is no error if another process did so before.
	EndDrop(ctx context.Context, name string) error
}

// Deps are the dependencies that the caller hands in.
type Deps struct {
	Store   coord.Store
	Tables  Tables
	Servers func() []registry.Server
	// MapServers changes the metadata servers; nil: they stay as they are.
	MapServers MapServers
	// Storage reaches storage servers, to ask for sizes; nil: nothing is split.
	Storage func(topology.ServerID) (peer.Storage, bool)
	Log     *slog.Logger
	// Registerer may be nil: metrics are counted and shown nowhere.
	Registerer prometheus.Registerer
	// Rand makes placement ids and jitter. The runner keeps it.
	Rand *rand.Rand
	// Server and Boot name this process in the row of the master.
	Server topology.ServerID
	Boot   lease.Boot
	// Clock never goes back and counts suspends. Default keeper.Boottime.
	Clock func() time.Duration
}

// Runner is a candidate for master, and master when no other is. All goroutines are born in Run.
type Runner struct {
	// Constant after New.
	deps     Deps
	settings Settings
	metrics  *metrics

	mu struct {
		sync.Mutex
		hold   Hold
		master bool
		rng    *rand.Rand
		sizes  map[lease.Partition]Size
		growth map[string]*Growth // replaced, never changed
		asked  int                // how often they changed
		last   []Step             // the newest plan
	}
}

// New makes a candidate. Errors are Invalid.
func New(d Deps, s Settings) (*Runner, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Clock == nil {
		d.Clock = keeper.Boottime
	}
	r := &Runner{deps: d, settings: s, metrics: newMetrics(d.Registerer)}
	r.mu.hold = NewHold(Holder{Holder: d.Server, Boot: d.Boot}, s)
	r.mu.rng = d.Rand
	return r, nil
}

// Run is a candidate until ctx ends; as master it then releases the row, so that another begins at once.
func (r *Runner) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.keep(ctx) })
	g.Go(func() error { return r.serve(ctx) })
	return g.Wait()
}

// keep renews the row, or waits until it is old.
func (r *Runner) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		pause := r.settings.ActFor / 3
		if !r.renew(ctx) {
			pause *= 2 // there are many candidates, and every look is a request to the store
		}
		r.sleep(ctx, pause)
	}
	r.letGo(context.WithoutCancel(ctx))
	return nil
}

// renew reads the row, unless it is certainly ours, and writes it when it is ours or may be acquired. It reports whether
// the row is ours, or in doubt.
func (r *Runner) renew(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.settings.ActFor/2)
	defer cancel()
	r.mu.Lock()
	known := r.mu.hold.Known()
	r.mu.Unlock()
	if !known {
		row, _, err := r.deps.Store.Get(ctx, Key)
		if err != nil {
			r.deps.Log.Debug("the master's row cannot be read", "error", err)
			return true
		}
		r.mu.Lock()
		r.mu.hold.Saw(r.deps.Clock(), row)
		r.mu.Unlock()
	}
	r.mu.Lock()
	next, rev, ok := r.mu.hold.Want()
	r.mu.Unlock()
	if !ok {
		return false
	}
	sent := r.deps.Clock()
	committed, ok, err := r.deps.Store.Commit(ctx, []coord.Condition{{Key: Key, Revision: rev}}, []coord.Write{{Key: Key, Value: next.Encode()}})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || !ok {
		r.mu.hold.Doubt()
		return true
	}
	r.mu.hold.Wrote(sent, r.deps.Clock(), next, committed)
	return true
}

// letGo releases the row, if it is ours. If that fails, others wait until it is old.
func (r *Runner) letGo(ctx context.Context) {
	r.mu.Lock()
	h := &r.mu.hold
	ours, rev, n := h.Known(), h.rev, h.self.N
	h.goodUntil = 0
	r.mu.Unlock()
	if !ours {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, _, err := r.deps.Store.Commit(ctx, []coord.Condition{{Key: Key, Revision: rev}}, []coord.Write{{Key: Key, Value: Holder{N: n}.Encode()}}); err != nil {
		r.deps.Log.Debug("the master's row could not be freed; another takes it when it is old", "error", err)
	}
}

func (r *Runner) mayAct() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.hold.MayAct(r.deps.Clock())
}

// sleep waits for d, more or less by a quarter.
func (r *Runner) sleep(ctx context.Context, d time.Duration) {
	r.mu.Lock()
	d = d*3/4 + time.Duration(r.mu.rng.Int64N(int64(d)/2+1))
	r.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// serve is master whenever the row says so.
func (r *Runner) serve(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.mayAct() {
			r.deps.Log.Info("this process is master")
			r.metrics.holds.Set(1)
			r.term(ctx)
			r.metrics.holds.Set(0)
			r.metrics.copies.set(underWay{})
			r.deps.Log.Info("this process is master no more")
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.settings.ActFor / 10):
		}
	}
	return nil
}

// term is one time as master: it follows the lease table, asks for sizes, and plans, until the row is lost.
func (r *Runner) term(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	rows := NewRows(r.deps.Clock, r.settings.TakeAfter)
	r.mu.Lock()
	pause := rand.New(rand.NewPCG(r.mu.rng.Uint64(), r.mu.rng.Uint64()))
	dice := rand.New(rand.NewPCG(r.mu.rng.Uint64(), r.mu.rng.Uint64())) // a plan needs a while: not under the lock
	r.mu.sizes, r.mu.growth = nil, nil
	r.mu.Unlock()
	var g errgroup.Group
	g.Go(func() error { return coord.Follow(ctx, r.deps.Store, lease.Prefix, rows, r.deps.Log, pause) })
	g.Go(func() error { return r.askSizes(ctx) })
	var quiet calm
	var copies copying
	g.Go(func() error {
		defer end()
		for r.mayAct() && ctx.Err() == nil {
			if rows.Ready() && r.probe(ctx, rows) {
				r.round(ctx, rows, dice, &quiet, &copies)
			}
			r.pauseOrLost(ctx, rows)
		}
		return nil
	})
	_ = g.Wait() // its parts end with ctx, and return no other error
}

// pauseOrLost waits until the next round, or until the row is lost, and watches the lease rows meanwhile.
func (r *Runner) pauseOrLost(ctx context.Context, rows *Rows) {
	r.mu.Lock()
	every := r.settings.Every*3/4 + time.Duration(r.mu.rng.Int64N(int64(r.settings.Every)/2+1))
	r.mu.Unlock()
	if !rows.Ready() {
		every = r.settings.ActFor / 30
	}
	for end := time.Now().Add(every); time.Now().Before(end) && ctx.Err() == nil && r.mayAct(); {
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Until(end), r.settings.ActFor/10)):
		}
		if r.mayAct() {
			r.probe(ctx, rows)
		}
	}
}

// probe reads the heartbeats when none arrived for a while: then either all servers are silent, or the watch is. It
// reports whether the rows are fresh.
func (r *Runner) probe(ctx context.Context, rows *Rows) bool {
	if !rows.Quiet() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.settings.ActFor/3)
	defer cancel()
	list, _, err := r.deps.Store.List(ctx, lease.BeatPrefix)
	if err != nil {
		return false
	}
	rows.BeatsRead(list)
	return true
}

// look gathers the inputs of a plan, except the lease rows. It counts changes of these, and of sizes.
func (r *Runner) look(rows *Rows) (s State, changes uint64, asked int) {
	s.Now = time.Now().UnixNano()
	for _, name := range r.deps.Tables.Names() {
		if m, ok := r.deps.Tables.Get(name); ok {
			s.Tables = append(s.Tables, m)
		}
	}
	changes = rows.FillServers(&s, r.deps.Servers())
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Sizes, s.Growth = r.mu.sizes, r.mu.growth
	return s, changes, r.mu.asked
}

// round looks, plans and carries out.
func (r *Runner) round(ctx context.Context, rows *Rows, dice *rand.Rand, quiet *calm, copies *copying) {
	r.metrics.rounds.Inc()
	r.unfenceOld(ctx, rows)
	s, changes, asked := r.look(rows)
	if err := s.FillDropped(ctx, r.deps.Store); err != nil {
		r.deps.Log.Debug("which tables were dropped is not known; their lease rows stay", "error", err)
	}
	if r.deps.MapServers != nil {
		if err := s.FillMetadata(ctx, r.deps.Store); err != nil {
			r.deps.Log.Debug("the servers that keep METADATA files are not known, and stay as they are", "error", err)
		}
	}
	began := time.Now()
	now := calmOf(s, r.settings, changes, asked)
	if quiet.passes(now, s.Now) {
		return
	}
	rows.Fill(&s, r.deps.Servers())
	r.metrics.copies.set(copies.look(&s, r.settings))
	steps := Plan(s, r.settings, dice)
	quiet.planned(now, s.Now, steps)
	r.mu.Lock()
	before := r.mu.last
	r.mu.last = steps
	r.mu.Unlock()
	r.metrics.plan.Observe(time.Since(began).Seconds())
	r.tellAlarms(before, steps)
	x := executor{store: r.deps.Store, tables: r.deps.Tables, mapServers: r.deps.MapServers, rows: rows, log: r.deps.Log, metrics: r.metrics, may: r.mayAct}
	x.carryOut(ctx, s.Tables, steps)
}

// tellAlarms logs alarms when they begin and when they end.
func (r *Runner) tellAlarms(before, now []Step) {
	old, n := map[string]bool{}, 0
	for _, s := range before {
		if s.Kind == Alarm {
			old[s.Table+" "+s.What] = true
		}
	}
	for _, s := range now {
		if s.Kind != Alarm {
			continue
		}
		if n++; !old[s.Table+" "+s.What] {
			r.deps.Log.Warn("the master cannot mend this", "table", s.Table, "what", s.What, "why", s.Why)
		}
		delete(old, s.Table+" "+s.What)
	}
	for what := range old {
		r.deps.Log.Info("an alarm of the master ended", "what", what)
	}
	r.metrics.alarms.Set(float64(n))
}

// sizesEvery is how often all servers are asked for the sizes of their partitions, sizesSoon how often while a table is young.
const (
	sizesEvery = time.Minute
	sizesSoon  = 15 * time.Second
)

// askSizes stores the sizes of partitions, as their servers report them, and how fast the tables grow.
func (r *Runner) askSizes(ctx context.Context) error {
	growth := r.loadGrowth(ctx)
	for r.deps.Storage != nil && ctx.Err() == nil {
		sizes := Sizes(ctx, r.deps.Tables.Names(), r.deps.Servers(), r.deps.Storage, r.deps.Log)
		seen := growth.look(time.Now().UnixNano(), r.deps.Tables, sizes)
		growth.store(ctx, r)
		r.mu.Lock()
		r.mu.growth = seen
		if !maps.Equal(r.mu.sizes, sizes) {
			r.mu.asked++
		}
		r.mu.sizes = sizes
		r.mu.Unlock()
		for slept := time.Duration(0); slept < sizesEvery && ctx.Err() == nil; slept += sizesSoon {
			r.sleep(ctx, sizesSoon)
			if growth.young(time.Now().UnixNano(), r.deps.Tables) {
				break
			}
		}
	}
	return nil
}

// Sizes asks every server for the sizes of its partitions of every table. Of a partition that several hold, the largest answer counts. A
// server that does not answer within 5 s is left out.
func Sizes(ctx context.Context, tables []string, servers []registry.Server, storage func(topology.ServerID) (peer.Storage, bool), log *slog.Logger) map[lease.Partition]Size {
	var mu sync.Mutex
	sizes := map[lease.Partition]Size{}
	var g errgroup.Group
	g.SetLimit(8)
	for _, srv := range servers {
		st, ok := storage(srv.ID)
		if !ok {
			continue
		}
		g.Go(func() error {
			for _, table := range tables {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				stats, err := st.Stats(ctx, table, 0)
				cancel()
				if fault.Is(err, fault.NotFound) {
					continue
				}
				if err != nil {
					log.Debug("sizes are not known", "server", srv.ID, "table", table, "error", err)
					return nil // the next table would wait as long
				}
				mu.Lock()
				for _, p := range stats.ByPartition {
					key := lease.Partition{Table: table, ID: p.ID}
					if s := (Size{Bytes: int64(p.Bytes), Rows: p.Rows, MinTime: p.MinTime, MaxTime: p.MaxTime}); s.Rows >= sizes[key].Rows {
						sizes[key] = s
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait() // no call returns an error
	return sizes
}

// unfenceOld removes fences that an earlier master left when it died: they are older than any transaction it may have
// had under way.
func (r *Runner) unfenceOld(ctx context.Context, rows *Rows) {
	for _, row := range rows.OldFences() {
		_, ok, err := r.deps.Store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Delete: true}})
		if err == nil && ok {
			r.metrics.fences.Inc()
			r.deps.Log.Info("took away a fence that was left behind", "key", row.Key)
		} else if err != nil {
			return
		}
	}
}

var errLost = errors.New("this process is master no more")
