package partition

import (
	"errors"
	"math"
	"os"
	"slices"
	"sync"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/head"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// View is a snapshot of the heads and segments of a partition: it keeps heads, segments and the names of series alive until Close. It has every frame that was applied when it was made, whole, and of frames
// that rank above them nothing. Rows that another server ordered, which rank among these and come later, may show; no row disappears.
type View struct {
	p        *Partition
	warm     bool // the index has all series, by ids
	ids      *ids // of a warm partition; nil where only segments are looked at
	segments []*segmentRef
	heads    []*headRef
	upTo     point.Stamp  // the highest rank in the last head, to which rows are added; 0: it was empty
	check    series.Check // nil: the caller waits to the end
	timed    bool         // series without rows in [lo, hi] may be left out
	lo, hi   point.Nanos
	newest   bool // rows before the newest of a series may be left out
	// fixed are the deletions that reads apply, of each segment that has any; nil: those of when they read.
	fixed map[point.SegmentID][]Tombstone

	rowless *roaring.Bitmap // defined, and without rows; see rowlessSeries. nil: not asked yet
	present presence        // series that may have rows in [lo, hi]
}

// View makes a snapshot; nil when the partition was dropped. Errors are Corrupt: the contents of a damaged segment cannot be read, not even its series;
// Unavailable: a deletion has yet to be carried out. Errors are also those of the log, if it has frames that are not applied yet.
func (p *Partition) View() (*View, error) {
	if err := p.catchUp(); err != nil {
		return nil, err
	}
	p.lockWhole()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return nil, nil
	case p.damagedLocked() != nil:
		return nil, p.damagedLocked()
	case p.mu.owed != nil:
		return nil, p.mu.owed
	}
	v := &View{p: p, warm: p.mu.warm, ids: p.ids.Load().retain(), upTo: p.mu.upTo}
	for _, g := range p.mu.segments {
		v.segments = append(v.segments, g.retain())
	}
	v.retainHeadsLocked()
	return v, nil
}

// lockWhole acquires mu, but not in the middle of a frame whose rows a view could not tell from those before by their ranks.
func (p *Partition) lockWhole() {
	p.mu.Lock()
	if !p.mu.mixed {
		return
	}
	p.mu.Unlock()
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
}

// viewHeads is a snapshot of the heads alone, with the state that lists the segments below them; nil when the partition was
// dropped.
func (p *Partition) viewHeads() (*View, *State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return nil, nil
	}
	v := &View{p: p, upTo: math.MaxUint64}
	v.retainHeadsLocked()
	return v, p.mu.state
}

func (v *View) retainHeadsLocked() {
	for _, fr := range v.p.mu.frozen {
		v.heads = append(v.heads, fr.head.retain())
	}
	v.heads = append(v.heads, v.p.mu.active.retain())
}

// Close releases the snapshot.
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

// Watch makes the view call check while it is searched; see series.Check.
func (v *View) Watch(check series.Check) { v.check = check }

// Within lets Match leave out series that have no rows in [lo, hi], where it finds many.
func (v *View) Within(lo, hi point.Nanos) { v.timed, v.lo, v.hi = true, lo, hi }

// Newest lets Read and ReadInto leave out rows of a series before the newest of them.
func (v *View) Newest() { v.newest = true }

// grow calls the check, if there is one.
func (v *View) grow(bytes int64) error {
	if v.check == nil {
		return nil
	}
	return v.check(bytes)
}

// Series is a series of a partition: its number there, its labels, and its number in the index if the view is indexed.
type Series struct {
	ID     point.DenseID
	Ref    series.Ref // good until the view is closed, if Known
	Known  bool
	Labels point.Labels
	At     segment.Place // of its rows, if the view has one segment; 0: it was not looked up
}

// Indexed reports whether the view finds all series in the index.
func (v *View) Indexed() bool { return v.warm && v.ids.quiet == nil }

