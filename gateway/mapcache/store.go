package mapcache

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// StoreDeps are a Store's dependencies.
type StoreDeps struct {
	Inner coord.Store
	Cache *Cache
	// Prefixes are those with rows to keep; others pass through.
	Prefixes []string
	// Volatile prefixes within them are neither written nor kept: heartbeats.
	Volatile   []string
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
}

// Store is a coordination store that keeps the rows of some prefixes on disk. Until the real one has answered a List for
// the first time in this life of the process, Lists are answered from there. Everything else passes through: changes and
// comparisons always go to the real store.
type Store struct {
	coord.Store
	deps StoreDeps

	mu struct {
		sync.Mutex
		shadows map[string]*shadow // by prefix
	}
}

// shadow is the rows of one prefix.
type shadow struct {
	rows    map[string]coord.Row
	rev     coord.Revision
	at      time.Time
	real    bool // the store has answered
	unsaved bool
}

// NewStore reads the kept rows. Unreadable files are logged and left out.
func NewStore(d StoreDeps) *Store {
	s := &Store{Store: d.Inner, deps: d}
	s.mu.shadows = map[string]*shadow{}
	for _, prefix := range d.Prefixes {
		sh := &shadow{rows: map[string]coord.Row{}}
		if err := s.load(prefix, sh); err != nil {
			d.Log.Warn("cached rows cannot be read", "prefix", prefix, "error", err)
		}
		s.mu.shadows[prefix] = sh
	}
	f := promauto.With(d.Registerer)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_mapcache_bytes", Help: "Bytes of maps and rows kept on disk.",
	}, func() float64 { return float64(d.Cache.Bytes()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_mapcache_rows_age_seconds", Help: "Age of the rows this process goes by because the coordination store has not answered yet; 0 once it has.",
	}, func() float64 { return s.Age().Seconds() })
	return s
}

func (s *Store) load(prefix string, sh *shadow) error {
	s.deps.Cache.mu.Lock()
	defer s.deps.Cache.mu.Unlock()
	name := fileName("r-", prefix)
	if _, ok := s.deps.Cache.mu.sizes[name]; !ok {
		return nil
	}
	f, err := s.deps.Cache.readLocked(name)
	if err != nil {
		return err
	}
	if f.kind != kindRows || len(f.fields) < 2 || len(f.fields)%3 != 2 || string(f.fields[0]) != prefix || len(f.fields[1]) != 8 {
		return fault.Errorf(fault.Corrupt, "cache file %s is not of rows under %q", name, prefix)
	}
	for part := range slices.Chunk(f.fields[2:], 3) {
		if len(part[2]) != 8 {
			return fault.Errorf(fault.Corrupt, "cache file %s has a row without a revision", name)
		}
		key := string(part[0])
		sh.rows[key] = coord.Row{Key: key, Value: part[1], Revision: coord.Revision(binary.LittleEndian.Uint64(part[2]))}
	}
	sh.rev, sh.at = coord.Revision(binary.LittleEndian.Uint64(f.fields[1])), f.asOf(time.Now())
	return nil
}

// Age is the age of the oldest rows in use because the store has not answered yet; 0 once it has.
func (s *Store) Age() (age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.mu.shadows {
		if !sh.real && !sh.at.IsZero() {
			age = max(age, time.Since(sh.at))
		}
	}
	return age
}

// listMax bounds the wait for a store that may be away, where kept rows can answer instead.
const listMax = 3 * time.Second

// List implements coord.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	sh, known := s.shadow(prefix)
	if !known {
		return s.Store.List(ctx, prefix)
	}
	asking, stop := ctx, context.CancelFunc(func() {})
	if s.stands(sh) {
		asking, stop = context.WithTimeout(ctx, listMax)
	}
	rows, rev, err := s.Store.List(asking, prefix)
	stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		sh.real, sh.rev, sh.unsaved = true, rev, true
		clear(sh.rows)
		for _, r := range rows {
			s.learnLocked(sh, r)
		}
		return rows, rev, nil
	}
	if ctx.Err() != nil || sh.real || sh.at.IsZero() {
		return nil, 0, err
	}
	s.deps.Log.Warn("the coordination store does not answer; going by rows kept on disk", "prefix", prefix, "age", time.Since(sh.at).Round(time.Second), "error", err)
	for _, key := range slices.Sorted(maps.Keys(sh.rows)) {
		r := sh.rows[key]
		r.Value = slices.Clone(r.Value)
		rows = append(rows, r)
	}
	return rows, sh.rev, nil
}

func (s *Store) shadow(prefix string) (*shadow, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh, ok := s.mu.shadows[prefix]
	return sh, ok
}

// stands reports whether a shadow stands in for the store.
func (s *Store) stands(sh *shadow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !sh.real && !sh.at.IsZero()
}

func (s *Store) learnLocked(sh *shadow, r coord.Row) {
	if !s.volatile(r.Key) {
		r.Value = slices.Clone(r.Value)
		sh.rows[r.Key] = r
	}
}

func (s *Store) volatile(key string) bool {
	return slices.ContainsFunc(s.deps.Volatile, func(p string) bool { return strings.HasPrefix(key, p) })
}

// Watch implements coord.Store. Kept rows are no place to continue from: until there was a real List, it asks for one.
func (s *Store) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	sh, known := s.shadow(prefix)
	if !known {
		return s.Store.Watch(ctx, prefix, after, f)
	}
	if s.stands(sh) {
		return coord.ErrCompacted
	}
	return s.Store.Watch(ctx, prefix, after, func(events []coord.Event) error {
		s.see(sh, events)
		return f(events)
	})
}

func (s *Store) see(sh *shadow, events []coord.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		sh.rev = max(sh.rev, e.Revision)
		if s.volatile(e.Key) {
			continue
		}
		sh.unsaved = true
		if e.Deleted {
			delete(sh.rows, e.Key)
		} else {
			s.learnLocked(sh, e.Row)
		}
	}
}

// saveEvery is how often changed rows are written.
const saveEvery = 10 * time.Second

// Run writes changed rows to disk until ctx ends, and then once more.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.save(time.Now())
			return nil
		case <-tick.C:
			s.save(time.Now())
		}
	}
}

func (s *Store) save(now time.Time) {
	for _, prefix := range s.deps.Prefixes {
		f, ok := s.changed(prefix, now)
		if !ok {
			continue
		}
		if err := s.deps.Cache.write(fileName("r-", prefix), f); err != nil {
			s.deps.Log.Warn("rows could not be cached", "prefix", prefix, "error", err)
			s.owe(prefix)
		}
	}
}

// owe has the rows of a prefix written again although none changes.
func (s *Store) owe(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.shadows[prefix].unsaved = true
}

// changed gives the file of a prefix's rows, if they are real and other than those on disk.
func (s *Store) changed(prefix string, now time.Time) (*file, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.mu.shadows[prefix]
	if !sh.real || !sh.unsaved {
		return nil, false
	}
	sh.unsaved = false
	number := func(r coord.Revision) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(r)) }
	f := &file{kind: kindRows, at: now, fields: [][]byte{[]byte(prefix), number(sh.rev)}}
	for _, key := range slices.Sorted(maps.Keys(sh.rows)) {
		r := sh.rows[key]
		f.fields = append(f.fields, []byte(key), r.Value, number(r.Revision))
	}
	return f, true
}
