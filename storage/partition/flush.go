package partition

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/head"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// Flush writes the head's rows into a new segment and releases their log frames: freeze → segment (fsync) → catalogue (fsync) →
// log. Rows come in meanwhile and are readable all the time. A crash between two steps loses nothing: the log is replayed from the
// catalogue's position. Flush does nothing when there are no rows, and nothing in a placement that follows: its leader flushes.
func (p *Partition) Flush(ctx context.Context, why Reason) error {
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	return p.flushOrdered(ctx, why)
}

// TryFlush is Flush unless the list of segments is being changed: by another flush, which may wait for a copy that is away, or by a deletion that is logged or carried out; then done is false.
func (p *Partition) TryFlush(ctx context.Context, why Reason) (done bool, err error) {
	if !p.flushMu.TryLock() {
		return false, nil
	}
	defer p.flushMu.Unlock()
	return true, p.flushOrdered(ctx, why)
}

// flushOrdered is Flush under the flush lock. It records the outcome, for the pace of retries, unless another leads by then: no flush
// would follow that ends the failure.
func (p *Partition) flushOrdered(ctx context.Context, why Reason) error {
	err := p.flushNow(ctx, why)
	if err != nil && ctx.Err() != nil {
		return err // abandoned, not failed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.follows {
		p.mu.flush.note(time.Now(), err)
	}
	return err
}

