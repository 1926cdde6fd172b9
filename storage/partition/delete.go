package partition

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Delete hides the rows in [lo, hi] of matching series for every later read, durably; the next compaction leaves them
// out. Rows that are appended later are not touched, whatever their time. The epoch is that of the lease that was asked; 0:
// whichever the partition is led in. Errors are Invalid (matchers), Throttled (more
// deletions wait for a compaction than reads should have to apply), Stale (dropped), or those of a flush.
func (p *Partition) Delete(ctx context.Context, epoch point.Epoch, ms []peer.Matcher, lo, hi point.Nanos) error {
	compiled, err := CompileMatchers(ms)
	if err != nil {
		return err
	}
	if err := p.Damaged(); err != nil {
		return err
	}
	t := Tombstone{Matchers: ms, Lo: lo, Hi: hi}
	d := t.deletion()
	if err := d.Check(); err != nil {
		return fault.Annotate(err, "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	if err := p.flushForDelete(ctx); err != nil {
		return err
	}
	return fault.Annotate(p.deleteOrdered(epoch, compiled, t), "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
}

// deleteOrdered deletes from the segments that there are; the flush lock is held. First the log has it, so that it is not
// forgotten if the catalogue must be rebuilt; then the catalogue; then readers.
func (p *Partition) deleteOrdered(epoch point.Epoch, compiled []*labels.Matcher, t Tombstone) error {
	p.mu.Lock()
	segments, dropped := p.mu.segments, p.mu.dropped
	p.mu.Unlock()
	if dropped {
		return p.gone() // writing the catalogue entry would bring the partition back
	}
	known, err := defineAny(segments, compiled)
	if err != nil || !known {
		return err
	}
	next, hit, err := p.hidden(t, deletionsMax)
	if err != nil || !hit {
		return err
	}
	if err := p.logDeletion(epoch, t); err != nil {
		return err
	}
	if err := p.commit(next); err != nil {
		return err
	}
	p.showTombstones(next)
	return nil
}

// hidden is the state with one deletion more; hit is false when it changes nothing.
func (p *Partition) hidden(t Tombstone, most int) (next *State, hit bool, err error) {
	p.mu.Lock()
	st := *p.mu.state
	p.mu.Unlock()
	st.Segments = slices.Clone(st.Segments)
	hit, err = hide(st.Segments, t, most)
	return &st, hit, err
}

func (p *Partition) showTombstones(st *State) {
	p.mu.Lock()
	segments := p.mu.segments
	p.mu.Unlock()
	for i, g := range segments {
		g.tombstones.Store(&st.Segments[i].Tombstones)
	}
}

// flushForDelete puts every row that was taken so far into a segment; the flush lock is held. After a failed flush there are two heads,
// and one flush empties the older.
func (p *Partition) flushForDelete(ctx context.Context) error {
	p.mu.Lock()
	again := p.mu.pending != nil
	p.mu.Unlock()
	if again {
		if err := p.flushOrdered(ctx, ByDelete); err != nil {
			return err
		}
	}
	if !p.hasHeadRows() {
		return nil
	}
	return p.flushOrdered(ctx, ByDelete)
}

// hasHeadRows reports whether there are frames with rows that are in no segment, or too many deletions for one segment's header.
func (p *Partition) hasHeadRows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.pending != nil || p.mu.frames > len(p.mu.deletions) || len(p.mu.deletions) >= headDeletionsMax
}

// headDeletionsMax bounds the deletions in the header of one segment: with frame.DeletionBytesMax they stay below its bound.
const headDeletionsMax = 8

// logDeletion makes a deletion a frame of the log and waits until it is durable. Its serial is above that of every row that the
// segments hold.
func (p *Partition) logDeletion(epoch point.Epoch, t Tombstone) error {
	if epoch == 0 {
		p.mu.Lock()
		epoch = p.mu.epoch
		p.mu.Unlock()
	}
	if err := p.Lead(epoch); err != nil {
		return err
	}
	wait, err := p.enqueueDeletion(t)
	if err != nil {
		return err
	}
	return wait.Wait()
}

func (p *Partition) enqueueDeletion(t Tombstone) (brick.Wait, error) {
	var enc frame.Encoder
	f := frame.Frame{Kind: frame.Delete, Deletion: t.deletion()}
	buf := enc.Append(nil, &f)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return brick.Wait{}, p.gone()
	case p.mu.epoch == 0:
		return brick.Wait{}, p.notLed(0, p.mu.epoch)
	}
	f.Prev = p.mu.last
	f.Serial = point.Serial{Epoch: p.mu.epoch, Seq: p.mu.last.Seq + 1}
	f.Stamp = p.mu.ranks.Next(0)
	frame.SetSerial(buf, f.Serial, f.Prev, f.Stamp)
	wait, err := p.deps.Brick.Append(p.ident.Placement, p.mu.epoch, f.Serial, buf)
	if err != nil {
		return brick.Wait{}, err
	}
	p.mu.wait = wait
	p.deleteLocked(&f, time.Now())
	return wait, nil
}

// deleteLocked takes the frame of a deletion into the head: the next segment tells of it.
func (p *Partition) deleteLocked(f *frame.Frame, now time.Time) {
	if p.mu.frames == 0 {
		p.mu.born = now
	}
	p.mu.frames++
	p.mu.deletions = append(p.mu.deletions, f.Deletion)
	p.mu.lastWrite = now
	p.acceptedLocked(f)
}

// redelete carries deletions out that the log holds and the catalogue perhaps not: a crash came between, or it was rebuilt. All
// segments are from before them. Called once the log was replayed.
func (p *Partition) redelete() error {
	p.mu.Lock()
	again := p.mu.deletions
	p.mu.Unlock()
	if len(again) == 0 {
		return nil
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	for i := range again {
		next, hit, err := p.hidden(tombstoneOf(&again[i]), math.MaxInt)
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

func tombstoneOf(d *frame.Deletion) Tombstone {
	t := Tombstone{Lo: d.Lo, Hi: d.Hi}
	for _, m := range d.Matchers {
		t.Matchers = append(t.Matchers, peer.Matcher{Type: peer.MatchType(m.Type), Name: m.Name, Value: m.Value})
	}
	return t
}

// defineAny reports whether a series of the chain fulfils all matchers. A segment has rows of series that those before
// it define, so only the chain as a whole can tell.
func defineAny(chain []*segmentRef, ms []*labels.Matcher) (bool, error) {
	for _, g := range chain {
		found, err := g.reader.Match(ms)
		if err != nil || !found.IsEmpty() {
			return err == nil, err
		}
	}
	return false, nil
}

// hide adds t to those of the segments in which it may hide something that the ones before it do not.
func hide(states []SegmentState, t Tombstone, most int) (hit bool, err error) {
	for i := range states {
		g := &states[i]
		if g.Rows == 0 || g.TimeLo > t.Hi || g.TimeHi < t.Lo || slices.ContainsFunc(g.Tombstones, t.equal) {
			continue
		}
		if len(g.Tombstones) >= most {
			return false, fault.Errorf(fault.Throttled, "%d deletions wait to be carried out, at most %d may; try again when compaction has caught up",
				len(g.Tombstones), most)
		}
		g.Tombstones = append(slices.Clone(g.Tombstones), t)
		hit = true
	}
	return hit, nil
}

func (t Tombstone) equal(o Tombstone) bool {
	return t.Lo == o.Lo && t.Hi == o.Hi && slices.Equal(t.Matchers, o.Matchers)
}
