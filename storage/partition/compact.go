package partition

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// compactBatch is how many series are folded at a time, where their rows fit (majorWriter.fitting): enough that each block is read about once.
const compactBatch = 256

// CompactIfDue folds the segments into one major when the policy says so. One compaction of a partition runs at a time.
func (p *Partition) CompactIfDue(ctx context.Context, now time.Time) error {
	chain, wait := p.chain(now)
	if wait || p.Damaged() != nil || p.Follows() {
		return nil
	}
	if why := p.settings.CompactDue(&chain); why != NotDue {
		return p.Compact(ctx, why)
	}
	return nil
}

// CleanTombstones makes the next CompactIfDue leave out the rows that are deleted by now.
func (p *Partition) CleanTombstones() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.clean = true
}

// chain returns the input of the compaction policy; wait is set while a failure is too fresh to try again.
func (p *Partition) chain(now time.Time) (c Chain, wait bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Closed = now.UnixNano() > p.ident.TimeHi && p.mu.frames == 0 && len(p.mu.frozen) == 0
	c.Idle = now.Sub(p.mu.lastWrite)
	for _, g := range p.mu.state.Segments {
		c.Segments = append(c.Segments, g.Info)
		c.Deletions = max(c.Deletions, len(g.Tombstones))
	}
	c.DeletionBytes = tombstoneBytes(p.mu.state.Segments)
	p.mu.clean = p.mu.clean && c.Deletions > 0 // else the deleted rows are gone
	c.Clean = p.mu.clean
	from := p.settings.ranksFrom(now)
	for _, g := range p.mu.segments {
		if g.info.StampHi < from {
			c.OldRanks += int64(g.reader.Info().RankBytes)
		}
	}
	return c, now.Before(p.mu.compact.until)
}