// flushNow does the steps. The loss or doubling if a crash comes behind each:
//
//	freeze               nothing: the frozen head is memory, its frames are in the log; the next start replays them into one head
//	deletions committed  nothing: the log has the deletion still, and a replay finds it in the catalogue and does not add it twice
//	writeMinor           a file that the catalogue does not list, with frames that the log holds: Tidy removes it
//	commitSegment        nothing: Flushed and the segment are one catalogue commit, so a replay begins behind the rows of the segment
//	Release              log files that are longer than needed
//
// With Release before the commit the frames could be gone with neither log nor segment listing them (I6).
func (p *Partition) flushNow(ctx context.Context, why Reason) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	fr, err := p.freeze()
	if fr == nil {
		return err
	}
	defer p.flushEnds()
	// 1. Flush only frames that are durable at every listed placement: a segment must never hold frames that the log could still
	// lose or the next leader may lack.
	if err := fr.durable.Wait(); err != nil {
		return err
	}
	if fr.chain != nil {
		await := fr.chain.AwaitSoon
		if why.wanted() {
			await = fr.chain.Await
		}
		if err := await(ctx, fr.last); err != nil {
			return fault.Annotate(err, "flush partition %s/%d", p.ident.Table, p.ident.Partition)
		}
	}
	// The log may release a deletion only once the older segments have it.
	if len(fr.deletions) > 0 {
		if fr.state, err = p.deleted(fr.deletions); err != nil {
			return err
		}
	}
	// 2. The segment, fsynced under its final name.
	info, err := p.writeMinor(ctx, fr)
	if err != nil {
		return fault.Annotate(err, "flush partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	// 3. Commit to the catalogue, durably.
	if err := p.stillLeads(info.ID); err != nil {
		return err
	}
	next := *fr.state
	next.Flushed = fr.last
	next.Ends = raise(next.Ends, fr.ends...)
	st := SegmentState{Info: info, Tombstones: fr.head.hidden()}
	next.Segments = append(slices.Clone(next.Segments), st)
	g, err := p.checkAndCommit(&next, st)
	if err != nil {
		return err
	}
	// 4. Readers see the segment instead of the head; then the log may release the frames.
	p.mu.Lock()
	// Both lists change under one lock: a view has each row in the head or in the segment, never in both or in neither.
	p.mu.segments = append(slices.Clone(p.mu.segments), g)
	p.mu.frozen = slices.Clone(p.mu.frozen[1:])
	p.mu.defined = fr.defined
	p.mu.order, p.mu.ordered = fr.order, fr.defined
	p.mu.revived = p.mu.revived[len(fr.revived):]
	p.mu.Unlock()
	now := time.Now()
	due := p.silence.listen(fr.head, now, p.settings.QuietAfter)
	bytes := int64(fr.head.head.Bytes())
	fr.head.release()
	p.deps.HeadBytes.Add(-bytes)
	p.releaseLog(why)
	p.deps.Metrics.flushed(why, info.Rows, uint64(info.Size), time.Since(start))
	p.log.Info("head flushed", "segment", info.ID, "rows", info.Rows, "bytes", info.Size, "reason", why, "took", time.Since(start).Round(time.Millisecond))
	if due {
		p.hush(ctx, fr.defined, now)
	}
	return nil
}

// releaseLog releases the frames of the log that are in segments. While a compaction runs it keeps those that are only in segments which followers are not offered yet: one that comes back gets them
// from the log. Where the log is over its bound it keeps none, and such a follower waits for the end of the compaction.
func (p *Partition) releaseLog(why Reason) {
	p.mu.Lock()
	upTo := p.mu.state.Flushed
	if p.mu.offered != nil && p.mu.chain != nil && why != ByLog {
		upTo = p.mu.offered.Flushed
	}
	p.mu.Unlock()
	p.deps.Brick.Release(p.ident.Placement, upTo)
}

// frozen is a head that accepts no more rows.
// The life of a head: active ─ freezeActiveLocked ─▶ frozen[n] ─ (older ones are flushed) ─▶ frozen[0] ─ flushNow ─▶ released. Views retain it.
type frozen struct {
	head      *headRef
	deletions []deletion
	first     point.Serial // of its frames
	last      point.Serial
	ends      []point.EpochEnd // of its frames; last is the newest
	durable   brick.Wait
	defined   int // dense ids below are defined when this head is flushed

	// The rest of the input of the writer, as it is when the flush begins.
	chain   Followers
	state   *State
	base    int // dense ids below are defined in segments
	order   []point.DenseID
	ordered int // as in the partition
	revived []point.DenseID
}

// freeze returns the oldest frozen head, and freezes the active one if there is none. Nil: nothing to flush, or it is not this placement's task.
func (p *Partition) freeze() (*frozen, error) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped || p.mu.follows:
		return nil, nil
	case len(p.mu.frozen) == 0 && p.mu.frames == 0:
		return nil, nil
	case len(p.mu.frozen) == 0:
		if err := p.freezeActiveLocked(); err != nil {
			return nil, err
		}
	}
	fr := p.mu.frozen[0]
	fr.chain, fr.state, fr.base = p.mu.chain, p.mu.state, p.mu.defined
	fr.order, fr.ordered, fr.revived = p.mu.order, p.mu.ordered, p.mu.revived
	p.mu.flushing = true
	return fr, nil
}

// freezeActiveLocked puts a new head in front of the active one, and has the placements that follow do so too.
func (p *Partition) freezeActiveLocked() error {
	if p.mu.chain != nil && p.mu.epoch != 0 {
		return p.logFreezeLocked()
	}
	p.pushFrozenLocked()
	return nil
}

// pushFrozenLocked makes the active head the newest frozen one; applyMu is held. The list is copied, not changed in place: views share the old one.
func (p *Partition) pushFrozenLocked() {
	p.mu.frozen = append(slices.Clip(p.mu.frozen), &frozen{
		head: p.mu.active, first: p.mu.first, last: p.mu.applied, ends: p.mu.ends, deletions: p.mu.deletions, durable: p.mu.wait,
		defined: max(p.ids.Load().len(), p.mu.defined),
	})
	p.newActiveLocked()
}

// flushEnds notes that no flush is under way.
func (p *Partition) flushEnds() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.flushing = false
}

