package master

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// executor carries steps out. A partition without rows may be moved, split or merged freely; but somebody might ack rows
// between the look and the commit. So it is fenced:
//
//  1. in one transaction, prohibit it on the servers it lies on, and take the in-sync list out of its lease row; it compares
//     that there is no lease row and never was, or that the row is the one that says that it is empty
//  2. change the map
//  3. take the prohibitions back
//
// Whoever takes a lease compares that it is not prohibited (C122), so from 1 to 3 nobody does. Whoever leads changes the very
// row that 1 compares before the first ack, so that one of both fails; after 1 it lets go. Who takes it next, when its leader has
// let go or is silent for long enough, is whom the map of 2 names. If the answer to 2 is lost, the fence stays until it is older
// than any change under way; a later master finds it by its note.
type executor struct {
	store   coord.Store
	tables  Tables
	keepers Keepers // nil: who keeps METADATA files is not changed
	rows    *Rows   // nil: nothing is swept
	log     *slog.Logger
	metrics *metrics
	may     func() bool // nil: always
}

const (
	// fencer is who fences, in the note of the prohibition.
	fencer = "master"
	// changeTimeout bounds one change of a map.
	changeTimeout = 15 * time.Second
	// fenceAge is how old a fence must be to be one that was left behind.
	fenceAge = 4 * changeTimeout
)

// carryOut commits the steps, those of one table in one transaction; if that is refused, one by one.
func (x *executor) carryOut(ctx context.Context, maps []*topology.Map, steps []Step) {
	for _, m := range maps {
		var mine []Step
		for _, s := range steps {
			if s.Table == m.Table && len(s.Ops) > 0 {
				mine = append(mine, s)
			}
		}
		if len(mine) > 0 {
			x.table(ctx, m, mine)
		}
	}
	for _, s := range steps {
		if s.Keeper != nil {
			x.keeper(ctx, s)
		}
		if len(s.Sweep) > 0 {
			x.sweep(ctx, maps, s)
		}
	}
}

// Do carries out one step for a person, on the very map it was planned on. Errors are Stale (something changed meanwhile:
// look again), Invalid, or the store's: then the step may or may not have been carried out.
func Do(ctx context.Context, store coord.Store, tables Tables, m *topology.Map, s Step, log *slog.Logger) error {
	x := &executor{store: store, tables: tables, log: log, metrics: newMetrics(nil)}
	fenced, err := x.fence(ctx, s)
	if err == nil {
		seq := m.Seq
		err = x.change(ctx, m.Table, &seq, []Step{s})
	}
	if !inDoubt(err) {
		x.unfence(context.WithoutCancel(ctx), fenced)
	}
	return err
}

// table carries out the steps of one table.
func (x *executor) table(ctx context.Context, m *topology.Map, steps []Step) {
	var fenced []coord.Row
	steps = slices.DeleteFunc(steps, func(s Step) bool {
		rows, err := x.fence(ctx, s)
		fenced = append(fenced, rows...)
		if err != nil {
			x.failed(s, err)
		}
		return err != nil
	})
	known := true // whether it is known what became of the changes
	if len(steps) > 0 {
		seq := m.Seq
		err := x.change(ctx, m.Table, &seq, steps)
		if fault.Is(err, fault.Invalid) && len(steps) > 1 {
			for _, s := range steps {
				err := x.change(ctx, m.Table, &seq, []Step{s})
				x.told(s, err)
				known = known && !inDoubt(err)
			}
		} else {
			for _, s := range steps {
				x.told(s, err)
			}
			known = !inDoubt(err)
		}
	}
	if known {
		x.unfence(context.WithoutCancel(ctx), fenced)
	}
}

// inDoubt reports whether a change may yet be committed.
func inDoubt(err error) bool {
	return err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Stale) && !fault.Is(err, fault.NotFound)
}

