package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Periods of the maintenance loops; each is jittered by a tenth.
const (
	flushPeriod   = 250 * time.Millisecond
	compactPeriod = 2 * time.Second
	sweepPeriod   = time.Minute
	enterPeriod   = 250 * time.Millisecond
	coolAfter     = 2 * time.Hour
)

// Run flushes, compacts and cools until ctx ends. It returns an error when the store is fenced: then the process must
// stop, because it could keep no row that it acks.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return every(ctx, flushPeriod, s.flushDue) })
	g.Go(func() error { return every(ctx, compactPeriod, s.compactDue) })
	g.Go(func() error { return every(ctx, sweepPeriod, s.sweep) })
	g.Go(func() error {
		s.enterSeries(ctx) // those of the log
		return every(ctx, enterPeriod, s.enterSeries)
	})
	g.Go(func() error { return every(ctx, measurePeriod, s.measure) })
	g.Go(func() error { return s.scrub(ctx) })
	g.Go(func() error { return s.removeDropped(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-s.deps.Brick.Fenced():
			return fault.Annotate(s.deps.Brick.Err(), "the store is fenced")
		}
	})
	return g.Wait()
}

// The pause begins when f ends, so a slow round delays the next and rounds never overlap. A tenth of jitter keeps
// servers that were started together apart.
func every(ctx context.Context, period time.Duration, f func(context.Context)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(period + rand.N(period/10)):
			f(ctx)
		}
	}
}

// flushDue flushes the partitions that are due by their own policy, then those that the server as a whole needs flushed.
// A frozen brick, opened on a file system that forgets, accepts nothing, so that there is nothing to flush.
func (s *Server) flushDue(ctx context.Context) {
	if s.deps.Brick.Frozen() {
		return
	}
	now := time.Now()
	pinned := s.pinned()
	f := s.newFlusher()
	for _, t := range s.tables() {
		for _, p := range t.all() {
			why := partition.NotDue
			if pinned[p] {
				why = partition.ByLog
			}
			f.run(p, func() error {
				err := p.Maintain(ctx, now, why)
				p.Cool(now, coolAfter)
				return err
			})
		}
	}
	f.wait()
	s.countSeries()
	s.coolUnderPressure(ctx, now)
	s.flushUnderPressure(ctx)
}

// flushUnderPressure flushes heads until they use half of their bound. A head that cannot be flushed is skipped: the
// memory of the others is freed all the same.
func (s *Server) flushUnderPressure(ctx context.Context) {
	// Of this call: the next one, a quarter of a second later, tries them again when their RetryAt allows.
	failed := map[*partition.Partition]bool{}
	for ctx.Err() == nil {
		// Half: rows being flushed stay in memory until its segment is in the catalogue, and the rows that come
		// meanwhile need as much again.
		excess := s.heads.Used() - s.settings.HeadBytesMax/2
		if excess <= 0 {
			return
		}
		batch := victims(s.held(failed), excess)
		if len(batch) == 0 {
			return
		}
		f := s.newFlusher()
		for _, h := range batch {
			f.run(h.p, func() error {
				if done, err := h.p.TryFlush(ctx, partition.ByMemory); done {
					return err
				}
				f.skip(h.p)
				return nil
			})
		}
		f.wait()
		for _, p := range f.failed {
			failed[p] = true
		}
	}
}

// held lists the partitions with rows in memory, except those in but and those that failed and must not be retried yet.
func (s *Server) held(but map[*partition.Partition]bool) (held []heldHead) {
	now := time.Now()
	for _, t := range s.tables() {
		greed := t.heads.Used() > t.heads.Fair()
		for _, p := range t.all() {
			n, shape := p.HeadBytes(), p.Shape()
			if n > 0 && !shape.Follows && !but[p] && !now.Before(shape.RetryAt) {
				held = append(held, heldHead{p, n, greed, now.Sub(shape.LastWrite)})
			}
		}
	}
	return held
}

// flusher flushes several partitions at once where they are small: such a flush is a few waits for the disk, which it does
// for several as fast as for one. Of large ones one at a time is flushed beside them, because its columns need memory.
type flusher struct {
	s     *Server
	small errgroup.Group
	large errgroup.Group
	later []func() error // large ones that wait for another
	mu    sync.Mutex
	// Guarded by mu.
	failed []*partition.Partition
}

const (
	smallFlushes = 8       // at once
	smallFlush   = 1 << 20 // bytes of a head
)

func (s *Server) newFlusher() *flusher {
	f := &flusher{s: s}
	f.small.SetLimit(smallFlushes)
	f.large.SetLimit(1)
	return f
}

