package server

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// A select reads series in batches: neighbours in label order share blocks, and only the batches under way are in
// memory, beside the rows that the caller keeps. There are at least a few batches, so that all processors have one.
const (
	selectBatchMax = 256
	selectBatchMin = 32
)

func batchLen(series, readers int) int {
	return max(selectBatchMin, min(selectBatchMax, series/(2*readers)+1))
}

// snapshot is a View of every partition that a query touches, by time, and its matchers. The table is nil until it is written to.
type snapshot struct {
	table    *table
	views    []*partition.View
	matchers []*labels.Matcher
	selector *segment.Selector // of the matchers
	ranked   bool              // rows are given with their ranks

	parts []part // of the views in turn, once series were matched
	// parts and first are written by match and constant afterwards: any number of readers use them without a lock.
	first []int // by list: the first part of it
}

// The lease is asked before the views are made: rows that a new leader acked after that answer were acked after the
// read began. Errors are Stale, NotFound, Invalid (a matcher), and those of a view; after an error all views are
// closed.
func (s *Server) snapshot(ctx context.Context, q *peer.Select) (*table, *snapshot, error) {
	if err := s.answers(ctx, q); err != nil {
		return nil, nil, err
	}
	t, ok := s.table(q.Table)
	if !ok {
		if _, known := s.deps.Maps.Get(q.Table); known {
			return nil, &snapshot{}, nil // nothing was written here yet
		}
		return nil, nil, fault.Errorf(fault.NotFound, "table %q does not exist", q.Table)
	}
	ms, err := partition.CompileMatchers(q.Matchers)
	if err != nil {
		return nil, nil, err
	}
	sn := &snapshot{table: t, matchers: ms, selector: segment.NewSelector(ms), ranked: q.Ranks}
	// Views keep the check and call it from the look-ups in their indexes, which may run for seconds with regular
	// expressions.
	check := checkOf(ctx)
	for _, p := range t.overlapping(q.Partitions, q.Lo, q.Hi) {
		if q.Partitions == nil && !s.mayRead(q.Table, p.Identity().Partition) {
			continue
		}
		v, err := p.View()
		if err != nil { // never a partial answer
			sn.close()
			return nil, nil, err
		}
		if v == nil && q.Partitions != nil && !t.isDropped(p.Identity().Partition) { // its copy here was removed since the lease was asked: others have the rows
			sn.close()
			return nil, nil, s.named(q.Table, s.notLed(q.Table, p.Identity().Partition))
		}
		if v != nil {
			v.Watch(check)
			v.Within(q.Lo, q.Hi)
			if q.Newest {
				v.Newest()
			}
			sn.views = append(sn.views, v)
		}
	}
	return t, sn, nil
}

// checkOf makes the check for look-ups in indexes: whether the request is still wanted and has memory left.
func checkOf(ctx context.Context) series.Check {
	loan := budget.LoanOf(ctx)
	return func(bytes int64) error {
		if bytes < 0 {
			loan.Give(-bytes)
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fault.Wrap(err, fault.Canceled, "looking for series")
		}
		return fault.Annotate(loan.Take(bytes), "looking for series; ask for fewer")
	}
}

// answers reports whether this server leads all partitions that a query names, or may answer as a copy: only then it has all their rows. If
// other partitions replaced one since the map by which the query names them, or may have, the caller would miss their
// rows. Errors are Stale.
func (s *Server) answers(ctx context.Context, q *peer.Select) error {
	s.wake(ctx, q)
	return s.named(q.Table, s.leadsAll(q))
}

// named puts the newest map of this server on a Stale answer, so that a reader with an older one finds it without the coordination store.
func (s *Server) named(table string, err error) error {
	if s.deps.Newest == nil || !fault.Is(err, fault.Stale) {
		return err
	}
	at, _ := s.deps.Newest(table)
	return peer.WithMap(err, at)
}

