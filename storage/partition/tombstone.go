package partition

import (
	"math"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// CompileMatchers makes Prometheus matchers of those in a request. Errors are Invalid and name the matcher.
func CompileMatchers(ms []peer.Matcher) ([]*labels.Matcher, error) {
	out := make([]*labels.Matcher, len(ms))
	for i, m := range ms {
		c, err := labels.NewMatcher(labels.MatchType(m.Type), m.Name, m.Value)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "matcher on %q", m.Name)
		}
		out[i] = c
	}
	return out, nil
}

// cut is a tombstone with its matchers compiled: once a read, not once a series.
type cut struct {
	matchers []*labels.Matcher
	lo, hi   point.Nanos
}

type cuts []cut

func compileTombstones(ts []Tombstone) (cuts, error) {
	var cs cuts
	for _, t := range ts {
		ms, err := CompileMatchers(t.Matchers)
		if err != nil {
			return nil, fault.Wrap(err, fault.Corrupt, "deletion kept in the catalogue")
		}
		cs = append(cs, cut{ms, t.Lo, t.Hi})
	}
	return cs, nil
}

// apply removes the deleted rows from a run of a series with labels l; the rest may be several pieces, none empty, and at most one
// more than there are deletions.
// A cut within a run leaves two: no row is copied, both are parts of its columns.
func (cs cuts) apply(l point.Labels, r rows.Run) []rows.Run {
	runs := []rows.Run{r}
	for _, c := range cs {
		if c.lo > c.hi || !matches(c.matchers, l) {
			continue
		}
		kept := make([]rows.Run, 0, len(runs)+1)
		for _, r := range runs {
			kept = c.appendRest(kept, r)
		}
		runs = kept
	}
	return runs
}

// appendRest appends the rows before and after the deleted range.
func (c *cut) appendRest(dst []rows.Run, r rows.Run) []rows.Run {
	if c.lo > math.MinInt64 {
		before := r
		before.Cut(math.MinInt64, c.lo-1)
		if before.Len() > 0 {
			dst = append(dst, before)
		}
	}
	if c.hi < math.MaxInt64 {
		after := r
		after.Cut(c.hi+1, math.MaxInt64)
		if after.Len() > 0 {
			dst = append(dst, after)
		}
	}
	return dst
}

func matches(ms []*labels.Matcher, l point.Labels) bool {
	for _, m := range ms {
		if !m.Matches(l.Get(m.Name)) {
			return false
		}
	}
	return true
}
