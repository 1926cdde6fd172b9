package runner

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// Query asks for staged rows.
type Query struct {
	Table  string
	Lo, Hi point.Nanos // both included
	Match  func(point.Labels) bool
	// Labels has each series that matches; none is empty. Frames that are known to have no such series are not decoded. Nil: nothing is known. Deletions do not use them.
	Labels     []Label
	LabelsOnly bool
	// Take is called with the bytes of rows before they use memory.
	Take func(int64) error
}

// Label is a label of a series.
type Label struct{ Name, Value string }

// rowBytes is about the memory of a row with its rank, while it is merged.
const rowBytes = 48

// Read returns the series with staged rows in a range, in label order, with ranks.
func (s *Store) Read(q *Query) ([]peer.Series, error) {
	byLabels := map[point.Labels][]peer.Source{}
	labels := make([]uint64, len(q.Labels))
	for i, l := range q.Labels {
		labels[i] = hashOf(l.Name, l.Value)
	}
	made := map[staging.ID]filter{}
	defer s.keepFilters(made)
	_, begun := s.deps.Ways.Map(q.Table)
	d := frame.Decoder{KnownDefs: true}
	for _, h := range s.overlapping(q.Table, q.Lo, q.Hi, labels) {
		if h.Before(begun) { // of a table that was dropped: it ends at the next look
			continue
		}
		if err := q.Take(int64(h.Rows)*rowBytes + h.Bytes); err != nil {
			return nil, err
		}
		var g frame.Frame // its memory is kept by the result
		if err := d.Decode(h.body, &g); err != nil {
			return nil, err
		}
		if h.filter == nil && len(labels) > 0 {
			made[h.ID] = filterOf(&g, h.Bytes)
		}
		gather(byLabels, &g, q)
	}
	all := make([]peer.Series, 0, len(byLabels))
	m := peer.Merger{Ranks: true}
	for l, sources := range byLabels {
		if q.LabelsOnly {
			all = append(all, peer.Series{Labels: l})
			continue
		}
		all = append(all, *m.Merge(sources))
		m = peer.Merger{Ranks: true} // results may share its memory
	}
	slices.SortFunc(all, func(a, b peer.Series) int { return a.Labels.Compare(b.Labels) })
	return all, nil
}

// gather adds the rows of a frame, by series.
func gather(into map[point.Labels][]peer.Source, g *frame.Frame, q *Query) {
	wanted := make([]bool, len(g.Defs))
	for i, l := range g.Defs {
		wanted[i] = q.Match(l)
	}
	floats, hists := map[point.DenseID]*peer.Series{}, map[point.DenseID]*peer.Series{}
	of := func(m map[point.DenseID]*peer.Series, id point.DenseID, t point.Nanos) *peer.Series {
		if !wanted[id] || t < q.Lo || t > q.Hi {
			return nil
		}
		if m[id] == nil {
			m[id] = &peer.Series{Labels: g.Defs[id]}
		}
		return m[id]
	}
	for i, id := range g.IDs {
		if r := of(floats, id, g.Times[i]); r != nil {
			addFloat(r, g.Times[i], g.Values[i], g.Stamp)
		}
	}
	for i := range g.Hists {
		h := &g.Hists[i]
		if r := of(hists, h.ID, h.Time); r != nil {
			addHist(r, peer.Hist{Time: h.Time, H: h.H}, g.Stamp)
		}
	}
	for _, m := range []map[point.DenseID]*peer.Series{floats, hists} {
		for _, r := range m {
			into[r.Labels] = append(into[r.Labels], peer.Source{Series: r})
		}
	}
}

// addFloat puts a row in its place. Of two at one time the later one wins, but a stale marker never beats a value.
func addFloat(r *peer.Series, t point.Nanos, v float64, stamp point.Stamp) {
	i, found := len(r.Times), false
	if i > 0 && r.Times[i-1] >= t {
		i, found = slices.BinarySearch(r.Times, t)
	}
	if found {
		if !point.IsStale(v) || point.IsStale(r.Values[i]) {
			r.Values[i] = v
		}
		return
	}
	r.Times, r.Values, r.Ranks = slices.Insert(r.Times, i, t), slices.Insert(r.Values, i, v), append(r.Ranks, stamp)
}

func addHist(r *peer.Series, h peer.Hist, stamp point.Stamp) {
	i, found := slices.BinarySearchFunc(r.Hists, h.Time, func(h peer.Hist, t point.Nanos) int {
		switch {
		case h.Time < t:
			return -1
		case h.Time > t:
			return 1
		}
		return 0
	})
	if found {
		if !point.IsStaleHistogram(h.H) || point.IsStaleHistogram(r.Hists[i].H) {
			r.Hists[i] = h
		}
		return
	}
	r.Hists, r.HistRanks = slices.Insert(r.Hists, i, h), append(r.HistRanks, stamp)
}
