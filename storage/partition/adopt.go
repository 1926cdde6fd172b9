package partition

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// AdoptVerified makes a segment of the leader part of the placement: it moves the file at path, on the store's file system, of which info is
// what Verified returned. A minor goes on top of its base and replaces those above it, minors that the leader folded into it or an earlier leader's, if it holds their frames
// (C66); a major replaces all segments. One that lacks frames of segments here waits for those above it (ahead.go). Heads with all frames in the segment are released, and so is the log they came from.
//
//	verified → note of its id in the catalogue → rename, directory fsynced → catalogue (fsync) → readers → log released
//
// Errors: Stale (the placement does not follow the sender, the segment's base is not here, or
// the placement was dropped), Corrupt (the file numbers series otherwise: fetch it again), Unavailable.
// After an error the placement is unchanged, and the file is where it was, unless it is at its final place already.
//
// A segment that is here with a damaged file gets the whole one (mend.go).
func (p *Partition) AdoptVerified(sender point.Epoch, info segment.Info, path string) error {
	p.lateMu.Lock()
	defer p.lateMu.Unlock()
	p.followMu.Lock()
	defer p.followMu.Unlock()
	take := p.adopt
	if p.isBroken(info.ID) {
		take = p.mend
	}
	if err := take(sender, info, path); err != nil {
		return err
	}
	return p.healed()
}

// adopt adds a segment that is not here yet.
// adopt's steps, and a crash behind each:
//
//	note (place)     the id is in the catalogue, no file under it: the next adoption overwrites the note
//	rename (place)   an unlisted file under the noted id: Tidy removes it and does not take its frames for lost ones; it is fetched again
//	commitSegment    listed: the replay begins behind its ends
//	adopted          files that were replaced are unlisted now: Tidy finds that others hold their frames, and removes them
//	Release          more log than needed
func (p *Partition) adopt(sender point.Epoch, info segment.Info, path string) error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	start := time.Now()
	next, before, err := p.adopting(sender, info)
	if err != nil {
		return err
	}
	if next == nil {
		return p.keepAhead(sender, before, info, path)
	}
	x := p.holdIDs()
	defer x.release()
	made := append(slices.Clip(before), ahead{info, path})
	fresh, err := p.newDefinitions(x, made)
	if err != nil {
		return err
	}
	unopened := p.unopened()
	refs, err := p.placed(next, made)
	if err != nil {
		p.setAhead(sender, nil)
		return err
	}
	for _, id := range unopened {
		if baseOf(next.Segments, id) < 0 {
			_ = p.removeSegmentFile(id) // a file that stays is removed at the next start
		}
	}
	if err := p.adopted(refs, next, x, fresh); err != nil {
		return err
	}
	for _, a := range made {
		p.log.Info("segment adopted", "segment", a.ID, "major", a.Major, "rows", a.Rows, "bytes", a.Size, "ends", a.Ends, "took", time.Since(start).Round(time.Millisecond))
	}
	p.setAhead(sender, nil)
	return nil
}

// placed moves files to their places and makes them part of the placement, those of the newest segments of an entry of the catalogue. Those below the newest hold only frames that segments here
// have, so that a start after a crash knows what they are; the newest is noted.
func (p *Partition) placed(next *State, made []ahead) (refs []*segmentRef, err error) {
	before := made[:len(made)-1]
	for _, a := range before {
		if err = p.move(a.Info, a.path); err != nil {
			break
		}
	}
	if newest := made[len(before)]; err == nil {
		err = p.place(newest.Info, newest.path)
	}
	if err == nil {
		// Verified has checked them. To do so again here would hold up the leader's frames, and with them the acks of all copies.
		refs, err = p.openAll(next.Segments[len(next.Segments)-len(made):], func(*segment.Reader) error { return nil })
	}
	if err != nil {
		for _, a := range before { // under their ids the next leader may make other bytes
			err = errors.Join(err, p.removeSegmentFile(a.ID))
		}
		return nil, err
	}
	if err := p.commit(next); err != nil {
		for _, g := range refs {
			g.release() // the files stay: it is uncertain whether the catalogue names them
		}
		return nil, err
	}
	return refs, nil
}

