package master

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// growths are the growths of all tables in one term of a master, and their rows in the store. It belongs to one goroutine.
type growths struct {
	tables map[string]*Growth
	seen   map[string]point.Nanos // since when a table has a map in this term: when it has none any more, it was dropped
	stored point.Nanos            // when they were stored last
}

// growthEvery is how often the growth of tables is written to the store: a master that dies loses what it learned since.
const (
	growthEvery = point.Nanos(10 * 60e9)
	growthSoon  = point.Nanos(60e9)
)

// loadGrowth reads the rows. Without them presplits begin when enough was observed again.
func (r *Runner) loadGrowth(ctx context.Context) *growths {
	g := &growths{tables: map[string]*Growth{}, seen: map[string]point.Nanos{}, stored: time.Now().UnixNano()}
	rows, _, err := r.deps.Store.List(ctx, GrowthPrefix)
	if err != nil {
		if ctx.Err() == nil {
			r.deps.Log.Warn("the recorded growth of tables cannot be read; partitions are cut ahead of their time when enough was seen anew", "error", err)
		}
		return g
	}
	for _, row := range rows {
		growth, err := DecodeGrowth(row.Value)
		if err != nil {
			r.deps.Log.Warn("the recorded growth of a table is not used, and will be written anew", "key", row.Key, "error", err)
			continue
		}
		g.tables[strings.TrimPrefix(row.Key, GrowthPrefix)] = growth
	}
	return g
}

// look adds one look at the sizes, and returns the growth of all tables.
func (g *growths) look(now point.Nanos, tables Tables, sizes map[lease.Partition]Size) map[string]*Growth {
	for _, name := range tables.Names() {
		if m, ok := tables.Get(name); ok {
			g.tables[name] = g.tables[name].Observed(now, m, sizes)
			if _, ok := g.seen[name]; !ok {
				g.seen[name] = now
			}
		}
	}
	return maps.Clone(g.tables)
}

// youngFor is how long after its first look a table is looked at often, and its growth is stored each minute: so a person who tries the product sees the
// partitions to come within two minutes.
const youngFor = 6 * 60e9

// young reports whether a table was not looked at yet, or just began to be.
func (g *growths) young(now point.Nanos, tables Tables) bool {
	for _, name := range tables.Names() {
		since, seen := g.seen[name]
		if !seen || now-since < youngFor && now >= since && g.tables[name].young(now) {
			return true
		}
	}
	return false
}

// young reports whether little is known of any column.
func (g *Growth) young(now point.Nanos) bool {
	for _, h := range g.columns {
		if h.Young(now) {
			return true
		}
	}
	return false
}

// store writes the rows every growthEvery, each minute while a table is young, and deletes those of dropped tables. What fails is tried again the next time.
func (g *growths) store(ctx context.Context, r *Runner) {
	now := time.Now().UnixNano()
	every := growthEvery
	if g.young(now, r.deps.Tables) {
		every = growthSoon
	}
	if now-g.stored < every && now >= g.stored || !r.mayAct() {
		return
	}
	g.stored = now
	there := map[string]bool{}
	for _, name := range r.deps.Tables.Names() {
		there[name] = true
	}
	var errs []error
	for name, growth := range g.tables {
		write := coord.Write{Key: GrowthPrefix + name, Value: growth.Encode()}
		if !there[name] {
			if _, seen := g.seen[name]; !seen {
				continue // its map may not be at hand yet
			}
			write = coord.Write{Key: write.Key, Delete: true}
			delete(g.tables, name)
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, _, err := r.deps.Store.Commit(ctx, nil, []coord.Write{write})
		cancel()
		if err != nil && !fault.Is(err, fault.Canceled) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		r.deps.Log.Debug("the growth of tables could not be stored", "error", err)
	}
}
