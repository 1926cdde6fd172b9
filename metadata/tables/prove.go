package tables

import (
	"context"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
)

// How often all rows are asked for: rows of few tables every second; 10,000 tables (some 2 MB) every three seconds. A reader that doubts its map after five
// seconds (gateway/follow) gets each in time.
const (
	proveEvery    = time.Second
	proveEveryMax = 3 * time.Second
	provePerTable = 200 * time.Microsecond
	proveTimeout  = 3 * time.Second
)

// proveLoop asks the store again and again for all rows. The watch alone does not show that a map is the newest: where it is silent there may be nothing new, or
// it may be behind, and rows under other prefixes, or a connection that is alive, do not show which.
func (t *Tables) proveLoop(ctx context.Context) {
	for {
		t.mu.RLock()
		every := min(proveEvery+time.Duration(len(t.mu.tables))*provePerTable, proveEveryMax)
		t.mu.RUnlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(every*3/4 + t.jitter(every)/4):
		}
		asking, stop := context.WithTimeout(ctx, proveTimeout)
		asked := time.Now()
		rows, rev, err := t.deps.Store.List(asking, mapstore.Prefix)
		stop()
		if err == nil {
			t.prove(asked, t.listed(rows, rev))
		}
	}
}

// prove notes that a list asked for at a time has been taken in, except the rows of some tables.
func (t *Tables) prove(asked time.Time, except []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !asked.After(t.mu.proven) {
		return
	}
	t.mu.proven = asked
	for name, v := range t.mu.tables {
		if !slices.Contains(except, name) {
			v.Step(Proven{asked}, nil) // it has no effects
		}
	}
}

// hasRow reports whether a table's row was read at a revision or later.
func (t *Tables) hasRow(name string, rev coord.Revision) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.mu.tables[name]
	if v == nil {
		return false
	}
	_, at := v.Newest()
	return at >= rev
}