// Verified compares the checksum of the whole file with the one that its sender sealed it with, and returns the description in it, deletions included. It checks
// header, definitions and postings, and decodes no rows (segment.DescribeCopy). It holds no lock. Errors: Corrupt (the file is not as info says in its id, size
// and checksum, or is another partition's), Unavailable.
func (p *Partition) Verified(info segment.Info, path string) (segment.Info, error) {
	found, err := segment.DescribeCopy(p.deps.Brick.FS(), path, info.Checksum, info.Size, p.deps.Cache)
	if err != nil {
		return info, err
	}
	if found.ID != info.ID {
		return info, fault.Errorf(fault.Corrupt, "segment %s is %v instead of %v; it has to be fetched again", path, found.ID, info.ID)
	}
	if found.Table != p.ident.Table || found.Partition != p.ident.Partition {
		return info, fault.Errorf(fault.Corrupt, "segment %s is of partition %s/%d, not of %s/%d", path, found.Table, found.Partition, p.ident.Table, p.ident.Partition)
	}
	return found, nil
}

// adopting returns the catalogue entry with the segment in it, and the segments that waited below it; without an entry it has to wait, too. The flush lock is held.
func (p *Partition) adopting(sender point.Epoch, info segment.Info) (entry *State, before []ahead, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lowest, waiting := &info, p.aheadLocked()
	if i := slices.IndexFunc(waiting, func(a ahead) bool { return a.ID == info.Base }); i >= 0 && !info.Major {
		before = waiting[:i+1]
		lowest = &before[0].Info
	}
	switch {
	case p.mu.dropped:
		return nil, nil, p.gone()
	case p.mu.beyond, p.mu.damaged != nil && !p.replacesBrokenLocked(lowest): // without its heads only what makes it whole is taken
		return nil, nil, fault.Wrap(p.damagedLocked(), fault.Unavailable, "no segment is taken")
	case !p.mu.follows || sender != p.mu.leader:
		return nil, nil, p.notLed(sender, max(p.mu.epoch, p.mu.leader))
	case len(info.Ends) == 0:
		return nil, nil, fault.Errorf(fault.Corrupt, "segment %v names no frames", info.ID)
	case baseOf(p.mu.state.Segments, info.ID) >= 0, slices.ContainsFunc(waiting, func(a ahead) bool { return a.ID == info.ID }): // it would replace itself, and the file that is replaced is removed
		return nil, nil, fault.Errorf(fault.Stale, "segment %v is here already", info.ID)
	}
	next := *p.mu.state
	next.Adopting = nil
	below := 0
	if !lowest.Major {
		if below = baseOf(next.Segments, lowest.Base) + 1; below == 0 {
			return nil, nil, fault.Errorf(fault.Stale, "segment %v is based on %v, which partition %s/%d does not have here", lowest.ID, lowest.Base, p.ident.Table, p.ident.Partition)
		}
	}
	replaced := next.Segments[below:]
	next.Segments = slices.Clone(next.Segments[:below])
	for _, a := range before {
		next.put(&a.Info)
	}
	next.put(&info)
	if ends := endsWith(next.Segments, nil); len(replaced) > 0 && !covers(ends, next.Ends) {
		return nil, before, nil
	}
	for _, g := range next.Segments[below:] {
		next.Ends = raise(next.Ends, g.Ends...)
	}
	next.Flushed = point.Serial(next.Ends[len(next.Ends)-1])
	// Frames of an older epoch that the leader's segments do not have were never on all placements, so it does not have them: they must be cut and
	// delivered anew, or readers would see rows here alone.
	for _, e := range p.endsLocked() {
		if e.Epoch < next.Flushed.Epoch && !covers(next.Ends, []point.EpochEnd{e}) {
			return nil, nil, fault.Errorf(fault.Stale, "segment %v holds frames up to %v, the log here has surplus up to %v: it must be cut first", info.ID, info.Ends, e)
		}
	}
	for _, d := range p.deletionsLocked() { // of frames behind it
		if next.Flushed.Less(d.at) {
			_, _ = hide(next.Segments, tombstoneOf(&d.Deletion, d.at), false)
		}
	}
	for _, g := range next.Segments[below:] {
		p.mu.nextSeg = max(p.mu.nextSeg, g.ID.Seq+1)
	}
	return &next, before, next.check()
}

