package peer

import (
	"bytes"
	"math"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Source is the rows of a series from one place. Of two rows at one time the one with the higher rank wins (point.Stamp), where
// every source has ranks; else the one in the higher layer, which is that of the newer partition.
type Source struct {
	Series *Series
	Layer  int
}

// Merger merges the rows of a series from several sources. One goroutine at a time; the zero Merger is ready.
type Merger struct {
	// Ranks means that results have the ranks of their rows. All sources must have them then.
	Ranks bool

	cursors []cursor
	times   []point.Nanos // of the last result: series that were written together have the same, and share them
}

// cursor walks over the floats, or over the histograms, of a run.
type cursor struct {
	times  []point.Nanos
	values []float64
	hists  []Hist        // not nil: these, and no floats
	ranks  []point.Stamp // of either; nil: layers decide
	layer  int
	i, n   int
}

func (c *cursor) at(i int) point.Nanos {
	if c.hists != nil {
		return c.hists[i].Time
	}
	return c.times[i]
}

// until returns the first place from i on with a time of t or later. Where runs alternate, that is some way off.
func (c *cursor) until(t point.Nanos) int {
	step, i := 1, c.i
	for i+step < c.n && c.at(i+step) < t {
		i += step
		step *= 2
	}
	return i + sort.Search(min(step, c.n-i), func(j int) bool { return c.at(i+j) >= t })
}

func (c *cursor) stale() bool {
	if c.hists != nil {
		return point.IsStaleHistogram(c.hists[c.i].H)
	}
	return point.IsStale(c.values[c.i])
}

// beats decides between the rows that two cursors stand at, of one time: a value over a stale marker, then the higher rank
// or the newer partition, then a histogram over a float, then the greater bits, as servers do among themselves.
func (c *cursor) beats(o *cursor) bool {
	if cs, os := c.stale(), o.stale(); cs != os {
		return os
	}
	if c.ranks != nil && o.ranks != nil && c.ranks[c.i] != o.ranks[o.i] {
		return c.ranks[c.i] > o.ranks[o.i]
	}
	if c.layer != o.layer {
		return c.layer > o.layer
	}
	switch {
	case (c.hists != nil) != (o.hists != nil):
		return c.hists != nil
	case c.hists != nil:
		return bytes.Compare(c.hists[c.i].H, o.hists[o.i].H) > 0
	}
	return math.Float64bits(c.values[c.i]) > math.Float64bits(o.values[o.i])
}

// Merge returns the merged series of all sources, which have the same labels. It shares nothing with them but the bytes of
// histograms.
func (m *Merger) Merge(sources []Source) *Series {
	m.cursors = m.cursors[:0]
	floats, hists := 0, 0
	ranked := !slices.ContainsFunc(sources, func(s Source) bool { return !s.Series.ranked() })
	for _, r := range sources {
		s := r.Series
		c := cursor{layer: r.Layer}
		if len(s.Times) > 0 {
			c.times, c.values, c.n = s.Times, s.Values, len(s.Times)
			if c.ranks = nil; ranked {
				c.ranks = s.Ranks
			}
			m.cursors = append(m.cursors, c)
		}
		if len(s.Hists) > 0 {
			c.hists, c.n = s.Hists, len(s.Hists)
			if c.ranks = nil; ranked {
				c.ranks = s.HistRanks
			}
			m.cursors = append(m.cursors, c)
		}
		floats, hists = floats+len(s.Times), hists+len(s.Hists)
	}
	out := m.make(sources[0].Series.Labels, floats, hists)
	for len(m.cursors) > 0 {
		m.step(out)
	}
	if slices.Equal(out.Times, m.times) {
		out.Times = m.times
	}
	m.times = out.Times
	return out
}

// ranked reports whether all rows have ranks.
func (s *Series) ranked() bool {
	return len(s.Ranks) == len(s.Times) && len(s.HistRanks) == len(s.Hists)
}

// make allocates that many rows.
func (m *Merger) make(l point.Labels, floats, hists int) *Series {
	out := &Series{Labels: l}
	if floats > 0 {
		out.Times, out.Values = make([]point.Nanos, 0, floats), make([]float64, 0, floats)
	}
	if hists > 0 {
		out.Hists = make([]Hist, 0, hists)
	}
	if m.Ranks {
		out.Ranks, out.HistRanks = make([]point.Stamp, 0, floats), make([]point.Stamp, 0, hists)
	}
	return out
}

// step appends the rows up to where another cursor has one, or decides between those of one time.
func (m *Merger) step(out *Series) {
	first := 0
	for i := range m.cursors {
		if m.cursors[i].head() < m.cursors[first].head() {
			first = i
		}
	}
	c := &m.cursors[first]
	next, tie := point.Nanos(math.MaxInt64), false
	for i := range m.cursors {
		if i != first {
			next = min(next, m.cursors[i].head())
			tie = tie || m.cursors[i].head() == c.head()
		}
	}
	if tie {
		m.settle(c.head(), out)
		return
	}
	to := c.n
	if len(m.cursors) > 1 {
		to = c.until(next)
	}
	m.take(c, to, out)
	if c.i == c.n {
		m.cursors = slices.Delete(m.cursors, first, first+1)
	}
}

// settle appends the best of the rows at t, and drops the others.
func (m *Merger) settle(t point.Nanos, out *Series) {
	var best *cursor
	for i := range m.cursors {
		if c := &m.cursors[i]; c.head() == t && (best == nil || c.beats(best)) {
			best = c
		}
	}
	m.take(best, best.i+1, out)
	best.i--
	for i := range m.cursors {
		if c := &m.cursors[i]; c.head() == t {
			c.i++
		}
	}
	m.cursors = slices.DeleteFunc(m.cursors, func(c cursor) bool { return c.i == c.n })
}

func (c *cursor) head() point.Nanos { return c.at(c.i) }

// take appends the rows of a cursor up to a place.
func (m *Merger) take(c *cursor, to int, out *Series) {
	if c.hists != nil {
		out.Hists = append(out.Hists, c.hists[c.i:to]...)
		if m.Ranks {
			out.HistRanks = append(out.HistRanks, c.ranks[c.i:to]...)
		}
	} else {
		out.Times, out.Values = append(out.Times, c.times[c.i:to]...), append(out.Values, c.values[c.i:to]...)
		if m.Ranks {
			out.Ranks = append(out.Ranks, c.ranks[c.i:to]...)
		}
	}
	c.i = to
}
