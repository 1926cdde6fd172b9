package partition

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/series"
)

// A placement that follows receives frames and segments from its leader and makes none itself.
//
//	             FollowLeader(e)                        Lead(e'), e' > e
//	leads ───────────────────────▶ follows the leader of e ─────────────▶ leads
//	                 ▲                  │ Follow: a frame, as it is, behind its predecessor
//	 FollowLeader(e')│                  │ Cut: surplus is set aside, the log ends earlier, the heads are made again
//	                 └──────────────────┘ Adopt: a segment replaces the heads that it covers
//
// Invariants:
//   - Its log is a prefix of its leader's, byte for byte, behind the frames in segments: same serials, same numbers of series (I6).
//   - Its segments are files that a leader made (I4): a flush or compaction that was under way when the placement began to follow
//     commits nothing.

// FollowLeader makes the placement follow the leader of an epoch: once it returns, frames of lower epochs are refused, also after
// a crash, and nothing is flushed, compacted or deleted here. Epoch 0 follows no leader yet: it is for a newly opened placement
// that is one of several. Repeating the call is fine. Errors are Stale (a higher epoch has begun, or dropped) and those of the
// store.
func (p *Partition) FollowLeader(epoch point.Epoch) error {
	b := p.deps.Brick
	if highest := b.HighestEpoch(p.ident.Placement); epoch != 0 && epoch < highest {
		return p.notLed(epoch, highest)
	}
	if epoch != 0 {
		if err := b.RaiseEpoch(p.ident.Placement, epoch); err != nil {
			return err
		}
	}
	led, err := p.beginToFollow(epoch)
	if err != nil || !led {
		return err
	}
	return p.redelete() // acquires the flush lock: maintenance under way has ended
}

// beginToFollow reports whether the placement could make segments before.
func (p *Partition) beginToFollow(epoch point.Epoch) (led bool, err error) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return false, p.gone()
	case epoch != 0 && p.mu.epoch == epoch && p.mu.raised:
		return false, p.notLed(epoch, epoch) // this placement leads it
	case epoch < p.mu.leader:
		return false, p.notLed(epoch, p.mu.leader)
	case epoch != 0 && epoch < p.mu.epoch: // it began while this waited for the brick
		return false, p.notLed(epoch, p.mu.epoch)
	}
	led = !p.mu.follows
	p.mu.follows, p.mu.leader = true, epoch
	if p.mu.owed == nil { // flushes that failed here are none of this placement's any more; a deletion that is owed is
		p.mu.flush = backoff{}
	}
	p.mu.epoch, p.mu.raised, p.mu.chain = 0, false, nil
	p.endFoldLocked()
	return led, nil
}

// Follows reports whether the placement leaves flushes, compactions and deletions to a leader elsewhere.
func (p *Partition) Follows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.follows
}

func (p *Partition) notHere(does string) error {
	return fault.Errorf(fault.Stale, "partition %s/%d is a copy here: its leader %s", p.ident.Table, p.ident.Partition, does)
}

// stillLeads is checked, under the flush lock, before the catalogue names a segment that was made here. If the placement began to
// follow meanwhile, the file is removed: under this id the next leader may make other bytes.
func (p *Partition) stillLeads(made point.SegmentID) error {
	if !p.Follows() {
		return nil
	}
	if err := p.removeSegmentFile(made); err != nil {
		return err
	}
	return p.notHere("makes the segments")
}

// Mismatch says that a frame does not follow the placement's last one. It is Stale: the sender looks at the ends and begins where
// they say, or has the surplus cut.
type Mismatch struct {
	Prev point.Serial     // the frame's predecessor
	Last point.Serial     // the placement's newest frame
	Ends []point.EpochEnd // the last frame that it holds, per epoch
}

// Error names both ends.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("the frame follows %v, but the log ends with %v", m.Prev, m.Last)
}

// follower is the scratch of one Follow.
type follower struct {
	decoder frame.Decoder
	frame   frame.Frame
	refs    []series.Ref
}

