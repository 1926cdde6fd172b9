package segment

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// columnRef is where a column of times lies: the group that used it first, the page (the number of the block in that
// group), and the place in the page.
// References are written as distances, and most are (this group, this block, 0).
type columnRef struct {
	group uint32
	page  uint32
	index uint8
}

// columnsKept bounds the columns a writer recognises again, 40 bytes each. Beyond it a column may be stored twice.
const columnsKept = 1 << 20

// columnIndex recognises columns that were stored before, by two seeded 64-bit sums. The seeds are random, yet whether two columns are
// equal does not depend on them: the file's bytes are the same for every seed (but for a chance of 2^-128 a pair, which an attacker cannot
// raise).
type columnIndex struct {
	seeds [2]maphash.Seed
	seen  map[[2]uint64]columnRef
	alone map[uint64]columnRef // columns of one number, by that: in narrow partitions nearly all are, and two sums cost three times as much
}

func newColumnIndex() *columnIndex {
	return &columnIndex{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, seen: map[[2]uint64]columnRef{}, alone: map[uint64]columnRef{}}
}

// find returns the place of a column equal to the one with these bytes, or records that it will be at the place offered.
func (x *columnIndex) find(b []byte, offer columnRef) (at columnRef, found bool) {
	room := len(x.seen)+len(x.alone) < columnsKept
	if len(b) == 8 {
		key := binary.LittleEndian.Uint64(b)
		if at, found = x.alone[key]; found {
			return at, true
		}
		if room {
			x.alone[key] = offer
		}
		return offer, false
	}
	key := [2]uint64{maphash.Bytes(x.seeds[0], b), maphash.Bytes(x.seeds[1], b)}
	if at, found = x.seen[key]; found {
		return at, true
	}
	// A full index learns no more. It forgets nothing, as the common columns come first and go on.
	if room {
		x.seen[key] = offer
	}
	return offer, false
}

// A page holds the columns of times that block j of a group used first. Column: times are base + unit × (grid position
// × step + residual). Scrapes lie on a grid, so the positions rise by one and residuals are 0; with jitter the residual
// is the jitter itself, not the difference of two, which would cost one bit more.
//
//	time:   10.003  20.000  30.011  50.002    base 9.999…, step 10 s, unit 1 ms
//	skips:          0       0       1         (grid positions left out)
//	resid:  3       0       11      2
//
// step 0: residuals are the distances from base as they are.
type timesPage struct {
	head  []byte
	count int
	last  point.Nanos // base of the column before
	skips planes
	resid planes

	dist, skip, res []uint64 // scratch
}

func (p *timesPage) reset() {
	p.head, p.count, p.last = p.head[:0], 0, 0
	p.skips.reset()
	p.resid.reset()
}

// units of a column, in nanoseconds, by their number in the head.
var units = [...]uint64{1, 1e3, 1e6, 1e9}

// add appends a column of 1 to chunkRowsMax strictly rising times.
func (p *timesPage) add(ts []point.Nanos) {
	// 1. Distances from the first time, in the largest unit: 10 s in nanoseconds are 34 bits, in seconds 4.
	// 2. The step of the grid, and positions and residuals for it.
	// 3. Residuals from 0 upwards: the lowest is moved into base, which spares the sign's bit.
	p.distances(ts)
	unit := p.divideUnit()
	step := p.bestStep()
	p.fit(step)
	base := ts[0]
	if step > 0 { // residuals lie around 0 here, in two's complement: shift them and the base so that the lowest is 0
		low := int64(0)
		for _, r := range p.res {
			low = min(low, int64(r))
		}
		for i := range p.res {
			p.res[i] -= uint64(low)
		}
		base += low * int64(units[unit])
	}
	skipWidth, resWidth := widthOf(orAll(p.skip)), widthOf(orAll(p.res))
	p.head = binary.AppendUvarint(p.head, uint64(len(ts)))
	p.head = append(p.head, byte(unit), byte(skipWidth<<4|resWidth))
	p.head = binary.AppendUvarint(p.head, step)
	p.head = binary.AppendUvarint(p.head, zigzag(base-p.last))
	p.skips.append(p.skip, skipWidth)
	p.resid.append(p.res, resWidth)
	p.last = base
	p.count++
}

// orAll has the highest bit that any of vs has: enough for their width.
func orAll(vs []uint64) (or uint64) {
	for _, v := range vs {
		or |= v
	}
	return or
}

// distances fills dist. Times rise, so differences are right as unsigned numbers even where the span exceeds 2^63.
func (p *timesPage) distances(ts []point.Nanos) {
	p.dist = p.dist[:0]
	for _, t := range ts {
		p.dist = append(p.dist, uint64(t)-uint64(ts[0]))
	}
}

// divideUnit divides the distances by the largest unit that divides them all.
func (p *timesPage) divideUnit() int {
	for u := len(units) - 1; u > 0; u-- {
		if !slices.ContainsFunc(p.dist, func(d uint64) bool { return d%units[u] != 0 }) {
			for i := range p.dist {
				p.dist[i] /= units[u]
			}
			return u
		}
	}
	return 0
}

// bestStep tries the commonest distance and rounder and rounder forms of the mean, and chooses the grid that needs the
// fewest bits for skips and residuals; 0 when there is no grid.
func (p *timesPage) bestStep() uint64 {
	n := len(p.dist)
	last := p.dist[n-1]
	// Beyond it residuals, which are signed, might not fit: such a column spans 73 years in nanoseconds.
	if n < 3 || last > math.MaxInt64/4 {
		return 0
	}
	mean := (last + uint64(n-1)/2) / uint64(n-1)
	mid := p.dist[n/2] - p.dist[n/2-1]
	best, bestCost := uint64(0), math.MaxInt
	try := func(step uint64) {
		if step > 0 && step != best {
			if c := p.cost(step); c < bestCost {
				best, bestCost = step, c
			}
		}
	}
	try(mid)
	if bestCost == 0 {
		return best // aligned, nothing missing
	}
	for _, s := range []uint64{mean, mid} {
		// A mean of 9,998 ms is tried as 9,998, 10,000, 10,000 and 10,000 (rounded to 1, 10, 100, 1,000).
		for round := uint64(1); round <= s; round *= 10 {
			try((s + round/2) / round * round)
		}
	}
	return best
}

