package master

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// executor performs the effects of Works: one for each table, several tables at a time, so that a table with silent
// metadata servers delays no other.
type executor struct {
	store      coord.Store
	tables     Tables
	mapServers MapServers // nil: metadata servers stay as they are
	rows       *Rows      // nil: nothing is swept
	log        *slog.Logger
	metrics    *metrics
	may        func() bool // nil: always
}

// tablesAtOnce bounds the tables that are changed at a time.
const tablesAtOnce = 8

// carryOut commits the steps of a plan on these maps.
func (x *executor) carryOut(ctx context.Context, maps []*topology.Map, steps []Step) {
	var g errgroup.Group
	g.SetLimit(tablesAtOnce)
	for _, w := range Works(maps, steps, x.rows, x.mapServers != nil) {
		g.Go(func() error {
			x.run(ctx, w)
			return nil
		})
	}
	_ = g.Wait() // no call returns an error
}

// Works returns the Works that carry out the steps of a plan on these maps, one for each table, by name. rows are the lease rows to sweep, as they
// were seen; nil: nothing is swept. Without mapServers metadata servers are not changed.
func Works(maps []*topology.Map, steps []Step, rows *Rows, mapServers bool) (works []*Work) {
	seqs, byTable := map[string]uint64{}, map[string][]Step{}
	for _, m := range maps {
		seqs[m.Table] = m.Seq
	}
	for _, s := range steps {
		if len(s.Ops) > 0 || s.Drop || s.Hand != nil || s.Relief != nil || s.MapServer != nil && mapServers || len(s.Sweep) > 0 && rows != nil {
			byTable[s.Table] = append(byTable[s.Table], s)
		}
	}
	for _, table := range sortedKeys(byTable) {
		sweep := map[lease.Partition][]coord.Row{}
		for _, s := range byTable[table] {
			for _, p := range s.Sweep {
				sweep[p] = rows.Sweepable(p)
			}
		}
		works = append(works, NewWork(table, seqs[table], byTable[table], sweep))
	}
	return works
}

// Do carries out one step for a person, on the very map it was planned on. Errors are Stale (something changed meanwhile:
// look again), Invalid, or the store's: then the step may or may not have been carried out.
func Do(ctx context.Context, store coord.Store, tables Tables, m *topology.Map, s Step, log *slog.Logger) error {
	x := &executor{store: store, tables: tables, log: log, metrics: newMetrics(nil)}
	return x.run(ctx, NewWork(m.Table, m.Seq, []Step{s}, nil))
}

// run performs the effects of a Work until it ends, and returns the last error that it reports.
func (x *executor) run(ctx context.Context, w *Work) (last error) {
	effects := w.Step(time.Now(), Begin{}, nil)
	for len(effects) > 0 {
		e := effects[0]
		effects = effects[1:]
		switch e := e.(type) {
		case Report:
			x.reported(e.Step, e.Err)
			last = e.Err
			continue
		case Ended:
			if len(e.Left) > 0 {
				x.log.Warn("fences stay for a while", "keys", e.Left)
			}
			continue
		}
		in := x.perform(ctx, e)
		if ctx.Err() != nil || x.may != nil && !x.may() {
			effects = w.Step(time.Now(), Lost{}, effects)
		}
		effects = w.Step(time.Now(), in, effects)
	}
	return last
}

// perform performs one effect and returns its answer. A call under way is ended by its own time-out, not by ctx, because its
// outcome is worth having.
func (x *executor) perform(ctx context.Context, e Effect) Input {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	switch e := e.(type) {
	case Read:
		rows, err := x.read(limited, e.Keys)
		return RowsRead{ID: e.ID, Rows: rows, Err: err}
	case Commit:
		rev, ok, err := x.store.Commit(limited, e.Conditions, e.Writes)
		return Committed{ID: e.ID, Revision: rev, OK: ok, Err: err}
	case Change:
		seq, err := x.change(limited, e)
		return Changed{ID: e.ID, Seq: seq, Err: err}
	case ChangeMapServer:
		change := x.mapServers.Join
		if e.MapServer.Leave {
			change = x.mapServers.Remove
		}
		return Changed{ID: e.ID, Err: change(limited, e.Table, e.MapServer.Server)}
	case DropTable:
		return Changed{ID: e.ID, Err: x.tables.EndDrop(limited, e.Table)}
	case Wait:
		select {
		case <-ctx.Done():
		case <-time.After(e.For):
		}
		return Waited{ID: e.ID}
	}
	fault.Bug("the master's executor does not know %T", e)
	return nil
}

