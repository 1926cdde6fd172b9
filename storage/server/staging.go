package server

import (
	"context"
	"maps"
	"slices"
	"sync"

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
	// StageAll is Stage of several frames, with one wait for the disk: all of them, or none where it fails before that.
	StageAll(ctx context.Context, table string, mapSeq uint64, all []runner.Staged) error
	Forget(ids ...staging.ID) error
	Read(q *runner.Query) ([]peer.Series, error)
	// Delete removes rows from the frames held, durably; Take and LabelsOnly are not used.
	Delete(ctx context.Context, q *runner.Query) error
	// Hold has frames stay here for a deletion until Release, or until it was not renewed.
	Hold(ctx context.Context, q *runner.Query) error
	Renew(hold uint64) error
	Release(hold uint64)
	// Frames passes the encoded frames of a table that Read may return to give, which does not keep them.
	Frames(table string, give func([]byte) error) error
	// Loads returns the staged rows of all tables that have any.
	Loads() []staging.Load
	// Load returns the staged rows of a table; false: there are none.
	Load(table string) (staging.Load, bool)
	// Times returns the first and the last time of the rows of a table that Read may return; lo > hi: there are none.
	Times(table string) (lo, hi point.Nanos)
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
	// Stage encodes the frame before it returns, so the scratch and the refs in it are free again then.
	c := containers.Get().(*container)
	defer c.put()
	return to.Stage(ctx, st.t.name, in.MapSeq, in.Staging, c.fill(st.t.index, r))
}

// container is scratch memory for a frame that defines every series of its rows.
type container struct {
	frame   frame.Frame
	numbers numbers
}

var containers = sync.Pool{New: func() any { return new(container) }}

// containerSeriesMax bounds the series of a frame whose scratch is kept.
const containerSeriesMax = 1 << 14

// Defs is cleared, as its strings would keep the labels of series that are gone; IDs are numbers and need not be.
func (c *container) put() {
	if len(c.frame.Defs) > containerSeriesMax || len(c.frame.IDs) > containerSeriesMax {
		return
	}
	clear(c.frame.Defs) // a scratch keeps no series
	c.numbers.reset()
	c.frame = frame.Frame{IDs: c.frame.IDs, Defs: c.frame.Defs}
	containers.Put(c)
}

func (c *container) number(x *series.Index, ref series.Ref) point.DenseID {
	n, known := c.numbers.of(ref)
	if !known {
		c.frame.Defs = append(c.frame.Defs, x.Labels(ref))
	}
	return n
}

// fill makes the frame. It is valid until put.
func (c *container) fill(x *series.Index, r *partition.Rows) *frame.Frame {
	c.frame = frame.Frame{Kind: frame.Rows, Stamp: r.Stamp, Foreign: true, Times: r.Times, Values: r.Values, IDs: c.frame.IDs[:0], Defs: c.frame.Defs[:0]}
	f := &c.frame
	if rise(r.Refs) && len(r.Hists)+len(r.Exemplars) == 0 {
		for i, ref := range r.Refs {
			f.IDs, f.Defs = append(f.IDs, point.DenseID(i)), append(f.Defs, x.Labels(ref))
		}
		return f
	}
	for _, ref := range r.Refs {
		f.IDs = append(f.IDs, c.number(x, ref))
	}
	for i, h := range r.Hists {
		f.Hists = append(f.Hists, frame.HistRow{ID: c.number(x, r.HistRefs[i]), Time: h.Time, H: h.H})
	}
	for i, e := range r.Exemplars {
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: c.number(x, r.ExemplarRefs[i]), Time: e.Time, Value: e.Value, Labels: e.Labels})
	}
	return f
}

// rise reports whether each series is behind the one before: then each comes once, and none need be looked for. So it is where a sender writes a row of each of its series, in the
// order of its first request.
func rise(refs []series.Ref) bool {
	for i := 1; i < len(refs); i++ {
		if refs[i] <= refs[i-1] {
			return false
		}
	}
	return true
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
	all, err := s.deps.Staging.Read(&runner.Query{Table: q.Table, Lo: q.Lo, Hi: q.Hi, Match: match, Labels: labelsOf(q.Matchers), LabelsOnly: labelsOnly, Take: budget.LoanOf(ctx).Take})
	if err != nil {
		return nil, err
	}
	if q.LabelsOnly && q.Limit > 0 && len(all) > q.Limit { // they are in label order
		all = all[:q.Limit]
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

// labelsOf lists labels that every series has that matches.
func labelsOf(ms []peer.Matcher) (all []runner.Label) {
	for _, m := range ms {
		if m.Type == peer.MatchEqual && m.Value != "" {
			all = append(all, runner.Label{Name: m.Name, Value: m.Value})
		}
	}
	return all
}

// deleteStaged deletes in the rows that are staged here, or holds them for a deletion. A server that stages none has none.
func (s *Server) deleteStaged(ctx context.Context, q *peer.Select) error {
	if s.deps.Staging == nil {
		return nil
	}
	match, err := matching(q.Matchers)
	if err != nil {
		return err
	}
	of := &runner.Query{Table: q.Table, Lo: q.Lo, Hi: q.Hi, Match: match, Hold: q.Hold}
	switch q.Copies {
	case peer.StagedHolds:
		return s.deps.Staging.Hold(ctx, of)
	case peer.StagedRenewals:
		return s.deps.Staging.Renew(q.Hold)
	case peer.StagedReleases:
		s.deps.Staging.Release(q.Hold)
		return nil
	}
	return s.deps.Staging.Delete(ctx, of)
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

// labelsList is a set of series without rows. A series is made when it is asked for: it needs 160 bytes, its labels 16.
type labelsList struct {
	rest []point.Labels
	at   *peer.Series
}

// Next implements peer.SeriesSet.
func (l *labelsList) Next() bool {
	if len(l.rest) == 0 {
		l.at = nil
		return false
	}
	l.at, l.rest = &peer.Series{Labels: l.rest[0]}, l.rest[1:]
	return true
}

// At implements peer.SeriesSet.
func (l *labelsList) At() *peer.Series { return l.at }

// Err implements peer.SeriesSet.
func (l *labelsList) Err() error { return nil }

// Close implements peer.SeriesSet.
func (l *labelsList) Close() error { return nil }
