package segment

import (
	"math/bits"
	"slices"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
)

// planes holds unsigned integers byte by byte: plane p has byte p of every integer of every column that is wider than
// p bytes. Bytes of one significance resemble each other, so each plane is a frame of its own.
//
//	column A (width 2): 0x0102 0x0103     plane 0: 02 03 07 09
//	column B (width 1): 0x07 0x09         plane 1: 01 01
//
// Why: of the integers 0x0102, 0x0103, 0x0105 the high bytes 01 01 01 are a fill of 3 bytes, and the low bytes have few values, which
// Huffman codes shorten. Written one integer after the other, each byte would stand between two of another distribution.
type planes [8][]byte

func (p *planes) reset() {
	for i := range p {
		p[i] = p[i][:0]
	}
}

// widthOf is the number of bytes that hold v.
func widthOf(v uint64) int { return (bits.Len64(v) + 7) / 8 }

// append adds a column of integers that fit width bytes.
func (p *planes) append(vs []uint64, width int) {
	for k := range width {
		at := len(p[k])
		p[k] = slices.Grow(p[k], len(vs))[:at+len(vs)]
		out, shift := p[k][at:], uint(8*k)
		for i, v := range vs {
			// The mask spares the compiler's check of the shift.
			out[i] = byte(v >> (shift & 63))
		}
	}
}

// pack writes the planes that are in use: their number as a byte, then a frame each.
// A plane between others is never empty: widths count bytes from the lowest.
func (p *planes) pack(dst []byte, pk *packer) []byte {
	n := 0
	for n < len(p) && len(p[n]) > 0 {
		n++
	}
	dst = append(dst, byte(n))
	for k := range n {
		dst = pk.plane(dst, p[k])
	}
	return dst
}

// planeReader reads columns of opened planes in the order in which they were appended.
// The columns it returns alias its memory: they are good until the next load.
type planeReader struct {
	open [8][]byte // the rest of each plane
	mem  [8][]byte // memory of opened frames, kept between uses
	huff huff0.Scratch
}

// load opens the frames; lens[k] is the raw length of plane k as the columns' widths say.
func (r *planeReader) load(c *cursor, d *zstd.Decoder, lens *[8]int) {
	// Planes and heads must agree: a plane that no column reaches into is as malformed as one that is missing.
	n := int(c.byte())
	for k := range r.open {
		r.open[k] = nil
		switch {
		case k < n && k < 8 && lens[k] > 0:
			r.open[k], r.mem[k] = c.open(d, &r.huff, lens[k], r.mem[k])
		case k < n || lens[k] > 0:
			c.fail()
		}
	}
	if n > len(r.open) {
		c.fail()
	}
}

// column cuts the next n integers of width bytes off: one slice a plane.
func (r *planeReader) column(n, width int) (col [8][]byte) {
	for k := range width {
		col[k], r.open[k] = r.open[k][:n], r.open[k][n:]
	}
	return col
}

// gather puts integer i of a column together.
func gather(col *[8][]byte, width, i int) uint64 {
	var v uint64
	for k := range width {
		v |= uint64(col[k][i]) << uint(8*k)
	}
	return v
}

// addLens adds a column of n integers of width bytes to the planes' lengths.
func addLens(lens *[8]int, n, width int) {
	for k := range width {
		lens[k] += n
	}
}