// read reads rows; those that do not exist have revision 0.
func (x *executor) read(ctx context.Context, keys []string) ([]coord.Row, error) {
	rows := make([]coord.Row, len(keys))
	for i, key := range keys {
		row, there, err := x.store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if rows[i] = (coord.Row{Key: key}); there {
			rows[i] = row
		}
	}
	return rows, nil
}

// change proposes ops on the very map they were planned on. The plan itself refuses when its caller has left, so that a
// proposal that still waits for its turn by then is never committed.
func (x *executor) change(ctx context.Context, e Change) (uint64, error) {
	m, err := x.tables.Change(ctx, e.Table, func(m *topology.Map) ([]topology.Op, error) {
		switch {
		case ctx.Err() != nil:
			return nil, fault.Errorf(fault.Stale, "table %q: given up before its turn came", e.Table)
		case m.Seq != e.Seq:
			return nil, fault.Errorf(fault.Stale, "planned on transaction %d of table %q, which is at %d: the next round plans anew", e.Seq, e.Table, m.Seq)
		}
		return e.Ops, nil
	})
	if err != nil {
		return 0, err
	}
	return m.Seq, nil
}

func (x *executor) reported(s Step, err error) {
	if err == nil {
		x.metrics.steps.WithLabelValues(s.Kind.String()).Inc()
		x.log.Info("carried out", "kind", s.Kind.String(), "table", s.Table, "what", s.What, "why", s.Why)
		return
	}
	x.metrics.failures.WithLabelValues(s.Kind.String()).Inc()
	level := slog.LevelWarn
	if fault.Is(err, fault.Stale) { // another process was faster, which is no fault
		level = slog.LevelInfo
	}
	x.log.Log(context.Background(), level, "not carried out; the next round plans anew", "kind", s.Kind.String(), "table", s.Table, "what", s.What, "error", err)
}

// FillDropped notes which tables were dropped, of those that only lease rows name, and which are being dropped. Errors are the store's.
func (s *State) FillDropped(ctx context.Context, store coord.Store) error {
	rows, _, err := store.List(ctx, mapstore.Prefix)
	if err == nil {
		s.DroppedBy(rows)
	}
	return err
}

// DroppedBy is FillDropped with the rows of all tables.
func (s *State) DroppedBy(rows []coord.Row) {
	s.Dropped, s.Dropping = map[string]bool{}, map[string]bool{}
	for _, table := range s.leased() {
		s.Dropped[table] = true // unless its row shows the opposite
	}
	for _, row := range rows {
		table := mapstore.TableOf(row.Key)
		delete(s.Dropped, table)
		if r, err := mapstore.DecodeRow(row); err == nil {
			if r.Dropped {
				s.Dropped[table] = true
			}
			if r.Dropping {
				s.Dropping[table] = true
			}
		}
	}
	for _, m := range s.Tables {
		delete(s.Dropped, m.Table)
	}
}

// leased are the tables that lease rows name.
func (s *State) leased() []string {
	tables := map[string]bool{}
	for p := range s.Leases {
		tables[p.Table] = true
	}
	for p := range s.Born {
		tables[p.Table] = true
	}
	return sortedKeys(tables)
}

// ForgetTable deletes all lease rows of a table that was dropped. Errors are Stale (it was not, or its rows change) and the store's.
func ForgetTable(ctx context.Context, store coord.Store, table string) error {
	key := mapstore.Key(table)
	row, there, err := store.Get(ctx, key)
	if err != nil {
		return err
	}
	if there && !tableGone(row) {
		return fault.Errorf(fault.Stale, "table %q was not dropped: its lease rows stay", table)
	}
	all, _, err := store.List(ctx, lease.Prefix)
	if err != nil {
		return err
	}
	rows := map[lease.Partition][]coord.Row{}
	for _, r := range all {
		if p, ok := partitionOf(r.Key); ok && p.Table == table {
			rows[p] = append(rows[p], r)
		}
	}
	step := Step{Kind: Sweep, Table: table, What: "forget its lease rows"}
	for p := range rows {
		step.Sweep = append(step.Sweep, p)
	}
	slices.SortFunc(step.Sweep, comparePartitions)
	if len(step.Sweep) == 0 {
		return nil
	}
	x := &executor{store: store, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
	return x.run(ctx, NewWork(table, 0, []Step{step}, rows))
}

// partitionOf returns the partition of a row of the lease table.
func partitionOf(key string) (lease.Partition, bool) {
	if p, ok := lease.ParseRowKey(key); ok {
		return p, true
	}
	if p, ok := lease.ParseBornKey(key); ok {
		return p, true
	}
	p, _, ok := lease.ParseProhibitKey(key)
	return p, ok
}
