package head

import (
	"math"
	"sync"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// Settings are the numbers a user sets.
type Settings struct {
	// ExemplarsMax bounds the exemplars kept; beyond it the oldest are evicted. Default 100,000. Larger: about 150 bytes each until
	// the next flush.
	ExemplarsMax int
	// FewRows is set if most series will have a row or two before the head is flushed: thin.go. Default false.
	FewRows bool

	onHeap bool // arena on the collector's heap, where the race detector sees it
}

func (s *Settings) setDefaults() {
	if s.ExemplarsMax <= 0 {
		s.ExemplarsMax = 100_000
	}
}

// Head holds a partition's rows until they are flushed. Appends are the caller's to serialise; reads of any kind may
// run beside them and beside each other.
type Head struct {
	set Settings // constant after New

	mu sync.RWMutex // guards all below; appends hold it for at most sectionRows rows at a time

	arena  arena
	pages  []*page       // by id; nil where no series has rows
	few    few           // instead of the first page while no series beyond the first few has rows
	thins  []*thin       // by id, instead of a page; only if Settings.FewRows
	stamps []point.Stamp // of frame n+1; a frame is a row of appends with one stamp
	ids    []uint64      // bit set: series that have rows

	aside     map[point.DenseID][]asideRow
	hists     map[point.DenseID][]histRow
	exemplars map[point.DenseID][]Exemplar
	// exemplarRing are the series of all exemplars in the order in which they came; once it is full, from exemplarNext on.
	exemplarRing []point.DenseID
	exemplarNext int
	heapBytes    int // about the size of the three maps
	madePages    int // those of pages that are there

	series         int
	rows           int
	timeLo, timeHi point.Nanos
	passed         point.Nanos // no float row of a series that isPassed is later: one bound for all, so that a row on time ends the state of each
}

// New makes an empty head. It allocates memory as rows come.
func New(s Settings) *Head {
	s.setDefaults()
	return &Head{
		set:    s,
		arena:  arena{onHeap: s.onHeap || checked},
		timeLo: math.MaxInt64,
		timeHi: math.MinInt64,
		passed: math.MinInt64,
	}
}

// sectionRows bounds how long an append keeps readers waiting: about 50 µs, and 200 µs if every row misses the cache.
const sectionRows = 2048

// Append adds float rows of one stamp: row i is (ids[i], times[i], values[i]). The columns stay the caller's. Rows of
// one stamp count in the order in which they are appended: at equal times the later one wins. Stamps may come in any
// order; rows of a series that already holds a higher stamp cost 24 bytes instead of two.
//
// A reader may see the first rows of an append before the last: ReadUpTo does not.
func (h *Head) Append(stamp point.Stamp, ids []point.DenseID, times []point.Nanos, values []float64) {
	for len(ids) > 0 {
		n := min(len(ids), sectionRows)
		h.appendSection(stamp, ids[:n], times[:n], values[:n])
		ids, times, values = ids[n:], times[n:], values[n:]
	}
}

func (h *Head) appendSection(stamp point.Stamp, ids []point.DenseID, times []point.Nanos, values []float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	frame := h.frameLocked(stamp)
	for len(ids) > 0 {
		n := min(len(ids), aheadRows)
		h.appendAheadLocked(stamp, frame, ids[:n], times[:n], values[:n])
		ids, times, values = ids[n:], times[n:], values[n:]
	}
}

// aheadRows are looked up before the first of them is written. In random order each row waits for four or five cache
// lines, one after the other; read ahead, those of many rows arrive together (see DESIGN.md for the gain).
const aheadRows = 64

// target is where a row goes.
type target struct {
	s *series
	g *group
}

func (h *Head) appendAheadLocked(stamp point.Stamp, frame uint32, ids []point.DenseID, times []point.Nanos, values []float64) {
	var room [aheadRows]target
	targets := room[:len(ids)]
	if !h.few.over {
		h.fitLocked(ids)
	}
	for i, id := range ids {
		if n := int(id >> pageShift); n < len(h.pages) && h.pages[n] != nil {
			p := h.pages[n]
			targets[i] = target{&p.series[id&(pageSeries-1)], &p.groups[id>>groupShift&(pageGroups-1)]}
		} else if h.set.FewRows && h.takeThinLocked(stamp, frame, id, times[i], math.Float64bits(values[i])) {
			targets[i] = target{}
		} else {
			targets[i] = h.targetLocked(id)
		}
	}
	h.arena.warm(targets, frame)
	lo, hi := h.timeLo, h.timeHi
	times, values = times[:len(ids)], values[:len(ids)] // spares the loop its bounds checks
	for i := range targets {
		if targets[i].s == nil {
			continue // a thin page has it
		}
		lo, hi = min(lo, times[i]), max(hi, times[i])
		h.chainLocked(ids[i], targets[i], stamp, frame, times[i], math.Float64bits(values[i]))
	}
	h.timeLo, h.timeHi = lo, hi
	h.rows += len(ids)
}

// chainLocked appends a row to its chain, or puts it aside.
func (h *Head) chainLocked(id point.DenseID, to target, stamp point.Stamp, frame uint32, t point.Nanos, v uint64) {
	s, g := to.s, to.g
	if uint64(stamp) < s.lastStamp {
		h.putAsideLocked(id, s, asideRow{t, stamp, math.Float64frombits(v)})
		return
	}
	if g.lastFrame != frame {
		g.touch(&h.arena, frame)
	}
	if s.rows == 0 {
		h.beginLocked(id, s, stamp, g.count, t, v)
		return
	}
	if t <= s.lastTime || s.flags&isPassed != 0 {
		h.orderLocked(s, t)
	}
	s.push(&h.arena, g.count, t, v)
	s.lastStamp = uint64(stamp)
}

// warm reads from the blocks that rows will be written to. The sum is kept so that the compiler keeps the reads.
func (a *arena) warm(targets []target, frame uint32) {
	if len(a.chunks) == 0 {
		return
	}
	sum := byte(0)
	for i := range targets {
		if targets[i].s == nil {
			continue
		}
		sum += a.block(targets[i].s.tail)[0] // block 0 is there, though it is never used
		if g := targets[i].g; g.lastFrame != frame {
			sum += a.block(g.tail)[0]
		}
	}
	a.warmth = sum
}

// beginLocked makes a row the first of its chain.
func (h *Head) beginLocked(id point.DenseID, s *series, stamp point.Stamp, seen uint32, t point.Nanos, bits uint64) {
	s.rows = 1
	s.lastTime, s.lastValue = t, bits
	s.firstStamp, s.lastStamp = uint64(stamp), uint64(stamp)
	s.firstSeen, s.seen = seen, seen
	h.noteLocked(id)
}

// orderLocked notes that a row at t is the next of a chain that it does not continue in order, or that is passed. At equal times the later
// row of a chain wins, also over rows aside, which have lower stamps.
func (h *Head) orderLocked(s *series, t point.Nanos) {
	switch {
	case t < s.lastTime:
		s.flags |= isUnsorted
		h.passLocked(s, s.lastTime)
	case t == s.lastTime:
		s.flags |= isDoubled
	}
	if t >= h.passed {
		s.flags &^= isPassed
	}
}

// passLocked notes that a series has a row at t, which is later than the last one in its chain.
func (h *Head) passLocked(s *series, t point.Nanos) {
	s.flags |= isPassed
	h.passed = max(h.passed, t)
}

// frameLocked gives the number of the frame with this stamp: the newest one, or a new one.
func (h *Head) frameLocked(stamp point.Stamp) uint32 {
	if n := len(h.stamps); n == 0 || h.stamps[n-1] != stamp {
		h.stamps = append(h.stamps, stamp)
	}
	return uint32(len(h.stamps))
}

// targetLocked gives the state of a series, in a new page if need be. Where the head holds few series, fitLocked must
// have been called for it.
func (h *Head) targetLocked(id point.DenseID) target {
	n := int(id >> pageShift)
	switch {
	case int(id) < len(h.few.series):
		return target{&h.few.series[id], &h.few.groups[id>>groupShift]}
	case h.thinLocked(id) != nil:
		h.widenLocked(n)
	case n >= len(h.pages) || h.pages[n] == nil:
		h.newPageLocked(n)
	}
	p := h.pages[n]
	return target{&p.series[id&(pageSeries-1)], &p.groups[id>>groupShift&(pageGroups-1)]}
}

func (h *Head) newPageLocked(n int) {
	for len(h.pages) <= n {
		h.pages = append(h.pages, nil)
	}
	h.growIDsLocked((n + 1) * pageSeries)
	h.pages[n] = h.arena.page()
	h.madePages++
}

// growIDsLocked makes room for n ids.
func (h *Head) growIDsLocked(n int) {
	if words := (n + 63) / 64; words > len(h.ids) {
		h.ids = append(h.ids, make([]uint64, words-len(h.ids))...)
	}
}

// noteLocked remembers that a series has rows.
func (h *Head) noteLocked(id point.DenseID) {
	w, b := id/64, uint64(1)<<(id%64)
	if h.ids[w]&b == 0 {
		h.ids[w] |= b
		h.series++
	}
}

// Read gives the rows of a series with times in [lo, hi]: strictly rising, and where a time was written more than once, the winner: a value
// before a stale marker, then the higher stamp, then the later row of the same append, else the greater bits; between a float and a
// histogram of one stamp the histogram. This is exact, whatever order the frames came in. The stamp range of the run is that of all rows of
// the series held, also of those outside [lo, hi].
//
// dst is emptied first and its memory reused; the columns are dst's own, histograms are shared and read only. The
// result is false, and dst empty, if there are no rows.
func (h *Head) Read(id point.DenseID, lo, hi point.Nanos, dst *rows.Run) bool {
	dst.Reset()
	h.mu.RLock()
	defer h.mu.RUnlock()
	if th := h.thinLocked(id); th != nil {
		return h.readThinLocked(th, id, lo, hi, anyStamp, false, dst)
	}
	s, g := h.findLocked(id)
	if s == nil {
		return false
	}
	if s.flags != 0 {
		h.settleLocked(id, s, g, lo, hi, anyStamp, false, dst)
	} else {
		if s.lastTime < lo { // without flags the last row is the newest
			return false
		}
		c := columns{times: dst.Times, values: dst.Values}
		c.grow(h.expectLocked(s, lo, hi))
		s.walk(&h.arena, lo, hi, &c)
		dst.Times, dst.Values = c.times, c.values
	}
	if dst.Len() == 0 {
		return false
	}
	dst.StampLo, dst.StampHi = h.stampsLocked(id, s)
	return true
}

// ReadNewest is Read, and may leave out rows before the newest of them. A series whose last row is its newest and lies in [lo, hi] has that
// row in its state: no chain is walked, unless it is a stale marker, beside which a value of the same millisecond counts. Late rows end that
// until the next one on time.
func (h *Head) ReadNewest(id point.DenseID, lo, hi point.Nanos, dst *rows.Run) bool {
	if h.readLast(id, lo, hi, dst) {
		return true
	}
	return h.Read(id, lo, hi, dst)
}

func (h *Head) readLast(id point.DenseID, lo, hi point.Nanos, dst *rows.Run) bool {
	dst.Reset()
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.thinLocked(id) != nil {
		return false
	}
	s, _ := h.findLocked(id)
	if s == nil || s.rows == 0 || s.flags&(hasHists|isPassed) != 0 || s.lastTime < lo || s.lastTime > hi || s.lastValue == point.StaleNaN {
		return false
	}
	dst.Times, dst.Values = append(dst.Times, s.lastTime), append(dst.Values, math.Float64frombits(s.lastValue))
	dst.StampLo, dst.StampHi = h.stampsLocked(id, s)
	return true
}

// ReadRanked is Read, and gives the stamp of each row too.
func (h *Head) ReadRanked(id point.DenseID, lo, hi point.Nanos, dst *rows.Run) bool {
	dst.Reset()
	h.mu.RLock()
	defer h.mu.RUnlock()
	if th := h.thinLocked(id); th != nil {
		return h.readThinLocked(th, id, lo, hi, anyStamp, true, dst)
	}
	s, g := h.findLocked(id)
	if s == nil {
		return false
	}
	h.readRankedLocked(id, s, g, lo, hi, new(chainRanks), dst)
	if dst.Len() == 0 {
		return false
	}
	dst.StampLo, dst.StampHi = h.stampsLocked(id, s)
	return true
}

// anyStamp is above all stamps.
const anyStamp = point.Stamp(math.MaxUint64)

// ReadUpTo is Read, or if ranked ReadRanked, of the rows with stamps of most at most: those that were there when most was the highest one. A series that got no row since is read faster by
// Read, whose stamp range shows that.
func (h *Head) ReadUpTo(most point.Stamp, id point.DenseID, lo, hi point.Nanos, ranked bool, dst *rows.Run) bool {
	dst.Reset()
	h.mu.RLock()
	defer h.mu.RUnlock()
	if th := h.thinLocked(id); th != nil {
		return h.readThinLocked(th, id, lo, hi, most, ranked, dst)
	}
	s, g := h.findLocked(id)
	if s == nil {
		return false
	}
	h.settleLocked(id, s, g, lo, hi, most, ranked, dst)
	if dst.Len() == 0 {
		return false
	}
	dst.StampLo, dst.StampHi = h.stampsLocked(id, s)
	dst.StampHi = min(dst.StampHi, most)
	return true
}

// growMax bounds the rows a read makes room for before it has counted those in its range.
const growMax = 4096

func (c *columns) grow(n int) {
	if cap(c.times) < n {
		c.times, c.values = make([]point.Nanos, 0, n), make([]float64, 0, n)
	}
}

// expectLocked guesses how many of a series' rows lie in [lo, hi]: its part of the time since the head's first row, as
// if rows were spread evenly, and a few more.
func (h *Head) expectLocked(s *series, lo, hi point.Nanos) int {
	n := float64(s.rows)
	if lo > h.timeLo || hi < s.lastTime {
		all := float64(s.lastTime) - float64(h.timeLo)
		part := float64(min(hi, s.lastTime)) - float64(max(lo, h.timeLo))
		n = min(n, n*part/max(all, 1)+4)
	}
	return max(1, int(min(n, growMax)))
}

func (h *Head) findLocked(id point.DenseID) (*series, *group) {
	n := int(id >> pageShift)
	if int(id) < len(h.few.series) {
		return &h.few.series[id], &h.few.groups[id>>groupShift]
	}
	if n >= len(h.pages) || h.pages[n] == nil {
		return nil, nil
	}
	p := h.pages[n]
	return &p.series[id&(pageSeries-1)], &p.groups[id>>groupShift&(pageGroups-1)]
}

// SeriesIDs gives the series that have rows. The bitmap is the caller's.
func (h *Head) SeriesIDs() *roaring.Bitmap {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return roaring.FromDense(h.ids, true)
}

// Series counts the series that have rows.
func (h *Head) Series() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.series
}