func (s *Server) leadsAll(q *peer.Select) error {
	m, ok := s.deps.Maps.Get(q.Table)
	if ok {
		if err := knowsAll(q, m); err != nil {
			return err
		}
	}
	for _, id := range q.Partitions {
		if !s.mayRead(q.Table, id) {
			if err := s.answersAsCopy(q, id, m); err != nil {
				return err
			}
		}
		if q.MapSeq == 0 || !ok {
			continue
		}
		at, there := m.ByID(id)
		accepts := there && at.Accepts()
		if !accepts && m.Seq > q.MapSeq {
			return fault.Errorf(fault.Stale, "others take the rows of partition %s/%d by map %d, it was chosen by map %d", q.Table, id, m.Seq, q.MapSeq)
		}
		if g, ok := s.gateOf(q.Table, id); ok && accepts && g.doubtful(m.Seq) {
			return fault.Errorf(fault.Stale, "partition %s/%d is being split: others may take its rows by now, and map %d does not know of them", q.Table, id, q.MapSeq)
		}
	}
	return nil
}

// knowsAll reports whether the map by which a query names its partitions has all partitions that the server's map has in the query's range of time. Errors are
// Stale.
func knowsAll(q *peer.Select, m *topology.Map) error {
	if q.MapNext == 0 || q.MapNext >= m.NextID {
		return nil
	}
	for _, p := range m.Overlapping(q.Lo, q.Hi) {
		if p.ID >= q.MapNext {
			return fault.Errorf(fault.Stale, "partition %s/%d may have rows of that time by map %d: the caller knows partitions below %d only", q.Table, p.ID, m.Seq, q.MapNext)
		}
	}
	return nil
}

func (sn *snapshot) close() {
	for _, v := range sn.views {
		v.Close()
	}
	sn.views = nil
}

// found is one series, with its places in the lists that have it.
type found struct {
	labels point.Labels
	ref    series.Ref
	known  bool     // ref is the series' in the index
	in     []member // by list
}

// member is a place in a list of series.
// 8 bytes for each series and list: a select of a million series over 100 lists holds 100 million of them, so a place
// is two numbers, not a pointer.
type member struct{ list, at int32 }

// match gives the series of all views in label order. More than max (0: any number) are TooLarge.
func (sn *snapshot) match(ctx context.Context, max int) ([]found, error) {
	if len(sn.views) == 0 { // perhaps nothing was ever written here: then there is no table either
		return nil, nil
	}
	m := newMerger(sn)
	for i, v := range sn.views {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, err := m.view(i, v, sn.selector)
		if err != nil {
			return nil, err
		}
		if max > 0 && (n > max || len(m.all) > max) {
			return nil, tooManySeries(max)
		}
	}
	if !m.inOrder {
		sn.table.order.sort(m.all, sn.table.index.Len())
	}
	return m.all, nil
}

// labels gives the first series in label order, limit of them at most. More than max (0: any number) are TooLarge.
func (sn *snapshot) labels(limit, max int) ([]point.Labels, error) {
	if len(sn.views) == 0 {
		return nil, nil
	}
	if max > 0 && limit-1 > max { // one more than may be read shows that there are too many
		limit = max + 1
	}
	all, err := partition.First(sn.views, sn.matchers, sn.selector, limit, func(of []partition.Series) {
		all := make([]found, len(of))
		for i, s := range of {
			all[i] = found{labels: s.Labels, ref: s.Ref, known: s.Known}
		}
		sn.table.order.sort(all, sn.table.index.Len())
		for i, f := range all {
			of[i].Labels = f.labels
		}
	})
	if err != nil {
		return nil, err
	}
	if max > 0 && len(all) > max {
		return nil, tooManySeries(max)
	}
	return all, nil
}

func tooManySeries(max int) error {
	return fault.Errorf(fault.TooLarge, "the selector matches more than %d series; make it narrower or raise the limit on series of a query", max)
}

// Select implements peer.Storage.
func (s *Server) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	if q.Copies == peer.StagedRows {
		all, err := s.staged(ctx, q, q.LabelsOnly)
		if err != nil {
			return nil, err
		}
		return &list{rest: all}, nil
	}
	_, sn, err := s.snapshot(ctx, q)
	if err != nil {
		return nil, err
	}
	if q.LabelsOnly && q.Limit > 0 {
		defer sn.close()
		all, err := sn.labels(q.Limit, q.SeriesMax)
		if err != nil {
			return nil, err
		}
		return &labelsList{rest: all}, nil
	}
	all, err := sn.match(ctx, q.SeriesMax)
	if err != nil {
		sn.close()
		return nil, err
	}
	ahead := s.deps.Processors
	return &seriesSet{ctx: ctx, q: q, sn: sn, rest: all, ahead: ahead, batch: batchLen(len(all), ahead)}, nil
}

