package querytest

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// Store is a peer.Storage in memory.
type Store struct {
	mu struct {
		sync.Mutex
		tables map[string]*table
		ranks  rank.Order
		open   int // series sets returned and not closed
	}
}

var _ peer.Storage = (*Store)(nil)

// NewStore makes an empty Store: it has no table until one is written to.
func NewStore() *Store {
	s := new(Store)
	s.mu.tables = map[string]*table{}
	return s
}

type table struct {
	series   map[point.Labels]*series
	metadata []point.MetadataRow
}

// series is one series' rows, strictly rising in time.
type series struct {
	rows      []row
	exemplars []point.ExemplarRow
}

type row struct {
	time  point.Nanos
	stamp point.Stamp
	value float64
	hist  []byte // not nil: the row is a histogram
}

func (r row) stale() bool {
	if r.hist != nil {
		return point.IsStaleHistogram(r.hist)
	}
	return point.IsStale(r.value)
}

// beats reports whether r, which is later, replaces old.
func (r row) beats(old row) bool {
	if r.stale() != old.stale() {
		return old.stale()
	}
	return r.stamp >= old.stamp
}

func (s *series) put(r row) {
	i, found := slices.BinarySearchFunc(s.rows, r.time, func(have row, t point.Nanos) int { return cmp.Compare(have.time, t) })
	switch {
	case !found:
		s.rows = slices.Insert(s.rows, i, r)
	case r.beats(s.rows[i]):
		s.rows[i] = r
	}
}

func (s *series) within(lo, hi point.Nanos) []row {
	from, _ := slices.BinarySearchFunc(s.rows, lo, func(r row, t point.Nanos) int { return cmp.Compare(r.time, t) })
	to := from
	for to < len(s.rows) && s.rows[to].time <= hi {
		to++
	}
	return s.rows[from:to]
}

// Unclosed counts the series sets that are not closed.
func (s *Store) Unclosed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.open
}

// OpenStream makes the table if need be.
func (s *Store) OpenStream(_ context.Context, name string) (peer.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.tables[name] == nil {
		s.mu.tables[name] = &table{series: map[point.Labels]*series{}}
	}
	return &stream{store: s, table: s.mu.tables[name], defs: map[point.SeriesID]point.Labels{}}, nil
}

type stream struct {
	store *Store
	table *table
	defs  map[point.SeriesID]point.Labels // guarded by the store's lock
}

func (st *stream) Define(_ context.Context, defs []peer.Def) error {
	st.store.mu.Lock()
	defer st.store.mu.Unlock()
	for _, d := range defs {
		if !d.Labels.Valid() {
			return fault.Errorf(fault.Invalid, "series %d has malformed labels", d.ID)
		}
		st.defs[d.ID] = d.Labels
	}
	return nil
}

func (st *stream) Insert(_ context.Context, in *peer.Insert) error {
	st.store.mu.Lock()
	defer st.store.mu.Unlock()
	stamp := st.store.mu.ranks.Next(in.Stamp)
	for i, id := range in.IDs {
		s, err := st.seriesLocked(id)
		if err != nil {
			return err
		}
		s.put(row{time: in.Times[i], stamp: stamp, value: in.Values[i]})
	}
	for _, h := range in.Hists {
		s, err := st.seriesLocked(h.ID)
		if err != nil {
			return err
		}
		s.put(row{time: h.Time, stamp: stamp, hist: slices.Clone(h.H)})
	}
	for _, e := range in.Exemplars {
		s, err := st.seriesLocked(e.ID)
		if err != nil {
			return err
		}
		s.exemplars = append(s.exemplars, e)
		slices.SortStableFunc(s.exemplars, func(a, b point.ExemplarRow) int { return cmp.Compare(a.Time, b.Time) })
	}
	return nil
}

func (st *stream) seriesLocked(id point.SeriesID) (*series, error) {
	l, ok := st.defs[id]
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "series %d was not defined in this stream", id)
	}
	s := st.table.series[l]
	if s == nil {
		s = new(series)
		st.table.series[l] = s
	}
	return s, nil
}

func (st *stream) Close() error { return nil }

