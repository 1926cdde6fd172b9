package partition

import (
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Delete hides the rows in [lo, hi] of matching series for every later read, durably; the next compaction leaves them out. Rows
// that are appended later are not touched, whatever their time. epoch is that of the lease that the caller checked; 0: any epoch
// in which the partition is led. Errors are Invalid (matchers), Throttled (too many deletions already wait for a compaction),
// Stale (dropped), or those of a flush.
func (p *Partition) Delete(ctx context.Context, epoch point.Epoch, ms []peer.Matcher, lo, hi point.Nanos) error {
	return p.delete(ctx, epoch, ms, lo, hi, false)
}

// DeleteLate is Delete where rows may still come that were received before, from servers which stage them: the deletion is kept even if no row
// here matches.
func (p *Partition) DeleteLate(ctx context.Context, epoch point.Epoch, ms []peer.Matcher, lo, hi point.Nanos) error {
	return p.delete(ctx, epoch, ms, lo, hi, true)
}

// delete flushes first: a tombstone hides rows of the segments it is attached to, so rows that are in heads now must be in segments, and rows
// that come later go to heads that it does not touch.
func (p *Partition) delete(ctx context.Context, epoch point.Epoch, ms []peer.Matcher, lo, hi point.Nanos, late bool) error {
	compiled, err := CompileMatchers(ms)
	if err != nil {
		return err
	}
	if err := p.Damaged(); err != nil {
		return err
	}
	if p.Follows() {
		return p.notHere("deletes")
	}
	for _, m := range ms {
		if !utf8.ValidString(m.Name) || !utf8.ValidString(m.Value) { // no series has such a label, and the catalogue's entry could not hold it
			return fault.Errorf(fault.Invalid, "delete from partition %s/%d: matcher on %q: %q is not UTF-8", p.ident.Table, p.ident.Partition, m.Name, m.Value)
		}
	}
	t := Tombstone{Matchers: ms, Lo: lo, Hi: hi}
	d := t.deletion()
	if err := d.Check(); err != nil {
		return fault.Annotate(err, "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	at, err := p.orderDeletion(ctx, epoch, compiled, t, late)
	if err == nil && at != (point.Serial{}) {
		err = p.endDeletion(at)
	}
	return fault.Annotate(err, "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
}

// orderDeletion makes a deletion from the present segments a frame of the log, and returns when all placements have it. One that hides nothing is only made for rows that
// come late; at is zero then. A placement that is away is waited for without the flush lock: writes to a cold partition and other deletions need it.
func (p *Partition) orderDeletion(ctx context.Context, epoch point.Epoch, compiled []*labels.Matcher, t Tombstone, late bool) (at point.Serial, err error) {
	if err := p.awaitHeads(ctx); err != nil {
		return at, err
	}
	at, wait, chain, err := p.logDeletion(ctx, epoch, compiled, t, late)
	if err != nil || at == (point.Serial{}) {
		return at, err
	}
	if err := wait.Wait(); err != nil || chain == nil {
		return at, err
	}
	return at, chain.Await(context.Background(), at)
}

// awaitHeads waits for the other placements to have the rows that a deletion flushes first.
func (p *Partition) awaitHeads(ctx context.Context) error {
	p.mu.Lock()
	chain, last := p.mu.chain, p.mu.last
	p.mu.Unlock()
	if chain == nil || !p.hasHeadRows() {
		return nil
	}
	return chain.Await(ctx, last)
}

// logDeletion flushes and logs the deletion, so that it survives a rebuild of the catalogue. Its serial is above that of every row in the segments. The bounds on deletions are looked at before others
// that wait are carried out, so that these go beyond by at most headDeletionsMax a flush.
func (p *Partition) logDeletion(ctx context.Context, epoch point.Epoch, compiled []*labels.Matcher, t Tombstone, late bool) (at point.Serial, wait brick.Wait, chain Followers, err error) {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	if err := p.flushForDelete(ctx); err != nil {
		return at, wait, nil, err
	}
	p.mu.Lock()
	segments, dropped := p.mu.segments, p.mu.dropped
	if epoch == 0 {
		epoch = p.mu.epoch
	}
	p.mu.Unlock()
	if dropped {
		return at, wait, nil, p.gone()
	}
	known, err := defineAny(segments, compiled)
	if err != nil || !known && !late {
		return at, wait, nil, err
	}
	if _, hit, err := p.hidden(t, true); err != nil || !hit && !late {
		return at, wait, nil, err
	}
	if err := p.Lead(epoch); err != nil {
		return at, wait, nil, err
	}
	at, _, wait, chain, err = p.enqueueDeletion(epoch, t)
	return at, wait, chain, err
}

// endDeletion hides in the segments what a deletion hides that all placements have: no compaction may remove the rows before that. First in the catalogue; then from
// readers. A flush that came first has done it, and its segment has rows that came behind the deletion.
func (p *Partition) endDeletion(at point.Serial) error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	if p.isDropped() {
		return p.gone()
	}
	p.mu.Lock()
	ours := slices.DeleteFunc(p.deletionsLocked(), func(d deletion) bool { return d.at != at })
	p.mu.Unlock()
	return p.redeleteOrdered(ours)
}

// hidden returns the state with one deletion more; hit is false when it changes nothing. bounded: as in hide.
func (p *Partition) hidden(t Tombstone, bounded bool) (next *State, hit bool, err error) {
	p.mu.Lock()
	st := *p.mu.state
	p.mu.Unlock()
	st.Segments = slices.Clone(st.Segments)
	hit, err = hide(st.Segments, t, bounded)
	return &st, hit, err
}

// showTombstones lets reads that begin from now on apply the tombstones of a state. The segments in the list are those of the state: flushMu is held.
func (p *Partition) showTombstones(st *State) {
	p.mu.Lock()
	segments := p.mu.segments
	p.mu.Unlock()
	for i, g := range segments {
		g.tombstones.Store(&st.Segments[i].Tombstones)
	}
}

// flushForDelete puts every row accepted so far into a segment; the flush lock is held.
func (p *Partition) flushForDelete(ctx context.Context) error {
	if err := ctx.Err(); err != nil { // its caller left while it waited for the lock
		return err
	}
	if !p.hasHeadRows() {
		return nil
	}
	return p.flushAll(ctx, ByDelete)
}

// FlushesToDelete reports whether a deletion that came now would flush rows first.
func (p *Partition) FlushesToDelete() bool { return p.hasHeadRows() }

// hasHeadRows reports whether there are frames with rows that are in no segment, or too many deletions for one segment's header.
func (p *Partition) hasHeadRows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.frozen) > 0 || p.mu.frames > len(p.mu.deletions) || len(p.mu.deletions) >= headDeletionsMax
}

// headDeletionsMax bounds the deletions in the header of one segment: with frame.DeletionBytesMax they stay below its bound.
const headDeletionsMax = 8

// enqueueDeletion appends the deletion's frame. Its rank is above that of all rows before it. The followers are those that the frame went to: another
// epoch, which has other followers, may have begun a moment ago.
func (p *Partition) enqueueDeletion(epoch point.Epoch, t Tombstone) (at point.Serial, rank point.Stamp, wait brick.Wait, chain Followers, err error) {
	var enc frame.Encoder
	f := frame.Frame{Kind: frame.Delete, Deletion: t.deletion()}
	buf := enc.Append(nil, &f)
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return at, 0, wait, nil, p.gone()
	case p.mu.epoch == 0 || p.mu.epoch != epoch:
		return at, 0, wait, nil, p.notLed(epoch, p.mu.epoch)
	}
	f.Stamp = p.mu.ranks.Next(0)
	if wait, err = p.logLocked(&f, buf); err != nil {
		return f.Serial, f.Stamp, wait, nil, err
	}
	p.takeLocked(&f, wait, time.Now())
	p.passLocked(&f, buf, wait)
	return f.Serial, f.Stamp, wait, p.mu.chain, nil
}

