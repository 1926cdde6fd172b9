package partition

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// A deletion hides what the partition accepted before it. Rows that another server ordered (Rows.Foreign) come later, with the rank of when they were received: one that
// is far below a deletion's (deletedMargin) was received before it, and stays hidden.
//
//	x staged, rank 5 ──▶ forwarded ──▶ here      deletion, rank 70     x forwarded again, rank 5: left out
//
// So a placement remembers the newest of its deletions with their ranks, also those that a compaction has carried out.

// Deleted is a deletion with its rank.
type Deleted struct {
	Tombstone
	// Rank is above that of all rows that the partition accepted before. Of one that came in a segment of format version 2 it is the highest
	// of the rows below, which is lower.
	Rank point.Stamp `json:"rank"`
}

// The newest deletions are remembered: so many, and with so many bytes of matchers. One that a later one includes is forgotten first. A row that comes
// late enough to be older than all of them may have been deleted by one that is forgotten: nothing shows that any more, so it is taken, with a warning.
const (
	deletedMax      = 64
	deletedBytesMax = 128 << 10
)

// deletedMargin is how far below a deletion's rank a foreign row's must be for the deletion to hide it: twice what the clocks of two gateways may differ. Ranks are their clocks'
// times, so a row that was acked just after the deletion may have a lower one, and must not be lost. Rows received that shortly before the deletion are
// removed from the frames of the servers that stage them, as all are, before partitions delete; only one that a server staged which was away and unregistered then comes back.
const deletedMargin = point.Stamp(10 * time.Second)

// remember adds a deletion, and reports whether that changed the state. Frames of before deletions had ranks have rank 0.
func (s *State) remember(t Tombstone, rank point.Stamp) bool {
	known := func(d Deleted) bool { return d.equal(t) && d.Rank >= rank }
	if rank == 0 || slices.ContainsFunc(s.Deleted, known) {
		return false
	}
	all := append(slices.Clone(s.Deleted), Deleted{t, rank})
	slices.SortStableFunc(all, func(a, b Deleted) int { return cmp.Compare(a.Rank, b.Rank) })
	if fit(all) > 0 {
		// Not before there are too many: where the frame of the later deletion is cut off the log, the earlier one still counts.
		all = uncovered(all)
	}
	s.Deleted = all[fit(all):]
	return true
}

// fit returns how many of the first deletions there is no room for.
func fit(all []Deleted) int {
	size := 0
	for i := len(all) - 1; i >= 0; i-- {
		size += all[i].matcherBytes()
		if len(all)-i > deletedMax || size > deletedBytesMax {
			return i + 1
		}
	}
	return 0
}

// uncovered returns the deletions without those that a later one includes.
func uncovered(all []Deleted) (out []Deleted) {
	for i, d := range all {
		if !slices.ContainsFunc(all[i+1:], func(later Deleted) bool { return later.covers(d.Tombstone) }) {
			out = append(out, d)
		}
	}
	return out
}

// bring carries out the deletions that a segment lists, in the segments below it, and remembers them.
func (s *State) bring(info *segment.Info, below []SegmentState) {
	var highest point.Stamp
	for i := range below {
		highest = max(highest, below[i].StampHi)
	}
	for i := range info.Deletions {
		d := &info.Deletions[i]
		t := tombstoneOf(&d.Deletion, point.Serial{})
		_, _ = hide(below, t, false) // without a bound it cannot fail
		s.remember(t, cmp.Or(d.Rank, highest))
	}
	for i := range info.Remembered {
		s.remember(tombstoneOf(&info.Remembered[i].Deletion, point.Serial{}), info.Remembered[i].Rank)
	}
}

// remembered lists the deletions for the header of a major.
func (s *State) remembered() (out []segment.Deletion) {
	for i := range s.Deleted {
		out = append(out, segment.Deletion{Deletion: s.Deleted[i].deletion(), Rank: s.Deleted[i].Rank})
	}
	return out
}

