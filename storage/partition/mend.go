package partition

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// A placement that follows gets the bytes of a damaged segment from its leader again, and a leader those of its own from a placement that follows.
//
//	damage of a file, at opening or by the scrub ─▶ Broken ─▶ Adopt of the same segment ─▶ renamed over the damaged file ─┐
//	                                                       └▶ Adopt of a major in its place ──────────────────────────────┴▶ no file is
//	broken, and nothing else is wrong ─▶ heads rebuilt from the log, if there are none ─▶ read and written again
//
// Damage found at opening leaves no heads, since the numbers of series in the log's frames are known by the segments alone. A placement that follows logs its leader's frames all the same, as far as
// frames may be late: its writers wait no longer than for a restart.

// Broken lists the segments with damaged files. mendable: nothing else is wrong with the placement, so that it is whole once they are
// replaced.
func (p *Partition) Broken() (ids []point.SegmentID, mendable bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mu.broken), !p.mu.beyond
}

func (p *Partition) isBroken(id point.SegmentID) bool {
	ids, _ := p.Broken()
	return slices.Contains(ids, id)
}

// mend replaces a damaged file by a whole one. The catalogue stays as it is. followMu is held.
func (p *Partition) mend(sender point.Epoch, info segment.Info, path string) error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	g, err := p.mending(sender, info)
	if err != nil {
		return err
	}
	b := p.deps.Brick
	to := b.SegmentPath(p.ident.Placement, info.ID)
	if err := b.FS().Rename(path, to); err != nil {
		return fault.Wrap(err, fault.Unavailable, "rename %s to %s", path, to)
	}
	if err := b.SyncSegmentDir(p.ident.Placement); err != nil {
		return err
	}
	r, err := segment.Open(b.FS(), to, g.Info, p.deps.Cache)
	if err != nil {
		return err
	}
	if old := p.mended(p.newSegmentRef(r, g, to)); old != nil {
		old.release()
	}
	p.log.Info("a damaged segment was replaced with the bytes of another copy", "segment", info.ID, "bytes", info.Size)
	return nil
}

// mending returns the catalogue's entry of the damaged segment.
func (p *Partition) mending(sender point.Epoch, info segment.Info) (SegmentState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := baseOf(p.mu.state.Segments, info.ID)
	switch {
	case p.mu.dropped || i < 0:
		return SegmentState{}, p.gone()
	case p.mu.follows && sender != p.mu.leader, !p.mu.follows && (sender != p.mu.epoch || !p.mu.raised):
		return SegmentState{}, p.notLed(sender, max(p.mu.epoch, p.mu.leader))
	}
	g := p.mu.state.Segments[i]
	if g.Size != info.Size || g.Checksum != info.Checksum && (g.Checksum != 0 || !p.mu.follows) {
		return g, fault.Errorf(fault.Corrupt, "segment %v has %d bytes with checksum %016x at the other placement, and %d with %016x in the catalogue here",
			info.ID, info.Size, info.Checksum, g.Size, g.Checksum)
	}
	return g, nil
}

// mended shows readers the whole file, and returns the damaged one; nil: it could not be opened.
func (p *Partition) mended(ref *segmentRef) (old *segmentRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := ref.info.ID
	var list []*segmentRef
	p.mu.defined = 0
	for i := range p.mu.state.Segments { // in the catalogue's order
		at := slices.IndexFunc(p.mu.segments, func(g *segmentRef) bool { return g.info.ID == p.mu.state.Segments[i].ID })
		switch {
		case p.mu.state.Segments[i].ID == id:
			if list = append(list, ref); at >= 0 {
				old = p.mu.segments[at]
			}
		case at >= 0:
			list = append(list, p.mu.segments[at])
		default: // damaged, too
			continue
		}
		p.mu.defined += int(p.mu.state.Segments[i].Definitions)
	}
	p.mu.segments = list
	p.mu.broken = slices.DeleteFunc(p.mu.broken, func(x point.SegmentID) bool { return x == id })
	return old
}

// healed ends the damage once no file is broken: after an adoption, before followMu is released.
func (p *Partition) healed() error {
	p.mu.Lock()
	p.mu.broken = slices.DeleteFunc(p.mu.broken, func(id point.SegmentID) bool { return baseOf(p.mu.state.Segments, id) < 0 })
	whole, unread := len(p.mu.broken) == 0 && !p.mu.beyond && p.damagedLocked() != nil, p.mu.damaged != nil
	p.mu.Unlock()
	if !whole {
		return nil
	}
	if unread { // the log was not replayed when it was opened
		if err := p.replayAll(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.mu.damaged, p.mu.harmed = nil, nil
	p.mu.Unlock()
	p.log.Info("the partition is whole again")
	if !unread {
		return nil
	}
	return p.redelete() // as the start would have
}

// replayAll builds the heads from the whole log, with the frames that were only logged while there were none. followMu is held.
func (p *Partition) replayAll() error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	p.mu.Lock()
	last := p.mu.last
	p.mu.Unlock()
	q, err := p.replayed(p.Flushed(), last)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.appliedLocked(last) // a leader accepts no row before the damage is over: no frame comes meanwhile
	p.mu.Unlock()
	p.become(q)
	return nil
}
