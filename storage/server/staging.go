package server

import (
	"context"
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/series"
	"github.com/spillwaydb/spillway/storage/staging"
	"github.com/spillwaydb/spillway/storage/staging/runner"
)

// Staging keeps rows for leaders that are away; *runner.Store does.
type Staging interface {
	// Stage keeps a frame that defines all its series, durably; mapSeq is of the map that the gateway knew. The frame stays the caller's.
	Stage(ctx context.Context, table string, mapSeq uint64, of *peer.Staging, f *frame.Frame) error
	Forget(id staging.ID) error
	Read(q *runner.Query) ([]peer.Series, error)
	// Delete takes rows out of the frames held, durably; Take and LabelsOnly are not used.
	Delete(ctx context.Context, q *runner.Query) error
	// Load returns the staged rows of a table; false: there are none.
	Load(table string) (staging.Load, bool)
}

var errNoStaging = fault.Errorf(fault.Unavailable, "this server stages no rows (storage.staging is off)")

// stage keeps the rows of an insert of any partitions; or forgets those of one.
func (st *stream) stage(ctx context.Context, in *peer.Insert) error {
	to := st.s.deps.Staging
	if to == nil {
		return errNoStaging
	}
	if in.Staging.Do == peer.Forget {
		return to.Forget(staging.ID{Stamp: in.Stamp, Nonce: in.Staging.Nonce})
	}
	if err := st.s.timely(in.Stamp); err != nil {
		return err
	}
	r := st.scratch.Get().(*partition.Rows)
	defer func() {
		*r = partition.Rows{Refs: r.Refs, HistRefs: r.HistRefs, ExemplarRefs: r.ExemplarRefs}
		st.scratch.Put(r)
	}()
	if err := st.translate(r, in); err != nil {
		return err
	}
	peer.Waiting(ctx)()
	return to.Stage(ctx, st.t.name, in.MapSeq, in.Staging, selfContained(st.t.index, r))
}

// selfContained makes a frame that defines every series of its rows.
func selfContained(x *series.Index, r *partition.Rows) *frame.Frame {
	f := &frame.Frame{Kind: frame.Rows, Stamp: r.Stamp, Foreign: true, Times: r.Times, Values: r.Values}
	numbers := make(map[series.Ref]point.DenseID, len(r.Refs))
	number := func(ref series.Ref) point.DenseID {
		n, ok := numbers[ref]
		if !ok {
			n = point.DenseID(len(f.Defs))
			numbers[ref] = n
			f.Defs = append(f.Defs, x.Labels(ref))
		}
		return n
	}
	f.IDs = make([]point.DenseID, len(r.Refs))
	for i, ref := range r.Refs {
		f.IDs[i] = number(ref)
	}
	for i, h := range r.Hists {
		f.Hists = append(f.Hists, frame.HistRow{ID: number(r.HistRefs[i]), Time: h.Time, H: h.H})
	}
	for i, e := range r.Exemplars {
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: number(r.ExemplarRefs[i]), Time: e.Time, Value: e.Value, Labels: e.Labels})
	}
	return f
}

// staged returns the series of rows that are staged here.
func (s *Server) staged(ctx context.Context, q *peer.Select, labelsOnly bool) ([]peer.Series, error) {
	if s.deps.Staging == nil {
		return nil, errNoStaging
	}
	match, err := matching(q.Matchers)
	if err != nil {
		return nil, err
	}
	all, err := s.deps.Staging.Read(&runner.Query{Table: q.Table, Lo: q.Lo, Hi: q.Hi, Match: match, LabelsOnly: labelsOnly, Take: budget.LoanOf(ctx).Take})
	if err != nil {
		return nil, err
	}
	samples := 0
	for i := range all {
		samples += len(all[i].Times) + len(all[i].Hists)
	}
	switch {
	case q.SeriesMax > 0 && len(all) > q.SeriesMax:
		return nil, tooManySeries(q.SeriesMax)
	case q.SamplesMax > 0 && samples > q.SamplesMax:
		return nil, fault.Errorf(fault.TooLarge, "the query reads more than %d samples; make it narrower or raise the limit on samples of a query", q.SamplesMax)
	}
	return all, nil
}

// matching compiles matchers, all of which must hold.
func matching(of []peer.Matcher) (func(point.Labels) bool, error) {
	ms, err := partition.CompileMatchers(of)
	return func(l point.Labels) bool {
		for _, m := range ms {
			if !m.Matches(l.Get(m.Name)) {
				return false
			}
		}
		return true
	}, err
}

// deleteStaged deletes in the rows that are staged here. A server that stages none has none.
func (s *Server) deleteStaged(ctx context.Context, q *peer.Select) error {
	if s.deps.Staging == nil {
		return nil
	}
	match, err := matching(q.Matchers)
	if err != nil {
		return err
	}
	return s.deps.Staging.Delete(ctx, &runner.Query{Table: q.Table, Lo: q.Lo, Hi: q.Hi, Match: match})
}

// stagedNames returns the label names of staged series; stagedValues the values of one label.
func (s *Server) stagedNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	all, err := s.staged(ctx, q, true)
	if err != nil {
		return nil, false, err
	}
	set := map[string]struct{}{}
	for i := range all {
		all[i].Labels.Range(func(name, _ string) bool {
			set[name] = struct{}{}
			return true
		})
	}
	names, truncated := atMost(slices.Sorted(maps.Keys(set)), limit)
	return names, truncated, nil
}

func (s *Server) stagedValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	all, err := s.staged(ctx, q, true)
	if err != nil {
		return nil, false, err
	}
	set := map[string]struct{}{}
	for i := range all {
		if v := all[i].Labels.Get(name); v != "" {
			set[v] = struct{}{}
		}
	}
	values, truncated := atMost(slices.Sorted(maps.Keys(set)), limit)
	return values, truncated, nil
}

// list is a set of series in memory.
type list struct {
	rest []peer.Series
	at   *peer.Series
}

// Next implements peer.SeriesSet.
func (l *list) Next() bool {
	if len(l.rest) == 0 {
		l.at = nil
		return false
	}
	l.at, l.rest = &l.rest[0], l.rest[1:]
	return true
}

// At implements peer.SeriesSet.
func (l *list) At() *peer.Series { return l.at }

// Err implements peer.SeriesSet.
func (l *list) Err() error { return nil }

// Close implements peer.SeriesSet.
func (l *list) Close() error { return nil }
