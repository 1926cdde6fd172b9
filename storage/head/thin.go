package head

import (
	"math"
	"slices"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// A thin page holds up to four rows of each of 1024 neighbouring series as a log, at 8 bytes a row instead of the 64 of a
// series' state: in a partition that is a few seconds wide a series has a row or two.
//
//	pass 0   values by slot  8 17 3 …         rows that came while ids rose: the first of each series mostly, because a new series
//	         runs            frame 1 10:00:00 ─▶ frame 1 10:00:01 ─▶ frame 2 …     gets the next id
//	pass 1   values by slot  9 18 4 …         from where an id was not above the one before: the second row of each
//
// A run is rows of one frame and time, as those of a host are. Arrival order is pass after pass and slot after slot. So a
// row is found by its slot, nothing is sorted at a flush, and the fifth row of a series makes the page an ordinary one:
// its rows are appended to chains as if they came now.
//
// Invariants:
//   - A page is thin, or ordinary, or not there.
//   - The stamps of a series' rows do not fall from pass to pass, as in a chain.
type thin struct {
	passes []*pass
}

const thinPasses = 4

type pass struct {
	present [pageSeries / 64]uint64
	values  *[pageSeries]uint64 // bits; of the arena
	runs    []thinRun           // by slot
	last    int                 // slot of the newest row
}

type thinRun struct {
	time  point.Nanos
	frame uint32
	slot  uint16 // of the first row
}

const (
	passBytes    = int(unsafe.Sizeof(pass{})) + cellBytes
	thinRunBytes = int(unsafe.Sizeof(thinRun{}))
)

func (p *pass) has(slot int) bool { return p.present[slot/64]>>(slot%64)&1 != 0 }

// run finds the run of a row that is there.
func (p *pass) run(slot int) *thinRun {
	lo, hi := 0, len(p.runs) // the last run that begins at slot or before is in [lo, hi)
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) / 2); int(p.runs[mid].slot) <= slot {
			lo = mid
		} else {
			hi = mid
		}
	}
	return &p.runs[lo]
}

// takeThinLocked appends a row to its page if that is thin or can be; if not, the page is an ordinary one from now on, or
// is to be made. The first page is never thin: few.go.
func (h *Head) takeThinLocked(stamp point.Stamp, frame uint32, id point.DenseID, t point.Nanos, bits uint64) bool {
	n, slot := int(id>>pageShift), int(id&(pageSeries-1))
	if n == 0 || n < len(h.pages) && h.pages[n] != nil {
		return false
	}
	if n >= len(h.thins) {
		before := cap(h.thins)
		h.thins = slices.Grow(h.thins, n+1-len(h.thins))[:n+1]
		h.heapBytes += 8 * (cap(h.thins) - before)
	}
	if h.thins[n] == nil {
		h.thins[n] = &thin{}
		h.growIDsLocked((n + 1) * pageSeries)
	}
	th := h.thins[n]
	p := th.lastPass()
	if p == nil || slot <= p.last {
		if len(th.passes) == thinPasses {
			h.widenLocked(n)
			return false
		}
		p = &pass{values: h.arena.cell(), last: -1}
		th.passes = append(th.passes, p)
		h.heapBytes += passBytes - cellBytes
	}
	if !h.inOrderLocked(th, slot, stamp) {
		h.widenLocked(n)
		return false
	}
	if k := len(p.runs); k == 0 || p.runs[k-1].time != t || p.runs[k-1].frame != frame {
		before := cap(p.runs)
		p.runs = append(p.runs, thinRun{time: t, frame: frame, slot: uint16(slot)})
		h.heapBytes += thinRunBytes * (cap(p.runs) - before)
	}
	p.present[slot/64] |= 1 << (slot % 64)
	p.values[slot], p.last = bits, slot
	h.timeLo, h.timeHi = min(h.timeLo, t), max(h.timeHi, t)
	h.noteLocked(id)
	return true
}