// cost estimates the bits of a grid. Those of a skip count twice: a plane of zeros is a fill of 3 bytes, and one skip ends that.
func (p *timesPage) cost(step uint64) int {
	p.fit(step)
	low, high := int64(0), int64(0)
	sum := 0
	for _, r := range p.res {
		low, high = min(low, int64(r)), max(high, int64(r))
	}
	sum += len(p.res) * bits.Len64(uint64(high-low))
	for _, s := range p.skip {
		sum += 2 * bits.Len64(s)
	}
	return sum
}

// fit fills skip and res for a step. res may hold negative numbers in two's complement.
func (p *timesPage) fit(step uint64) {
	p.skip, p.res = p.skip[:0], p.res[:0]
	if step == 0 {
		p.res = append(p.res, p.dist...)
		return
	}
	pos := uint64(0)
	p.res = append(p.res, 0)
	for _, d := range p.dist[1:] {
		// The nearest grid position. Two rows may lie at the same one: their skip is -1, hence the zigzag.
		at := (d + step/2) / step
		p.skip = append(p.skip, zigzag(int64(at-pos-1)))
		p.res = append(p.res, d-at*step)
		pos = at
	}
}

// pack writes the page: count, length of the heads, heads as a frame, planes of skips, planes of residuals.
func (p *timesPage) pack(dst []byte, pk *packer) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.count))
	dst = binary.AppendUvarint(dst, uint64(len(p.head)))
	dst = pk.append(dst, p.head)
	dst = p.skips.pack(dst, pk)
	return p.resid.pack(dst, pk)
}

// timesHead is one column's head as read.
type timesHead struct {
	rows, skipWidth, resWidth int
	unit, step                uint64
	base                      point.Nanos
}

// timesHeadMax bounds the bytes of a page's heads: 25 a column.
// Rows 2, unit and widths 2, step and base 10 each, and 1 to spare.
const timesHeadMax = 25 * columnsPerPageMax

// columnsPerPageMax: a slot has at most a float and a histogram chunk in a block.
const columnsPerPageMax = 2 * GroupSeriesMax

// timesReader is the memory of opening pages; not for concurrent use.
type timesReader struct {
	head         []byte
	skips, resid planeReader
}

// open opens a page. The columns are new memory, one slab for all.
func (r *timesReader) open(b []byte, d *zstd.Decoder) ([][]point.Nanos, error) {
	c := cursor{b: b}
	count := c.count(columnsPerPageMax)
	var raw []byte
	raw, r.head = c.frame(d, c.count(timesHeadMax), r.head)
	heads, skipLens, resLens := parseTimesHeads(raw, count)
	if c.bad || heads == nil {
		return nil, errForm("page of times")
	}
	r.skips.load(&c, d, &skipLens)
	r.resid.load(&c, d, &resLens)
	if !c.end() {
		return nil, errForm("page of times")
	}
	total := 0
	for i := range heads {
		total += heads[i].rows
	}
	slab := make([]point.Nanos, total)
	cols := make([][]point.Nanos, count)
	for i := range heads {
		h := &heads[i]
		cols[i], slab = slab[:h.rows:h.rows], slab[h.rows:]
		if !h.decode(cols[i], &r.skips, &r.resid) {
			return nil, errForm("column of times")
		}
	}
	return cols, nil
}

// parseTimesHeads gives nil when the heads are malformed, and the lengths of the planes that follow.
func parseTimesHeads(raw []byte, count int) (heads []timesHead, skipLens, resLens [8]int) {
	c := cursor{b: raw}
	heads = make([]timesHead, count)
	var last point.Nanos
	for i := range heads {
		h := &heads[i]
		h.rows = c.count(chunkRowsMax)
		unit, widths := c.byte(), c.byte()
		h.skipWidth, h.resWidth = int(widths>>4), int(widths&15)
		h.step = c.uvarint()
		h.base = last + c.varint()
		last = h.base
		if c.bad || h.rows == 0 || int(unit) >= len(units) || h.skipWidth > 8 || h.resWidth > 8 || h.step == 0 && h.skipWidth > 0 {
			return nil, skipLens, resLens
		}
		h.unit = units[unit]
		addLens(&skipLens, h.rows-1, h.skipWidth)
		addLens(&resLens, h.rows, h.resWidth)
	}
	if !c.end() {
		return nil, skipLens, resLens
	}
	return heads, skipLens, resLens
}

// decode fills dst and reports whether the times rise strictly.
func (h *timesHead) decode(dst []point.Nanos, skips, resid *planeReader) bool {
	sc, rc := skips.column(h.rows-1, h.skipWidth), resid.column(h.rows, h.resWidth)
	pos := uint64(0)
	for i := range dst {
		if i > 0 && h.step > 0 {
			pos += 1 + uint64(unzigzag(gather(&sc, h.skipWidth, i-1)))
		}
		// Wrapping arithmetic mirrors the encoder's; even in a malformed file the times must rise.
		dst[i] = h.base + int64((pos*h.step+gather(&rc, h.resWidth, i))*h.unit)
		if i > 0 && dst[i] <= dst[i-1] {
			return false
		}
	}
	return true
}