// Select copies the series, so that the set is a snapshot.
func (s *Store) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, fault.Canceled, "select")
	}
	set := &set{store: s, next: -1}
	samples := 0
	err := s.each(q, func(l point.Labels, found *series) error {
		rows := found.within(q.Lo, q.Hi)
		samples += len(rows)
		switch {
		case len(rows) == 0 || q.LabelsOnly && q.Limit > 0 && len(set.series) == q.Limit:
			return nil
		case q.SeriesMax > 0 && len(set.series) >= q.SeriesMax:
			return fault.Errorf(fault.TooLarge, "more than %d series match", q.SeriesMax)
		case q.SamplesMax > 0 && samples > q.SamplesMax && !q.LabelsOnly:
			return fault.Errorf(fault.TooLarge, "more than %d rows match", q.SamplesMax)
		}
		out := &peer.Series{Labels: l}
		if !q.LabelsOnly {
			fill(out, rows)
		}
		set.series = append(set.series, out)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.mu.open++
	s.mu.Unlock()
	return set, nil
}

func fill(out *peer.Series, rows []row) {
	for _, r := range rows {
		if r.hist != nil {
			out.Hists = append(out.Hists, peer.Hist{Time: r.time, H: r.hist})
			continue
		}
		out.Times = append(out.Times, r.time)
		out.Values = append(out.Values, r.value)
	}
}

// each calls f for every series that matches, in label order, under the lock.
func (s *Store) each(q *peer.Select, f func(point.Labels, *series) error) error {
	match, err := matcher(q.Matchers)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tableLocked(q.Table)
	if err != nil {
		return err
	}
	for _, l := range t.sorted() {
		if !match(l) {
			continue
		}
		if err := f(l, t.series[l]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) tableLocked(name string) (*table, error) {
	t := s.mu.tables[name]
	if t == nil {
		return nil, fault.Errorf(fault.NotFound, "no table %q", name)
	}
	return t, nil
}

func (t *table) sorted() []point.Labels {
	all := make([]point.Labels, 0, len(t.series))
	for l := range t.series {
		all = append(all, l)
	}
	slices.SortFunc(all, point.Labels.Compare)
	return all
}

func matcher(ms []peer.Matcher) (func(point.Labels) bool, error) {
	types := [...]labels.MatchType{
		peer.MatchEqual: labels.MatchEqual, peer.MatchNotEqual: labels.MatchNotEqual,
		peer.MatchRegexp: labels.MatchRegexp, peer.MatchNotRegexp: labels.MatchNotRegexp,
	}
	var all []*labels.Matcher
	for _, m := range ms {
		lm, err := labels.NewMatcher(types[m.Type], m.Name, m.Value)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "matcher on %q", m.Name)
		}
		all = append(all, lm)
	}
	return func(l point.Labels) bool {
		return !slices.ContainsFunc(all, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) })
	}, nil
}

type set struct {
	store  *Store
	series []*peer.Series
	next   int
	closed bool
}

func (s *set) Next() bool {
	s.next++
	return !s.closed && s.next < len(s.series)
}

func (s *set) At() *peer.Series { return s.series[s.next] }

func (s *set) Err() error { return nil }

func (s *set) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.mu.open--
	return nil
}

// LabelNames lists the names of labels of matching series with rows in the range.
func (s *Store) LabelNames(_ context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	return s.list(q, limit, func(l point.Labels, add func(string)) {
		l.Range(func(name, _ string) bool { add(name); return true })
	})
}

// LabelValues lists the values of a label of matching series with rows in the range.
func (s *Store) LabelValues(_ context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	return s.list(q, limit, func(l point.Labels, add func(string)) {
		if v := l.Get(name); v != "" {
			add(v)
		}
	})
}

func (s *Store) list(q *peer.Select, limit int, pick func(l point.Labels, add func(string))) ([]string, bool, error) {
	var all []string
	err := s.each(q, func(l point.Labels, found *series) error {
		if len(found.within(q.Lo, q.Hi)) > 0 {
			pick(l, func(v string) { all = append(all, v) })
		}
		return nil
	})
	slices.Sort(all)
	all = slices.Compact(all)
	if limit > 0 && len(all) > limit {
		return all[:limit], true, err
	}
	return all, false, err
}