// deleteLocked adds the frame of a deletion to the head: the next segment's header lists it.
func (p *Partition) deleteLocked(f *frame.Frame, now time.Time) {
	if p.mu.frames == 0 {
		p.mu.born = now
	}
	p.mu.frames++
	p.mu.deletions = append(p.mu.deletions, deletion{f.Deletion, f.Serial, f.Stamp})
	t := tombstoneOf(&f.Deletion, f.Serial)
	for _, fr := range p.mu.frozen { // a leader has none: it flushed before it deleted
		fr.head.hide(t)
	}
	p.mu.lastWrite = now
	p.acceptedLocked(f)
}

// deletion is one that a frame of a head brought.
type deletion struct {
	frame.Deletion
	at   point.Serial
	rank point.Stamp
}

func deletionsOf(ds []deletion) (out []segment.Deletion) {
	for _, d := range ds {
		out = append(out, segment.Deletion{Deletion: d.Deletion, Rank: d.rank})
	}
	return out
}

// deletionsLocked returns the deletions of all heads, in the order of the log.
func (p *Partition) deletionsLocked() (all []deletion) {
	for _, fr := range p.mu.frozen {
		all = append(all, fr.deletions...)
	}
	return append(all, p.mu.deletions...)
}

// redelete carries out deletions that are in the log and perhaps not in the catalogue: a crash came between, the catalogue was
// rebuilt, or the deletions were not durable everywhere when the placement stopped leading. All segments are older than they.
// Called once the log was replayed.
func (p *Partition) redelete() error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	p.mu.Lock()
	again := p.deletionsLocked()
	p.mu.Unlock()
	if err := p.redeleteOrdered(again); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.owed = nil
	return nil
}