// SelectInTurns is Select for a peer: finding series, and reading a batch of them, each waits for a turn among evaluations and compactions. The turn of finding
// ends before the set is returned, and each batch waits for its own: a turn as long as the set would be held by a peer that reads slowly.
func (s *Server) SelectInTurns(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	share := &lane.Share{}
	end, err := s.turn(ctx, share)
	if err != nil {
		return nil, err
	}
	set, err := func() (peer.SeriesSet, error) {
		defer end() // also after a panic, which ends the call alone
		return s.Select(ctx, q)
	}()
	if in, reads := set.(*seriesSet); reads {
		in.turn = func() (func(), error) { return s.turn(ctx, share) }
	}
	return set, err
}

// Turn waits for a turn of a look-up, which lasts until end. The error is Canceled.
func (s *Server) Turn(ctx context.Context) (end func(), err error) { return s.turn(ctx, &lane.Share{}) }

func (s *Server) turn(ctx context.Context, of *lane.Share) (end func(), err error) {
	t := s.deps.Lane.Turn(of)
	return t.End, t.Next(ctx)
}

// seriesSet reads the series of a select batch by batch. While one is handed out the next ones are read, each by a
// separate goroutine; they come in order.
//
//	rest ──cut──▶ batch ──begin: a goroutine each, at most ahead──▶ page.done ──in order──▶ ready ──Next, At──▶ caller
//
// Next and At are for one goroutine, which owns rest, reading and ready, without a lock; Close waits for the readers,
// since the views that they read are released then. With pagers instead of Next, pages guards rest and samples
// (page.go); a set is used in one of the two ways.
type seriesSet struct {
	ctx   context.Context
	q     *peer.Select
	sn    *snapshot
	ahead int                            // batches that are read at a time
	batch int                            // series of one
	turn  func() (end func(), err error) // of a batch; nil: none waits

	pages struct { // of pagers
		sync.Mutex
		number      int
		least, most int // series of one; 0: not worked out yet
	}

	rest    []found // not begun yet
	reading []*page // begun, in order
	readers sync.WaitGroup
	ready   []peer.Series
	at      int
	samples int
	err     error
}

// page is a batch that is being read.
type page struct {
	done   chan struct{}
	series []peer.Series
	err    error
}

// Next implements peer.SeriesSet.
func (ss *seriesSet) Next() bool {
	for ss.at++; ss.at >= len(ss.ready); ss.at++ {
		if ss.err != nil || len(ss.rest)+len(ss.reading) == 0 {
			return false
		}
		ss.ready, ss.err = ss.fill()
		ss.at = -1
	}
	return true
}

// At implements peer.SeriesSet.
func (ss *seriesSet) At() *peer.Series { return &ss.ready[ss.at] }

// Err implements peer.SeriesSet.
func (ss *seriesSet) Err() error { return ss.err }

// Close implements peer.SeriesSet. It waits for the batches being read.
func (ss *seriesSet) Close() error {
	ss.readers.Wait()
	ss.sn.close()
	ss.rest, ss.reading, ss.ready = nil, nil, nil
	return nil
}

// fill gives the next batch.
func (ss *seriesSet) fill() ([]peer.Series, error) {
	if err := ss.ctx.Err(); err != nil {
		return nil, err
	}
	next, err := ss.nextPage()
	if err != nil {
		return nil, err
	}
	if most := ss.q.SamplesMax; most > 0 {
		for i := range next {
			ss.samples += len(next[i].Times) + len(next[i].Hists)
		}
		if ss.samples > most {
			return nil, tooManySamples(most)
		}
	}
	return next, nil
}

