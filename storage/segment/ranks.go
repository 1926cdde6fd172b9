package segment

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// The life of a rank: a gateway gives it, the head keeps it per row, a flush writes it here, and a compaction reads it to decide between
// rows of one time from several segments. Where all rows of a chunk came with one request, one stamp in the block's head says all.

// ranksPage holds the ranks of the rows of one block: the columns of ranks that it used first, and for each of its chunks where its column
// lies. Series of one request have the same ranks, so a column is mostly used by all series of a group, and by other groups.
//
//	rank:   time 54 bits │ gateway 10 bits
//	column: times as distances minus their commonest, gateways xor the first one
//
// It is a record of its own, read only where the rank of each row is needed. The lowest and the highest are in the block, which is enough for all other reads.
type ranksPage struct {
	head  []byte
	count int
	last  uint64 // first time of the column before
	steps planes
	lows  planes

	newest   []point.Stamp // the column found or added last
	newestAt columnRef
	res, low []uint64 // scratch
	refsMem  []byte
}

func (p *ranksPage) reset() {
	p.head, p.count, p.last, p.newest = p.head[:0], 0, 0, p.newest[:0]
	p.steps.reset()
	p.lows.reset()
}

const (
	// A rank is unix nanoseconds with the low 10 bits replaced (point.Stamp): its time counts in 1,024 ns. In the example requests come every
	// 10 s (9,765,625 units) through gateways 7 and 9, the third one 3 ms late:
	//
	//	gateway   7   7         9         7          xor the first: 0, 14, 0
	//	distance      9765625   9768555   9762695    minus the mean, 9765625: 0, 2930, -2930
	gatewayBits = 10
	gatewayMask = 1<<gatewayBits - 1
	rankTimeMax = 1<<(64-gatewayBits) - 1
)

// add appends a column of 2 to chunkRowsMax ranks.
// add cannot meet fewer: rows of one rank need no column (group.rank).
func (p *ranksPage) add(rs []point.Stamp) {
	first := uint64(rs[0]) >> gatewayBits
	step := p.bestStep(rs)
	p.res, p.low = p.res[:0], p.low[:0]
	for i := 1; i < len(rs); i++ {
		p.res = append(p.res, zigzag(distance(rs, i)-step))
		p.low = append(p.low, uint64(rs[i]^rs[0])&gatewayMask)
	}
	width, lowWidth := widthOf(orAll(p.res)), widthOf(orAll(p.low))
	p.head = binary.AppendUvarint(p.head, uint64(len(rs)))
	p.head = binary.AppendUvarint(p.head, zigzag(int64(first-p.last)))
	p.head = binary.AppendUvarint(p.head, zigzag(step))
	p.head = binary.AppendUvarint(p.head, uint64(rs[0])&gatewayMask)
	p.head = append(p.head, byte(lowWidth<<4|width))
	p.steps.append(p.res, width)
	p.lows.append(p.low, lowWidth)
	p.last = first
	p.count++
}

// distance is by how much the time of rank i is above that of the one before.
func distance(rs []point.Stamp, i int) int64 {
	return int64(uint64(rs[i])>>gatewayBits) - int64(uint64(rs[i-1])>>gatewayBits)
}

// bestStep chooses the mean distance or the middle one. The mean is that of scrapes with jitter, the middle one that of scrapes of which some are missing, and of
// requests with many rows of a series.
func (p *ranksPage) bestStep(rs []point.Stamp) int64 {
	n := len(rs)
	mid := distance(rs, (n+1)/2)
	mean := (int64(uint64(rs[n-1])>>gatewayBits) - int64(uint64(rs[0])>>gatewayBits)) / int64(n-1)
	if mean == mid {
		return mid
	}
	atMid, atMean := 0, 0
	for i := 1; i < n; i++ {
		d := distance(rs, i)
		atMid += bits.Len64(zigzag(d - mid))
		atMean += bits.Len64(zigzag(d - mean))
	}
	if atMean < atMid {
		return mean
	}
	return mid
}

// pack writes the record of a block with these chunks. own is the group's number.
// Chunks without ranks have a 0 among the marks, and nothing in the references.
func (p *ranksPage) pack(dst []byte, chunks []chunk, own uint32, pk *packer) []byte {
	dst = binary.AppendUvarint(dst, uint64(p.count))
	dst = binary.AppendUvarint(dst, uint64(len(p.head)))
	dst = pk.append(dst, p.head)
	dst = p.steps.pack(dst, pk)
	dst = p.lows.pack(dst, pk)
	refs := binary.AppendUvarint(p.refsMem[:0], uint64(len(chunks)))
	for i := range chunks {
		refs = append(refs, b2u(chunks[i].ranked))
	}
	for i := range chunks {
		if chunks[i].ranked {
			refs = binary.AppendUvarint(refs, uint64(own-chunks[i].ranks.group))
		}
	}
	var page, index int64
	for i := range chunks {
		if chunks[i].ranked {
			refs = binary.AppendUvarint(refs, zigzag(int64(chunks[i].ranks.page)-page))
			page = int64(chunks[i].ranks.page)
		}
	}
	for i := range chunks {
		if chunks[i].ranked {
			refs = binary.AppendUvarint(refs, zigzag(int64(chunks[i].ranks.index)-index))
			index = int64(chunks[i].ranks.index)
		}
	}
	p.refsMem = refs
	dst = binary.AppendUvarint(dst, uint64(len(refs)))
	return pk.append(dst, refs)
}

