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
	chunks []plainChunk
	values []float64
}

// plainChunk is what a read needs of a chunk but its values.
type plainChunk struct {
	times  columnRef
	lo, hi point.Stamp
	rows   uint16
	slot   uint8
	at     uint32 // of its values
}

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

// plainBytes is the size in memory of the block that was just opened, once it is plain.
func (r *blockReader) plainBytes() int64 {
	return int64(unsafe.Sizeof(plainBlock{})) + int64(len(r.chunks))*int64(unsafe.Sizeof(plainChunk{})) + 8*int64(r.rows)
}

// plain decodes the block that was just opened to its end.
func (r *blockReader) plain() *plainBlock {
	p := &plainBlock{chunks: make([]plainChunk, len(r.chunks)), values: make([]float64, r.rows)}
	at := 0
	for i := range r.chunks {
		ch := &r.chunks[i]
		p.chunks[i] = plainChunk{times: ch.times, lo: ch.lo, hi: ch.hi, rows: uint16(ch.rows), slot: ch.slot, at: uint32(at)}
		r.values(i, p.values[at:at+ch.rows])
		at += ch.rows
	}
	return p
}

// takePlain is takeBlock of a plain block.
func (r *Reader) takePlain(s *readState, b *plainBlock, left int) error {
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
		ts, err := r.column(s, ch.times)
		values := b.values[ch.at:][:ch.rows]
		switch {
		case err != nil:
		case len(ts) != len(values):
			err = errForm("block: a chunk and its times differ in length")
		case s.into != nil:
			s.addPlain(ch, ts, values, w, left)
		default:
			run := &s.runs[w]
			run.Cover(ch.lo, ch.hi)
			var place []float64
			if place, err = s.place(ts, run, left); err == nil {
				copy(place, values)
			}
		}
		if err != nil {
			return r.corrupt(s.key, err)
		}
	}
	return nil
}
