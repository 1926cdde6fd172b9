package view

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

const (
	// callEvery is how often a process calls all live servers. One that answered none of reachTries calls for UnreachedAfter is not reached: those that stop or die are silent earlier.
	callEvery      = 5 * time.Second
	UnreachedAfter = 30 * time.Second
	reachTries     = 3
	// callsAtOnce bounds the calls at a time.
	callsAtOnce = 8
	// unreachedShown bounds the servers that a sentence names.
	unreachedShown = 5
)

// Unreached is a server that sends heartbeats and has not answered this process for UnreachedAfter.
type Unreached struct {
	ID    topology.ServerID
	Addr  string
	Since time.Time // when the first of the calls failed
	Why   error     // of the last of them
	// Never: no process has reached it yet. Its row says so to all.
	Never bool
}

func (u Unreached) String() string {
	return fmt.Sprintf("%s at %s since %s: %v", u.ID, u.Addr, u.Since.UTC().Format(time.RFC3339), u.Why)
}

// call is a call of a live server.
type call struct {
	row registry.Server
	err error
}

// failures are the calls of a server that failed one after the other.
type failures struct {
	n     int
	since time.Time
}

// longEnough reports whether they are no restart and no slow moment.
func (f failures) longEnough(now time.Time) bool {
	return f.n >= reachTries && now.Sub(f.since) >= UnreachedAfter
}

// ways judges by calls which servers are not reached. A server is in failed as long as its calls fail.
type ways struct {
	failed    map[topology.ServerID]failures
	unreached []Unreached // by id
}

// note judges the calls of a round, by id; servers that were not called are silent, or gone. It returns those that are not reached from now on, and those that were not before and are reached, silent or gone now.
func (w *ways) note(now time.Time, calls []call) (lost, over []Unreached) {
	failed, before := map[topology.ServerID]failures{}, w.unreached
	w.unreached = nil
	for _, c := range calls {
		if c.err == nil {
			continue
		}
		f := w.failed[c.row.ID]
		if f.n++; f.n == 1 {
			f.since = now
		}
		failed[c.row.ID] = f
		if f.longEnough(now) {
			w.unreached = append(w.unreached, Unreached{ID: c.row.ID, Addr: c.row.Addr, Since: f.since, Why: c.err, Never: c.row.Unreached != ""})
		}
	}
	w.failed = failed
	return without(w.unreached, before), without(before, w.unreached)
}

// without returns the servers of all that are not among others.
func without(all, others []Unreached) (out []Unreached) {
	for _, u := range all {
		if !slices.ContainsFunc(others, func(o Unreached) bool { return o.ID == u.ID }) {
			out = append(out, u)
		}
	}
	return out
}

// reaching records which servers a process reaches. All methods are safe for concurrent use; nil is one that knows nothing.
type reaching struct {
	log *slog.Logger
	// seconds has a value for servers that were not reached once: with one for each server, a cluster would have as many series as pairs of processes.
	seconds *prometheus.Desc

	mu   sync.Mutex
	ways ways                       // guarded by mu
	seen map[topology.ServerID]bool // guarded by mu; registered servers that were not reached once: their metric stays
}

func newReaching(log *slog.Logger, registerer prometheus.Registerer) *reaching {
	r := &reaching{log: log, seen: map[topology.ServerID]bool{}, seconds: prometheus.NewDesc("spillway_peers_unreached_seconds",
		"For how long a storage server that sends heartbeats has not been reached by this process, once that is 30 s; 0: it was reached since, or is silent. Servers that were reached all the time are left out.", []string{"server"}, nil)}
	registerer.MustRegister(r)
	return r
}

// note notes a round of calls, all of the registered servers, and logs what changed.
func (r *reaching) note(now time.Time, all []registry.Server, calls []call) {
	lost, over := r.judge(now, all, calls)
	for _, u := range lost {
		r.log.Warn("a storage server sends heartbeats to the coordination store, and is not reached at its address", "server", u.ID, "addr", u.Addr, "since", u.Since.UTC(), "error", u.Why)
	}
	for _, u := range over {
		r.log.Info("a storage server is reached again, or silent", "server", u.ID, "addr", u.Addr, "since", u.Since.UTC())
	}
}

