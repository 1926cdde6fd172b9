package server

import (
	"context"
	"maps"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
)

// LabelNames implements peer.Storage.
func (s *Server) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	if q.Copies == peer.StagedRows {
		return s.stagedNames(ctx, q, limit)
	}
	_, sn, err := s.snapshot(ctx, q)
	if err != nil {
		return nil, false, err
	}
	defer sn.close()
	names, err := partition.LabelNames(sn.views, sn.matchers)
	names, truncated := atMost(names, limit)
	return names, truncated, err
}

// LabelValues implements peer.Storage.
func (s *Server) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	if q.Copies == peer.StagedRows {
		return s.stagedValues(ctx, q, name, limit)
	}
	_, sn, err := s.snapshot(ctx, q)
	if err != nil {
		return nil, false, err
	}
	defer sn.close()
	values, err := partition.LabelValues(sn.views, sn.matchers, name, oneMore(limit))
	values, truncated := atMost(values, limit)
	return values, truncated, err
}

// oneMore is a limit one higher, so that the caller sees whether there are more; 0: no limit.
func oneMore(limit int) int {
	if limit <= 0 || limit == math.MaxInt {
		return max(limit, 0)
	}
	return limit + 1
}

func atMost(all []string, limit int) ([]string, bool) {
	if limit > 0 && len(all) > limit {
		return all[:limit], true
	}
	return all, false
}

// Exemplars implements peer.Storage.
func (s *Server) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	bySeries := map[point.Labels][]point.ExemplarRow{}
	for _, ms := range sets {
		one := map[point.Labels][]point.ExemplarRow{}
		set := *q
		set.Matchers = ms
		if err := s.exemplarsOf(ctx, &set, one); err != nil {
			return nil, err
		}
		maps.Copy(bySeries, one) // a series that several sets match has the same exemplars in each
	}
	out := make([]peer.SeriesExemplars, 0, len(bySeries))
	for l, ex := range bySeries {
		out = append(out, peer.SeriesExemplars{Labels: l, Exemplars: ex})
	}
	slices.SortFunc(out, func(a, b peer.SeriesExemplars) int { return a.Labels.Compare(b.Labels) })
	return out, nil
}

func (s *Server) exemplarsOf(ctx context.Context, q *peer.Select, into map[point.Labels][]point.ExemplarRow) error {
	_, sn, err := s.snapshot(ctx, q)
	if err != nil {
		return err
	}
	defer sn.close()
	for _, v := range sn.views {
		if err := ctx.Err(); err != nil {
			return err
		}
		ss, err := v.MatchDefined(sn.matchers)
		if err != nil {
			return err
		}
		err = v.Exemplars(ss, q.Lo, q.Hi, func(i int, ex []point.ExemplarRow) error {
			into[ss[i].Labels] = append(into[ss[i].Labels], ex...)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CleanTombstones implements peer.Storage.
func (s *Server) CleanTombstones(ctx context.Context, q *peer.Select) error {
	if err := s.answers(ctx, q); err != nil {
		return err
	}
	t, ok := s.table(q.Table)
	if !ok {
		return nil
	}
	for _, p := range t.overlapping(q.Partitions, q.Lo, q.Hi) {
		p.CleanTombstones()
	}
	return nil
}

// DeleteSeries implements peer.Storage.
func (s *Server) DeleteSeries(ctx context.Context, q *peer.Select) error {
	if len(q.Matchers) == 0 {
		return fault.Errorf(fault.Invalid, "a deletion needs a matcher")
	}
	if q.Copies.DeletesStaged() {
		return s.deleteStaged(ctx, q)
	}
	if err := s.answers(ctx, q); err != nil {
		return err
	}
	t, ok := s.table(q.Table)
	if !ok {
		return nil
	}
	from := slices.DeleteFunc(t.overlapping(q.Partitions, q.Lo, q.Hi), func(p *partition.Partition) bool {
		return q.Partitions == nil && !s.mayRead(q.Table, p.Identity().Partition)
	})
	// A deletion that is bound to fail should fail whole, not with half of its rows gone.
	for _, p := range from { // before anything is deleted
		if err := p.Damaged(); err != nil {
			return err
		}
	}
	// Each deletion waits for fsyncs of the log and of the catalogue, which serve all that wait. Fewer flush rows first at a time: that needs memory for their
	// columns. Those with many rows do so one after the other, in this goroutine.
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(deletesAtOnce)
	flushing := make(chan struct{}, flushesAtOnce)
	for _, p := range from {
		job := func() error { return s.deleteFrom(gctx, t, p, q) }
		switch {
		case !p.FlushesToDelete():
			g.Go(job)
		case p.HeadBytes() < smallFlush:
			flushing <- struct{}{}
			g.Go(func() error {
				defer func() { <-flushing }()
				return job()
			})
		default:
			if err := job(); err != nil {
				g.Go(func() error { return err })
			}
		}
		if gctx.Err() != nil {
			break
		}
	}
	err := g.Wait()
	if err == nil { // those that were begun are done, and the caller may have left before the others
		err = fault.Wrap(ctx.Err(), fault.Canceled, "delete from %d partitions of table %s", len(from), q.Table)
	}
	return s.named(q.Table, err)
}

// deletesAtOnce bounds the partitions that one request deletes from in parallel, and flushesAtOnce those of them that flush rows.
const (
	deletesAtOnce = 512
	flushesAtOnce = 32
)

func (s *Server) deleteFrom(ctx context.Context, t *table, p *partition.Partition, q *peer.Select) error {
	id := p.Identity().Partition
	unloads, heir := s.unloads(t.name, id)
	if unloads && s.deps.Unloads != nil && !p.Empty() {
		return s.deps.Unloads.Delete(ctx, lease.Partition{Table: t.name, ID: id}, func() error { return s.deleteHere(ctx, t, p, q, heir) })
	}
	return s.deleteHere(ctx, t, p, q, heir)
}

// deleteHere deletes from a partition. Of one into which another unloads, or where rows are staged, the deletion is remembered for rows that come late.
func (s *Server) deleteHere(ctx context.Context, t *table, p *partition.Partition, q *peer.Select, late bool) error {
	id := p.Identity().Partition
	g := t.gate(id)
	// It is joined until the end: a hand-over of the partition waits for this deletion (Quiesce), so that it is in the
	// rows that are handed over.
	g.join() // also when it is sealed: its rows are still read
	defer g.leave()
	epoch, ok := s.mayWrite(t.name, id, point.All)
	if !ok {
		return s.notLed(t.name, id)
	}
	if s.kept(t.name, id) { // its chain begins the epoch: one that a deletion began would have no copies
		if _, err := s.led(ctx, t, pass{g, id, epoch, point.All}); err != nil {
			return err
		}
	}
	del := p.Delete
	if late || s.deps.Staging != nil || s.kept(t.name, id) { // of copies: rows that a former leader set aside come back to the present one
		del = p.DeleteLate
	}
	err := del(ctx, epoch, q.Matchers, q.Lo, q.Hi)
	if _, here := t.get(id); fault.Is(err, fault.Stale) && (t.isDropped(id) || !here && !s.livesOn(t, p)) {
		return nil // dropped meanwhile: its rows are gone altogether, not from here alone
	}
	if err != nil {
		return err
	}
	return s.confirm(t, pass{g, id, epoch, point.All})
}