// change commits steps on the very map they were planned on; seq is its number, and then that of what was made.
func (x *executor) change(ctx context.Context, table string, seq *uint64, steps []Step) error {
	if x.may != nil && !x.may() {
		return fault.Wrap(errLost, fault.Stale, "not begun")
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var ops []topology.Op
	for _, s := range steps {
		ops = append(ops, s.Ops...)
	}
	m, err := x.tables.Change(ctx, table, func(m *topology.Map) ([]topology.Op, error) {
		if m.Seq != *seq {
			return nil, fault.Errorf(fault.Stale, "planned on transaction %d of table %q, which is at %d: the next round plans anew", *seq, table, m.Seq)
		}
		return ops, nil
	})
	if err == nil {
		*seq = m.Seq
	}
	return err
}

func (x *executor) told(s Step, err error) {
	if err != nil {
		x.failed(s, err)
		return
	}
	x.metrics.steps.WithLabelValues(s.Kind.String()).Inc()
	x.log.Info("carried out", "kind", s.Kind.String(), "table", s.Table, "what", s.What, "why", s.Why)
}

func (x *executor) failed(s Step, err error) {
	x.metrics.failures.WithLabelValues(s.Kind.String()).Inc()
	level := slog.LevelWarn
	if fault.Is(err, fault.Stale) { // somebody was faster, which is no fault of anybody's
		level = slog.LevelInfo
	}
	x.log.Log(context.Background(), level, "not carried out; the next round plans anew", "kind", s.Kind.String(), "table", s.Table, "what", s.What, "error", err)
}

// vacate gives what must be so for a partition to be empty, and what takes it from whoever leads it. Errors are Stale (it may
// have rows, or a person took it offline) and the store's.
func (x *executor) vacate(ctx context.Context, p lease.Partition) ([]coord.Condition, []coord.Write, error) {
	row, there, err := x.store.Get(ctx, lease.RowKey(p))
	if err != nil {
		return nil, nil, err
	}
	if !there {
		return []coord.Condition{{Key: lease.RowKey(p)}, {Key: lease.BornKey(p)}}, nil, nil
	}
	same := []coord.Condition{{Key: row.Key, Revision: row.Revision}}
	led, err := lease.DecodeLease(row.Value)
	switch {
	case err != nil || !led.Empty || led.Offline != nil:
		return nil, nil, fault.Errorf(fault.Stale, "%s may have rows by now", p)
	case led.Vacant():
		return same, nil, nil
	}
	return same, []coord.Write{{Key: row.Key, Value: led.Vacated().Encode()}}, nil
}

// fence prohibits what a step wants fenced, and gives the rows to take back. Errors are Stale (it may have rows by now)
// and the store's; rows are given with an error too.
func (x *executor) fence(ctx context.Context, s Step) (fenced []coord.Row, err error) {
	for _, f := range s.Fences {
		conditions, vacated, err := x.vacate(ctx, f.Partition)
		if err != nil {
			return fenced, err
		}
		var writes []coord.Write
		for _, server := range f.Servers {
			w := lease.Prohibit(f.Partition, server, lease.Note{Who: fencer, When: time.Now().UTC(), Reason: s.What})
			if _, there, err := x.store.Get(ctx, w.Key); err != nil {
				return fenced, err
			} else if there {
				continue // a person's, or an earlier fence: it holds as well, and stays
			}
			conditions, writes = append(conditions, coord.Condition{Key: w.Key}), append(writes, w)
		}
		rev, ok, err := x.store.Commit(ctx, conditions, append(vacated, writes...))
		if err != nil {
			return fenced, err // the fence may stand: it is taken away when it is old
		}
		if !ok {
			return fenced, fault.Errorf(fault.Stale, "%s has another lease row by now", f.Partition)
		}
		for _, w := range writes {
			fenced = append(fenced, coord.Row{Key: w.Key, Revision: rev})
		}
	}
	return fenced, nil
}

// unfence takes fences back, those that are still as they were written.
func (x *executor) unfence(ctx context.Context, rows []coord.Row) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	for _, row := range rows {
		if _, _, err := x.store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Delete: true}}); err != nil {
			x.log.Warn("a fence stays for a while", "key", row.Key, "error", err)
		}
	}
}

