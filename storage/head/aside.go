package head

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// asideRow came with a stamp below one its series already held.
type asideRow struct {
	time  point.Nanos
	stamp point.Stamp
	value float64
}

type histRow struct {
	time  point.Nanos
	stamp point.Stamp
	hist  []byte
}

// Cost of a row outside the arena, with its share of the slice and the map around it.
const (
	asideBytes = 32
	histBytes  = 64
)

func (h *Head) putAsideLocked(id point.DenseID, s *series, r asideRow) {
	if h.aside == nil {
		h.aside = make(map[point.DenseID][]asideRow)
	}
	h.aside[id] = append(h.aside[id], r)
	s.flags |= hasAside
	if r.time > s.lastTime {
		h.passLocked(s, r.time)
	}
	h.heapBytes += asideBytes
}

// AppendHist adds a native histogram row. H is in the encoding of point.AppendHistogram; it is kept and must never
// change. Like Append it is for one caller at a time.
func (h *Head) AppendHist(stamp point.Stamp, id point.DenseID, t point.Nanos, hist []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frameLocked(stamp)
	if !h.few.over {
		h.fitLocked([]point.DenseID{id})
	}
	s := h.targetLocked(id).s
	if h.hists == nil {
		h.hists = make(map[point.DenseID][]histRow)
	}
	h.hists[id] = append(h.hists[id], histRow{t, stamp, hist})
	s.flags |= hasHists
	h.noteLocked(id)
	h.timeLo, h.timeHi = min(h.timeLo, t), max(h.timeHi, t)
	h.rows++
	h.heapBytes += histBytes + len(hist)
}

// stampsLocked gives the range of a series' stamps.
func (h *Head) stampsLocked(id point.DenseID, s *series) (lo, hi point.Stamp) {
	lo, hi = point.Stamp(s.firstStamp), point.Stamp(s.lastStamp)
	if s.rows == 0 {
		lo, hi = math.MaxUint64, 0
	}
	if s.flags&hasAside != 0 {
		for _, r := range h.aside[id] {
			lo, hi = min(lo, r.stamp), max(hi, r.stamp)
		}
	}
	if s.flags&hasHists != 0 {
		for _, r := range h.hists[id] {
			lo, hi = min(lo, r.stamp), max(hi, r.stamp)
		}
	}
	return lo, hi
}

// row is a row with all fields that decide between it and another at its time.
type row struct {
	time  point.Nanos
	stamp point.Stamp
	value float64
	hist  []byte // nil: a float
}

func (r *row) isStale() bool {
	if r.hist != nil {
		return point.IsStaleHistogram(r.hist)
	}
	return point.IsStale(r.value)
}

// beats reports whether a wins over b, which has the same time and was in another place: see Head.Read.
func (r *row) beats(o *row) bool {
	if r.isStale() != o.isStale() {
		return o.isStale()
	}
	if r.stamp != o.stamp {
		return r.stamp > o.stamp
	}
	if r.hist != nil || o.hist != nil {
		return bytes.Compare(r.hist, o.hist) > 0 // a float's nil is below every histogram
	}
	return math.Float64bits(r.value) > math.Float64bits(o.value)
}

// scratch is the memory of one settling, pooled: most series never need any.
type scratch struct {
	cols   columns
	frames []uint32
	rows   []row
	chain  runSorter
}

// scratchRowsKept bounds the memory that a pooled scratch keeps: 120 bytes a row.
const scratchRowsKept = 1 << 14

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (w *scratch) put() {
	if max(cap(w.rows), cap(w.cols.times)) <= scratchRowsKept {
		scratches.Put(w)
	}
}

// settleLocked reads a series that needs more than a walk: out of order, with doubles, with rows aside or histograms.
// If ranked, dst also gets the rows' stamps. Rows with a stamp above most are left out.
func (h *Head) settleLocked(id point.DenseID, s *series, g *group, lo, hi point.Nanos, most point.Stamp, ranked bool, dst *rows.Run) {
	w := scratches.Get().(*scratch)
	defer w.put()
	if s.flags&(hasAside|hasHists) == 0 && !ranked && most == anyStamp {
		h.settleChainLocked(s, lo, hi, w, false, dst)
		return
	}
	if s.flags&hasHists == 0 && !ranked && most == anyStamp && h.settleApartLocked(id, s, lo, hi, w, dst) {
		return
	}
	w.rows = w.rows[:0]
	h.chainRowsLocked(s, g, lo, hi, most, ranked, w)
	if s.flags&hasAside != 0 {
		h.asideRowsLocked(id, lo, hi, most, w)
	}
	if s.flags&hasHists != 0 {
		from := len(w.rows)
		for _, r := range h.hists[id] {
			if r.time >= lo && r.time <= hi && r.stamp <= most {
				w.rows = append(w.rows, row{time: r.time, stamp: r.stamp, hist: r.hist})
			}
		}
		w.rows = w.rows[:from+dedup(w.rows[from:])]
	}
	if s.flags&(hasAside|hasHists) != 0 {
		slices.SortFunc(w.rows, func(a, b row) int { return cmp.Compare(a.time, b.time) })
	}
	emit(w.rows, ranked, dst)
	clear(w.rows) // histograms are not kept alive by the pool
}

