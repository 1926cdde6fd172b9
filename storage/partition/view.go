package partition

import (
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/head"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/series"
)

// View is a snapshot of where a partition's rows lie: it keeps heads, segments and the names of series alive until
// Close. Rows appended to the active head later may show; no row that was there goes.
type View struct {
	p        *Partition
	warm     bool // the index knows all series, by ids
	ids      *ids // of a warm partition; nil where only segments are looked at
	segments []*segmentRef
	heads    []*headRef
}

// View takes a snapshot; nil when the partition was dropped.
func (p *Partition) View() *View {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return nil
	}
	v := &View{p: p, warm: p.mu.warm, ids: p.ids.Load().retain()}
	for _, g := range p.mu.segments {
		v.segments = append(v.segments, g.retain())
	}
	for _, h := range p.mu.frozen {
		v.heads = append(v.heads, h.retain())
	}
	v.heads = append(v.heads, p.mu.active.retain())
	return v
}

// Close lets go of the snapshot.
func (v *View) Close() {
	for _, g := range v.segments {
		g.release()
	}
	for _, h := range v.heads {
		h.release()
	}
	if v.ids != nil {
		v.ids.release()
	}
	v.segments, v.heads, v.ids = nil, nil, nil
}

// Series is a series of a partition: its number there, its labels, and its number in the index if the view is indexed.
type Series struct {
	ID     point.DenseID
	Ref    series.Ref
	Labels point.Labels
}

// Indexed tells whether the view finds series in the index: their refs mean them until Close.
func (v *View) Indexed() bool { return v.warm }

// Match finds the series of the partition that fulfil all matchers, in no order.
func (v *View) Match(ms []*labels.Matcher) ([]Series, error) {
	if v.warm {
		return v.matchIndex(ms), nil
	}
	var out []Series
	for _, g := range v.segments {
		found, err := g.reader.Match(ms)
		if err != nil {
			return nil, err
		}
		for it := found.Iterator(); it.HasNext(); {
			id := point.DenseID(it.Next())
			l, _, err := g.reader.Labels(id)
			if err != nil {
				return nil, err
			}
			out = append(out, Series{ID: id, Labels: l})
		}
	}
	return out, nil
}

func (v *View) matchIndex(ms []*labels.Matcher) []Series {
	defer v.p.deps.Index.Pin().Unpin() // no ref becomes another series, perhaps one of ours, before we have looked at it
	found := v.p.deps.Index.Match(ms)
	out := make([]Series, 0, min(int(found.GetCardinality()), v.ids.len()))
	for it := found.Iterator(); it.HasNext(); {
		ref := series.Ref(it.Next())
		if id, ok := v.ids.dense.Get(ref); ok {
			out = append(out, Series{id, ref, v.p.deps.Index.Labels(ref)})
		}
	}
	return out
}

// Read gives the rows in [lo, hi] of the named series, each merged over heads and segments, deletions applied.
// f is called in the order of ss, for each series that has rows, with the index into ss; it may keep the run.
func (v *View) Read(ss []Series, lo, hi point.Nanos, f func(i int, r rows.Run) error) error {
	found := make([][]rows.Run, len(ss))
	if err := v.readSegments(ss, lo, hi, found); err != nil {
		return err
	}
	for _, h := range v.heads {
		hlo, hhi, ok := h.head.TimeBounds()
		if !ok || hlo > hi || hhi < lo {
			continue
		}
		for i := range ss {
			var r rows.Run
			if h.head.Read(ss[i].ID, lo, hi, &r) {
				found[i] = append(found[i], r)
			}
		}
	}
	var m rows.Merger
	for i, runs := range found {
		r := m.Merge(runs)
		if r.Len() == 0 {
			continue
		}
		if err := f(i, r); err != nil {
			return err
		}
	}
	return nil
}

func (v *View) readSegments(ss []Series, lo, hi point.Nanos, found [][]rows.Run) error {
	var want []point.DenseID
	var at map[point.DenseID]int
	for _, g := range v.segments {
		if g.info.Rows == 0 || g.info.TimeLo > hi || g.info.TimeHi < lo {
			continue
		}
		if want == nil {
			want, at = make([]point.DenseID, len(ss)), make(map[point.DenseID]int, len(ss))
			for i, s := range ss {
				want[i], at[s.ID] = s.ID, i
			}
		}
		cuts, err := compileTombstones(*g.tombstones.Load())
		if err != nil {
			return err
		}
		err = g.reader.Read(want, lo, hi, func(id point.DenseID, r rows.Run) error {
			i := at[id]
			found[i] = append(found[i], cuts.apply(ss[i].Labels, r)...)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Exemplars gives the exemplars in [lo, hi] of the named series, by time, none twice; f as in Read.
func (v *View) Exemplars(ss []Series, lo, hi point.Nanos, f func(i int, ex []point.ExemplarRow) error) error {
	all := make(map[point.DenseID][]point.ExemplarRow)
	want := make([]point.DenseID, len(ss))
	for i, s := range ss {
		want[i] = s.ID
	}
	for _, g := range v.segments {
		if g.info.Exemplars == 0 {
			continue
		}
		err := g.reader.Exemplars(want, lo, hi, func(id point.DenseID, ex []point.ExemplarRow) error {
			all[id] = append(all[id], ex...)
			return nil
		})
		if err != nil {
			return err
		}
	}
	var buf []head.Exemplar
	for _, h := range v.heads {
		for _, id := range want {
			buf = h.head.Exemplars(id, lo, hi, buf[:0])
			for _, e := range buf {
				all[id] = append(all[id], point.ExemplarRow{Time: e.Time, Value: e.Value, Labels: e.Labels})
			}
		}
	}
	for i, s := range ss {
		ex := all[s.ID]
		if len(ex) == 0 {
			continue
		}
		slices.SortFunc(ex, point.ExemplarRow.Compare)
		ex = slices.CompactFunc(ex, func(a, b point.ExemplarRow) bool { return a.Compare(b) == 0 })
		if err := f(i, ex); err != nil {
			return err
		}
	}
	return nil
}

// LabelNames adds the label names of matching series to set.
func (v *View) LabelNames(ms []*labels.Matcher, set map[string]struct{}) error {
	if v.warm {
		for _, n := range v.p.deps.Index.LabelNames(v.within(ms)) {
			set[n] = struct{}{}
		}
		return nil
	}
	return v.eachLabel(ms, func(name, _ string) { set[name] = struct{}{} })
}

// LabelValues adds the values that a label has in matching series to set.
func (v *View) LabelValues(ms []*labels.Matcher, name string, set map[string]struct{}) error {
	if v.warm {
		for _, n := range v.p.deps.Index.LabelValues(name, v.within(ms)) {
			set[n] = struct{}{}
		}
		return nil
	}
	return v.eachLabel(ms, func(n, value string) {
		if n == name {
			set[value] = struct{}{}
		}
	})
}

// within gives the refs of the partition's own series that match.
func (v *View) within(ms []*labels.Matcher) *roaring.Bitmap {
	defer v.p.deps.Index.Pin().Unpin()
	own := roaring.New()
	for _, ref := range v.ids.all() {
		own.Add(uint32(ref))
	}
	if len(ms) > 0 {
		own.And(v.p.deps.Index.Match(ms))
	}
	return own
}

func (v *View) eachLabel(ms []*labels.Matcher, f func(name, value string)) error {
	ss, err := v.Match(ms)
	if err != nil {
		return err
	}
	for _, s := range ss {
		s.Labels.Range(func(name, value string) bool {
			f(name, value)
			return true
		})
	}
	return nil
}
