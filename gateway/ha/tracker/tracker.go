package tracker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/ha"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Deps are the dependencies that the code passes in.
type Deps struct {
	Store      coord.Store // nil: this process is alone
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       *rand.Rand // owned by the tracker from then on
}

// Tracker finds duplicates in batches. All methods are safe for concurrent use.
type Tracker struct {
	// Constant after Open.
	deps    Deps
	metrics *metrics
	began   time.Time
	nudge   chan struct{} // an election is to be written soon

	settings atomic.Pointer[ha.Settings]

	mu struct {
		sync.Mutex
		machine *ha.Machine
	}
}

const (
	// openTimeout bounds how long a start waits for the rows of the store. Without them the first sender of each pair is elected here.
	openTimeout = 2 * time.Second
	// commitTimeout ends a transaction without an answer.
	commitTimeout = 2 * time.Second
	// nudgePause is the least time between two ticks.
	nudgePause = 100 * time.Millisecond
)

// Open reads the rows there are. The error is Invalid.
func Open(ctx context.Context, d Deps, s ha.Settings) (*Tracker, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	t := &Tracker{deps: d, began: time.Now().Add(-time.Second), nudge: make(chan struct{}, 1)}
	t.settings.Store(&s)
	t.mu.machine = ha.New(s, d.Store == nil, d.Rand.Uint64())
	t.metrics = newMetrics(d.Registerer, t)
	if d.Store == nil {
		return t, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	rows, _, err := d.Store.List(ctx, ha.Prefix)
	if err != nil {
		d.Log.Warn("elected replicas could not be read: each pair's first sender is elected here until the store answers", "error", err)
		return t, nil
	}
	t.step(ha.Listed{Rows: rows})
	return t, nil
}

// now is the machine's clock.
func (t *Tracker) now() ha.Time { return time.Since(t.began) }

// Labels are those by which senders to a table differ; the zero value: all its rows are kept.
func (t *Tracker) Labels(table string) point.ReplicaLabels { return t.settings.Load().Labels(table) }

// Settings are those in force.
func (t *Tracker) Settings() ha.Settings { return *t.settings.Load() }

// Reload puts other settings in force. The error is Invalid, and then nothing changes.
func (t *Tracker) Reload(s ha.Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	t.settings.Store(&s)
	t.step(ha.Reload{Settings: s})
	return nil
}

// Status lists all pairs.
func (t *Tracker) Status() []ha.PairStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.machine.Status(t.now())
}

// Resolve removes the rows of replicas that are not elected, and returns how many these were, and the replicas of which rows are left. It refuses rows of a pair beyond the bound
// of pairs, in b.
func (t *Tracker) Resolve(table string, b *point.Batch) (n point.Dropped, of []point.Sender) {
	before := b.RefusedRows
	n = b.ResolveReplicas(func(s point.Sender) (bool, error) {
		keep, err := t.judge(table, s)
		if keep {
			of = append(of, s)
		}
		return keep, err
	})
	if n != (point.Dropped{}) {
		t.metrics.duplicates.Add(float64(n.Floats + n.Hists))
	}
	if more := b.RefusedRows - before; more > 0 {
		t.metrics.refused.Add(float64(more))
	}
	return n, of
}

// Accepted notes that rows of each of these replicas were accepted: they stay elected.
func (t *Tracker) Accepted(table string, of []point.Sender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range of {
		t.mu.machine.Accepted(t.now(), ha.Pair{Table: table, Cluster: s.Cluster}, s.Replica)
	}
}

func (t *Tracker) judge(table string, s point.Sender) (bool, error) {
	v, reports, urgent := t.decide(ha.Pair{Table: table, Cluster: s.Cluster}, s.Replica)
	t.report(reports)
	if urgent {
		select {
		case t.nudge <- struct{}{}:
		default:
		}
	}
	if v == ha.TooMany {
		return false, fault.Errorf(fault.Invalid, "%s=%q is one more HA pair than table %q may have: ha.clusters_max", t.settings.Load().ClusterLabel, s.Cluster, table)
	}
	return v == ha.Keep, nil
}

func (t *Tracker) decide(p ha.Pair, replica string) (v ha.Verdict, reports []ha.Effect, urgent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, reports = t.mu.machine.Decide(t.now(), p, replica, nil)
	return v, reports, t.mu.machine.Urgent()
}

// step gives the machine an input, and returns the transactions to send.
func (t *Tracker) step(in ha.Input) []ha.Commit {
	return t.report(t.take(in))
}

func (t *Tracker) take(in ha.Input) []ha.Effect {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.machine.Step(t.now(), in, nil)
}

// report logs elections, and returns the transactions.
func (t *Tracker) report(effects []ha.Effect) (commits []ha.Commit) {
	for _, e := range effects {
		switch e := e.(type) {
		case ha.Elected:
			t.metrics.elections.Inc()
			t.deps.Log.Info("replica elected", "table", e.Pair.Table, "cluster", e.Pair.Cluster, "replica", e.To, "before", e.From, "reason", e.Why)
		case ha.Commit:
			commits = append(commits, e)
		}
	}
	return commits
}

// Run forgets pairs, and keeps rows of the store, until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if t.deps.Store != nil {
		g.Go(func() error { return coord.Follow(ctx, t.deps.Store, ha.Prefix, follower{t}, t.deps.Log, t.deps.Rand) })
	}
	g.Go(func() error { return t.tick(ctx, g) })
	return g.Wait()
}

func (t *Tracker) tick(ctx context.Context, g *errgroup.Group) error {
	every := time.NewTicker(ha.TickEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		case <-t.nudge:
		}
		for _, c := range t.step(ha.Tick{}) {
			g.Go(func() error { t.commit(ctx, c); return nil })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(nudgePause):
		}
	}
}

func (t *Tracker) commit(ctx context.Context, c ha.Commit) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	rev, ok, err := t.deps.Store.Commit(ctx, c.Conditions, c.Writes)
	outcome := "ok"
	if err != nil || !ok {
		outcome = "failed"
		t.deps.Log.Debug("elected replicas were not written", "rows", len(c.Writes), "error", err)
	}
	t.metrics.commits.WithLabelValues(outcome).Inc()
	t.step(ha.Answer{ID: c.ID, OK: ok && err == nil, Revision: rev})
}

// follower passes the rows of the store on.
type follower struct{ t *Tracker }

func (f follower) Listed(rows []coord.Row, _ coord.Revision) error {
	f.t.step(ha.Listed{Rows: rows})
	return nil
}

func (f follower) Changed(events []coord.Event) error {
	f.t.step(ha.Changed{Events: events})
	return nil
}