// Bounds of a record of ranks, raw: 26 bytes the head of a column, 14 a chunk's reference.
const (
	ranksHeadMax = 32 * columnsPerPageMax
	ranksRefsMax = 16 * columnsPerPageMax
)

// openRanks is a record of ranks as read. Many may read it.
type openRanks struct {
	columns []rankColumn
	refs    []rankRef // by chunk of the block
}

// rankColumn is a column with its bounds, which must be those of each chunk that refers to it.
type rankColumn struct {
	ranks  []point.Stamp // shared and read only; its capacity is its length
	lo, hi point.Stamp
}

type rankRef struct {
	ranked bool // else all rows of the chunk count as its highest
	at     columnRef
}

// bytes is about the record's size in memory.
func (o *openRanks) bytes() int64 {
	n := int64(unsafe.Sizeof(*o)) + int64(len(o.refs))*int64(unsafe.Sizeof(rankRef{}))
	for _, c := range o.columns {
		n += 40 + 8*int64(len(c.ranks))
	}
	return n
}

// parseRanks opens the record of a block of group own.
func parseRanks(b []byte, own uint32, d *zstd.Decoder) (*openRanks, error) {
	c := cursor{b: b}
	var steps, lows planeReader
	count := c.count(columnsPerPageMax)
	raw, _ := c.frame(d, c.count(ranksHeadMax), nil)
	heads, stepLens, lowLens := parseRankHeads(raw, count)
	if c.bad || heads == nil {
		return nil, errForm("record of ranks")
	}
	steps.load(&c, d, &stepLens)
	lows.load(&c, d, &lowLens)
	refs, _ := c.frame(d, c.count(ranksRefsMax), nil)
	o := &openRanks{}
	if !c.end() || !o.parseRefs(refs, own) {
		return nil, errForm("record of ranks")
	}
	total := 0
	for i := range heads {
		total += heads[i].rows
	}
	// At most 256 columns of 512 rows: 1 MiB.
	slab := make([]point.Stamp, total)
	o.columns = make([]rankColumn, count)
	for i := range heads {
		h := &heads[i]
		// The capacity ends with the column: an append to a run's ranks copies, and cannot write into the next column.
		rs := slab[:h.rows:h.rows]
		slab = slab[h.rows:]
		if !h.decode(rs, &steps, &lows) {
			return nil, errForm("column of ranks")
		}
		o.columns[i].ranks = rs
		o.columns[i].lo, o.columns[i].hi = bounds(rs)
	}
	return o, nil
}

// rankHead is one column's head as read.
type rankHead struct {
	rows, width, lowWidth int
	first                 uint64
	step                  int64
	low                   uint64
}

// parseRankHeads gives nil when the heads are malformed, and the lengths of the planes that follow.
func parseRankHeads(raw []byte, count int) (heads []rankHead, stepLens, lowLens [8]int) {
	c := cursor{b: raw}
	heads = make([]rankHead, count)
	last := uint64(0)
	for i := range heads {
		h := &heads[i]
		h.rows = c.count(chunkRowsMax)
		h.first = last + uint64(c.varint())
		last = h.first
		h.step, h.low = c.varint(), uint64(c.count(gatewayMask))
		widths := c.byte()
		h.lowWidth, h.width = int(widths>>4), int(widths&15)
		if c.bad || h.rows < 2 || h.lowWidth > 2 || h.width > 8 {
			return nil, stepLens, lowLens
		}
		addLens(&stepLens, h.rows-1, h.width)
		addLens(&lowLens, h.rows-1, h.lowWidth)
	}
	if !c.end() {
		return nil, stepLens, lowLens
	}
	return heads, stepLens, lowLens
}

// decode fills dst, and reports whether all times fit into a rank.
func (h *rankHead) decode(dst []point.Stamp, steps, lows *planeReader) bool {
	sc, lc := steps.column(h.rows-1, h.width), lows.column(h.rows-1, h.lowWidth)
	t, low := h.first, uint64(0)
	for i := range dst {
		if i > 0 {
			t += uint64(h.step + unzigzag(gather(&sc, h.width, i-1)))
			low = gather(&lc, h.lowWidth, i-1)
		}
		if t > rankTimeMax || low > gatewayMask {
			return false
		}
		dst[i] = point.Stamp(t<<gatewayBits | (low ^ h.low))
	}
	return true
}