// judge is note without the log: a log that is slow to write must not hold up the metrics and the page.
func (r *reaching) judge(now time.Time, all []registry.Server, calls []call) (lost, over []Unreached) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost, over = r.ways.note(now, calls)
	for _, u := range lost {
		r.seen[u.ID] = true
	}
	maps.DeleteFunc(r.seen, func(id topology.ServerID, _ bool) bool {
		return !slices.ContainsFunc(all, func(s registry.Server) bool { return s.ID == id })
	})
	return lost, over
}

// list returns the servers that are not reached, by id.
func (r *reaching) list() []Unreached {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ways.unreached)
}

// Describe implements prometheus.Collector.
func (r *reaching) Describe(to chan<- *prometheus.Desc) { to <- r.seconds }

// Collect implements prometheus.Collector.
func (r *reaching) Collect(to chan<- prometheus.Metric) {
	now, long := time.Now(), map[topology.ServerID]float64{}
	r.mu.Lock()
	for id := range r.seen {
		long[id] = 0
	}
	for _, u := range r.ways.unreached {
		long[u.ID] = now.Sub(u.Since).Seconds()
	}
	r.mu.Unlock()
	for id, v := range long {
		to <- prometheus.MustNewConstMetric(r.seconds, prometheus.GaugeValue, v, string(id))
	}
}

// Unreached lists the live servers that this process does not reach, by id.
func (v *Cluster) Unreached() []Unreached { return v.reaching.list() }

// Rounds are the times at which a process calls all live servers. Those that start together do not call together.
type Rounds struct {
	rng  *rand.Rand
	next time.Time
}

// NewRounds returns the rounds of a process that starts now.
func NewRounds() *Rounds {
	rng := newRand()
	return &Rounds{rng, time.Now().Add(time.Duration(rng.Int64N(int64(callEvery))))}
}

// Due reports whether a round is due. If so, the next one is later.
func (r *Rounds) Due(now time.Time) bool {
	if now.Before(r.next) {
		return false
	}
	r.next = now.Add(callEvery/2 + time.Duration(r.rng.Int64N(int64(callEvery))))
	return true
}

// beats reports whether heartbeats of a server are seen now. While the coordination store does not answer, servers stay as live as they were (leaders.View.Live), also those that end meanwhile.
func (v *Cluster) beats(id topology.ServerID) bool {
	return v.storeAge() <= storeOld && v.Leaders.Live(id)
}

// CallAll calls the live servers of all but own once, and notes which are not reached. It neither reads nor writes the coordination store.
func (v *Cluster) CallAll(ctx context.Context, all []registry.Server, own topology.ServerID) {
	errs := make([]error, len(all))
	called := func(id topology.ServerID) bool { return id != own && v.beats(id) }
	var g errgroup.Group
	g.SetLimit(callsAtOnce)
	for i, row := range all {
		if called(row.ID) {
			g.Go(func() error {
				_, errs[i] = v.ask(ctx, row)
				return nil
			})
		}
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return
	}
	var calls []call
	for i, row := range all {
		if called(row.ID) { // it may have died meanwhile; one that was not called counts as reached once
			calls = append(calls, call{row, errs[i]})
		}
	}
	v.reaching.note(time.Now(), all, calls)
}

// callServers has a gateway call all live servers until ctx ends: others may reach one that it does not.
func (v *Cluster) callServers(ctx context.Context) error {
	rounds := NewRounds()
	for {
		if rounds.Due(time.Now()) {
			v.CallAll(ctx, v.Registry.All(), "")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(VouchEvery):
		}
	}
}

// describeUnreached adds to the status page the servers that this process does not reach, as one problem, in place of those that follow from it.
func (v *Cluster) describeUnreached(s *ui.Status) {
	all := slices.DeleteFunc(v.Unreached(), func(u Unreached) bool { return u.Never }) // that is a problem of its own
	if len(all) == 0 {
		return
	}
	for _, u := range all {
		s.Problems = slices.DeleteFunc(s.Problems, func(text string) bool { return findings.IsOfSilent(text, string(u.ID)) })
	}
	live := 0
	for _, srv := range s.Servers {
		if srv.Live {
			live++
		}
	}
	s.Problems = append(s.Problems, unreachedText(all, live))
}

// unreachedText is the sentence about servers that this process does not reach, of so many that are live.
func unreachedText(all []Unreached, live int) string {
	var names []string
	for _, u := range all[:min(len(all), unreachedShown)] {
		names = append(names, u.String())
	}
	if more := len(all) - unreachedShown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("This process does not reach %d of the %d storage servers that send heartbeats: %s.", len(all), max(len(all), live), strings.Join(names, "; "))
}
