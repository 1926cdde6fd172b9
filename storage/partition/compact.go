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
	p.mu.asked.clean = true
}

// requests are what callers asked of the next compaction of all segments.
type requests struct {
	clean bool // to leave out deleted rows
	major bool // to be made: another compaction ran when Compact was called
}

// askMajor requests a major, to be made after the running compaction. While that compaction is itself a requested major, the request is dropped: the leader
// repeats it until a copy has the result (storage/replica, Sender), and would get one major too many.
func (p *Partition) askMajor() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.offered == nil {
		p.mu.asked.major = !p.mu.follows
	}
}

// askAgain has the next compaction do what one that failed should have done.
func (p *Partition) askAgain(a requests) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.asked.clean = p.mu.asked.clean || a.clean
	p.mu.asked.major = (p.mu.asked.major || a.major) && !p.mu.follows
}

// chain returns the input of the compaction policy; wait is set while a failure is too fresh to try again.
func (p *Partition) chain(now time.Time) (c Chain, wait bool) {
	from := p.ranksFrom(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Closed = now.UnixNano() > p.ident.TimeHi && p.mu.frames == 0 && len(p.mu.frozen) == 0
	c.Idle = now.Sub(p.mu.lastWrite)
	for _, g := range p.mu.state.Segments {
		c.Segments = append(c.Segments, g.Info)
		c.Deletions = max(c.Deletions, len(g.Tombstones))
	}
	c.DeletionBytes = tombstoneBytes(p.mu.state.Segments)
	p.mu.asked.clean = p.mu.asked.clean && c.Deletions > 0 // else the deleted rows are gone
	c.Clean, c.Wanted = p.mu.asked.clean, p.mu.asked.major
	for _, g := range p.mu.segments {
		if g.info.StampHi < from {
			c.OldRanks += int64(g.reader.Info().RankBytes)
		}
	}
	return c, now.Before(p.mu.compact.until)
}

// Compact folds every segment into one major. Rows are written while flushes go on; minors that were flushed meanwhile are based on the
// major, so that the chain never forks (C50). Deleted rows and the losers of equal timestamps are left out; rows deleted meanwhile stay for the next one.
//
// While another compaction runs it returns at once, and one of all segments that was asked for is made after that by CompactIfDue, unless the other was asked for, too.
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
		if why == ByRequest {
			p.askMajor()
		}
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
// e and f are based on d, which is gone, so they are written anew with the base X. They are small beside X.
//
// A deletion that comes meanwhile hides rows of the segments that are there, and stays with their results:
//
//	meanwhile    major  a  b  c  d  e  DELETE  f    it hides rows up to e, and the header of f lists it
//	after        major  a  X  Y  Z                  it hides rows of a, X and Y; Y of e, Z of f, with the deletion in its header
//
// So a compaction writes what was there when it began once, however many deletions come.
type folding struct {
	p    *Partition
	st   *State     // of the segments that are in the results, or below them
	from int        // of these, those below stay
	made []folded   // the results, oldest first
	turn *lane.Turn // nil: under the flush lock, which waits for no turn, since the flushes behind it make room for rows
}

// folded is a result, with the segments that it was made of. Their tombstones are those whose rows it left out.
type folded struct {
	segment.Info
	of []SegmentState
}

// compactNow holds compactMu for all of it, and flushMu only for the last fold and the commit. A crash before the commit leaves unlisted
// segments: Tidy removes them, as the listed ones hold their frames. One behind it leaves the old segments, unlisted: removed in the same way.
func (p *Partition) compactNow(ctx context.Context, why Reason, first point.SegmentID) (err error) {
	start := time.Now()
	// A flush or deletion that is in the catalogue but not yet in the readers' list would be seen in only one of them.
	p.flushMu.Lock()
	v, st, asked, err := p.beginFold(why)
	p.flushMu.Unlock()
	if err != nil || v == nil {
		return err
	}
	defer p.endFold()
	from, worth := v.foldable(st, why, first)
	defer func() {
		if err != nil || from > 0 {
			p.askAgain(asked)
		}
	}()
	f := &folding{p: p, st: st, from: from, turn: p.deps.Lane.Turn(lane.Background())}
	if worth {
		if err = p.deps.Brick.RoomFor(foldedBytes(st.Segments[from:])); err == nil {
			err = f.first(ctx, v)
		}
	}
	v.Close()
	if err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	if !worth {
		return nil
	}
	if err = f.finish(ctx); err != nil {
		return fault.Annotate(err, "compact partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	var rows, bytes uint64
	for i := range f.made {
		rows, bytes = rows+f.made[i].Rows, bytes+uint64(f.made[i].Size)
	}
	p.deps.Metrics.compacted(why, rows, bytes, time.Since(start))
	p.log.Info("segments compacted", "segment", f.made[0].ID, "rows", rows, "bytes", bytes, "from", len(st.Segments)-from, "kept", from, "later", len(f.made)-1, "reason", why, "took", time.Since(start).Round(time.Millisecond))
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
	if v.deletes(st) || slices.ContainsFunc(st.Segments[:from], isEarly) {
		return 0, true
	}
	n := len(st.Segments) - from
	return from, n > 1 || n == 1 && from == 0 && why == ByRanks
}

// isEarly reports whether a build made a segment that wrote no checksums, or no ranges.
func isEarly(g SegmentState) bool { return g.Checksum == 0 || !g.Described() }

// deletes reports whether deletions hide rows of the segments of a state, or minors list some.
func (v *View) deletes(st *State) bool {
	return slices.ContainsFunc(st.Segments, func(g SegmentState) bool { return len(g.Tombstones) > 0 }) ||
		slices.ContainsFunc(v.segments, func(g *segmentRef) bool { return !g.info.Major && len(g.reader.Info().Deletions) > 0 })
}

// first folds the segments of a view, those of the state of when the compaction began.
func (f *folding) first(ctx context.Context, v *View) error {
	m := f.p.foldedMeta(f.st.Segments[f.from:])
	m.Base = f.st.Segments[len(f.st.Segments)-1].ID // of a major: the newest in it
	if f.from > 0 {
		m.Base = f.st.Segments[f.from-1].ID
	} else {
		m.Major, m.Remembered = true, f.st.remembered()
	}
	v.fix(f.st.Segments)
	return f.add(ctx, v, m, f.st.Segments[f.from:])
}

// add folds the segments of, the newest of a view, into one more result.
func (f *folding) add(ctx context.Context, v *View, m segment.Meta, of []SegmentState) error {
	info, err := f.p.fold(ctx, v, m, len(v.segments)-len(of), f.turn)
	if err == nil {
		f.made = append(f.made, folded{info, slices.Clone(of)})
	}
	return err
}

// drop removes the results.
func (f *folding) drop() error {
	var errs []error
	for i := range f.made {
		errs = append(errs, f.p.removeSegmentFile(f.made[i].ID))
	}
	f.made = nil
	return errors.Join(errs...)
}

// lateFolds bounds how often minors flushed meanwhile are folded without the flush lock. What came during the last of these is folded under it: from then on the list of segments stands still.
const lateFolds = 2

// finish folds what was flushed meanwhile, and commits the results to the catalogue, durably; then readers switch and the old files are removed. After an error the
// results are removed.
func (f *folding) finish(ctx context.Context) error {
	for range lateFolds {
		f.p.flushMu.Lock()
		late, cur := f.p.viewSegments()
		if late == nil || len(cur.Segments) == len(f.st.Segments) {
			err := f.end(ctx, late, cur)
			f.p.flushMu.Unlock()
			return err
		}
		f.p.flushMu.Unlock()
		if err := f.late(ctx, late, cur); err != nil {
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
	if err := f.late(ctx, late, cur); err != nil {
		return err
	}
	if err := f.p.foldEnded(); err != nil {
		return errors.Join(f.drop(), err)
	}
	return f.commit()
}

// late folds the minors that were flushed since; it closes late, the view of the present segments, which cur lists. These rows are written as they are, and deletions stay: a minor may define no
// series without rows (rowless.go). So those that deletions hide other rows of, and those that list deletions of rows below them, begin a minor of their own.
func (f *folding) late(ctx context.Context, late *View, cur *State) error {
	defer late.Close()
	if err := f.p.foldEnded(); err != nil { // the segments may be a later leader's
		return errors.Join(f.drop(), err)
	}
	for lo := len(f.st.Segments); lo < len(cur.Segments); {
		hi := lo + 1
		for hi < len(cur.Segments) && len(late.segments[hi].reader.Info().Deletions) == 0 && slices.EqualFunc(cur.Segments[lo].Tombstones, cur.Segments[hi].Tombstones, Tombstone.equal) {
			hi++
		}
		of := slices.Clone(cur.Segments[lo:hi])
		m := f.p.foldedMeta(of)
		m.Base, m.Deletions = f.made[len(f.made)-1].ID, late.segments[lo].reader.Info().Deletions
		for i := range of {
			of[i].Tombstones = nil
		}
		upTo := &View{p: f.p, segments: late.segments[:hi]} // retained by late
		upTo.fix(of)
		if err := f.add(ctx, upTo, m, of); err != nil {
			return errors.Join(err, f.drop())
		}
		lo = hi
	}
	f.st = cur
	return nil
}

// commit replaces the folded segments by the results; the flush lock is held. The results have the tombstones that came since they were made: each hides rows of all segments that were there.
func (f *folding) commit() error {
	p := f.p
	p.mu.Lock()
	next := *p.mu.state
	p.mu.Unlock()
	now := next.Segments
	next.Segments = slices.Clone(now[:f.from])
	for i := range f.made {
		next.Segments = append(next.Segments, f.made[i].state(now))
	}
	refs, err := p.openAll(next.Segments[f.from:], (*segment.Reader).Check)
	if err != nil {
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

// state returns the catalogue's note of a result, in the place of segments in now.
func (r *folded) state(now []SegmentState) SegmentState {
	st := []SegmentState{{Info: r.Info}}
	for _, o := range r.of {
		for _, t := range now[baseOf(now, o.ID)].Tombstones {
			if !slices.ContainsFunc(o.Tombstones, t.equal) {
				_, _ = hide(st, t, false) // without a bound it cannot fail
			}
		}
	}
	return st[0]
}

// beginFold returns the segments that a compaction may fold; nil: closed. asked is what was asked up to now. The flush lock is held.
func (p *Partition) beginFold(why Reason) (v *View, st *State, asked requests, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.follows {
		return nil, nil, asked, p.notHere("compacts")
	}
	v, st = p.viewSegmentsLocked()
	p.mu.folding = true
	if why == ByRequest {
		p.mu.offered = st
	}
	asked, p.mu.asked = p.mu.asked, requests{}
	return v, st, asked, nil
}

// endFold ends the compaction under way: followers are offered all segments, and the log holds no frames of theirs.
func (p *Partition) endFold() {
	p.mu.Lock()
	p.endFoldLocked()
	p.mu.Unlock()
	p.releaseLog(NotDue)
}

// endFoldLocked ends the compaction under way, if any: it commits nothing from now on.
func (p *Partition) endFoldLocked() { p.mu.folding, p.mu.offered = false, nil }

// foldEnded says why the compaction under way was ended, nil: it was not. Once the placement has followed another leader, frames and deletions that the results are made of may have been cut off, and
// under the results' ids that leader may make other bytes.
func (p *Partition) foldEnded() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.foldEndedLocked()
}

func (p *Partition) foldEndedLocked() error {
	switch {
	case p.mu.folding:
		return nil
	case p.mu.follows:
		return p.notHere("makes the segments")
	}
	return fault.Errorf(fault.Canceled, "partition %s/%d is led in another epoch since the compaction began", p.ident.Table, p.ident.Partition)
}

// Offered is the State with the segments that followers may get. While a compaction that was asked for runs these are the ones from before it: a follower of an earlier build with a later one
// refuses the result of any compaction, and its leader then asks for one.
func (p *Partition) Offered() *State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.offered != nil {
		return p.mu.offered
	}
	return p.mu.state
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
func (p *Partition) fold(ctx context.Context, v *View, m segment.Meta, from int, turn *lane.Turn) (segment.Info, error) {
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

// foldedMeta describes a segment of several.
func (p *Partition) foldedMeta(of []SegmentState) segment.Meta {
	m := segment.Meta{Table: p.ident.Table, Partition: p.ident.Partition, ID: p.takeSegmentID(), Range: p.ident.segmentRange()}
	for _, g := range of {
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
