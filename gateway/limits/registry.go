package limits

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Deps are a Registry's dependencies.
type Deps struct {
	Log        *slog.Logger          // nil: silence
	Registerer prometheus.Registerer // nil: no metrics are registered
	// Exists says whether there is a table of that name. Nil: one exists once Table or Found said so.
	Exists func(table string) bool
	// Held reports whether another part has the state of a table that it got from here: it stays while that is so. Nil: none has.
	Held func(table string) bool
}

// Registry holds the limits and the counters of all tables. Safe for concurrent use; a nil Registry has no limits.
type Registry struct {
	// Constant after New.
	log     *slog.Logger
	exists  func(table string) bool
	held    func(table string) bool
	started time.Time
	reloads [2]atomic.Int64 // good, bad

	force atomic.Pointer[inForce]

	mu struct {
		sync.RWMutex
		tables map[string]*Table
		other  shown // of tables without metrics of their own
		viewed time.Time

		period, firstPeriod int64 // of history: the newest and the first
		histories           int   // tables that have one
	}
}

// New makes a registry. The error is Invalid and names every mistake.
func New(d Deps, s Settings) (*Registry, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	s.SetDefaults()
	r := &Registry{log: d.Log, exists: d.Exists, held: d.Held, started: time.Now()}
	r.force.Store(s.resolve())
	r.mu.tables = map[string]*Table{}
	if d.Registerer != nil {
		if err := d.Registerer.Register(collector{r}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Reload puts other settings in force at once, for requests to come. Settings with a mistake change nothing: the error is
// Invalid and names every one. The caller counts it by ReloadFailed, once for all that it reloads.
func (r *Registry) Reload(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s.SetDefaults()
	f := s.resolve()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.force.Store(f)
	for name, t := range r.mu.tables {
		t.set(f.of(name))
	}
	r.reloads[0].Add(1)
	return nil
}

// ReloadFailed counts a reload that failed: settings that could not be read, or not be used.
func (r *Registry) ReloadFailed() { r.reloads[1].Add(1) }

// Settings are those in force.
func (r *Registry) Settings() Settings { return r.force.Load().settings }

// values are the limits of a table, whether it exists or not.
func (r *Registry) values(table string) *Values { return r.force.Load().of(table) }

// Known returns a table's state; nil: none, because the table may not exist.
func (r *Registry) Known(name string) *Table {
	if r == nil {
		return nil
	}
	t := r.kept(name)
	if t == nil && r.exists != nil && r.exists(name) {
		return r.Table(name)
	}
	return t
}

func (r *Registry) kept(name string) *Table {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.tables[name]
}

// Table returns the state of a table, and makes it if missing. The caller has checked that the table exists, so that the
// states are bounded as tables are: that of a dropped one is freed.
func (r *Registry) Table(name string) *Table {
	if r == nil {
		return nil
	}
	if t := r.kept(name); t != nil {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.mu.tables[name]
	if t == nil {
		t = newTable(r, name, r.force.Load().of(name))
		r.mu.tables[name] = t
	}
	return t
}

// TooMany reports whether a remote-write sender gets 429 rather than 503 at a limit that passes.
func (r *Registry) TooMany() bool {
	return r != nil && r.force.Load().settings.RemoteWriteStatus == http.StatusTooManyRequests
}

// viewPeriod is how often rates are worked out.
const viewPeriod = 5 * time.Second

// Run works out rates until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	tick := time.NewTicker(viewPeriod)
	defer tick.Stop()
	r.look(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			r.look(now)
		}
	}
}
