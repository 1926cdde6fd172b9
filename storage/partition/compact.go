package partition

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// compactBatch is how many series are folded at a time, where their rows fit (majorWriter.fitting): enough that each block is read about once.
const compactBatch = 256

// CompactIfDue folds segments when the policy says so: all into one major, or the newest into one minor. One compaction of a partition runs at a time.
func (p *Partition) CompactIfDue(ctx context.Context, now time.Time) error {
	chain, wait := p.chain(now)
	if wait || p.Damaged() != nil || p.Follows() {
		return nil
	}
	why, first := p.settings.CompactDue(&chain)
	if why == NotDue {
		return nil
	}
	return p.compact(ctx, why, chain.Segments[first].ID)
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

// Compact folds every segment into one major. Rows are written while flushes go on; minors that were flushed meanwhile are based on the
// major, so that the chain never forks (C50). Deleted rows and the losers of equal timestamps are left out.
//
// A damaged partition is left as it is: its rows are not lost as long as the catalogue lists them (I6). The error is Corrupt.
func (p *Partition) Compact(ctx context.Context, why Reason) error {
	return p.compact(ctx, why, point.SegmentID{})
}

// compact is Compact of the segments from one on; the zero id, or that of the major: of all. The result is a minor then, with the frames of those it was made of.
func (p *Partition) compact(ctx context.Context, why Reason, first point.SegmentID) error {
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
	err := p.compactNow(ctx, why, first)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.compact.note(time.Now(), err)
	return err
}

// folding is one compaction under way. The results replace the segments from one on:
//
//	before       major  a  b  c  d        from = 2: b, c and d are folded
//	meanwhile    major  a  b  c  d  e  f  two flushes
//	after        major  a  X  Y           X of b, c and d, based on a; Y of e and f, based on X
//
// e and f are based on d, which is gone, so they are written anew with the base X. They are small beside X. Followers get neither before the compaction ends (Offered): one that had e
// would refuse X, which does not have the frames of e.
type folding struct {
	p    *Partition
	st   *State         // of the segments that are in the results, or below them
	from int            // of these, those below stay
	made []segment.Info // the results, oldest first
	turn *lane.Turn     // nil: under the flush lock, which waits for no turn, since the flushes behind it make room for rows
}

// compactNow holds compactMu for all of it, and flushMu only for the last fold and the commit. A crash before the commit leaves unlisted
// segments: Tidy removes them, as the listed ones hold their frames. One behind it leaves the old segments, unlisted: removed in the same way.
func (p *Partition) compactNow(ctx context.Context, why Reason, first point.SegmentID) error {
	start := time.Now()
	// A flush or deletion that is in the catalogue but not yet in the readers' list would be seen in only one of them.
	p.flushMu.Lock()
	v, st, err := p.beginFold()
	p.flushMu.Unlock()
	if err != nil || v == nil {
		return err
	}
	defer p.endFold()
	f := &folding{p: p, turn: p.deps.Lane.Turn(lane.Background())}
	from, worth := v.foldable(st, why, first)
	if worth {
		if err = p.deps.Brick.RoomFor(foldedBytes(st.Segments[from:])); err == nil {
			err = f.fold(ctx, v, st, from)
		}
	}
	v.Close()
	if err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	if !worth {
		return nil
	}
	folded := len(st.Segments) - from
	if err := f.finish(ctx); err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	var rows, bytes uint64
	for _, info := range f.made {
		rows, bytes = rows+info.Rows, bytes+uint64(info.Size)
	}
	if len(f.made) == 0 { // a deletion came
		return nil
	}
	p.deps.Metrics.compacted(why, rows, bytes, time.Since(start))
	p.log.Info("segments compacted", "segment", f.made[0].ID, "rows", rows, "bytes", bytes, "from", folded, "kept", f.from, "later", len(f.made)-1, "reason", why, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// foldable returns from which of the segments on a compaction folds, and whether that changes anything. Where there are deletions it folds all: only a major may define series
// that have no rows left (rowless.go), and lists the deletions that were carried out. And where segments of early builds would stay below: they are not copied or checked before they are written anew.
func (v *View) foldable(st *State, why Reason, first point.SegmentID) (from int, worth bool) {
	if first != (point.SegmentID{}) {
		if from = baseOf(st.Segments, first); from < 0 { // another compaction was faster
			return 0, false
		}
	}
	if v.deletes(0) || slices.ContainsFunc(st.Segments[:from], isEarly) {
		return 0, true
	}
	n := len(st.Segments) - from
	return from, n > 1 || n == 1 && from == 0 && why == ByRanks
}

// isEarly reports whether a build made a segment that wrote no checksums, or no ranges.
func isEarly(g SegmentState) bool { return g.Checksum == 0 || !g.Described() }

// deletes reports whether deletions hide rows of the segments from one on, or are listed by them.
func (v *View) deletes(from int) bool {
	return slices.ContainsFunc(v.segments[from:], func(g *segmentRef) bool {
		return len(*g.tombstones.Load()) > 0 || !g.info.Major && len(g.reader.Info().Deletions) > 0
	})
}

// fold folds all segments of a view from one on; st lists them. The results before are dropped.
func (f *folding) fold(ctx context.Context, v *View, st *State, from int) error {
	if err := f.drop(); err != nil {
		return err
	}
	f.from = from
	base := st.Segments[len(st.Segments)-1].ID // of a major: the newest in it
	if from > 0 {
		base = st.Segments[from-1].ID
	}
	return f.add(ctx, v, st, from, base)
}

// add folds the segments of a view from one on into one more result.
func (f *folding) add(ctx context.Context, v *View, st *State, from int, base point.SegmentID) error {
	info, err := f.p.fold(ctx, v, st.Segments, from, base, f.turn)
	if err == nil {
		f.made, f.st = append(f.made, info), st
	}
	return err
}

// drop removes the results.
func (f *folding) drop() error {
	var errs []error
	for _, info := range f.made {
		errs = append(errs, f.p.removeSegmentFile(info.ID))
	}
	f.made = nil
	return errors.Join(errs...)
}

// lateFolds bounds how often minors flushed meanwhile are folded without the flush lock. What came during the last of these is folded under it: from then on the list of segments stands still.
const lateFolds = 2

// finish folds what was flushed meanwhile, and commits the results to the catalogue, durably; then readers switch and the old files are removed. After an error the
// results are removed. None and no error: a deletion came, and the next compaction folds all.
func (f *folding) finish(ctx context.Context) error {
	for range lateFolds {
		f.p.flushMu.Lock()
		late, cur := f.p.viewSegments()
		if late == nil || sameSegments(f.st, cur) {
			err := f.end(ctx, late, cur)
			f.p.flushMu.Unlock()
			return err
		}
		f.p.flushMu.Unlock()
		if err := f.late(ctx, late, cur); err != nil || len(f.made) == 0 {
			return err
		}
	}
	f.p.flushMu.Lock()
	defer f.p.flushMu.Unlock()
	f.turn = nil
	late, cur := f.p.viewSegments()
	return f.end(ctx, late, cur)
}

// end is late and the commit; the flush lock is held.
func (f *folding) end(ctx context.Context, late *View, cur *State) error {
	if late == nil { // closed just now
		return errors.Join(f.p.stopReason(ctx), f.drop())
	}
	if err := f.late(ctx, late, cur); err != nil || len(f.made) == 0 {
		return err
	}
	if err := f.p.foldEnded(); err != nil {
		return errors.Join(f.drop(), err)
	}
	return f.commit()
}

// late folds the minors that were flushed since; it closes late, the view of the present segments, which cur lists.
func (f *folding) late(ctx context.Context, late *View, cur *State) error {
	defer late.Close()
	n := len(f.st.Segments)
	var err error
	switch {
	case sameSegments(f.st, cur):
		return nil
	case onlyAppended(f.st, cur) && !late.deletes(n):
		err = f.add(ctx, late, cur, n, f.made[len(f.made)-1].ID)
	case f.from > 0:
		return f.drop()
	default: // a deletion touched the folded segments: start from the sources again
		err = f.fold(ctx, late, cur, 0)
	}
	if err != nil {
		return errors.Join(err, f.drop())
	}
	return nil
}

// commit replaces the folded segments by the results; the flush lock is held. The results have no tombstones: their rows are those that no tombstone hides.
func (f *folding) commit() error {
	p := f.p
	p.mu.Lock()
	next := *p.mu.state
	p.mu.Unlock()
	next.Segments = slices.Clone(next.Segments[:f.from])
	var refs []*segmentRef
	var err error
	for _, info := range f.made {
		st := SegmentState{Info: info}
		var g *segmentRef
		if g, err = p.openChecked(st, (*segment.Reader).Check); err != nil {
			break
		}
		refs, next.Segments = append(refs, g), append(next.Segments, st)
	}
	if err != nil {
		for _, g := range refs {
			g.release()
		}
		return errors.Join(err, f.drop())
	}
	if err := p.commit(&next); err != nil {
		for _, g := range refs {
			g.release() // the files stay: it is uncertain whether the catalogue names them
		}
		return err
	}
	p.mu.Lock()
	old := p.mu.segments[f.from:]
	p.mu.segments = append(slices.Clone(p.mu.segments[:f.from]), refs...)
	p.forgetReplacedLocked()
	p.mu.Unlock()
	for _, o := range old {
		o.gone.Store(true)
		o.release()
	}
	return nil
}

// beginFold returns the segments that a compaction may fold, and makes them the ones that followers are offered until it ends; nil: closed. The flush lock is held.
func (p *Partition) beginFold() (*View, *State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.follows {
		return nil, nil, p.notHere("compacts")
	}
	v, st := p.viewSegmentsLocked()
	p.mu.offered = st
	return v, st, nil
}

// endFold ends the compaction under way: followers are offered all segments, and the log holds no frames of theirs.
func (p *Partition) endFold() {
	p.mu.Lock()
	p.endFoldLocked()
	p.mu.Unlock()
	p.releaseLog(NotDue)
}

// endFoldLocked ends the compaction under way, if any: it commits nothing from now on.
func (p *Partition) endFoldLocked() { p.mu.offered = nil }

// foldEnded says why the compaction under way was ended, nil: it was not. Once the placement has followed another leader, frames and deletions that the results are made of may have been cut off, and
// under the results' ids that leader may make other bytes.
func (p *Partition) foldEnded() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.foldEndedLocked()
}

func (p *Partition) foldEndedLocked() error {
	switch {
	case p.mu.offered != nil:
		return nil
	case p.mu.follows:
		return p.notHere("makes the segments")
	}
	return fault.Errorf(fault.Canceled, "partition %s/%d is led in another epoch since the compaction began", p.ident.Table, p.ident.Partition)
}

// Offered is the State with the segments that followers may get. While a compaction runs these are the ones from before it: a follower with a later one would refuse the result.
func (p *Partition) Offered() *State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.offered != nil {
		return p.mu.offered
	}
	return p.mu.state
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

// viewSegments returns a snapshot of the segments alone, with the state that lists them; nil: closed.
func (p *Partition) viewSegments() (*View, *State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.viewSegmentsLocked()
}

func (p *Partition) viewSegmentsLocked() (*View, *State) {
	if p.mu.dropped {
		return nil, nil
	}
	v := &View{p: p}
	for _, g := range p.mu.segments {
		v.segments = append(v.segments, g.retain())
	}
	return v, p.mu.state
}

// fold writes one segment of the view's segments from one on, in turns: a major of all, or a minor.
func (p *Partition) fold(ctx context.Context, v *View, all []SegmentState, from int, base point.SegmentID, turn *lane.Turn) (segment.Info, error) {
	m := p.foldedMeta(all, from, base)
	w, err := p.createSegment(m)
	if err != nil {
		return segment.Info{}, err
	}
	excess := p.newExcess(v.labels)
	err = p.newMajorWriter(w, v, from, excess, turn).write(ctx)
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

func (p *Partition) foldedMeta(all []SegmentState, from int, base point.SegmentID) segment.Meta {
	m := segment.Meta{
		Table: p.ident.Table, Partition: p.ident.Partition,
		ID: p.takeSegmentID(), Base: base, Major: from == 0,
		Range: p.ident.segmentRange(),
	}
	if m.Major {
		m.Remembered = p.remembered()
	}
	for _, g := range all[from:] {
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

// stopReason says why a compaction must stop, nil if it need not: Canceled when ctx is cancelled or the partition closed, Canceled or Stale when it was ended (foldEnded), Unavailable when the disk has only the
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
	return p.foldEndedLocked()
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