// hidesRank reports whether a deletion of one rank hides foreign rows of another, of which it must be above by more than a margin.
func hidesRank(deletion, row, margin point.Stamp) bool {
	return deletion > row && deletion-row > margin
}

// marginOf is the margin of foreign rows. Missing ones have the rank that an earlier leader of this part of the keyspace gave them, which was above all it had
// accepted: a deletion of a higher rank came later, however little later.
func marginOf(r *Rows) point.Stamp {
	if r.Missing {
		return 0
	}
	return deletedMargin
}

// deletedAbove returns the deletions that hide rows of a rank.
func (s *State) deletedAbove(rank, margin point.Stamp) []Deleted {
	i := slices.IndexFunc(s.Deleted, func(d Deleted) bool { return hidesRank(d.Rank, rank, margin) })
	if i < 0 {
		return nil
	}
	return s.Deleted[i:]
}

// forgets reports whether deletions that hid foreign rows of a rank may be forgotten: there are as many as may be remembered, or there would be no
// room for the largest.
func (s *State) forgets(rank point.Stamp) bool {
	size := frame.DeletionBytesMax
	for _, d := range s.Deleted {
		size += d.matcherBytes()
	}
	return (len(s.Deleted) == deletedMax || size > deletedBytesMax) && len(s.Deleted) > 0 && hidesRank(s.Deleted[0].Rank, rank, deletedMargin)
}

// deletionsAbove returns the deletions that hide rows of a rank, also those that are under way. newest is the highest rank of a deletion, remembered or in a head.
func (p *Partition) deletionsAbove(rank, margin point.Stamp) (above []Deleted, newest point.Stamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest = p.newestDeletionLocked()
	if !hidesRank(newest, rank, margin) {
		return nil, newest
	}
	above = slices.Clone(p.mu.state.deletedAbove(rank, margin))
	for _, d := range p.deletionsLocked() { // not remembered yet: the rows left out for it are acked when all placements have it
		t := tombstoneOf(&d.Deletion, d.at)
		if hidesRank(d.rank, rank, margin) && !slices.ContainsFunc(above, func(o Deleted) bool { return o.equal(t) }) {
			above = append(above, Deleted{t, d.rank})
		}
	}
	return above, newest
}

func (p *Partition) newestDeletionLocked() (newest point.Stamp) {
	if n := len(p.mu.state.Deleted); n > 0 {
		newest = p.mu.state.Deleted[n-1].Rank
	}
	for _, d := range p.deletionsLocked() {
		newest = max(newest, d.rank)
	}
	return newest
}

// undeleted are foreign rows without those that deletions of a higher rank hide.
type undeleted struct {
	rows   *Rows
	newest point.Stamp // of the deletions that were looked at
	upTo   point.Serial
	hidden int
}

// withoutDeleted leaves out the foreign rows that deletions hide. Exemplars stay, as they do at a deletion. The result shares columns with r, which is unchanged.
func (p *Partition) withoutDeleted(r *Rows) (undeleted, error) {
	above, newest := p.deletionsAbove(r.Stamp, marginOf(r))
	u := undeleted{rows: r, newest: newest}
	if len(above) == 0 {
		return u, nil
	}
	ts := make([]Tombstone, len(above))
	for i, d := range above {
		ts[i] = d.Tombstone
	}
	cs, err := compileTombstones(ts)
	if err != nil {
		return u, err
	}
	matching := map[series.Ref][]bool{} // by deletion
	hides := func(ref series.Ref, at point.Nanos) bool {
		ms, ok := matching[ref]
		if !ok {
			l := p.deps.Index.Labels(ref)
			for i := range cs {
				ms = append(ms, matches(cs[i].matchers, l))
			}
			matching[ref] = ms
		}
		hidden := false
		for i, m := range ms {
			if m && at >= cs[i].lo && at <= cs[i].hi {
				hidden = true
				if u.upTo.Less(above[i].At) {
					u.upTo = above[i].At
				}
			}
		}
		return hidden
	}
	kept := *r
	kept.Refs, kept.Times, kept.Values, kept.HistRefs, kept.Hists = nil, nil, nil, nil, nil
	for i, ref := range r.Refs {
		if hides(ref, r.Times[i]) {
			u.hidden++
			continue
		}
		kept.Refs, kept.Times, kept.Values = append(kept.Refs, ref), append(kept.Times, r.Times[i]), append(kept.Values, r.Values[i])
	}
	for i, ref := range r.HistRefs {
		if hides(ref, r.Hists[i].Time) {
			u.hidden++
			continue
		}
		kept.HistRefs, kept.Hists = append(kept.HistRefs, ref), append(kept.Hists, r.Hists[i])
	}
	if u.hidden > 0 {
		u.rows = &kept
	}
	return u, nil
}