// Rows counts the rows appended, histograms and rows that lose included.
func (h *Head) Rows() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.rows
}

// Bytes is the memory in use for rows and the state of series.
func (h *Head) Bytes() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.arena.used + h.heapBytes + 8*cap(h.stamps) + 8*cap(h.ids) + 8*cap(h.pages) + h.few.bytes() - h.untouchedLocked()
}

// untouchedLocked is the part of the only page that is surely not resident: if a late row comes to a partition of many
// series, all but the part that the row touched.
func (h *Head) untouchedLocked() int {
	if h.madePages != 1 || h.arena.used >= slabsFrom {
		return 0
	}
	const pageOfSystem = 4 << 10
	return max(0, pageBytes-pageOfSystem*(2+h.series))
}

// TimeBounds gives the lowest and highest time of all rows; ok is false while there are none.
func (h *Head) TimeBounds() (lo, hi point.Nanos, ok bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.timeLo, h.timeHi, h.rows > 0
}

// Drain hands every series of order that has rows to f, whole, as ReadRanked would give it. The run and its columns are valid
// until f returns. An error of f ends it and is returned as it is. There must be no appends from now on; reads may go
// on.
func (h *Head) Drain(order []point.DenseID, f func(id point.DenseID, r *rows.Run) error) error {
	var run rows.Run
	ranks := chainRanks{groups: map[*group][]point.Stamp{}}
	for _, id := range order {
		if !h.readWhole(id, &ranks, &run) {
			continue
		}
		if err := f(id, &run); err != nil {
			return err
		}
	}
	return nil
}

// Free releases the memory. A freed head is empty and accepts no more appends; histograms that reads returned stay valid.
func (h *Head) Free() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arena.free()
	h.pages, h.few, h.thins, h.madePages = nil, few{}, nil, 0
	h.stamps, h.ids = nil, nil
	h.aside, h.hists, h.exemplars, h.exemplarRing = nil, nil, nil, nil
	h.exemplarNext, h.heapBytes, h.series, h.rows = 0, 0, 0, 0
}