// parseRefs reports whether the references are well formed.
func (o *openRanks) parseRefs(raw []byte, own uint32) bool {
	c := cursor{b: raw}
	o.refs = make([]rankRef, c.count(columnsPerPageMax))
	for i := range o.refs {
		n := c.byte()
		if o.refs[i].ranked = n == 1; n > 1 {
			c.fail()
		}
	}
	each := func(f func(at *columnRef)) {
		for i := range o.refs {
			if o.refs[i].ranked {
				f(&o.refs[i].at)
			}
		}
	}
	each(func(at *columnRef) { at.group = own - uint32(c.count(int(own))) })
	var page, index int64
	each(func(at *columnRef) {
		if page += c.varint(); page < 0 || page > 1<<31 {
			c.fail()
		}
		at.page = uint32(page)
	})
	each(func(at *columnRef) {
		if index += c.varint(); index < 0 || index >= columnsPerPageMax {
			c.fail()
		}
		at.index = uint8(index)
	})
	return c.end()
}

// rank gives a chunk the ranks of its rows. Its lowest and highest become exact; those of rows below the bound are not kept.
func (g *group) rank(c *chunk, b *block, j int, rs []point.Stamp, of *rows.Run, cols *columnIndexes) {
	c.lo, c.hi = bounds(rs)
	c.ranked = false
	g.stray = g.stray || c.lo < of.StampLo || c.hi > of.StampHi
	// One stamp says all, or the rows are too old for a late one to meet them (Writer.RanksFrom).
	if c.lo == c.hi || c.hi < cols.ranksFrom {
		return
	}
	c.ranked = true
	g.rankedRows += len(rs)
	b.ranked = true
	p := &b.ranks
	// Neighbours were mostly written by the same requests: a comparison is cheaper than two sums.
	if !slices.Equal(rs, p.newest) {
		at, found := cols.ranks.find(bytesOf(rs), columnRef{group: g.number, page: uint32(j), index: uint8(p.count)})
		if !found {
			p.add(rs)
		}
		p.newest, p.newestAt = append(p.newest[:0], rs...), at
	}
	c.ranks = p.newestAt
}

// bounds returns the lowest and highest rank.
func bounds(rs []point.Stamp) (lo, hi point.Stamp) {
	lo, hi = rs[0], rs[0]
	for _, s := range rs[1:] {
		lo, hi = min(lo, s), max(hi, s)
	}
	return lo, hi
}

// bytesOf is only summed and compared.
func bytesOf[T ~int64 | ~uint64](vs []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(vs))), 8*len(vs))
}

// openRanks finds the ranks of the block that is read.
func (r *Reader) openRanks(s *readState, group uint32) error {
	s.ranks = nil
	if r.info.RankedRows == 0 {
		return nil
	}
	o, err := r.ranksOf(group, s.number)
	if err != nil || o == nil {
		return err
	}
	if len(o.refs) != s.b.all {
		return r.corrupt(keyRanks(nil, group, s.number), errForm("record of ranks: its block has other chunks"))
	}
	s.ranks = o
	return nil
}

// ranksOf gives the record of a block, from the cache or the file; nil: the block has none.
func (r *Reader) ranksOf(group, number uint32) (o *openRanks, err error) {
	k := pageKey{reader: r, group: group, page: number, at: ranksAt}
	if p, ok := r.cache.page(k); ok {
		return p.ranks, nil
	}
	found, err := r.get(keyRanks(nil, group, number), func(v []byte) (err error) {
		o, err = parseRanks(v, group, r.cache.decoder)
		return err
	})
	if err != nil || !found {
		return nil, err
	}
	r.cache.putRanks(k, o)
	return o, nil
}

// rank appends the ranks of chunk i to a run.
func (r *Reader) rank(s *readState, i int, run *rows.Run) error {
	ch := &s.b.chunks[i]
	if s.ranks == nil || !s.ranks.refs[ch.number].ranked {
		run.Rank(ch.form == formHist, ch.rows, ch.hi)
		return nil
	}
	at := s.ranks.refs[ch.number].at
	o, err := r.ranksOf(at.group, at.page)
	if err != nil {
		return err
	}
	if o == nil || int(at.index) >= len(o.columns) {
		return errForm("reference to a column of ranks")
	}
	c := &o.columns[at.index]
	rs := c.ranks
	// A reference to the wrong column would decide wrongly between values without any checksum failing: its bounds must be the chunk's.
	if len(rs) != ch.rows || c.lo != ch.lo || c.hi != ch.hi {
		return errForm("column of ranks: it is not that of its chunk")
	}
	s.rankedRows += uint64(len(rs))
	to := &run.Ranks
	if ch.form == formHist {
		to = &run.HistRanks
	}
	if *to == nil {
		*to = rs // shared, as times are; its capacity is its length
	} else {
		*to = append(*to, rs...)
	}
	return nil
}