// put adds a segment on top, and carries out the deletions that it lists.
func (s *State) put(info *segment.Info) {
	s.bring(info, s.Segments)
	s.Segments = append(s.Segments, SegmentState{Info: *info})
}

// replacesBrokenLocked reports whether no damaged file is left with a segment: a major replaces all, a minor those above its base.
func (p *Partition) replacesBrokenLocked(info *segment.Info) bool {
	if info.Major {
		return true
	}
	below := baseOf(p.mu.state.Segments, info.Base) + 1
	return !slices.ContainsFunc(p.mu.broken, func(id point.SegmentID) bool { return baseOf(p.mu.state.Segments[:below], id) >= 0 })
}

// unopened lists the segments of the catalogue that readers do not have, because their files are damaged.
func (p *Partition) unopened() (ids []point.SegmentID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.mu.state.Segments {
		id := p.mu.state.Segments[i].ID
		if !slices.ContainsFunc(p.mu.segments, func(g *segmentRef) bool { return g.info.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// baseOf returns the index of a segment in the chain; -1: it is not there.
func baseOf(chain []SegmentState, id point.SegmentID) int {
	return slices.IndexFunc(chain, func(g SegmentState) bool { return g.ID == id })
}

// endsWith returns the ends of the segments and one more together.
func endsWith(chain []SegmentState, more []point.EpochEnd) (ends []point.EpochEnd) {
	for i := range chain {
		ends = raise(ends, chain[i].Ends...)
	}
	return raise(ends, more...)
}

// newDefinitions returns the labels of the series that segments define and the ids lack, and checks that the labels of the
// others agree. A placement that is not warm has no ids.
func (p *Partition) newDefinitions(x *ids, made []ahead) (fresh []point.Labels, err error) {
	if !p.isWarm() {
		return nil, nil
	}
	for _, a := range made {
		if fresh, err = p.definitionsOf(x, fresh, a.Info, a.path); err != nil {
			return nil, err
		}
	}
	return fresh, nil
}

func (p *Partition) definitionsOf(x *ids, fresh []point.Labels, info segment.Info, path string) ([]point.Labels, error) {
	r, err := segment.Open(p.deps.Brick.FS(), path, info, p.deps.Cache)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	n := x.len()
	err = r.EachDefinition(func(id point.DenseID, l point.Labels) error {
		if int(id) < n {
			if ref, live := x.ref(id); live && p.deps.Index.Labels(ref) != l {
				return fault.Errorf(fault.Corrupt, "segment %v says that series %d is %s, the log here that it is %s", info.ID, id, l, p.deps.Index.Labels(ref))
			}
			return nil
		}
		if int(id) != n+len(fresh) {
			return fault.Errorf(fault.Corrupt, "segment %v defines series %d after %d", info.ID, id, n+len(fresh))
		}
		fresh = append(fresh, l)
		return nil
	})
	return fresh, err
}

// place moves a verified file to the segment's final place, durably. The catalogue notes its id first: a file that a crash leaves
// under this id was not adopted, and frames that only it holds are not lost rows of this placement.
func (p *Partition) place(info segment.Info, path string) error {
	p.mu.Lock()
	noted := *p.mu.state
	p.mu.Unlock()
	noted.Adopting = &info.ID
	if err := p.commit(&noted); err != nil {
		return err
	}
	return p.move(info, path)
}

// move moves a file to the segment's final place.
func (p *Partition) move(info segment.Info, path string) error {
	b := p.deps.Brick
	if err := b.MakeSegmentDir(p.ident.Placement); err != nil {
		return err
	}
	to := b.SegmentPath(p.ident.Placement, info.ID)
	// The bytes were fsynced when they were received, so the name may appear at any moment.
	if err := b.FS().Rename(path, to); err != nil {
		return fault.Wrap(err, fault.Unavailable, "rename %s to %s", path, to)
	}
	return b.SyncSegmentDir(p.ident.Placement)
}

// adopted shows readers segments that the catalogue lists, and releases the heads and segments that they replace.
func (p *Partition) adopted(made []*segmentRef, next *State, x *ids, fresh []point.Labels) error {
	refs := p.deps.Index.InternAll(fresh, nil)
	p.applyMu.Lock()
	p.mu.Lock()
	// The partition may have cooled meanwhile: then nothing needs the references.
	if p.mu.warm && p.ids.Load() == x {
		x.put(refs...)
		refs = nil
	}
	below := slices.IndexFunc(p.mu.segments, func(o *segmentRef) bool { return o.info.ID == made[0].info.Base }) + 1
	if made[0].info.Major {
		below = 0
	}
	old := p.mu.segments[below:] // a compaction of the leader replaced them, or an earlier leader made them, and died before other servers had them
	p.mu.segments = append(slices.Clone(p.mu.segments[:below]), made...)
	p.mu.defined = 0
	for i := range next.Segments { // the catalogue's: some may be damaged, and not among the readers'
		p.mu.defined += int(next.Segments[i].Definitions)
	}
	p.mu.held = max(p.mu.held, next.Flushed.Epoch)
	for _, g := range made {
		p.mu.held = max(p.mu.held, g.info.ID.Epoch)
		p.mu.ranks.Observe(g.info.StampHi)
	}
	gone, straddles := p.coveredLocked(next.Flushed)
	p.mu.Unlock()
	p.applyMu.Unlock()
	p.deps.Index.Release(refs...)
	p.showTombstones(next)
	for _, o := range old {
		o.gone.Store(true)
		o.release()
	}
	if straddles {
		if err := p.rebuildHeads(next.Flushed); err != nil {
			return err
		}
	}
	p.deps.Brick.Release(p.ident.Placement, next.Flushed)
	p.letHeadsGo(gone)
	return nil
}

// coveredLocked removes the heads with all frames in segments. straddles: the oldest head left has some such frames, too.
func (p *Partition) coveredLocked(flushed point.Serial) (gone []*headRef, straddles bool) {
	for len(p.mu.frozen) > 0 && !flushed.Less(p.mu.frozen[0].last) {
		gone = append(gone, p.mu.frozen[0].head)
		p.mu.frozen = slices.Clone(p.mu.frozen[1:])
	}
	switch {
	case len(p.mu.frozen) > 0:
		straddles = !flushed.Less(p.mu.frozen[0].first)
	case p.mu.frames > 0 && !flushed.Less(p.mu.applied):
		gone = append(gone, p.mu.active)
		p.newActiveLocked()
	case p.mu.frames > 0:
		straddles = !flushed.Less(p.mu.first)
	}
	if p.mu.applied.Less(flushed) { // late frames need not be applied any more, or the segment is ahead of our log
		p.appliedLocked(flushed)
	}
	return gone, straddles
}

// letHeadsGo releases the memory of heads with all rows in segments, perhaps also of series without rows. The flush lock is held.
func (p *Partition) letHeadsGo(gone []*headRef) {
	now, due := time.Now(), false
	for _, h := range gone {
		due = p.silence.listen(h, now, p.settings.QuietAfter) || due
		p.deps.HeadBytes.Add(-int64(h.head.Bytes()))
		h.release()
	}
	if due {
		p.mu.Lock()
		defined := p.mu.defined
		p.mu.Unlock()
		p.hush(context.Background(), defined, now)
	}
}

// rebuildHeads rebuilds the heads from the frames behind the segments.
// A head with frames on both sides of the segment's end cannot be divided: it is made anew from the log, which has the frames behind it still.
func (p *Partition) rebuildHeads(flushed point.Serial) error {
	p.mu.Lock()
	applied := p.mu.applied
	p.mu.Unlock()
	q, err := p.replayed(flushed, applied)
	if err != nil {
		return err
	}
	p.become(q)
	return nil
}
