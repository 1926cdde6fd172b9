package partition

import (
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Delete hides the rows in [lo, hi] of matching series for every later read, durably; the next compaction leaves them
// out. Rows that are appended later are not touched, whatever their time. Errors are Invalid (matchers), Throttled (more
// deletions wait for a compaction than reads should have to apply), Stale (dropped), or those of a flush.
func (p *Partition) Delete(ctx context.Context, ms []peer.Matcher, lo, hi point.Nanos) error {
	compiled, err := CompileMatchers(ms)
	if err != nil {
		return err
	}
	if err := p.Damaged(); err != nil {
		return err
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	if err := p.flushOrdered(ctx, ByDelete); err != nil {
		return err
	}
	p.mu.Lock()
	next, segments, dropped := *p.mu.state, p.mu.segments, p.mu.dropped
	p.mu.Unlock()
	if dropped {
		return p.gone() // writing the catalogue entry would bring the partition back
	}
	listed := next.Segments
	next.Segments = slices.Clone(listed)
	known, err := defineAny(segments, compiled)
	if err != nil || !known {
		return fault.Annotate(err, "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	hit, err := hide(next.Segments, Tombstone{Matchers: ms, Lo: lo, Hi: hi})
	if err != nil || !hit {
		return fault.Annotate(err, "delete from partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	if err := p.commit(&next); err != nil {
		return err
	}
	for i, g := range segments {
		g.tombstones.Store(&next.Segments[i].Tombstones)
	}
	return nil
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
func hide(states []SegmentState, t Tombstone) (hit bool, err error) {
	for i := range states {
		g := &states[i]
		if g.Rows == 0 || g.TimeLo > t.Hi || g.TimeHi < t.Lo || slices.ContainsFunc(g.Tombstones, t.equal) {
			continue
		}
		if len(g.Tombstones) >= deletionsMax {
			return false, fault.Errorf(fault.Throttled, "%d deletions wait to be carried out, at most %d may; try again when compaction has caught up",
				len(g.Tombstones), deletionsMax)
		}
		g.Tombstones = append(slices.Clone(g.Tombstones), t)
		hit = true
	}
	return hit, nil
}

func (t Tombstone) equal(o Tombstone) bool {
	return t.Lo == o.Lo && t.Hi == o.Hi && slices.Equal(t.Matchers, o.Matchers)
}