// Match finds the series of the partition that fulfil all matchers, in no order. Series with all rows deleted are left
// out once a compaction has removed the rows.
func (v *View) Match(ms []*labels.Matcher) ([]Series, error) {
	rowless, err := v.rowlessSeries()
	if err != nil {
		return nil, err
	}
	return v.match(ms, rowless, true)
}

// Found is what Match finds as a list of each segment, in label order: the series of a segment stay in the cache, and segments with the same ones share their
// labels. Places are good as Series.At. ok is false if Match must be asked: some series are in the index, or so many that they are not kept.
func (v *View) Found(of *segment.Selector) (lists []*segment.Found, ok bool, err error) {
	if v.warm {
		return nil, false, nil
	}
	rowless, err := v.rowlessSeries()
	if err != nil || !rowless.IsEmpty() {
		return nil, false, err
	}
	many := 0
	for _, g := range v.segments {
		found, err := g.reader.Find(of)
		if err != nil {
			return nil, false, v.failed(err, g)
		}
		if found == nil {
			return nil, false, nil
		}
		many += len(found.IDs)
		lists = append(lists, found)
	}
	if v.timed && many >= narrowedMin {
		if present, err := v.presentSeries(); err != nil || present != nil {
			return nil, false, err
		}
	}
	return lists, true, v.grow(0)
}

// Placed reports whether the places of Found are good as Series.At.
func (v *View) Placed() bool { return len(v.segments) == 1 }

// Grow books the memory of so many found series, which are listed elsewhere.
func (v *View) Grow(series int) error { return v.grow(int64(series) * matchedBytes) }

// MatchDefined is Match with the series that have no rows: they may have exemplars.
func (v *View) MatchDefined(ms []*labels.Matcher) ([]Series, error) {
	return v.match(ms, roaring.New(), false)
}