// Exemplars returns the exemplars in the range of series that match any of the sets.
func (s *Store) Exemplars(_ context.Context, asked *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	found := map[point.Labels][]point.ExemplarRow{}
	for _, ms := range sets {
		q := &peer.Select{Table: asked.Table, Matchers: ms}
		err := s.each(q, func(l point.Labels, in *series) error {
			var within []point.ExemplarRow
			for _, e := range in.exemplars {
				if asked.Lo <= e.Time && e.Time <= asked.Hi {
					within = append(within, e)
				}
			}
			if len(within) > 0 {
				found[l] = within
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	out := make([]peer.SeriesExemplars, 0, len(found))
	for l, es := range found {
		out = append(out, peer.SeriesExemplars{Labels: l, Exemplars: es})
	}
	slices.SortFunc(out, func(a, b peer.SeriesExemplars) int { return a.Labels.Compare(b.Labels) })
	return out, nil
}

// PutMetadata keeps the last description of each metric.
func (s *Store) PutMetadata(ctx context.Context, name string, rows []point.MetadataRow) error {
	if _, err := s.OpenStream(ctx, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.tables[name]
	for _, r := range rows {
		t.metadata = slices.DeleteFunc(t.metadata, func(have point.MetadataRow) bool { return have.Metric == r.Metric })
		t.metadata = append(t.metadata, r)
	}
	slices.SortFunc(t.metadata, func(a, b point.MetadataRow) int { return strings.Compare(a.Metric, b.Metric) })
	return nil
}

// GetMetadata returns the descriptions of one metric or of all.
func (s *Store) GetMetadata(_ context.Context, name, metric string) ([]point.MetadataRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tableLocked(name)
	if err != nil {
		return nil, err
	}
	var out []point.MetadataRow
	for _, r := range t.metadata {
		if metric == "" || r.Metric == metric {
			out = append(out, r)
		}
	}
	return out, nil
}

// DeleteSeries removes rows in the range; a series without rows is gone.
func (s *Store) DeleteSeries(_ context.Context, q *peer.Select) error {
	return s.each(q, func(l point.Labels, found *series) error {
		found.rows = slices.DeleteFunc(found.rows, func(r row) bool { return q.Lo <= r.time && r.time <= q.Hi })
		if len(found.rows) == 0 {
			delete(s.mu.tables[q.Table].series, l)
		}
		return nil
	})
}

// CleanTombstones has nothing to do: rows go at once.
func (s *Store) CleanTombstones(_ context.Context, q *peer.Select) error {
	return s.each(&peer.Select{Table: q.Table}, func(point.Labels, *series) error { return nil })
}

// Stats counts.
func (s *Store) Stats(_ context.Context, name string, topN int) (*peer.Stats, error) {
	st := &peer.Stats{Partitions: 1, MinTime: math.MaxInt64, MaxTime: math.MinInt64}
	names, pairs, values := map[string]uint64{}, map[string]uint64{}, map[string]map[string]bool{}
	err := s.each(&peer.Select{Table: name}, func(l point.Labels, found *series) error {
		st.Series++
		st.HeadRows += uint64(len(found.rows))
		if n := len(found.rows); n > 0 {
			st.MinTime, st.MaxTime = min(st.MinTime, found.rows[0].time), max(st.MaxTime, found.rows[n-1].time)
		}
		names[l.Get(point.MetricName)]++
		l.Range(func(n, v string) bool {
			pairs[n+"="+v]++
			if values[n] == nil {
				values[n] = map[string]bool{}
			}
			values[n][v] = true
			return true
		})
		return nil
	})
	byCount, byBytes := map[string]uint64{}, map[string]uint64{}
	for n, vs := range values {
		byCount[n] = uint64(len(vs))
		for v := range vs {
			byBytes[n] += uint64(len(v))
		}
	}
	st.LabelPairs = uint64(len(pairs))
	st.SeriesByName, st.SeriesByPair = top(names, topN), top(pairs, topN)
	st.ValuesByLabel, st.BytesByLabel = top(byCount, topN), top(byBytes, topN)
	return st, err
}

func top(counts map[string]uint64, n int) []peer.NameCount {
	var all []peer.NameCount
	for name, c := range counts {
		all = append(all, peer.NameCount{Name: name, Count: c})
	}
	slices.SortFunc(all, func(a, b peer.NameCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return all[:min(n, len(all))]
}
