package mapstore

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
)

// Run follows the rows of all tables until ctx ends: it fetches the committed files that are missing here, and
// sweeps unneeded ones.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	s.mu.Lock()
	rng := rand.New(rand.NewPCG(s.mu.rng.Uint64(), s.mu.rng.Uint64()))
	s.mu.Unlock()
	g.Go(func() error { return coord.Follow(ctx, s.deps.Store, Prefix, follower{s}, s.deps.Log, rng) })
	g.Go(func() error { s.tend(ctx); return nil })
	return g.Wait()
}

// follower records rows.
type follower struct{ s *Server }

// Listed implements coord.Follower.
func (f follower) Listed(rows []coord.Row, _ coord.Revision) error {
	f.s.state.Lock()
	defer f.s.state.Unlock()
	clear(f.s.state.rows)
	clear(f.s.state.miss)
	for _, row := range rows {
		f.learnLocked(row)
	}
	f.s.metrics.lagging.Set(float64(len(f.s.state.miss)))
	for _, table := range f.s.state.shelf.Tables() {
		f.s.state.sweep[table] = true
	}
	f.s.wake()
	return nil
}

// Changed implements coord.Follower.
func (f follower) Changed(events []coord.Event) error {
	f.s.state.Lock()
	defer f.s.state.Unlock()
	for _, e := range events {
		if e.Deleted {
			delete(f.s.state.rows, TableOf(e.Key))
			f.s.missLocked(TableOf(e.Key))
		} else {
			f.learnLocked(e.Row)
		}
	}
	f.s.wake()
	return nil
}

func (f follower) learnLocked(row coord.Row) {
	table := TableOf(row.Key)
	r, err := DecodeRow(row)
	if err != nil {
		f.s.deps.Log.Error("a table's row cannot be read", "table", table, "error", err)
		return
	}
	f.s.state.rows[table] = known{r, row.Revision}
	f.s.state.sweep[table] = true
	f.s.missLocked(table)
}

// missLocked notes whether a table's committed file should be here and is not.
func (s *Server) missLocked(table string) {
	r := s.state.rows[table].row
	_, here := s.state.shelf.Get(table, r.Txn)
	if r.has(s.deps.Self) && !here {
		s.state.miss[table] = true
	} else {
		delete(s.state.miss, table)
	}
	s.metrics.lagging.Set(float64(len(s.state.miss)))
}

// tend catches up soon after rows changed, and sweeps now and then.
func (s *Server) tend(ctx context.Context) {
	sweep := time.NewTimer(s.spread(s.settings.SweepEvery))
	defer sweep.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.work:
			s.pause(ctx, s.settings.CatchUpGrace)
			s.catchUp(ctx)
			s.sweepCrowded(ctx)
			s.tidy(ctx)
		case <-sweep.C:
			s.catchUp(ctx)
			s.Sweep(ctx)
			sweep.Reset(s.spread(s.settings.SweepEvery))
		}
	}
}

// tidy makes the disk do its postponed work.
func (s *Server) tidy(ctx context.Context) {
	if err := s.deps.Disk.Tidy(); err != nil && ctx.Err() == nil {
		s.deps.Log.Warn("METADATA files could not be put in order; it is tried again", "error", err)
	}
}

func (s *Server) spread(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d*3/4 + time.Duration(s.mu.rng.Int64N(int64(d)/2+1))
}

// catchUpMax bounds the files fetched at a time.
const catchUpMax = 4

// catchUp fetches missing files (background replication, C14).
func (s *Server) catchUp(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(catchUpMax)
	failed := false
	for table, r := range s.missing() {
		g.Go(func() error {
			err := s.catchUpTable(ctx, table, r)
			if err == nil {
				s.metrics.caughtUp.Inc()
				return nil
			}
			if ctx.Err() == nil {
				s.deps.Log.Warn("a METADATA file could not be fetched; it is tried again", "table", table, "seq", r.Seq, "error", err)
			}
			return err
		})
	}
	failed = g.Wait() != nil
	if failed && ctx.Err() == nil {
		time.AfterFunc(s.spread(time.Second), s.wake)
	}
}

func (s *Server) missing() map[string]Row {
	s.state.Lock()
	defer s.state.Unlock()
	out := make(map[string]Row, len(s.state.miss))
	for table := range s.state.miss {
		out[table] = s.state.rows[table].row
	}
	return out
}