func (ss *seriesSet) nextPage() ([]peer.Series, error) {
	switch {
	case ss.q.LabelsOnly:
		return ss.labels(), nil
	// Without a goroutine: most queries have a few series, and handing them over would cost more than it gains.
	case len(ss.reading) == 0 && len(ss.rest) <= ss.batch:
		return ss.read(ss.cut()) // the only one, or the last
	}
	for len(ss.reading) < ss.ahead && len(ss.rest) > 0 {
		ss.begin()
	}
	p := ss.reading[0]
	ss.reading = ss.reading[1:]
	<-p.done
	if len(ss.rest) > 0 && p.err == nil {
		ss.begin()
	}
	return p.series, p.err
}

func (ss *seriesSet) begin() {
	batch, p := ss.cut(), &page{done: make(chan struct{})}
	ss.reading = append(ss.reading, p)
	ss.readers.Go(func() {
		defer close(p.done)
		p.series, p.err = ss.read(batch)
	})
}

func (ss *seriesSet) read(batch []found) (series []peer.Series, err error) {
	defer fault.Caught(&err)
	if ss.turn != nil {
		end, err := ss.turn()
		if err != nil {
			return nil, err
		}
		defer end()
	}
	return ss.sn.series(batch, ss.q.Lo, ss.q.Hi)
}

// cut splits a batch from the rest.
func (ss *seriesSet) cut() []found {
	n := min(ss.batch, len(ss.rest))
	batch := ss.rest[:n]
	ss.rest = ss.rest[n:]
	return batch
}

// labels are a batch without rows.
func (ss *seriesSet) labels() []peer.Series {
	batch := ss.cut()
	out := make([]peer.Series, len(batch))
	for i, f := range batch {
		out[i].Labels = f.labels
	}
	return out
}

// series gives those of a batch that have rows. It may be called from many goroutines.
func (sn *snapshot) series(batch []found, lo, hi point.Nanos) ([]peer.Series, error) {
	r := newReader(sn)
	return r.read(batch, lo, hi)
}

// reader reads batches of a snapshot. For one goroutine.
type reader struct {
	sn *snapshot
	// The rows of all views lie in one memory until the next batch. With one for each view, 72 partitions needed 72 times the memory of one, more than the
	// pool keeps from one query to the next.
	memory *partition.Memory // nil: rows may be kept
	ahead  []int             // by view: rows of a series in the views behind it, about; counted for the time of the first batch

	wants  [][]want // of the batch, by list
	listed []listed // the same, of batches that are gathered
	series []partition.Series
	back   []int // their places in the batch

	// Views mostly follow each other in time. Once they did not, runs are merged.
	tangled   bool
	gathered  []rows.Gathered  // of the batch
	into      []*rows.Gathered // of the view
	intoAll   []*rows.Gathered // memory of listed
	columns   segment.Columns  // of the views before, which are not in gathered yet: of the series of list columnsOf
	columnsOf int

	runs   [][]rows.Run
	merger rows.Merger
	out    []peer.Series
}

func newReader(sn *snapshot) *reader { return &reader{sn: sn} }

// reuse makes rows valid only until the next batch.
func (r *reader) reuse() {
	if len(r.sn.views) > 0 {
		r.memory = r.sn.views[0].Memory()
	}
}

func (r *reader) close() {
	if r.memory != nil {
		r.memory.Close()
	}
	r.memory = nil
}

// room estimates how many values of later views come behind those of a view.
// The rows of the first view are read with room for all others, so that each value is written once and nothing moves.
func (r *reader) room(view int, lo, hi point.Nanos) int {
	if r.ahead == nil {
		r.ahead = make([]int, len(r.sn.views))
		for i := len(r.sn.views) - 2; i >= 0; i-- {
			r.ahead[i] = r.ahead[i+1] + r.sn.views[i+1].Rows(lo, hi)
		}
	}
	return r.ahead[view]
}

// read gives the series of a batch that have rows.
func (r *reader) read(batch []found, lo, hi point.Nanos) ([]peer.Series, error) {
	if r.memory != nil && !r.sn.ranked && !r.tangled && len(r.sn.views) > 1 {
		ok, err := r.gather(batch, lo, hi)
		if ok || err != nil {
			return r.out, err
		}
		r.tangled = true
	}
	return r.readRuns(batch, lo, hi)
}