// flushAll flushes all present heads; the flush lock is held.
func (p *Partition) flushAll(ctx context.Context, why Reason) error {
	for n := p.headsToFlush(); n > 0; n-- {
		if err := p.flushOrdered(ctx, why); err != nil {
			return err
		}
	}
	return nil
}

// headsToFlush counts the heads that hold frames.
func (p *Partition) headsToFlush() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.mu.frozen)
	if p.mu.frames > 0 {
		n++
	}
	return n
}

// writeMinor writes a frozen head as a segment on top of the newest one. No lock is held but flushMu, so the chain cannot change below it.
func (p *Partition) writeMinor(ctx context.Context, fr *frozen) (segment.Info, error) {
	st := fr.state
	m := segment.Meta{
		Table: st.Table, Partition: st.Partition,
		ID:    p.takeSegmentID(),
		Major: len(st.Segments) == 0,
		Ends:  fr.ends,
		Range: p.ident.segmentRange(), Deletions: deletionsOf(fr.deletions),
	}
	if n := len(st.Segments); n > 0 {
		m.Base = st.Segments[n-1].ID
	} else {
		m.Remembered = st.remembered()
	}
	w, err := p.createSegment(m)
	if err != nil {
		return segment.Info{}, err
	}
	x := p.ids.Load()
	excess := p.newExcess(func(id point.DenseID) point.Labels { return p.labelsOf(x, id) })
	if err := p.writeHead(ctx, w, x, fr, excess); err != nil {
		return segment.Info{}, errors.Join(err, w.Abort())
	}
	info, err := p.finish(w, m.ID)
	if err == nil {
		excess.report()
	}
	return info, err
}

// giveUpEvery is how many series are written between two checks whether the flush is still wanted: a stopping process does not
// wait for millions of them.
const giveUpEvery = 1 << 10

// writeHead writes the definitions and rows of a head. A head of deletions alone has none, and its series may not be in memory.
// Errors are Canceled, too.
func (p *Partition) writeHead(ctx context.Context, w *segment.Writer, x *ids, fr *frozen, excess *excess) error {
	if x.len() < fr.defined {
		return nil
	}
	for id := point.DenseID(fr.base); int(id) < fr.defined; id++ {
		if id%giveUpEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		ref, _ := x.ref(id) // not quiet: no segment defines it yet
		if err := w.Define(id, p.deps.Index.Labels(ref)); err != nil {
			return err
		}
	}
	fr.order = p.extendOrder(x, fr)
	h, n := fr.head.head, 0
	err := h.Drain(x.withQuiet(fr.order, h), func(id point.DenseID, r *rows.Run) error {
		if n++; n%giveUpEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		excess.run(id, r)
		return w.Add(id, r)
	})
	if err != nil {
		return err
	}
	return addExemplars(h, w, excess)
}

// finish publishes a segment's file, or leaves none: otherwise each retry would leave one more until the next start.
func (p *Partition) finish(w *segment.Writer, id point.SegmentID) (segment.Info, error) {
	info, err := w.Finish()
	if err != nil {
		return info, errors.Join(err, w.Abort(), p.removeSegmentFile(id))
	}
	return info, nil
}

// addExemplars passes the head's exemplars to the writer, a series at a time.
func addExemplars(h *head.Head, w *segment.Writer, excess *excess) error {
	var of point.DenseID
	var ex []point.ExemplarRow
	err := h.EachExemplar(func(id point.DenseID, e head.Exemplar) error {
		if id != of && len(ex) > 0 {
			if err := w.AddExemplars(of, excess.exemplars(of, ex)); err != nil {
				return err
			}
			ex = ex[:0]
		}
		of = id
		ex = append(ex, point.ExemplarRow{Time: e.Time, Value: e.Value, Labels: e.Labels})
		return nil
	})
	if err != nil || len(ex) == 0 {
		return err
	}
	return w.AddExemplars(of, excess.exemplars(of, ex))
}