// enterForeign is enter of rows that another server ordered. Rows that a deletion hides are acked when all placements have the deletion: else another
// leader might lack both.
func (p *Partition) enterForeign(r *Rows) (logged, error) {
	p.warnForgotten(r.Stamp, time.Now())
	if !r.Missing { // those of another partition are older than what was written here, whatever their ranks
		p.warnOld(r.Stamp, time.Now())
	}
	for {
		u, err := p.withoutDeleted(r)
		if err != nil {
			return logged{}, err
		}
		if u.hidden > 0 {
			p.log.Info("late rows that a deletion hides were left out", "rows", u.hidden)
			if err := p.awaitDeletion(r, u.upTo); err != nil {
				return logged{}, err
			}
		}
		rows, beside := u.rows, (*headRef)(nil)
		if r.Missing {
			if rows, beside, err = p.missing(rows); err == errCold {
				continue
			} else if err != nil {
				return logged{}, err
			}
		}
		l, err := p.enqueueRows(rows, u.newest, beside)
		if err != errDeleted && err != errFrozen {
			return l, err
		}
	}
}

// warnOld warns, once a minute, of rows that come so late that ranks of their time are not kept any more.
func (p *Partition) warnOld(stamp point.Stamp, now time.Time) {
	if stamp >= p.ranksFrom(now) {
		return
	}
	p.mu.Lock()
	logged := now.Sub(p.mu.warnedOld) < time.Minute
	if !logged {
		p.mu.warnedOld = now
	}
	p.mu.Unlock()
	if !logged {
		p.log.Warn("rows come that another server received long ago: where their time has a value that came before them, that one may still be read",
			"received", at(rank.Time(stamp)), "exact_for", p.settings.ExactRanksFor)
	}
}

// warnForgotten warns, once a minute, of rows that are older than every deletion that is remembered, where there were as many as that.
func (p *Partition) warnForgotten(stamp point.Stamp, now time.Time) {
	p.mu.Lock()
	remembered := len(p.mu.state.Deleted)
	says := p.mu.state.forgets(stamp) && now.Sub(p.mu.warnedForgotten) >= time.Minute
	if says {
		p.mu.warnedForgotten = now
	}
	p.mu.Unlock()
	if says {
		p.log.Warn("rows come that another server received before the oldest deletion that is remembered: where an older deletion removed them they are back; delete them again",
			"received", at(rank.Time(stamp)), "deletions", remembered)
	}
}

// awaitDeletion returns when all placements have the deletion in a frame.
func (p *Partition) awaitDeletion(r *Rows, at point.Serial) error {
	p.mu.Lock()
	chain, epoch, wait := p.mu.chain, p.mu.epoch, p.mu.wait
	p.mu.Unlock()
	if epoch == 0 || r.Epoch != 0 && r.Epoch != epoch {
		return p.notLed(r.Epoch, epoch)
	}
	if at == (point.Serial{}) {
		return nil
	}
	if chain == nil {
		return wait.Wait()
	}
	return chain.Await(context.Background(), at)
}
