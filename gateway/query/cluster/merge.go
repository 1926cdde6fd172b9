package cluster

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// run is what one server says of a series. Where partitions overlap, the higher layer is of the newer one.
type run struct {
	series *peer.Series
	layer  int
}

// merger puts series together. One goroutine at a time; the zero merger is ready.
type merger struct {
	cursors []cursor
	times   []point.Nanos // of the last result: series that were written together have the same, and share them
}

// cursor walks over the floats, or over the histograms, of a run.
type cursor struct {
	times  []point.Nanos
	values []float64
	hists  []peer.Hist // not nil: these, and no floats
	layer  int
	i, n   int
}

func (c *cursor) at(i int) point.Nanos {
	if c.hists != nil {
		return c.hists[i].Time
	}
	return c.times[i]
}

// until gives the first place from i on whose time is t or later. Where runs take turns, that is some way off.
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

// beats decides between the rows that two cursors stand at, of one time: a value over a stale marker, then the newer
// partition, then a histogram over a float, then the greater bits, as servers do among themselves.
func (c *cursor) beats(o *cursor) bool {
	if cs, os := c.stale(), o.stale(); cs != os {
		return os
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

// merge gives the series of all runs, of which there are at least two with the same labels. It shares nothing with them
// but the bytes of histograms.
func (m *merger) merge(runs []run) *peer.Series {
	m.cursors = m.cursors[:0]
	floats, hists := 0, 0
	for _, r := range runs {
		s := r.series
		if len(s.Times) > 0 {
			m.cursors = append(m.cursors, cursor{times: s.Times, values: s.Values, layer: r.layer, n: len(s.Times)})
		}
		if len(s.Hists) > 0 {
			m.cursors = append(m.cursors, cursor{hists: s.Hists, layer: r.layer, n: len(s.Hists)})
		}
		floats, hists = floats+len(s.Times), hists+len(s.Hists)
	}
	out := &peer.Series{Labels: runs[0].series.Labels}
	if floats > 0 {
		out.Times, out.Values = make([]point.Nanos, 0, floats), make([]float64, 0, floats)
	}
	if hists > 0 {
		out.Hists = make([]peer.Hist, 0, hists)
	}
	for len(m.cursors) > 0 {
		m.step(out)
	}
	if slices.Equal(out.Times, m.times) {
		out.Times = m.times
	}
	m.times = out.Times
	return out
}

// step takes the rows up to where another cursor has one, or decides between those of one time.
func (m *merger) step(out *peer.Series) {
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
	c.take(to, out)
	if c.i == c.n {
		m.cursors = slices.Delete(m.cursors, first, first+1)
	}
}

// settle takes the best of the rows at t, and drops the others.
func (m *merger) settle(t point.Nanos, out *peer.Series) {
	var best *cursor
	for i := range m.cursors {
		if c := &m.cursors[i]; c.head() == t && (best == nil || c.beats(best)) {
			best = c
		}
	}
	best.take(best.i+1, out)
	best.i--
	for i := range m.cursors {
		if c := &m.cursors[i]; c.head() == t {
			c.i++
		}
	}
	m.cursors = slices.DeleteFunc(m.cursors, func(c cursor) bool { return c.i == c.n })
}

func (c *cursor) head() point.Nanos { return c.at(c.i) }

func (c *cursor) take(to int, out *peer.Series) {
	if c.hists != nil {
		out.Hists = append(out.Hists, c.hists[c.i:to]...)
	} else {
		out.Times, out.Values = append(out.Times, c.times[c.i:to]...), append(out.Values, c.values[c.i:to]...)
	}
	c.i = to
}

// unite merges sorted lists into one without doubles, of at most limit (0: any number); truncated says that there were
// more. Each list may itself have been cut at limit or later.
func unite(lists [][]string, limit int) (all []string, truncated bool) {
	all = slices.Compact(slices.Sorted(slices.Values(slices.Concat(lists...))))
	if limit > 0 && len(all) > limit {
		return all[:limit], true
	}
	return all, false
}

// uniteExemplars merges what servers found, by series in label order and by time within.
func uniteExemplars(found [][]peer.SeriesExemplars) []peer.SeriesExemplars {
	all := slices.Concat(found...)
	slices.SortStableFunc(all, func(a, b peer.SeriesExemplars) int { return a.Labels.Compare(b.Labels) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].Labels == s.Labels {
			out[n-1].Exemplars = append(slices.Clone(out[n-1].Exemplars), s.Exemplars...)
			continue
		}
		out = append(out, s)
	}
	for i := range out {
		rows := out[i].Exemplars
		slices.SortStableFunc(rows, compareExemplars)
		out[i].Exemplars = slices.CompactFunc(rows, func(a, b point.ExemplarRow) bool { return compareExemplars(a, b) == 0 })
	}
	return out
}

func compareExemplars(a, b point.ExemplarRow) int {
	return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(math.Float64bits(a.Value), math.Float64bits(b.Value)), cmp.Compare(a.Labels, b.Labels))
}