// deleted returns the state with these deletions; the flush lock is held.
func (p *Partition) deleted(ds []deletion) (*State, error) {
	err := p.redeleteOrdered(ds)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state, err
}

// redeleteOrdered carries out those that are not in the catalogue; the flush lock is held.
func (p *Partition) redeleteOrdered(again []deletion) error {
	for i := range again {
		// A tombstone that a segment has already, or whose rows are gone, changes nothing: hit is false, and nothing is committed.
		t := tombstoneOf(&again[i].Deletion, again[i].at)
		next, hit, err := p.hidden(t, false)
		hit = err == nil && next.remember(t, again[i].rank) || hit
		if err == nil && hit && p.isDropped() {
			return p.gone() // an entry would bring the partition back
		}
		if err == nil && hit {
			err = p.commit(next)
		}
		if err != nil {
			return fault.Annotate(err, "delete from partition %s/%d again", p.ident.Table, p.ident.Partition)
		}
		if hit {
			p.showTombstones(next)
		}
	}
	return nil
}

func (t *Tombstone) deletion() frame.Deletion {
	d := frame.Deletion{Lo: t.Lo, Hi: t.Hi}
	for _, m := range t.Matchers {
		d.Matchers = append(d.Matchers, frame.Matcher{Type: uint8(m.Type), Name: m.Name, Value: m.Value})
	}
	return d
}

// tombstoneOf makes a tombstone of a deletion in the frame at; zero: in a segment.
func tombstoneOf(d *frame.Deletion, at point.Serial) Tombstone {
	t := Tombstone{Lo: d.Lo, Hi: d.Hi, At: at}
	for _, m := range d.Matchers {
		t.Matchers = append(t.Matchers, peer.Matcher{Type: peer.MatchType(m.Type), Name: m.Name, Value: m.Value})
	}
	return t
}

// defineAny reports whether a series of the chain fulfils all matchers. A segment has rows of series that earlier segments define,
// so only the whole chain gives the answer.
func defineAny(chain []*segmentRef, ms []*labels.Matcher) (bool, error) {
	for _, g := range chain {
		found, err := g.reader.Match(ms)
		if err != nil || !found.IsEmpty() {
			return err == nil, err
		}
	}
	return false, nil
}

// hide adds t to each segment in which it may hide rows that its earlier tombstones do not. bounded: where as many wait as may, the error is
// Throttled.
func hide(states []SegmentState, t Tombstone, bounded bool) (hit bool, err error) {
	bytes := tombstoneBytes(states)
	for i := range states {
		g := &states[i]
		if g.Rows == 0 || g.TimeLo > t.Hi || g.TimeHi < t.Lo || slices.ContainsFunc(g.Tombstones, t.equal) {
			continue
		}
		switch {
		case bounded && len(g.Tombstones) >= deletionsMax:
			return false, fault.Errorf(fault.Throttled, "%d deletions wait to be carried out, at most %d may; try again when compaction has caught up",
				len(g.Tombstones), deletionsMax)
		case bounded && bytes >= deletionsBytesMax:
			return false, fault.Errorf(fault.Throttled, "deletions with %d bytes of matchers wait to be carried out in %d segments, at most %d may; "+
				"try again when compaction has caught up", bytes, len(states), deletionsBytesMax)
		}
		g.Tombstones = append(slices.Clone(g.Tombstones), t)
		hit = true
	}
	return hit, nil
}

// tombstoneBytes returns the bytes of the matchers of all deletions that wait. One that waits in several segments counts in each, as it does in the entry.
func tombstoneBytes(states []SegmentState) (n int) {
	for i := range states {
		for j := range states[i].Tombstones {
			n += states[i].Tombstones[j].matcherBytes()
		}
	}
	return n
}

func (t *Tombstone) matcherBytes() (n int) {
	for _, m := range t.Matchers {
		n += len(m.Name) + len(m.Value)
	}
	return n
}

func (t Tombstone) equal(o Tombstone) bool {
	return t.Lo == o.Lo && t.Hi == o.Hi && slices.Equal(t.Matchers, o.Matchers)
}

// covers reports whether a deletion removes all that another one does.
func (t Tombstone) covers(o Tombstone) bool {
	return t.Lo <= o.Lo && t.Hi >= o.Hi && slices.Equal(t.Matchers, o.Matchers)
}