func (v *View) match(ms []*labels.Matcher, without *roaring.Bitmap, timed bool) ([]Series, error) {
	var out []Series
	expect := func(n int) error {
		if err := v.grow(int64(n) * matchedBytes); err != nil {
			return err
		}
		out = slices.Grow(out, n)
		return nil
	}
	err := v.eachMatch(ms, without, timed && v.timed, expect, func(s Series) error {
		out = append(out, s)
		if s.Known { // expected, and its labels lie in the index
			return nil
		}
		return v.grow(matchedBytes + int64(len(s.Labels)))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// eachMatch calls f with the series that fulfil all matchers, in no order; timed: where they are many, only with those that may have
// rows in the view's time. Before it gives those of the index it calls expect with their number at most.
func (v *View) eachMatch(ms []*labels.Matcher, without *roaring.Bitmap, timed bool, expect func(n int) error, f func(Series) error) error {
	live := roaring.New()
	if v.warm {
		if err := v.matchIndex(ms, without, timed, live, expect, f); err != nil {
			return err
		}
	}
	if v.Indexed() {
		return nil
	}
	found, _, err := v.matchSegments(ms, live, without, timed)
	if err != nil {
		return err
	}
	for i, g := range v.segments {
		err := g.reader.EachLabels(found[i], func(id point.DenseID, l point.Labels) error { return f(Series{ID: id, Labels: l}) })
		if err != nil {
			return v.failed(err, g)
		}
	}
	return nil
}

// matchSegments gives the series of each segment that fulfil all matchers and are neither live nor in without: the quiet series, or all. One that returns just
// now is found in either. timed: where they are many, only those that may have rows in the view's time; narrowed says that it was so.
func (v *View) matchSegments(ms []*labels.Matcher, live, without *roaring.Bitmap, timed bool) (found []*roaring.Bitmap, narrowed bool, err error) {
	found = make([]*roaring.Bitmap, len(v.segments))
	many := uint64(0)
	for i, g := range v.segments {
		if found[i], err = g.reader.Match(ms); err != nil {
			return nil, false, v.failed(err, g)
		}
		found[i].AndNot(live)
		found[i].AndNot(without)
		many += found[i].GetCardinality()
		if err := v.grow(0); err != nil {
			return nil, false, err
		}
	}
	if !timed || many < narrowedMin {
		return found, false, nil
	}
	err = v.keepPresent(found)
	return found, v.present.ids != nil, err
}

// failed wraps the error of a read of segments. Files of a partition that was dropped meanwhile are gone, but for those that were open.
func (v *View) failed(err error, gs ...*segmentRef) error {
	if len(gs) > 0 && isDamage(err) {
		v.p.doubt(gs)
	}
	if errors.Is(err, os.ErrNotExist) && v.p.isDropped() {
		return v.p.gone()
	}
	if fault.Is(err, fault.Corrupt) {
		return fault.Errorf(fault.Corrupt, "%w; restore the file from a backup and restart the server, or drop the partition", err)
	}
	return err
}

// matchedBytes is the memory of a found series: here, and where series of views are joined.
const matchedBytes = 160

// matchIndex gives the series in the index that fulfil all matchers. live includes all, also those without rows in the view's time.
func (v *View) matchIndex(ms []*labels.Matcher, without *roaring.Bitmap, timed bool, live *roaring.Bitmap, expect func(n int) error, f func(Series) error) error {
	defer v.p.deps.Index.Pin().Unpin() // no ref becomes another series, perhaps one of this view, before it was looked at
	found, err := v.p.deps.Index.MatchChecked(ms, v.grow)
	if err != nil {
		return err
	}
	most := min(int(found.GetCardinality()), v.ids.len())
	var present *roaring.Bitmap // nil: of any time
	if timed && most >= narrowedMin {
		if present, err = v.presentSeries(); err != nil {
			return err
		}
	}
	if present != nil {
		most = min(most, int(present.GetCardinality()))
	}
	if err := expect(most); err != nil {
		return err
	}
	quiet := v.ids.quiet != nil
	for it := found.Iterator(); it.HasNext(); {
		ref := series.Ref(it.Next())
		id, ok := v.ids.dense.Get(ref)
		if !ok {
			continue
		}
		if quiet {
			live.Add(uint32(id))
		}
		if without.Contains(uint32(id)) || present != nil && !present.Contains(uint32(id)) {
			continue
		}
		if err := f(Series{ID: id, Ref: ref, Known: true, Labels: v.p.deps.Index.Labels(ref)}); err != nil {
			return err
		}
	}
	return nil
}

// Read reads the rows in [lo, hi] of the named series, each merged over heads and segments, deletions applied. It calls f in the
// order of ss, for each series that has rows, with the index into ss; f may keep the run.
func (v *View) Read(ss []Series, lo, hi point.Nanos, f func(i int, r rows.Run) error) error {
	return v.read(new(Memory), ss, lo, hi, 0, f)
}

// Memory is reusable memory for rows that are read. For one goroutine. Close it.
type Memory struct {
	segments *segment.Memory // nil: the caller may keep the rows
	heads    *headMemory     // nil: none was read yet

	want   []point.DenseID
	at     []segment.Place // parallel to want; shorter: not all are known
	found  [][]rows.Run
	recent [][]rows.Run // from heads
	merger rows.Merger
	ranked bool // rows come with their ranks
	once   bool // rows are not read again soon; see segment.Reader.ReadOnce
}

// ReadRanked is Read with the rank of each row: its own, or where a segment does not have that the highest of its chunk.
func (v *View) ReadRanked(ss []Series, lo, hi point.Nanos, f func(i int, r rows.Run) error) error {
	return v.read(&Memory{ranked: true}, ss, lo, hi, 0, f)
}

// Memory returns memory for reads of views of this and other partitions of a server.
func (v *View) Memory() *Memory {
	return &Memory{segments: v.p.deps.Cache.Memory(), heads: headMemories.Get().(*headMemory)}
}

// Reset invalidates all rows that were read into the memory.
func (m *Memory) Reset() {
	m.segments.Reset()
	m.heads.reset()
	m.merger = rows.Merger{}
}

// Close releases the memory for other readers.
func (m *Memory) Close() {
	m.segments.Close()
	m.heads.reset()
	if cap(m.heads.times)+cap(m.heads.values) <= headMemoryKept {
		headMemories.Put(m.heads)
	}
	m.heads = nil
}

// ReadInto is Read into m, in any order of the series. Runs of all views that were read into m stay good until it is reset.
func (v *View) ReadInto(m *Memory, ss []Series, lo, hi point.Nanos, f func(i int, r rows.Run) error) error {
	return v.read(m, ss, lo, hi, 0, f)
}

// ReadBehind is ReadInto, but appends the rows of series i to into[i], where those of views before it are, with room for spare more, which come from later
// views. ok is false if some did not follow them, or were
// histograms: then into is of no use, and ReadInto is to be called for all.
func (v *View) ReadBehind(m *Memory, ss []Series, lo, hi point.Nanos, spare int, into []*rows.Gathered) (ok bool, err error) {
	if g := v.only(lo, hi); g != nil {
		m.name(ss)
		ok, err = g.reader.ReadBehind(m.segments, m.want, m.places(v), lo, hi, spare, into)
		return ok, v.failed(err, g)
	}
	// Runs are copied behind rows that are there: only the first need room of their own.
	ok, own := true, 0
	if len(into) > 0 && into[0].Empty() {
		own = into[0].Room(spare)
	}
	err = v.read(m, ss, lo, hi, own, func(i int, r rows.Run) error {
		ok = into[i].AddRun(&r, into[i].Room(spare)) && ok
		return nil
	})
	return ok, err
}

// Column returns the rows of all series in f, which a selector found in the only segment of the view, side by side; wanted is how many of those series the caller uses. It returns
// nil, and the caller calls ReadListed, if there is no column, if it is too long for the series wanted, or if rows in [lo, hi] lie outside of that segment.
func (v *View) Column(of *segment.Selector, f *segment.Found, wanted int, lo, hi point.Nanos) (*segment.Column, error) {
	g := v.only(lo, hi)
	if g == nil || !v.Placed() {
		return nil, nil
	}
	c, err := g.reader.Column(of, f, segment.Ask{Series: wanted, Grow: v.grow})
	if err = v.failed(err, g); err != nil && !fault.Is(err, fault.Canceled) {
		return nil, nil // too little memory, or damage, perhaps of rows that are not wanted: a read of those that are reports it
	}
	return c, err
}

// Flush appends columns to into, as ReadBehind does.
func (m *Memory) Flush(cs *segment.Columns, from, spare int, into []*rows.Gathered) (ok bool) {
	return cs.Flush(m.segments, from, spare, into)
}

// ReadListed is ReadBehind of series whose numbers and places are at hand, as Found gave them. done is false, and nothing was read, if not all rows are in one
// segment: then ReadBehind is to be called.
func (v *View) ReadListed(m *Memory, ids []point.DenseID, at []segment.Place, lo, hi point.Nanos, spare int, into []*rows.Gathered) (done, ok bool, err error) {
	g := v.only(lo, hi)
	if g == nil {
		return false, false, nil
	}
	ok, err = g.reader.ReadBehind(m.segments, ids, at, lo, hi, spare, into)
	return true, ok, v.failed(err, g)
}

func (v *View) read(m *Memory, ss []Series, lo, hi point.Nanos, spare int, f func(i int, r rows.Run) error) error {
	if g := v.only(lo, hi); g != nil && m.segments != nil {
		m.name(ss)
		return v.failed(g.reader.ReadInto(m.segments, m.want, m.places(v), lo, hi, spare, f), g)
	}
	m.found, m.recent = emptyRuns(m.found, len(ss)), emptyRuns(m.recent, len(ss))
	for n, h := range v.heads {
		hlo, hhi, ok := h.head.TimeBounds()
		if !ok || hlo > hi || hhi < lo {
			continue
		}
		cuts, err := h.cuts()
		if err != nil {
			return err
		}
		most, upTo := 0, point.Stamp(math.MaxUint64)
		if n == len(v.heads)-1 {
			upTo = v.upTo
		}
		for i := range ss {
			r, ok := m.readHead(h.head, upTo, ss[i].ID, lo, hi, v.newest && len(cuts) == 0) // a deletion may hide the newest
			switch {
			case !ok:
				continue
			case len(cuts) == 0:
				m.recent[i] = append(m.recent[i], r)
			default:
				m.recent[i] = append(m.recent[i], cuts.apply(ss[i].Labels, r)...)
			}
			most = max(most, len(r.Times))
		}
		spare += most
	}
	if err := v.readSegments(m, ss, lo, hi, spare); err != nil {
		return err
	}
	for i := range ss {
		m.found[i] = append(m.found[i], m.recent[i]...)
	}
	exact, err := v.readInterleaved(m, ss, lo, hi)
	if err != nil {
		return err
	}
	for i := range ss {
		r, again := exact[i]
		if !again {
			r = m.merge(m.found[i])
		}
		if r.Len() == 0 {
			continue
		}
		if err := f(i, r); err != nil {
			return err
		}
	}
	return nil
}

// only returns the segment that has all rows in [lo, hi], if there is one and no deletion applies to it: a narrow partition that has been compacted. Nothing is merged there.
func (v *View) only(lo, hi point.Nanos) (only *segmentRef) {
	for _, h := range v.heads {
		if hlo, hhi, ok := h.head.TimeBounds(); ok && hlo <= hi && hhi >= lo {
			return nil
		}
	}
	for _, g := range v.segments {
		if g.info.Rows == 0 || g.info.TimeLo > hi || g.info.TimeHi < lo {
			continue
		}
		if only != nil || len(v.tombstones(g)) > 0 {
			return nil
		}
		only = g
	}
	return only
}

// fix has reads apply the deletions that some segments have in a list, and no others.
func (v *View) fix(all []SegmentState) {
	v.fixed = map[point.SegmentID][]Tombstone{}
	for i := range all {
		v.fixed[all[i].ID] = all[i].Tombstones
	}
}

// tombstones returns the deletions that hide rows of a segment.
func (v *View) tombstones(g *segmentRef) []Tombstone {
	if v.fixed != nil {
		return v.fixed[g.info.ID]
	}
	return *g.tombstones.Load()
}

// readInterleaved reads those of the series once more of which rows were found that only their own ranks decide between: rows that were ordered elsewhere came after
// newer ones. By index into ss.
func (v *View) readInterleaved(m *Memory, ss []Series, lo, hi point.Nanos) (exact map[int]rows.Run, err error) {
	if m.ranked {
		return nil, nil
	}
	var some []Series
	var back []int
	for i := range ss {
		if len(m.found[i]) > 1 && rows.Interleaved(m.found[i]) {
			some, back = append(some, ss[i]), append(back, i)
		}
	}
	if len(some) == 0 {
		return nil, nil
	}
	exact = make(map[int]rows.Run, len(some))
	err = v.read(&Memory{ranked: true, once: m.once}, some, lo, hi, 0, func(i int, r rows.Run) error {
		r.Ranks, r.HistRanks = nil, nil
		exact[back[i]] = r
		return nil
	})
	return exact, err
}

// readHead reads a series' rows of ranks up to one in a head; newest: those before the newest may be left out.
func (m *Memory) readHead(h *head.Head, upTo point.Stamp, id point.DenseID, lo, hi point.Nanos, newest bool) (r rows.Run, ok bool) {
	if m.heads == nil {
		m.heads = new(headMemory)
	}
	switch {
	case m.ranked:
		ok = h.ReadRanked(id, lo, hi, &r)
	case newest:
		r, ok = m.heads.read(h.ReadNewest, id, lo, hi, m.segments != nil)
	default:
		r, ok = m.heads.read(h.Read, id, lo, hi, m.segments != nil)
	}
	if ok && r.StampHi > upTo { // it got rows since
		r = rows.Run{}
		ok = h.ReadUpTo(upTo, id, lo, hi, m.ranked, &r)
	}
	return r, ok
}

func (m *Memory) merge(runs []rows.Run) rows.Run {
	if m.ranked {
		return m.merger.MergeRanked(runs)
	}
	return m.merger.Merge(runs)
}

// emptyRuns returns n empty lists in memory that was used before.
func emptyRuns(of [][]rows.Run, n int) [][]rows.Run {
	of = slices.Grow(of[:0], n)[:n]
	for i := range of {
		of[i] = of[i][:0]
	}
	return of
}

// readSegments leaves room for spare rows behind those of a series, and for those of later segments, so that later rows can follow in place.
func (v *View) readSegments(m *Memory, ss []Series, lo, hi point.Nanos, spare int) error {
	m.want = m.want[:0]
	for _, g := range v.segments {
		spare += g.rows(lo, hi)
	}
	for _, g := range v.segments {
		if g.info.Rows == 0 || g.info.TimeLo > hi || g.info.TimeHi < lo {
			continue
		}
		spare -= g.rows(lo, hi)
		if len(m.want) == 0 {
			m.name(ss)
		}
		cuts, err := compileTombstones(v.tombstones(g))
		if err != nil {
			return err
		}
		take := func(i int, r rows.Run) error {
			if len(cuts) == 0 {
				m.found[i] = append(m.found[i], r)
			} else {
				m.found[i] = append(m.found[i], cuts.apply(ss[i].Labels, r)...)
			}
			return nil
		}
		if m.once {
			err = g.reader.ReadOnce(m.want, m.ranked, lo, hi, spare, take)
		} else if m.ranked {
			err = g.reader.ReadRanked(m.want, lo, hi, spare, take)
		} else if m.segments != nil {
			err = g.reader.ReadInto(m.segments, m.want, m.places(v), lo, hi, spare, take)
		} else {
			err = g.reader.ReadNew(m.want, lo, hi, spare, take)
		}
		if err != nil {
			return v.failed(err, g)
		}
	}
	return nil
}

// name lists the series that are read.
func (m *Memory) name(ss []Series) {
	m.want, m.at = m.want[:0], m.at[:0]
	for i := range ss {
		m.want = append(m.want, ss[i].ID)
		if ss[i].At != 0 {
			m.at = append(m.at, ss[i].At)
		}
	}
}

// places are those of the series in the only segment of a view; nil: they are looked up.
func (m *Memory) places(v *View) []segment.Place {
	if !v.Placed() || len(m.at) < len(m.want) {
		return nil
	}
	return m.at
}

// headMemory holds rows read from heads.
type headMemory struct {
	times  []point.Nanos
	values []float64
	last   []point.Nanos // of the series before: neighbours often have the same
}

// headMemories keeps memory between queries: a small one would spend as much on clearing and collecting its memory as on reading.
var headMemories = sync.Pool{New: func() any { return new(headMemory) }}

// headMemoryKept bounds the memory, in times and values, that is kept for the next query.
const headMemoryKept = 1 << 19

func (m *headMemory) reset() { m.times, m.values, m.last = m.times[:0], m.values[:0], nil }

// read returns the rows of a series that of gives, in m's memory if reuse.
func (m *headMemory) read(of func(id point.DenseID, lo, hi point.Nanos, dst *rows.Run) bool, id point.DenseID, lo, hi point.Nanos, reuse bool) (r rows.Run, ok bool) {
	nt, nv := len(m.times), len(m.values)
	if reuse {
		r.Times, r.Values = m.times[nt:nt:cap(m.times)], m.values[nv:nv:cap(m.values)]
	}
	if !of(id, lo, hi, &r) {
		return r, false
	}
	n := len(r.Times)
	if n == 0 {
		return r, true
	}
	shared := slices.Equal(r.Times, m.last)
	if reuse { // where there was no room, these rows have memory of their own, and earlier ones keep the old
		if !shared {
			m.times = taken(m.times, n)
		}
		m.values = taken(m.values, n)
	}
	if shared {
		r.Times = m.last
	}
	r.Times, r.Values = slices.Clip(r.Times), slices.Clip(r.Values)
	m.last = r.Times
	return r, true
}

// taken returns memory of which n more are taken, or new memory for many series of so many rows.
func taken[T any](of []T, n int) []T {
	if cap(of)-len(of) < n {
		return make([]T, 0, 2*cap(of)+64*n)
	}
	return of[:len(of)+n]
}

// Rows guesses how many rows a series has in [lo, hi], on an average.
func (v *View) Rows(lo, hi point.Nanos) int {
	n := 0
	for _, g := range v.segments {
		n += g.rows(lo, hi)
	}
	for _, h := range v.heads {
		if hlo, hhi, ok := h.head.TimeBounds(); ok {
			n += int(share(lo, hi, hlo, hhi) * float64(h.head.Rows()) / float64(max(1, h.head.Series())))
		}
	}
	return n
}

// rows guesses how many rows a series has in [lo, hi], and a few more: of a narrow partition, which has few, no more than as many.
func (g *segmentRef) rows(lo, hi point.Nanos) int {
	part := share(lo, hi, g.info.TimeLo, g.info.TimeHi)
	if g.info.Rows == 0 || part == 0 {
		return 0
	}
	n := int(part * float64(g.info.Rows) / float64(max(1, g.info.Series)))
	return n + min(n/8+1, 8)
}

// share is the part of [from, to] that lies in [lo, hi].
func share(lo, hi, from, to point.Nanos) float64 {
	if lo > to || hi < from {
		return 0
	}
	return (float64(min(hi, to)) - float64(max(lo, from)) + 1) / (float64(to) - float64(from) + 1)
}

// Whole returns how many of the series, from least to most, to read together, so that no group of the view's largest segment is opened for these and again for the
// next ones (segment.Reader.Whole).
func (v *View) Whole(ss []Series, least, most int) (int, error) {
	var largest *segmentRef
	for _, g := range v.segments {
		if largest == nil || g.info.Rows > largest.info.Rows {
			largest = g
		}
	}
	if largest == nil || len(ss) <= most {
		return min(len(ss), most), nil
	}
	ids := make([]point.DenseID, most+1)
	for i := range ids {
		ids[i] = ss[i].ID
	}
	n, err := largest.reader.Whole(ids, least, most)
	return n, v.failed(err, largest)
}

// exemplarBytes is the memory of an exemplar here and in an answer.
func exemplarBytes(ex []point.ExemplarRow) int64 {
	n := int64(0)
	for i := range ex {
		n += 200 + 2*int64(len(ex[i].Labels))
	}
	return n
}

// Exemplars passes f the exemplars in [lo, hi] of the named series, by time, none twice; f as in Read.
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
			return v.grow(exemplarBytes(ex))
		})
		if err != nil {
			return v.failed(err, g)
		}
	}
	var buf []head.Exemplar
	for _, h := range v.heads {
		for _, id := range want {
			buf = h.head.Exemplars(id, lo, hi, buf[:0])
			for _, e := range buf {
				all[id] = append(all[id], point.ExemplarRow{Time: e.Time, Value: e.Value, Labels: e.Labels})
			}
			if err := v.grow(exemplarBytes(all[id][len(all[id])-len(buf):])); err != nil {
				return err
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