// gather reads a batch from views that follow each other in time: of each series the rows of one view are put behind those of the view before. ok is false if
// some view does not follow.
// A run of each series and view, and merging them, cost as much as decoding ten rows of each: rate-sum over 72 partitions 10.0 → 7.6 ms of
// processor time (BenchmarkQueryNarrow, 2026-11-27).
func (r *reader) gather(batch []found, lo, hi point.Nanos) (ok bool, err error) {
	r.memory.Reset()
	r.want(batch)
	r.gathered = slices.Grow(r.gathered[:0], len(batch))[:len(batch)]
	var before *rows.Gathered
	for i := range r.gathered {
		// Series with rows in one view alone, as those of pods, need no room for later ones. Room is not booked, so it is bounded: by a page's rows, or as many
		// as there are.
		r.gathered[i].Reset(before, len(r.sn.views), pageRows/len(batch))
		before = &r.gathered[i]
	}
	r.list()
	r.columns.Reset()
	err = r.eachView(func(parts []part) error {
		follows, err := r.gatherView(parts, batch, lo, hi)
		if err == nil && !follows {
			return errTangled
		}
		return err
	})
	if err == nil && !r.flush(0) {
		err = errTangled
	}
	if err != nil {
		if errors.Is(err, errTangled) {
			err = nil
		}
		return false, err
	}
	r.merger = rows.Merger{}
	r.out = slices.Grow(r.out[:0], len(batch))
	for i := range batch {
		if run := r.merger.Gather(&r.gathered[i]); run.Len() > 0 {
			r.out = append(r.out, peer.Series{Labels: batch[i].labels, Times: run.Times, Values: run.Values})
		}
	}
	return true, nil
}

// listed is the series of a batch that are in a list.
type listed struct {
	from, n int // their places, if they are neighbours
	near    bool
	into    []*rows.Gathered
}

// list sets listed from wants.
// A batch is a piece of the series in label order, and so are the lists: mostly its series are neighbours in each. Then a view gets a part of its numbers and places
// as they are, instead of a copy for each view and series.
func (r *reader) list() {
	r.listed = slices.Grow(r.listed[:0], len(r.wants))[:len(r.wants)]
	all := 0
	for _, ws := range r.wants {
		all += len(ws)
	}
	r.intoAll = slices.Grow(r.intoAll[:0], all)
	for i, ws := range r.wants {
		l := listed{n: len(ws), near: true}
		for k, w := range ws {
			if k == 0 {
				l.from = int(w.at)
			}
			l.near = l.near && int(w.at) == l.from+k
			r.intoAll = append(r.intoAll, &r.gathered[w.of])
		}
		l.into = r.intoAll[len(r.intoAll)-l.n:]
		r.listed[i] = l
	}
}

// gatherView appends the rows that the parts of a view have; ok is false if they do not follow those of the views before.
func (r *reader) gatherView(parts []part, batch []found, lo, hi point.Nanos) (ok bool, err error) {
	view, p := parts[0].view, &parts[0]
	v, l := r.sn.views[view], &r.listed[p.list]
	known := len(parts) == 1 && p.found != nil && l.near
	if known && l.n == 0 {
		return true, nil
	}
	if known {
		c, err := v.Column(r.sn.selector, p.found, l.n, lo, hi)
		if err != nil {
			return false, err
		}
		if c != nil {
			return r.addColumn(c, p.list, view, lo, hi), nil
		}
	}
	if view > 0 && !r.flush(r.room(view-1, lo, hi)) {
		return false, nil
	}
	if known {
		done, ok, err := v.ReadListed(r.memory, p.ids[l.from:l.from+l.n], p.places[l.from:l.from+l.n], lo, hi, r.room(view, lo, hi), l.into)
		if done || err != nil {
			return ok, err
		}
	}
	r.name(parts, batch)
	if len(r.series) == 0 {
		return true, nil
	}
	r.into = r.into[:0]
	for _, i := range r.back {
		r.into = append(r.into, &r.gathered[i])
	}
	return v.ReadBehind(r.memory, r.series, lo, hi, r.room(view, lo, hi), r.into)
}

