package runner

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// gathering are the rows of frames, by series. Where each row of a table waits for minutes there are as many frames as requests were acked, each with a row or two of a
// series: the work for a row does not grow with the number of frames, as it would if frames were merged with one another.
type gathering struct {
	q      *Query
	series map[point.Labels]*gathered
	frames uint32      // so far
	of     []*gathered // of the series that the frame defines; nil: it is not wanted
}

// gathered are the rows of a series in the order in which they came.
type gathered struct {
	labels        point.Labels
	floats, hists []gatheredRow
	bodies        [][]byte // of hists
}

// gatheredRow is a row of a series.
type gatheredRow struct {
	time  point.Nanos
	rank  point.Stamp
	frame uint32 // the number of its frame
	body  uint32 // of a histogram: its place in bodies
	value float64
}

// add adds the rows of a frame. Nothing of its memory is kept.
// Labels are strings, which the next decoding does not overwrite; histograms are cloned, as their bytes are those of
// the frame held.
func (x *gathering) add(g *frame.Frame) {
	x.frames++
	x.of = x.of[:0]
	for _, l := range g.Defs {
		of := x.series[l]
		if of == nil && x.q.Match(l) {
			of = &gathered{labels: l}
		}
		x.of = append(x.of, of)
	}
	wanted := func(id point.DenseID, t point.Nanos) *gathered {
		of := x.of[id]
		if of == nil || t < x.q.Lo || t > x.q.Hi {
			return nil
		}
		// A series is entered only with its first wanted row, so that one without rows in the range is not in the
		// answer.
		if len(of.floats)+len(of.hists) == 0 {
			if first := x.series[of.labels]; first != nil { // the frame defines it twice
				return first
			}
			x.series[of.labels] = of
		}
		return of
	}
	for i, id := range g.IDs {
		if of := wanted(id, g.Times[i]); of != nil {
			of.floats = append(of.floats, gatheredRow{time: g.Times[i], rank: g.Stamp, frame: x.frames, value: g.Values[i]})
		}
	}
	for i := range g.Hists {
		h := &g.Hists[i]
		if of := wanted(h.ID, h.Time); of != nil {
			of.hists = append(of.hists, gatheredRow{time: h.Time, rank: g.Stamp, frame: x.frames, body: uint32(len(of.bodies))})
			of.bodies = append(of.bodies, slices.Clone(h.H))
		}
	}
}

// all returns the series in label order.
func (x *gathering) all() []peer.Series {
	all := make([]peer.Series, 0, len(x.series))
	for l, of := range x.series {
		if x.q.LabelsOnly {
			all = append(all, peer.Series{Labels: l})
			continue
		}
		all = append(all, *of.merged())
	}
	slices.SortFunc(all, func(a, b peer.Series) int { return a.Labels.Compare(b.Labels) })
	return all
}

// merged returns the rows in time order, one at each time.
func (x *gathered) merged() *peer.Series {
	floats := winners(x.floats, func(r *gatheredRow) bool { return point.IsStale(r.value) }, func(a, b *gatheredRow) int {
		return cmp.Compare(math.Float64bits(a.value), math.Float64bits(b.value))
	})
	hists := winners(x.hists, func(r *gatheredRow) bool { return point.IsStaleHistogram(x.bodies[r.body]) }, func(a, b *gatheredRow) int {
		return bytes.Compare(x.bodies[a.body], x.bodies[b.body])
	})
	s := &peer.Series{Labels: x.labels}
	if len(floats) > 0 {
		s.Times, s.Values, s.Ranks = make([]point.Nanos, len(floats)), make([]float64, len(floats)), make([]point.Stamp, len(floats))
	}
	for i, r := range floats {
		s.Times[i], s.Values[i], s.Ranks[i] = r.time, r.value, r.rank
	}
	if len(hists) == 0 {
		return s
	}
	h := &peer.Series{Labels: x.labels}
	for _, r := range hists {
		h.Hists, h.HistRanks = append(h.Hists, peer.Hist{Time: r.time, H: x.bodies[r.body]}), append(h.HistRanks, r.rank)
	}
	m := peer.Merger{Ranks: true} // a float and a histogram at one time
	return m.Merge([]peer.Source{{Series: s}, {Series: h}})
}

// winners sorts rows by time and leaves one at each: as between partitions (peer.Merger) a value over a stale marker, then the higher rank, then the greater bits; within a
// frame the later row.
func winners(rows []gatheredRow, stale func(*gatheredRow) bool, bits func(a, b *gatheredRow) int) []gatheredRow {
	byTime := func(a, b gatheredRow) int { return cmp.Compare(a.time, b.time) }
	if !slices.IsSortedFunc(rows, byTime) {
		slices.SortStableFunc(rows, byTime)
	}
	// The bits of the value decide last: two servers that answer the same question must choose the same row, in
	// whatever order they read their frames.
	beats := func(r, o *gatheredRow) bool { // r came later
		if rs, os := stale(r), stale(o); rs != os {
			return os
		}
		return r.rank > o.rank || r.rank == o.rank && (r.frame == o.frame || bits(r, o) > 0)
	}
	left := rows[:0]
	for i := range rows {
		r := &rows[i]
		if n := len(left); n > 0 && left[n-1].time == r.time {
			if beats(r, &left[n-1]) {
				left[n-1] = *r
			}
			continue
		}
		left = append(left, *r)
	}
	return left
}