// settleApartLocked reads a series with rows aside, none of which has the time of one in the chain: then no stamps decide, and none are looked
// up. False, and dst empty: one has.
func (h *Head) settleApartLocked(id point.DenseID, s *series, lo, hi point.Nanos, w *scratch, dst *rows.Run) bool {
	h.settleChainLocked(s, lo, hi, w, false, dst)
	w.rows = w.rows[:0]
	h.asideRowsLocked(id, lo, hi, anyStamp, w)
	for i := range w.rows {
		if _, equal := slices.BinarySearch(dst.Times, w.rows[i].time); equal {
			dst.Reset()
			return false
		}
	}
	a, b := len(dst.Times), len(w.rows)
	dst.Times, dst.Values = slices.Grow(dst.Times, b)[:a+b], slices.Grow(dst.Values, b)[:a+b]
	for b > 0 { // from the end, in place
		if r := &w.rows[b-1]; a == 0 || dst.Times[a-1] < r.time {
			dst.Times[a+b-1], dst.Values[a+b-1] = r.time, r.value
			b--
		} else {
			dst.Times[a+b-1], dst.Values[a+b-1] = dst.Times[a-1], dst.Values[a-1]
			a--
		}
	}
	return true
}

// asideRowsLocked appends a series' rows aside to w.rows, sorted, no time twice.
func (h *Head) asideRowsLocked(id point.DenseID, lo, hi point.Nanos, most point.Stamp, w *scratch) {
	from := len(w.rows)
	for _, r := range h.aside[id] {
		if r.time >= lo && r.time <= hi && r.stamp <= most {
			w.rows = append(w.rows, row{time: r.time, stamp: r.stamp, value: r.value})
		}
	}
	w.rows = w.rows[:from+dedup(w.rows[from:])]
}

// settleChainLocked reads a series that has all its rows in its chain. There rank order is the order of rows, so no stamps are needed. With seen, the frames of the
// rows in dst are left in w.cols.seen.
func (h *Head) settleChainLocked(s *series, lo, hi point.Nanos, w *scratch, seen bool, dst *rows.Run) {
	c := &w.cols
	*c = columns{times: c.times[:0], values: c.values[:0], seen: c.seen[:0], withSeen: seen}
	s.walk(&h.arena, lo, hi, c)
	if s.flags&isUnsorted != 0 {
		w.chain.sort(c.times, c.values, c.seen)
	}
	for i, t := range c.times {
		v := c.values[i]
		n := len(dst.Times)
		switch {
		case n == 0 || dst.Times[n-1] != t:
			dst.Times, dst.Values = append(dst.Times, t), append(dst.Values, v)
			n++
		case !point.IsStale(v) || point.IsStale(dst.Values[n-1]):
			dst.Values[n-1] = v
		default:
			continue
		}
		if seen {
			c.seen[n-1] = c.seen[i]
		}
	}
}

// chainRowsLocked puts the chain's rows into w.rows, sorted, no time twice; stamped if something else may beat them. Rows with a stamp above most are left out.
func (h *Head) chainRowsLocked(s *series, g *group, lo, hi point.Nanos, most point.Stamp, ranked bool, w *scratch) {
	c := &w.cols
	*c = columns{times: c.times[:0], values: c.values[:0], seen: c.seen[:0], withSeen: ranked || most < anyStamp || s.flags&(hasAside|hasHists) != 0}
	s.walk(&h.arena, lo, hi, c)
	for i, t := range c.times {
		w.rows = append(w.rows, row{time: t, value: c.values[i]})
	}
	if c.withSeen && len(c.times) > 0 {
		w.frames = g.frames(&h.arena, w.frames[:0])
		for i, seen := range c.seen {
			w.rows[i].stamp = h.stamps[w.frames[seen-1]-1]
		}
	}
	if most < anyStamp {
		w.rows = slices.DeleteFunc(w.rows, func(r row) bool { return r.stamp > most })
	}
	w.rows = w.rows[:dedup(w.rows)]
}

// dedup sorts rows of one source, in the order of their appends, and keeps one a time: the last value of the highest
// stamp, or a stale marker if there are only such. It gives the number kept.
func dedup(rs []row) int {
	byRank := func(a, b row) int {
		if c := cmp.Compare(a.time, b.time); c != 0 {
			return c
		}
		return cmp.Compare(a.stamp, b.stamp)
	}
	if !slices.IsSortedFunc(rs, byRank) {
		slices.SortStableFunc(rs, byRank)
	}
	n := 0
	for i := range rs {
		if n == 0 || rs[n-1].time != rs[i].time {
			rs[n] = rs[i]
			n++
		} else if !rs[i].isStale() || rs[n-1].isStale() {
			rs[n-1] = rs[i]
		}
	}
	return n
}

// emit puts the winner at each time into dst, with its stamp if ranked. Rows of one time lie together.
func emit(rs []row, ranked bool, dst *rows.Run) {
	for i := 0; i < len(rs); {
		best := &rs[i]
		for i++; i < len(rs) && rs[i].time == best.time; i++ {
			if rs[i].beats(best) {
				best = &rs[i]
			}
		}
		if best.hist != nil {
			dst.Hists = append(dst.Hists, peer.Hist{Time: best.time, H: best.hist})
		} else {
			dst.Times, dst.Values = append(dst.Times, best.time), append(dst.Values, best.value)
		}
		switch {
		case ranked && best.hist != nil:
			dst.HistRanks = append(dst.HistRanks, best.stamp)
		case ranked:
			dst.Ranks = append(dst.Ranks, best.stamp)
		}
	}
}