// addColumn adds the column of a view to those that are appended to all series of a list at once; false: it does not follow.
func (r *reader) addColumn(c *segment.Column, list, view int, lo, hi point.Nanos) bool {
	if list != r.columnsOf && !r.columns.Empty() && (view == 0 || !r.flush(r.room(view-1, lo, hi))) { // none is before the first
		return false
	}
	r.columnsOf = list
	return r.columns.Add(c, lo, hi)
}

// flush appends the columns; room is for rows of later views.
func (r *reader) flush(room int) bool {
	if r.columns.Empty() {
		return true
	}
	l := &r.listed[r.columnsOf]
	return r.memory.Flush(&r.columns, l.from, room, l.into)
}

// errTangled ends a walk over views that do not follow each other in time.
var errTangled = errors.New("views overlap in time")

// eachView calls f with the parts of each view, in order.
func (r *reader) eachView(f func(parts []part) error) error {
	for parts := r.sn.parts; len(parts) > 0; {
		n := 1
		for n < len(parts) && parts[n].view == parts[0].view {
			n++
		}
		if err := f(parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

// readRuns gives the series of a batch that have rows, merged by their stamps where views overlap.
func (r *reader) readRuns(batch []found, lo, hi point.Nanos) ([]peer.Series, error) {
	r.runs = slices.Grow(r.runs[:0], len(batch))[:len(batch)]
	for i := range r.runs {
		r.runs[i] = r.runs[i][:0]
	}
	r.want(batch)
	if r.memory != nil {
		r.memory.Reset()
	}
	if err := r.eachView(func(parts []part) error { return r.readView(parts, batch, lo, hi) }); err != nil {
		return nil, err
	}
	// A new one for each batch where rows may be kept: the merged columns are its memory.
	r.merger = rows.Merger{}
	r.out = slices.Grow(r.out[:0], len(batch))
	for i := range batch {
		if run := r.merge(r.runs[i]); run.Len() > 0 {
			r.out = append(r.out, peer.Series{Labels: batch[i].labels, Times: run.Times, Values: run.Values, Hists: run.Hists, Ranks: run.Ranks, HistRanks: run.HistRanks})
		}
	}
	return r.out, nil
}

func (r *reader) merge(runs []rows.Run) rows.Run {
	if r.sn.ranked {
		return rows.MergeRanked(runs)
	}
	return r.merger.Merge(runs)
}

// want is a series of a batch, and its place in a list.
type want struct{ of, at int32 }

// want sorts the series of a batch by list.
func (r *reader) want(batch []found) {
	r.wants = slices.Grow(r.wants[:0], len(r.sn.first))[:len(r.sn.first)]
	for i := range r.wants {
		r.wants[i] = r.wants[i][:0]
	}
	for j := range batch {
		for _, m := range batch[j].in {
			r.wants[m.list] = append(r.wants[m.list], want{int32(j), m.at})
		}
	}
}

// name lists the series of the batch that are in the parts of a view.
func (r *reader) name(parts []part, batch []found) {
	r.series, r.back = r.series[:0], r.back[:0]
	for k := range parts {
		for _, w := range r.wants[parts[k].list] {
			r.series = append(r.series, parts[k].series(int(w.at), batch[w.of].labels))
			r.back = append(r.back, int(w.of))
		}
	}
}

// readView appends the rows that the parts of a view have, as one run a series.
// take may be called in any order of series; back leads from the place in the request to the batch. Runs of a series
// are appended view by view, in the order of the views, which merging needs to let the later one win.
func (r *reader) readView(parts []part, batch []found, lo, hi point.Nanos) error {
	r.name(parts, batch)
	if len(r.series) == 0 {
		return nil
	}
	take := func(k int, run rows.Run) error {
		r.runs[r.back[k]] = append(r.runs[r.back[k]], run)
		return nil
	}
	v := r.sn.views[parts[0].view]
	switch {
	case r.sn.ranked:
		return v.ReadRanked(r.series, lo, hi, take)
	case r.memory == nil:
		return v.Read(r.series, lo, hi, take)
	}
	return v.ReadInto(r.memory, r.series, lo, hi, take)
}