// run runs flush in the background. A partition with an empty head costs nothing; a head of deletions alone has no bytes, and its flush may wait for a copy.
func (f *flusher) run(p *partition.Partition, flush func() error) {
	job := func() error {
		if err := flush(); !f.s.report(p, "flush", err) {
			f.skip(p)
		}
		return nil
	}
	switch n := p.HeadBytes(); {
	case n == 0 && p.Shape().Frames == 0:
		_ = job() // reported
	case n < smallFlush:
		f.small.Go(job) // waits while smallFlushes run: a round of thousands of partitions does not start thousands of goroutines
	case !f.large.TryGo(job):
		f.later = append(f.later, job) // no small one waits for it
	}
}

// skip notes a partition that was not flushed.
func (f *flusher) skip(p *partition.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, p)
}

func (f *flusher) wait() {
	for _, job := range f.later {
		f.large.Go(job)
	}
	_, _ = f.large.Wait(), f.small.Wait()
}

// coolUnderPressure makes partitions forget their series while all together hold too much, the longest idle first.
func (s *Server) coolUnderPressure(ctx context.Context, now time.Time) {
	type warm struct {
		p       *partition.Partition
		bytes   int64
		written time.Time
	}
	var names int64
	for _, t := range s.tables() {
		for _, p := range t.all() {
			names += p.NamesBytes()
		}
	}
	if names <= s.settings.NamesBytesMax {
		return
	}
	var idle []warm
	for _, t := range s.tables() {
		for _, p := range t.all() {
			n := p.NamesBytes()
			if at := p.Shape().LastWrite; n > 0 && now.Sub(at) >= s.settings.NamesIdleMin {
				idle = append(idle, warm{p, n, at})
			}
		}
	}
	slices.SortFunc(idle, func(a, b warm) int { return a.written.Compare(b.written) })
	for _, w := range idle {
		if names <= s.settings.NamesBytesMax || ctx.Err() != nil {
			return
		}
		if s.report(w.p, "flush", w.p.Maintain(ctx, now, partition.ByMemory)) && w.p.Cool(now, s.settings.NamesIdleMin) {
			names -= w.bytes
		}
	}
}

// sweep frees the names of series that are not referenced any more.
func (s *Server) sweep(context.Context) {
	for _, t := range s.tables() {
		t.index.Sweep()
	}
}

// enterSeries enters the series that came before its last call into the postings of their tables: else the first query after
// many new series pays for them, 35 to 58 ms for 131,072 after a restart (2026-11-24). Newer ones wait: their sender
// waits for an ack, and may have more.
func (s *Server) enterSeries(context.Context) {
	for _, t := range s.tables() {
		if t.index.Waiting() > 0 {
			t.index.Enter(t.came)
		}
		t.came = t.index.Came()
	}
}

// pinned returns the partitions that keep the oldest log files alive while the log is over its bound.
func (s *Server) pinned() map[*partition.Partition]bool {
	excess := s.deps.Brick.LogBytes() - s.settings.LogBytesMax
	if excess <= 0 {
		return nil
	}
	out := map[*partition.Partition]bool{}
	// Sixteen a round: flushing those that pin the oldest files frees a file, and the next round sees the new oldest.
	for _, pin := range s.deps.Brick.Pinning(16) {
		for _, t := range s.tables() {
			for _, p := range t.all() {
				if p.Identity().Placement == pin.Placement {
					out[p] = true
				}
			}
		}
	}
	return out
}

func (s *Server) compactDue(ctx context.Context) {
	if s.deps.Brick.Frozen() {
		return
	}
	now := time.Now()
	for _, t := range s.tables() {
		for _, p := range t.all() {
			s.report(p, "compact", p.CompactIfDue(ctx, now))
		}
	}
}

// report counts and logs a failure of maintenance; the next round retries it.
func (s *Server) report(p *partition.Partition, what string, err error) bool {
	if err == nil || gone(err) {
		return err == nil
	}
	s.metrics.failures.WithLabelValues(what).Inc()
	id := p.Identity()
	s.deps.Log.Error("maintenance failed", "what", what, "table", id.Table, "partition", id.Partition, "error", err)
	return false
}

// gone reports whether a partition was dropped or closed during maintenance: that is no failure.
func gone(err error) bool { return fault.Is(err, fault.Canceled) || fault.Is(err, fault.Stale) }

// FlushAll writes all head rows into segments now, and folds each partition's segments into one if asked. Partitions that
// are dropped meanwhile are left out; those that cannot be flushed are an error after all others.
func (s *Server) FlushAll(ctx context.Context, compact bool) error {
	var failed []error
	for _, t := range s.tables() {
		for _, p := range t.all() {
			err := p.Flush(ctx, partition.ByStop)
			if err == nil && compact {
				err = p.Compact(ctx, partition.ByRequest)
			}
			switch {
			case err != nil && ctx.Err() != nil:
				return errors.Join(append(failed, err)...)
			case err != nil && (!gone(err) || p.Damaged() != nil):
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}