func (th *thin) lastPass() *pass {
	if n := len(th.passes); n > 0 {
		return th.passes[n-1]
	}
	return nil
}

// inOrderLocked reports whether a row of the stamp may follow those of its series.
func (h *Head) inOrderLocked(th *thin, slot int, stamp point.Stamp) bool {
	for _, p := range th.passes {
		if p.has(slot) && h.stamps[p.run(slot).frame-1] > stamp {
			return false
		}
	}
	return true
}

// widenLocked makes a thin page an ordinary one.
func (h *Head) widenLocked(n int) {
	th := h.thins[n]
	h.thins[n] = nil
	h.newPageLocked(n)
	page := h.pages[n]
	for _, p := range th.passes {
		run := 0
		for slot := range pageSeries {
			if !p.has(slot) {
				continue
			}
			for run+1 < len(p.runs) && int(p.runs[run+1].slot) <= slot {
				run++
			}
			r := &p.runs[run]
			id := point.DenseID(n<<pageShift + slot)
			h.chainLocked(id, target{&page.series[slot], &page.groups[slot>>groupShift]}, h.stamps[r.frame-1], r.frame, r.time, p.values[slot])
		}
		h.arena.giveCell(p.values)
		h.heapBytes -= passBytes - cellBytes + thinRunBytes*cap(p.runs)
	}
}

// thinLocked returns the thin page of a series; nil: there is none.
func (h *Head) thinLocked(id point.DenseID) *thin {
	if n := int(id >> pageShift); n < len(h.thins) {
		return h.thins[n]
	}
	return nil
}

// readThinLocked is Read, ReadRanked and ReadUpTo for a series of a thin page.
func (h *Head) readThinLocked(th *thin, id point.DenseID, lo, hi point.Nanos, most point.Stamp, ranked bool, dst *rows.Run) bool {
	slot := int(id & (pageSeries - 1))
	stampLo, stampHi := point.Stamp(math.MaxUint64), point.Stamp(0)
	var w *scratch // only from the second row on
	var only row
	n := 0
	for _, p := range th.passes {
		if !p.has(slot) {
			continue
		}
		r := p.run(slot)
		stamp := h.stamps[r.frame-1]
		if stamp > most {
			continue
		}
		stampLo, stampHi = min(stampLo, stamp), max(stampHi, stamp)
		if r.time < lo || r.time > hi {
			continue
		}
		next := row{time: r.time, stamp: stamp, value: math.Float64frombits(p.values[slot])}
		switch n++; n {
		case 1:
			only = next
		case 2:
			w = scratches.Get().(*scratch)
			w.rows = append(w.rows[:0], only, next)
		default:
			w.rows = append(w.rows, next)
		}
	}
	switch {
	case n == 0:
		return false
	case w == nil:
		dst.Times, dst.Values = append(dst.Times, only.time), append(dst.Values, only.value)
		if ranked {
			dst.Ranks = append(dst.Ranks, only.stamp)
		}
	default:
		emit(w.rows[:dedup(w.rows)], ranked, dst)
		w.put()
	}
	dst.StampLo, dst.StampHi = stampLo, stampHi
	return true
}

// A cell is the values of a pass. They are read only where they were written.
const cellBytes = 8 * pageSeries

// cell hands out a cell, a released one if there is any.
func (a *arena) cell() *[pageSeries]uint64 {
	if n := len(a.cells); n > 0 {
		c := a.cells[n-1]
		a.cells = a.cells[:n-1]
		return c
	}
	if a.used >= slabsFrom && !a.onHeap {
		if m := a.cut(&a.ofPages, cellBytes); m != nil {
			return (*[pageSeries]uint64)(m)
		}
	}
	a.used += cellBytes
	return new([pageSeries]uint64) // on the collector's heap, which does not look into it
}

func (a *arena) giveCell(c *[pageSeries]uint64) { a.cells = append(a.cells, c) }