func (s *Server) catchUpTable(ctx context.Context, table string, r Row) error {
	f, m, err := s.load(ctx, Wanted{Table: table, Txn: r.Txn, Seq: r.Seq, Servers: r.Servers})
	if err != nil {
		return err
	}
	return s.take(ctx, f, m)
}

// Sweep deletes unneeded files of the tables that changed since the last time. Tables that fail are tried again.
func (s *Server) Sweep(ctx context.Context) {
	s.state.Lock()
	tables := make([]string, 0, len(s.state.sweep))
	for table := range s.state.sweep {
		tables = append(tables, table)
	}
	s.state.Unlock()
	for _, table := range tables {
		if ctx.Err() != nil {
			return
		}
		s.sweepLogged(ctx, table)
	}
}

// sweepCrowded sweeps at once where files have no place any more.
func (s *Server) sweepCrowded(ctx context.Context) {
	var crowded []string
	s.state.Lock()
	for table := range s.state.sweep {
		if s.state.shelf.Undecided(table, s.state.rows[table].row) >= s.settings.UndecidedMax {
			crowded = append(crowded, table)
		}
	}
	s.state.Unlock()
	for _, table := range crowded {
		s.sweepLogged(ctx, table)
	}
}

func (s *Server) sweepLogged(ctx context.Context, table string) {
	s.state.Lock()
	delete(s.state.sweep, table) // before the row is read: a change or a file that comes meanwhile is for the next sweep
	s.state.Unlock()
	n, err := s.sweepTable(ctx, table)
	s.metrics.swept.Add(float64(n))
	if err != nil && ctx.Err() == nil {
		s.deps.Log.Debug("METADATA files could not be swept; it is tried again", "table", table, "error", err)
	}
	s.state.Lock()
	defer s.state.Unlock()
	if err != nil || s.state.shelf.Undecided(table, s.state.rows[table].row) > 0 {
		s.state.sweep[table] = true
	}
}

// sweepTable reads the row, touches it if there are many undecided files, and deletes the files that it allows to delete.
func (s *Server) sweepTable(ctx context.Context, table string) (int, error) {
	s.state.Lock()
	before := s.state.shelf.Mark()
	s.state.Unlock()
	limit, cancel := limited(ctx, s.settings.StoreTimeout)
	row, ok, err := s.deps.Store.Get(limit, Key(table))
	cancel()
	if err != nil || !ok {
		return 0, err
	}
	r, err := DecodeRow(row)
	if err != nil {
		return 0, err
	}
	if s.setBack(table, r) { // the committed files are those that look undecided: a repair needs them
		return 0, nil
	}
	touched := false
	if s.crowded(table, r, before) {
		d, err := s.run(ctx, table, NewTouch(table))
		if err != nil {
			return 0, err
		}
		r, touched = d.Row, true
	}
	return s.clear(ctx, table, r, before, touched)
}

// crowded reports whether the row is to be touched: there are many undecided files, or one that was here at the
// sweep before, a round earlier: the marks of its coordinator in lease rows must not stand for ever.
func (s *Server) crowded(table string, r Row, now Mark) bool {
	s.state.Lock()
	defer s.state.Unlock()
	last := s.state.swept[table]
	if s.state.shelf.Undecided(table, r) == 0 {
		delete(s.state.swept, table)
		return false
	}
	s.state.swept[table] = now
	return s.state.shelf.Undecided(table, r) >= s.settings.UndecidedMax || last != 0 && len(s.state.shelf.Abandoned(table, r, last)) > 0
}

func (s *Server) clear(ctx context.Context, table string, r Row, before Mark, touched bool) (int, error) {
	if err := s.enterTurn(ctx, table, diskTurn); err != nil {
		return 0, err
	}
	defer s.leaveTurn(table, diskTurn)
	s.state.Lock()
	gone := s.state.shelf.Decided(table, r, s.settings.KeepFiles)
	if touched {
		gone = append(gone, s.state.shelf.Abandoned(table, r, before)...)
	}
	for _, i := range gone {
		s.state.shelf.Remove(table, i.Txn)
	}
	s.state.Unlock()
	for _, i := range gone {
		s.cache.remove(table, i.Txn)
	}
	if len(gone) == 0 {
		return 0, nil
	}
	return len(gone), s.deps.Disk.Delete(gone...)
}
