package segment

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// When a group is full: 32 series, or up to 128 while they are short, since a block of few rows compresses badly; and
// long before its blocks use much memory.
const (
	// 32 series of 512 rows are 16,384 rows, at some half a byte each 8 KiB: a block of pebble's, which is what one read of the disk brings.
	// groupRowsMax bounds what a writer holds: 16 MiB of times and values.
	groupSeries   = 32
	groupRowsFew  = 100 * groupSeries
	groupRowsMax  = 1 << 20
	groupHistsMax = 4 << 20 // bytes
)

// group is the group under construction: block j holds the j-th chunk of every series. Each series is cut by itself, into
// chunks of equal length, so that series with equal times share their columns wherever they lie.
//
//	series 0: 1000 rows ─▶ 500 │ 500
//	series 1: 1000 rows ─▶ 500 │ 500
//	series 2:  300 rows ─▶ 300 │
//	                      block 0 block 1
//
// A group is complete when all rows of its series were added; only then are its blocks written, in order. So a writer holds one group.
type group struct {
	number uint32
	ids    []point.DenseID
	blocks []*block // the first used are in use, the others are kept for their memory
	used   int

	rows, histBytes int
	rankedRows      int  // with their own ranks
	stray           bool // a rank outside of its run's stamps was added
}

// next begins the next group in the memory of this one.
func (g *group) next() {
	g.number++
	g.ids, g.used, g.rows, g.histBytes = g.ids[:0], 0, 0, 0
	g.rankedRows = 0
}

// full is asked after each series: a series is never divided between groups, and a long one makes a group of many blocks.
func (g *group) full() bool {
	return len(g.ids) == GroupSeriesMax || g.rows >= groupRowsMax || g.histBytes >= groupHistsMax ||
		len(g.ids) >= groupSeries && g.rows >= groupRowsFew
}

// block returns block j, which is new if all before it are in use. A series may not skip one.
func (g *group) block(j int) *block {
	if j == g.used {
		if j == len(g.blocks) {
			g.blocks = append(g.blocks, new(block))
		}
		g.blocks[j].reset()
		g.used++
	}
	return g.blocks[j]
}

// chunkLen is the length into which n rows are cut: as few chunks as can be, all but the last equally long.
func chunkLen(n int) int {
	// 513 rows become 257 and 256, not 512 and 1: a chunk of one row costs a head.
	chunks := (n + chunkRowsMax - 1) / chunkRowsMax
	return (n + chunks - 1) / chunks
}

// columnIndexes recognise columns of a file, and say which ranks it keeps.
type columnIndexes struct {
	times, ranks *columnIndex
	ranksFrom    point.Stamp
}

// add cuts a series' rows into the group's blocks.
func (g *group) add(id point.DenseID, r *rows.Run, cols columnIndexes, e *valueEncoder) {
	c := chunk{slot: uint8(len(g.ids)), lo: r.StampLo, hi: r.StampHi}
	g.ids = append(g.ids, id)
	g.rows += r.Len()
	if n := len(r.Times); n > 0 {
		size := chunkLen(n)
		for j, at := 0, 0; at < n; j, at = j+1, at+size {
			end := min(at+size, n)
			b := g.block(j)
			c.rows, c.times = end-at, g.column(b, j, r.Times[at:end], cols.times)
			if len(r.Ranks) > 0 {
				g.rank(&c, b, j, r.Ranks[at:end], r, &cols)
			}
			b.addFloats(c, r.Values[at:end], e)
		}
	}
	if len(r.Hists) > 0 {
		c.lo, c.hi, c.ranked = r.StampLo, r.StampHi, false
		g.addHists(c, r, cols)
	}
}