// followers are shared by all partitions: a decoded frame may have megabytes, and most placements are quiet.
var followers = sync.Pool{New: func() any { return new(follower) }}

// Follow accepts a frame of the leader of epoch sender, as it stands in the leader's log: it is appended to the log, and every View
// from then on has its rows. The Wait is for its fsync. rec is not kept.
//
// Errors: Stale with a *Mismatch within (the frame is not the next one), Stale (a higher epoch has begun, the placement does not
// follow this one, or was dropped), Corrupt (the frame is damaged), Throttled and
// Unavailable (the store). After an error the placement is as it was.
func (p *Partition) Follow(sender point.Epoch, rec []byte) (brick.Wait, error) {
	p.deps.Writes.Begin()
	defer p.deps.Writes.End()
	h, err := frame.Verify(rec)
	if err != nil {
		return brick.Wait{}, fault.Annotate(err, "partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	if p.appliesLate(&h) {
		p.followMu.Lock()
		defer p.followMu.Unlock()
		wait, err := p.followLate(sender, &h, rec)
		return wait, fault.Annotate(err, "follow with frame %v", h.Serial)
	}
	return p.followNow(sender, rec)
}

// followNow accepts a frame and applies it, and all late ones before it.
func (p *Partition) followNow(sender point.Epoch, rec []byte) (brick.Wait, error) {
	fo := followers.Get().(*follower)
	defer followers.Put(fo)
	f := &fo.frame
	defer f.Reset()
	if err := fo.decoder.Decode(rec, f); err != nil {
		return brick.Wait{}, fault.Annotate(err, "partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	p.lateMu.Lock()
	defer p.lateMu.Unlock()
	p.followMu.Lock()
	defer p.followMu.Unlock()
	if err := p.catchUpOrdered(nothing); err != nil {
		return brick.Wait{}, err
	}
	wait, err := brick.Wait{}, errCold
	for err == errCold {
		if err = p.fits(sender, f); err == nil {
			err = p.warm()
		}
		if err == nil {
			wait, err = p.follow(fo, sender, rec)
		}
	}
	if err != nil {
		return brick.Wait{}, fault.Annotate(err, "follow with frame %v", f.Serial)
	}
	if f.Kind == frame.Delete {
		err = p.carryOut(f)
	}
	if err != nil && p.isDropped() {
		return brick.Wait{}, err
	}
	return wait, nil // the frame is in the log: a deletion that failed is owed
}

// fits reports whether a frame may be the next one.
func (p *Partition) fits(sender point.Epoch, f *frame.Frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.damaged != nil {
		return fault.Wrap(p.mu.damaged, fault.Unavailable, "no frames are applied")
	}
	return p.fitsLocked(sender, f.Serial, f.Prev)
}

func (p *Partition) fitsLocked(sender point.Epoch, s, prev point.Serial) error {
	switch {
	case p.mu.dropped:
		return p.gone()
	case p.mu.damaged != nil && p.mu.beyond: // else the log accepts frames, and the heads are built once the files are mended
		return fault.Wrap(p.mu.damaged, fault.Unavailable, "no frames are taken")
	case !p.mu.follows || sender != p.mu.leader:
		return p.notLed(sender, max(p.mu.epoch, p.mu.leader))
	case prev != p.mu.last || !p.mu.last.Less(s):
		return fault.Wrap(&Mismatch{Prev: prev, Last: p.mu.last, Ends: p.endsLocked()}, fault.Stale, "partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	return nil
}

// follow appends a frame and applies it; errCold: the partition cooled since it was looked at.
func (p *Partition) follow(fo *follower, sender point.Epoch, rec []byte) (brick.Wait, error) {
	f := &fo.frame
	fo.refs = p.deps.Index.InternAll(f.Defs, fo.refs[:0]) // before the lock: it hashes
	wait, err := p.followWith(fo, sender, rec)
	if err != nil {
		p.deps.Index.Release(fo.refs...)
	}
	return wait, err
}

func (p *Partition) followWith(fo *follower, sender point.Epoch, rec []byte) (brick.Wait, error) {
	f := &fo.frame
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fitsLocked(sender, f.Serial, f.Prev); err != nil {
		return brick.Wait{}, err
	}
	if !p.mu.warm {
		return brick.Wait{}, errCold
	}
	x := p.ids.Load()
	if err := p.numbered(f, x.len()); err != nil {
		return brick.Wait{}, err
	}
	wait, err := p.deps.Brick.Append(p.ident.Placement, sender, f.Serial, rec)
	if err != nil {
		return brick.Wait{}, err
	}
	p.deps.Metrics.copied.Add(uint64(len(f.IDs) + len(f.Hists)))
	x.put(fo.refs...)
	p.takeLocked(f, wait, time.Now())
	return wait, nil
}

// numbered checks that the numbers of series in a frame continue the n that the placement has.
func (p *Partition) numbered(f *frame.Frame, n int) error {
	if int(f.FirstDef) != n && len(f.Defs) > 0 {
		return fault.Errorf(fault.Corrupt, "partition %s/%d: frame %v defines series from %d on, but %d are known",
			p.ident.Table, p.ident.Partition, f.Serial, f.FirstDef, n)
	}
	if !defined(f, n+len(f.Defs)) {
		return fault.Errorf(fault.Corrupt, "partition %s/%d: frame %v has rows of a series that nothing defines", p.ident.Table, p.ident.Partition, f.Serial)
	}
	return nil
}

// carryOut hides in the segments the rows that a deletion in the log hides. The frozen heads have applied it already. After an error
// the placement owes the deletion: it is not read until Maintain has carried it out.
func (p *Partition) carryOut(f *frame.Frame) error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	err := p.carryOutOrdered(f)
	if err != nil {
		p.owe(err)
	}
	return err
}

// owe refuses reads until redelete succeeds. The flush lock is held.
func (p *Partition) owe(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return
	}
	p.mu.owed = fault.Wrap(err, fault.Unavailable, "partition %s/%d is not read here until a deletion is carried out", p.ident.Table, p.ident.Partition)
	p.mu.flush.note(time.Now(), err)
	p.log.Error("a deletion could not be carried out: the copy is not read until it is", "error", err)
}

// payDeletions carries out the deletions owed, if it is time for another try.
func (p *Partition) payDeletions(now time.Time) error {
	p.mu.Lock()
	due := p.mu.owed != nil && !p.mu.dropped && !now.Before(p.mu.flush.until)
	p.mu.Unlock()
	if !due {
		return nil
	}
	err := p.redelete()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.flush.note(now, err)
	return err
}

func (p *Partition) carryOutOrdered(f *frame.Frame) error {
	t := tombstoneOf(&f.Deletion, f.Serial)
	next, hit, err := p.hidden(t, false)
	if err != nil || !next.remember(t, f.Stamp) && !hit {
		return err
	}
	if p.isDropped() {
		return p.gone() // an entry would bring the partition back
	}
	if err := p.commit(next); err != nil {
		return err
	}
	p.showTombstones(next)
	return nil
}

func (p *Partition) isDropped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.dropped
}

// Last is the newest frame of the placement, in its log or in segments.
func (p *Partition) Last() point.Serial {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.last
}

// EachFrameUpTo calls f with the frames of the log behind serial after and up to another, oldest first, as they stand there; each is durable
// here. rec is valid until f returns. Frames that segments hold may be gone from the log: then the first frame's predecessor is not after.
func (p *Partition) EachFrameUpTo(after, upto point.Serial, f func(s point.Serial, rec []byte) error) error {
	return p.deps.Brick.ReplaySome(p.ident.Placement, after, upto, f)
}

// AwaitFramesUpTo waits until the frames that EachFrameUpTo reads are durable; it then waits for nothing but the reads.
func (p *Partition) AwaitFramesUpTo(after, upto point.Serial) error {
	return p.deps.Brick.AwaitSome(p.ident.Placement, after, upto)
}

// FramesBehind describes the frames of the log behind a serial without reading them: the first one, and those that follow it within bytesMax. It returns the serial of
// the last one, how many they are, and about their bytes, no fewer; n is 0 where there are none.
func (p *Partition) FramesBehind(after point.Serial, bytesMax int) (upto point.Serial, n, bytes int) {
	upto, n, b := p.deps.Brick.Behind(p.ident.Placement, after, int64(bytesMax))
	return upto, n, int(b)
}

// upTo copies the ids below n, with one holder.
func (x *ids) upTo(n int) *ids {
	y := newIDs(x.index)
	y.quiet = x.quiet
	y.putQuiet(n)
	for id := range point.DenseID(n) {
		if ref, live := x.ref(id); live {
			x.index.Retain(ref)
			y.revive(id, ref)
		}
	}
	return y
}

// replayed rebuilds the heads, the ids and the ends from the log, behind the segments and up to a frame. The placement is
// unchanged, but warm; the caller orders frames of the leader, and flushes. The result equals that of a start, by the same code.
func (p *Partition) replayed(flushed, upTo point.Serial) (*Partition, error) {
	q := &Partition{deps: p.deps, settings: p.settings, ident: p.ident, log: p.log}
	var x *ids
	for x == nil {
		if err := p.warmOrdered(); err != nil { // one that led may be cold and have heads, of deletions alone
			return nil, err
		}
		p.mu.Lock()
		if p.mu.warm { // it cools without the flush lock
			x, q.mu.state, q.mu.defined = p.ids.Load().retain(), p.mu.state, p.mu.defined
		}
		p.mu.Unlock()
	}
	defer x.release()
	q.ids.Store(x.upTo(q.mu.defined))
	q.mu.warm, q.mu.last, q.mu.applied, q.mu.active = true, flushed, flushed, p.newHeadRef()
	var d frame.Decoder
	var f frame.Frame
	err := p.deps.Brick.Replay(p.ident.Placement, flushed, func(s point.Serial, rec []byte) error {
		if upTo.Less(s) {
			return nil
		}
		return q.Replay(rec, &d, &f)
	})
	if err == nil {
		err = q.Damaged()
	}
	if err == nil && q.mu.last != upTo {
		err = fault.Errorf(fault.Invalid, "partition %s/%d has no frame %v: it ends with %v", p.ident.Table, p.ident.Partition, upTo, q.mu.last)
	}
	if err != nil {
		q.letGo().release()
		return nil, err
	}
	return q, nil
}

// become replaces the state of p in memory by the state that q replayed.
func (p *Partition) become(q *Partition) {
	p.applyMu.Lock()
	p.mu.Lock()
	old := p.headsLocked()
	p.mu.frozen, p.mu.active, p.mu.upTo, p.mu.frames = q.mu.frozen, q.mu.active, q.mu.upTo, q.mu.frames
	p.mu.deletions, p.mu.ends = q.mu.deletions, q.mu.ends
	if p.isLateLocked() {
		p.mu.applied = q.mu.last
	} else {
		p.mu.last, p.mu.applied, p.mu.late = q.mu.last, q.mu.last, late{}
	}
	p.mu.first, p.mu.born, p.mu.wait = q.mu.first, q.mu.born, brick.Wait{} // a replay waits for the fsync of the frames it reads
	x := p.ids.Swap(q.ids.Load())
	p.mu.warm = true
	p.mu.revived = slices.DeleteFunc(slices.Clone(p.mu.revived), func(id point.DenseID) bool { return int(id) >= p.mu.defined })
	p.mu.Unlock()
	p.applyMu.Unlock()
	for _, h := range old {
		p.deps.HeadBytes.Add(-int64(h.head.Bytes()))
		h.release()
	}
	x.release()
}
