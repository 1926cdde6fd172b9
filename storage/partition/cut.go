package partition

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Cut removes the frames behind serial after, which the leader does not have, from the log. They are set aside durably, with full
// labels; then the log is cut and the heads are rebuilt from the rest. Series that only surplus frames defined become unknown, so
// the leader may assign their numbers again. It returns the file with the surplus; nil: there is none.
//
//	surplus file (fsync) → its deletions off the catalogue → log cut → heads
//
// A crash between two steps leaves the surplus in the log, in the file, or in both: the next Cut writes the same file again.
//
// Errors: Stale (the placement does not follow, or was dropped), Invalid (after is not one of its frames), Corrupt (the log cannot
// be read, or the surplus is already in segments: only a new copy helps), Unavailable.
func (p *Partition) Cut(after point.Serial) (*Surplus, error) {
	p.lateMu.Lock()
	defer p.lateMu.Unlock()
	p.followMu.Lock()
	defer p.followMu.Unlock()
	if err := p.catchUpOrdered(nothing); err != nil { // the labels of surplus rows are needed
		return nil, err
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	flushed, none, err := p.mayCut(after)
	if err != nil || none {
		return nil, err
	}
	// 1. The heads of the frames that stay, in memory: an error here has changed nothing.
	// 2. The frames that go, in a file, and their deletions taken out of the catalogue.
	// 3. The cut of the log. A crash before it leaves the frames there: a start carries out their deletions again (redelete), the leader asks for
	// the cut again, and both steps are repeated with the same result.
	// 4. Readers see the new heads.
	q, err := p.replayed(flushed, after)
	if err != nil {
		return nil, fault.Annotate(err, "cut behind %v", after)
	}
	s, err := p.setAside(after)
	if err == nil {
		err = p.undelete(after)
	}
	if err == nil {
		err = p.deps.Brick.Cut(p.ident.Placement, after)
	}
	if err != nil {
		q.letGo().release()
		return nil, fault.Annotate(err, "cut behind %v", after)
	}
	p.become(q)
	p.log.Info("surplus frames cut off the log", "after", after, "frames", s.Frames, "bytes", s.Bytes, "file", s.Path)
	return s, nil
}

// mayCut returns the last frame in segments. The flush lock is held.
func (p *Partition) mayCut(after point.Serial) (flushed point.Serial, none bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	flushed = p.mu.state.Flushed
	switch {
	case p.mu.dropped:
		return flushed, false, p.gone()
	case !p.mu.follows:
		return flushed, false, fault.Errorf(fault.Stale, "partition %s/%d leads: nothing of its log is surplus", p.ident.Table, p.ident.Partition)
	case p.mu.damaged != nil:
		return flushed, false, p.mu.damaged
	case after.Less(flushed):
		return flushed, false, fault.Errorf(fault.Corrupt, "partition %s/%d: this copy has rows in its segments that its leader never had, of frames behind %v up to %v, as after the coordination store "+
			"was set back; it cannot follow, and keeps them. `spillway partition move … --from` takes it away, and another copy is filled; keep its files before, if the rows matter", p.ident.Table, p.ident.Partition, after, flushed)
	}
	return flushed, !after.Less(p.mu.last), nil
}

// undelete removes the deletions of frames behind a serial from the catalogue. The flush lock is held.
func (p *Partition) undelete(after point.Serial) error {
	p.mu.Lock()
	next := *p.mu.state
	p.mu.Unlock()
	changed := false
	next.Segments = slices.Clone(next.Segments)
	for i := range next.Segments {
		g := &next.Segments[i]
		kept := slices.DeleteFunc(slices.Clone(g.Tombstones), func(t Tombstone) bool { return after.Less(t.At) })
		changed = changed || len(kept) < len(g.Tombstones)
		g.Tombstones = kept
	}
	deleted := slices.DeleteFunc(slices.Clone(next.Deleted), func(d Deleted) bool { return after.Less(d.At) })
	if !changed && len(deleted) == len(next.Deleted) {
		return nil
	}
	next.Deleted = deleted
	if err := p.commit(&next); err != nil {
		return err
	}
	p.showTombstones(&next)
	return nil
}