// Compact folds every segment into one major. Rows are written while flushes go on; minors that were flushed meanwhile
// are folded in as well, at last under the flush lock, so that the chain never forks (C50). Deleted rows and
// the losers of equal timestamps are left out.
//
// A damaged partition is left as it is: its rows are not lost as long as the catalogue lists them (I6). The error is Corrupt.
func (p *Partition) Compact(ctx context.Context, why Reason) error {
	if err := p.Damaged(); err != nil {
		return err
	}
	if p.Follows() {
		return p.notHere("compacts")
	}
	if !p.compactMu.TryLock() {
		return nil
	}
	defer p.compactMu.Unlock()
	p.compacting.Store(true)
	defer p.compacting.Store(false)
	err := p.compactNow(ctx, why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.compact.note(time.Now(), err)
	return err
}

// compactNow holds compactMu for all of it, and flushMu only for the last fold and the commit. A crash before the commit leaves an unlisted
// major: Tidy removes it, as the listed segments hold its frames. One behind it leaves the old segments, unlisted: removed in the same way.
func (p *Partition) compactNow(ctx context.Context, why Reason) error {
	start := time.Now()
	// A flush or deletion that is in the catalogue but not yet in the readers' list would be seen in only one of them.
	p.flushMu.Lock()
	v, st := p.viewSegments()
	p.flushMu.Unlock()
	if v == nil || len(st.Segments) == 0 || len(st.Segments) == 1 && len(st.Segments[0].Tombstones) == 0 && why != ByRanks {
		if v != nil {
			v.Close()
		}
		return nil
	}
	if err := p.deps.Brick.RoomFor(foldedBytes(st.Segments)); err != nil {
		v.Close()
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	// 1. Fold the present segments, without blocking flushes.
	turn := p.deps.Lane.Turn(lane.Background())
	info, err := p.fold(ctx, v, st.Segments, turn)
	v.Close()
	if err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	// 2. Fold what was flushed meanwhile. Without the flush lock, since that rewrites the major and lasts as long again, which flushes
	// and deletions would wait for; the last time under it: from then on the list of segments stands still. Then it waits for no turn either: the
	// flushes behind it make room for rows.
	folded := len(st.Segments)
	for range lateFolds {
		var more bool
		if info, st, more, err = p.foldUnlocked(ctx, info, st, turn); err != nil {
			return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
		}
		if !more {
			break
		}
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	late, now := p.viewSegments()
	info, err = p.foldLate(ctx, info, st, late, now, nil)
	if err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	// 3. Commit to the catalogue, durably; then readers switch and the old files are removed.
	if err := p.stillLeads(info.ID); err != nil {
		return err
	}
	if err := p.commitMajor(info); err != nil {
		return err
	}
	p.deps.Metrics.compacted(why, info.Rows, uint64(info.Size), time.Since(start))
	p.log.Info("segments compacted", "segment", info.ID, "rows", info.Rows, "bytes", info.Size, "from", folded, "reason", why, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// lateFolds bounds how often a compaction folds again, without the flush lock, what was flushed meanwhile. Under a load that flushes
// while one fold runs, no number of them would be enough.
const lateFolds = 2

// foldUnlocked is foldLate without the flush lock. It returns the state that is folded now, and whether it folded anything.
func (p *Partition) foldUnlocked(ctx context.Context, info segment.Info, st *State, turn *lane.Turn) (segment.Info, *State, bool, error) {
	p.flushMu.Lock()
	late, now := p.viewSegments()
	p.flushMu.Unlock()
	more := now == nil || !sameSegments(st, now)
	info, err := p.foldLate(ctx, info, st, late, now, turn)
	return info, now, more, err
}

// foldLate folds minors flushed, or deletions made, since st into the major just written; it closes v, the view of them, which has the
// state cur. The id of the first result is given up: a new one is written. After an error the first result is removed.
func (p *Partition) foldLate(ctx context.Context, info segment.Info, st *State, v *View, cur *State, turn *lane.Turn) (segment.Info, error) {
	if v == nil { // closed just now
		return info, errors.Join(p.stopReason(ctx), p.removeSegmentFile(info.ID))
	}
	defer v.Close()
	if sameSegments(st, cur) {
		return info, nil
	}
	if !onlyAppended(st, cur) {
		// A deletion touched the folded segments: start from the sources again.
		if err := p.removeSegmentFile(info.ID); err != nil {
			return info, err
		}
		return p.fold(ctx, v, cur.Segments, turn)
	}
	b := p.deps.Brick
	file := b.SegmentPath(p.ident.Placement, info.ID)
	r, err := segment.Open(b.FS(), file, info, p.deps.Cache)
	if err != nil {
		return info, errors.Join(err, p.removeSegmentFile(info.ID))
	}
	first := newSegmentRef(r, SegmentState{Info: info}, file, b.FS())
	first.gone.Store(true) // its file is removed with the last reference
	defer first.release()
	late := v.segments[len(st.Segments):]
	states := append([]SegmentState{{Info: info}}, cur.Segments[len(st.Segments):]...)
	both := &View{p: p, segments: []*segmentRef{first.retain()}}
	defer both.Close()
	for _, g := range late {
		both.segments = append(both.segments, g.retain())
	}
	return p.fold(ctx, both, states, turn)
}

func sameSegments(a, b *State) bool {
	return len(a.Segments) == len(b.Segments) && onlyAppended(a, b)
}

// onlyAppended reports whether b is a with segments added at the end.
func onlyAppended(a, b *State) bool {
	for i, g := range a.Segments {
		if i >= len(b.Segments) || b.Segments[i].ID != g.ID || len(b.Segments[i].Tombstones) != len(g.Tombstones) {
			return false
		}
	}
	return true
}

// Snapshot flushes the head and returns the segments with the catalogue entry that lists them; the entry is not changed. Nil: the
// partition was dropped. Errors are those of a flush, and Corrupt if the partition is damaged. The caller closes the view.
func (p *Partition) Snapshot(ctx context.Context) (*View, *State, error) {
	if err := p.Damaged(); err != nil {
		return nil, nil, err
	}
	if p.Follows() {
		return nil, nil, p.notHere("flushes")
	}
	p.flushMu.Lock() // as for a compaction
	defer p.flushMu.Unlock()
	if err := p.flushAll(ctx, ByRequest); err != nil {
		return nil, nil, err
	}
	v, st := p.viewSegments()
	return v, st, nil
}

// Files calls f with the description and the path of each segment of a view. They are there until the view is closed.
func (v *View) Files(f func(info segment.Info, path string)) {
	for _, g := range v.segments {
		f(g.info, g.path)
	}
}

// viewSegments returns a snapshot of the segments alone, with the state that lists them.
func (p *Partition) viewSegments() (*View, *State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return nil, nil
	}
	v := &View{p: p}
	for _, g := range p.mu.segments {
		v.segments = append(v.segments, g.retain())
	}
	return v, p.mu.state
}

// fold writes one major of the view's segments, in turns.
func (p *Partition) fold(ctx context.Context, v *View, from []SegmentState, turn *lane.Turn) (segment.Info, error) {
	m := p.majorMeta(from)
	w, err := p.createSegment(m)
	if err != nil {
		return segment.Info{}, err
	}
	excess := p.newExcess(v.labels)
	err = p.newMajorWriter(w, v, excess, turn).write(ctx)
	turn.End() // what is left is waiting for the disk
	if err != nil {
		return segment.Info{}, errors.Join(err, w.Abort())
	}
	info, err := p.finish(w, m.ID)
	if err == nil {
		excess.report()
	}
	return info, err
}

func (p *Partition) majorMeta(from []SegmentState) segment.Meta {
	m := segment.Meta{
		Table: p.ident.Table, Partition: p.ident.Partition,
		ID: p.takeSegmentID(), Base: from[len(from)-1].ID, Major: true,
		Range: p.ident.segmentRange(), Remembered: p.remembered(),
	}
	for _, g := range from {
		m.Ends = raise(m.Ends, g.Ends...)
	}
	return m
}

// foldedBytes bounds the bytes that folding segments writes: their total size, and a little for a file of its own.
func foldedBytes(from []SegmentState) (n int64) {
	const file = 1 << 16
	for _, g := range from {
		n += g.Size
	}
	return n + file
}

// stopReason says why a compaction must stop, nil if it need not: Canceled when ctx is cancelled or the partition closed, Unavailable when the disk has only the
// reserve left, which belongs to the log and to flushes.
func (p *Partition) stopReason(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.deps.Brick.RoomFor(0); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return fault.Errorf(fault.Canceled, "partition %s/%d is being closed", p.ident.Table, p.ident.Partition)
	}
	return nil
}

// commitMajor replaces all segments by the major; the flush lock is held.
func (p *Partition) commitMajor(info segment.Info) error {
	p.mu.Lock()
	next := *p.mu.state
	p.mu.Unlock()
	// The major has no tombstones: its rows are those that no tombstone hides. Deletions since the fold began made it start anew (foldLate).
	next.Segments = []SegmentState{{Info: info}}
	g, err := p.checkAndCommit(&next, SegmentState{Info: info})
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := p.mu.segments
	p.mu.segments = []*segmentRef{g}
	p.mu.Unlock()
	for _, o := range old {
		o.gone.Store(true)
		o.release()
	}
	return nil
}

// removeSegmentFile removes a segment that is not in the catalogue, if it is there.
func (p *Partition) removeSegmentFile(id point.SegmentID) error {
	b := p.deps.Brick
	err := b.FS().Remove(b.SegmentPath(p.ident.Placement, id))
	if oserror.IsNotExist(err) {
		return nil
	}
	return fault.Wrap(err, fault.Unavailable, "remove segment %v", id)
}
