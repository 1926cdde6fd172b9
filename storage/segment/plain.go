package segment

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/point"
)

// plainBlock is a block of short chunks with its values decoded. A block of a narrow partition has few rows of each of its series: two frames and 128 heads are
// opened for ten rows each, a third of the time of a query over 72 partitions. Many may read it, and nothing of it changes.
//
//	chunks   slot 0, 10 rows │ slot 1, 10 rows │ slot 3, 9 rows
//	values   10 doubles      │ 10 doubles      │ 9 doubles
type plainBlock struct {
	chunks  []plainChunk
	values  []float64
	columns [][]point.Nanos // of times, shared with their pages
}

// plainChunk is what a read needs of a chunk but its values and times. It has no pointers: the collector passes over chunks.
type plainChunk struct {
	lo, hi point.Stamp
	at     uint32 // of its values
	rows   uint16
	column uint8 // of its times
	slot   uint8
}

// valuesOf are the values of a chunk, as many as it has times.
func (b *plainBlock) valuesOf(ch *plainChunk) []float64 { return b.values[ch.at:][:ch.rows] }

// find returns the chunk of a slot: the one at that place, if all slots before it have one.
func (b *plainBlock) find(slot uint8) *plainChunk {
	if i := int(slot); i < len(b.chunks) && b.chunks[i].slot == slot {
		return &b.chunks[i]
	}
	i, ok := slices.BinarySearchFunc(b.chunks, slot, func(c plainChunk, slot uint8) int { return cmp.Compare(c.slot, slot) })
	if !ok {
		return nil
	}
	return &b.chunks[i]
}

// short reports whether the chunks of the block that was just opened are so short that their values are kept, and not their encoded form; false if it
// holds histograms.
func (r *blockReader) short() bool {
	if r.rows >= chunkRowsKept*len(r.chunks) {
		return false
	}
	for i := range r.chunks {
		if r.chunks[i].form == formHist {
			return false
		}
	}
	return true
}

// plainBytes is the size in memory of the block that was just opened, once it is plain, with its times: it may hold them longer than the page of times does.
func (r *blockReader) plainBytes() int64 {
	return int64(unsafe.Sizeof(plainBlock{})) + int64(len(r.chunks))*int64(unsafe.Sizeof(plainChunk{})+24) + 16*int64(r.rows)
}

// plain decodes the block that was just opened to its end; nil, and nothing is decoded, if a column of times cannot be had: a read of that chunk reports it.
func (r *Reader) plain(s *readState) *plainBlock {
	b := &s.block
	p := &plainBlock{chunks: make([]plainChunk, len(b.chunks)), values: make([]float64, b.rows)}
	at, columns := 0, make([][]point.Nanos, 0, len(b.chunks))
	for i := range b.chunks {
		ch := &b.chunks[i]
		ts, err := r.column(s, ch.times)
		if err != nil || len(ts) != ch.rows {
			return nil
		}
		if n := len(columns); n == 0 || !sameColumn(columns[n-1], ts) { // that of the series before, mostly
			columns = append(columns, ts)
		}
		p.chunks[i] = plainChunk{lo: ch.lo, hi: ch.hi, at: uint32(at), rows: uint16(ch.rows), column: uint8(len(columns) - 1), slot: ch.slot}
		at += ch.rows
	}
	p.columns = slices.Clone(columns)
	for i := range p.chunks {
		b.values(i, p.valuesOf(&p.chunks[i]))
	}
	return p
}

// takePlain is takeBlock of a plain block.
func (r *Reader) takePlain(s *readState, b *plainBlock, left int) error {
	if s.into != nil {
		s.gatherPlain(b, left)
		return nil
	}
	if s.keep && s.level == 0 {
		n := 0
		for _, p := range s.group {
			if ch := b.find(uint8(p.at.slot())); ch != nil {
				n += int(ch.rows)*left + s.spare
			}
		}
		s.values.fresh(n)
	}
	for w, p := range s.group {
		ch := b.find(uint8(p.at.slot()))
		if ch == nil {
			continue
		}
		run := &s.runs[w]
		run.Cover(ch.lo, ch.hi)
		place, err := s.place(b.columns[ch.column], run, left)
		if err != nil {
			return r.corrupt(s.key, err)
		}
		copy(place, b.valuesOf(ch))
	}
	return nil
}