// addHists cuts at 512 rows or 16 KiB of histograms; a longer one is a chunk by itself. ts is reused: column makes copies.
func (g *group) addHists(c chunk, r *rows.Run, cols columnIndexes) {
	hs, ranks := r.Hists, r.HistRanks
	var ts []point.Nanos
	for j := 0; len(hs) > 0; j++ {
		n, size := 0, 0
		ts = ts[:0]
		for n < len(hs) && n < chunkRowsMax && (n == 0 || size+len(hs[n].H) <= histChunkBytes) {
			size += len(hs[n].H)
			ts = append(ts, hs[n].Time)
			n++
		}
		b := g.block(j)
		c.rows, c.times = n, g.column(b, j, ts, cols.times)
		if len(ranks) > 0 {
			g.rank(&c, b, j, ranks[:n], r, &cols)
			ranks = ranks[n:]
		}
		b.addHists(c, hs[:n])
		g.histBytes += size
		hs = hs[n:]
	}
}

// column finds the column in the file or adds it to the block's page of times.
// The index offers the place that the column gets if it is new, so it must be added to the page at once.
func (g *group) column(b *block, j int, ts []point.Nanos, cols *columnIndex) columnRef {
	b.cover(ts)
	at, found := cols.find(bytesOf(ts), columnRef{group: g.number, page: uint32(j), index: uint8(b.page.count)})
	if !found {
		b.page.add(ts)
	}
	return at
}

// record describes the group: the ids in slot order, then each block's lowest time, span and rows.
func (g *group) record(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(g.ids)))
	prev := int64(0)
	for _, id := range g.ids {
		dst = binary.AppendUvarint(dst, zigzag(int64(id)-prev))
		prev = int64(id)
	}
	dst = binary.AppendUvarint(dst, uint64(g.used))
	lo := point.Nanos(0)
	for _, b := range g.blocks[:g.used] {
		dst = binary.AppendUvarint(dst, zigzag(b.lo-lo))
		dst = binary.AppendUvarint(dst, uint64(b.hi)-uint64(b.lo))
		dst = binary.AppendUvarint(dst, uint64(b.rows))
		lo = b.lo
	}
	return dst
}

// groupRecord is a group's record as read. Reused by parse.
type groupRecord struct {
	ids    []point.DenseID
	blocks []blockRange
}

type blockRange struct {
	lo, hi point.Nanos
	rows   int
}

// clone copies a record.
func (g *groupRecord) clone() *groupRecord {
	return &groupRecord{ids: slices.Clone(g.ids), blocks: slices.Clone(g.blocks)}
}

// rows is how many rows the group has.
func (g *groupRecord) rows() (n int) {
	for i := range g.blocks {
		n += g.blocks[i].rows
	}
	return n
}

// bytes is about the record's size in memory.
func (g *groupRecord) bytes() int64 {
	return int64(len(g.ids))*int64(unsafe.Sizeof(g.ids[0])) + int64(len(g.blocks))*int64(unsafe.Sizeof(blockRange{}))
}

// parse reads a record. Block ranges rise in lo, strictly, and not always in hi: a series of one chunk may reach beyond the second chunk of a
// series with more rows an hour.
func (g *groupRecord) parse(b []byte) error {
	c := cursor{b: b}
	g.ids, g.blocks = g.ids[:0], g.blocks[:0]
	prev := int64(0)
	for range c.count(GroupSeriesMax) {
		prev += c.varint()
		if prev < 0 || prev > 1<<32-1 {
			c.fail()
		}
		g.ids = append(g.ids, point.DenseID(prev))
	}
	lo := point.Nanos(0)
	for i := range c.count(len(c.b)) { // a range has three bytes at least
		old := lo
		lo += c.varint()
		// A sum that wraps is seen as hi < lo.
		r := blockRange{lo: lo, hi: lo + int64(c.uvarint()), rows: c.count(2 * GroupSeriesMax * chunkRowsMax)}
		if c.bad || r.hi < r.lo || i > 0 && lo <= old {
			return errForm("record of a group")
		}
		g.blocks = append(g.blocks, r)
	}
	if !c.end() || len(g.ids) == 0 || len(g.blocks) == 0 {
		return errForm("record of a group")
	}
	return nil
}