// createSegment begins a segment's file. Its directory is durable before, so that the rename in Finish is.
func (p *Partition) createSegment(m segment.Meta) (*segment.Writer, error) {
	b := p.deps.Brick
	if err := b.MakeSegmentDir(p.ident.Placement); err != nil {
		return nil, err
	}
	return segment.Create(b.FS(), b.SegmentPath(p.ident.Placement, m.ID), m, segment.Settings{})
}

// checkAndCommit is commitSegment of a segment that was made here: it is checked first, so that the catalogue never lists an unreadable one.
func (p *Partition) checkAndCommit(next *State, st SegmentState) (*segmentRef, error) {
	return p.commitSegment(next, st, (*segment.Reader).Check)
}

// commitSegment makes a finished segment part of the placement: it opens the segment, has it checked, and commits to the catalogue.
func (p *Partition) commitSegment(next *State, st SegmentState, check func(*segment.Reader) error) (*segmentRef, error) {
	g, err := p.openChecked(st, check)
	if err != nil {
		return nil, err
	}
	if err := p.commit(next); err != nil {
		g.release() // the file stays: it is uncertain whether the catalogue names it
		return nil, err
	}
	return g, nil
}

// openAll opens finished segments and has them checked: all or none. The file of one that fails is removed.
func (p *Partition) openAll(all []SegmentState, check func(*segment.Reader) error) (refs []*segmentRef, err error) {
	for _, st := range all {
		g, err := p.openChecked(st, check)
		if err != nil {
			for _, g := range refs {
				g.release()
			}
			return nil, err
		}
		refs = append(refs, g)
	}
	return refs, nil
}

// openChecked opens a finished segment and has it checked. After an error its file is removed.
func (p *Partition) openChecked(st SegmentState, check func(*segment.Reader) error) (*segmentRef, error) {
	b, info := p.deps.Brick, st.Info
	file := b.SegmentPath(p.ident.Placement, info.ID)
	r, err := segment.Open(b.FS(), file, info, p.deps.Cache)
	if err != nil {
		return nil, errors.Join(err, p.removeSegmentFile(info.ID)) // or each retry would leave one
	}
	if err := check(r); err != nil {
		return nil, errors.Join(err, r.Close(), p.removeSegmentFile(info.ID))
	}
	return p.newSegmentRef(r, st, file), nil
}

// extendOrder returns the dense ids in memory in label order, from an order of fewer: ids that are new or came back are sorted and
// merged in. Queries mostly read neighbours in this order together.
func (p *Partition) extendOrder(x *ids, fr *frozen) []point.DenseID {
	var fresh []point.DenseID
	add := func(id point.DenseID) {
		if _, live := x.ref(id); live {
			fresh = append(fresh, id)
		}
	}
	for _, id := range fr.revived {
		add(id)
	}
	for id := fr.ordered; id < fr.defined; id++ {
		add(point.DenseID(id))
	}
	if len(fresh) == 0 {
		return fr.order
	}
	ref := func(id point.DenseID) series.Ref { ref, _ := x.ref(id); return ref }
	slices.Sort(fresh)
	fresh = slices.Compact(fresh)
	series.SortRefs(p.deps.Index, fresh, ref)
	label := func(id point.DenseID) point.Labels { return p.deps.Index.Labels(ref(id)) }
	return series.Merge(fr.order, fresh, func(a, b point.DenseID) int { return label(a).Compare(label(b)) })
}

// withQuiet adds to an order the series that have rows in a head and are not in memory: a replay causes this.
func (x *ids) withQuiet(order []point.DenseID, h *head.Head) []point.DenseID {
	if x.quiet == nil {
		return order
	}
	rest := h.SeriesIDs()
	for _, id := range order {
		rest.Remove(uint32(id))
	}
	out := slices.Clip(order)
	for it := rest.Iterator(); it.HasNext(); {
		out = append(out, point.DenseID(it.Next()))
	}
	return out
}