// sweep forgets lease rows of partitions that are no more. Where the whole table is gone, its row must say so: a map that
// merely cannot be had says nothing.
func (x *executor) sweep(ctx context.Context, maps []*topology.Map, s Step) {
	if x.rows == nil {
		return
	}
	var guard []coord.Condition
	if !slices.ContainsFunc(maps, func(m *topology.Map) bool { return m.Table == s.Table }) {
		row, gone, err := tableGone(ctx, x.store, s.Table)
		if err != nil || !gone {
			x.failed(s, errOr(err, "the table is there"))
			return
		}
		guard = append(guard, coord.Condition{Key: row.Key, Revision: row.Revision})
	}
	for _, p := range s.Sweep {
		if x.may != nil && !x.may() {
			return
		}
		if ok, err := forget(ctx, x.store, guard, x.rows.sweepable(p)); err != nil || !ok {
			x.failed(s, errOr(err, "its rows changed"))
			return
		}
	}
	x.told(s, nil)
}

// tableGone reports whether a table was dropped: its row says so, or there is none. The row, or its key, is given.
func tableGone(ctx context.Context, store coord.Store, table string) (coord.Row, bool, error) {
	key := files.Key(table)
	row, there, err := store.Get(ctx, key)
	if err != nil || !there {
		return coord.Row{Key: key}, err == nil, err
	}
	r, err := files.DecodeRow(row)
	return row, err == nil && r.Dropped, nil // a row that cannot be read is no reason to forget anything
}

// forget deletes rows that are still as they were seen; those of revision 0 were not there.
func forget(ctx context.Context, store coord.Store, guard []coord.Condition, rows []coord.Row) (bool, error) {
	conditions := slices.Clone(guard)
	var writes []coord.Write
	for _, row := range rows {
		conditions = append(conditions, coord.Condition{Key: row.Key, Revision: row.Revision})
		if row.Revision != 0 {
			writes = append(writes, coord.Write{Key: row.Key, Delete: true})
		}
	}
	_, ok, err := store.Commit(ctx, conditions, writes)
	return ok, err
}

// FillDropped notes which of the tables that only lease rows name were dropped. Errors are the store's.
func (s *State) FillDropped(ctx context.Context, store coord.Store) error {
	s.Dropped = map[string]bool{}
	seen := map[string]bool{}
	for _, m := range s.Tables {
		seen[m.Table] = true
	}
	for _, table := range s.leased() {
		if seen[table] {
			continue
		}
		_, gone, err := tableGone(ctx, store, table)
		if err != nil {
			return err
		}
		s.Dropped[table] = gone
	}
	return nil
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

// ForgetTable deletes all lease rows of a table that was dropped. Errors are Stale (it was not) and the store's.
func ForgetTable(ctx context.Context, store coord.Store, table string) error {
	row, gone, err := tableGone(ctx, store, table)
	if err != nil {
		return err
	}
	if !gone {
		return fault.Errorf(fault.Stale, "table %q was not dropped: its lease rows stay", table)
	}
	guard := []coord.Condition{{Key: row.Key, Revision: row.Revision}}
	rows, _, err := store.List(ctx, lease.Prefix)
	if err != nil {
		return err
	}
	for _, r := range rows {
		p, ok := lease.ParseRowKey(r.Key)
		if !ok {
			p, ok = lease.ParseBornKey(r.Key)
		}
		if !ok {
			p, _, ok = lease.ParseProhibitKey(r.Key)
		}
		if !ok || p.Table != table {
			continue
		}
		if _, err := forget(ctx, store, guard, []coord.Row{r}); err != nil {
			return err
		}
	}
	return nil
}

func errOr(err error, text string) error {
	if err == nil {
		return fault.Errorf(fault.Stale, "%s", text)
	}
	return err
}
