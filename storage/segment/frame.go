package segment

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// A frame is a run of bytes of known raw length in the shortest of a few forms: form byte, stored length as a uvarint, stored bytes. The
// reader has the raw length from the bytes before the frame, so that no length in the frame itself decides about memory.
// Examples of frames, form, stored length, bytes:
//
//	00 03 61 62 63           raw length 3: "abc"
//	01 01 00                 raw length 512, say: 512 zeros
//	02 … / 03 …              what the compressors made, if that is shorter
const (
	frameRaw  = 0 // stored as it is
	frameFill = 1 // one byte, repeated
	frameZstd = 2 // one zstd frame
	frameHuff = 3 // one huff0 4X block, with its table: planes only
)

// packer makes frames. Not for concurrent use.
// One packer serves one Writer at a time, from Create to Finish or Abort.
type packer struct {
	enc  *zstd.Encoder
	huff huff0.Scratch
	buf  []byte

	defHead, defBody []byte // scratch of packDefinitions
}

// packers are kept from one segment to the next: the tables of an encoder are 260 kB, more than all else that a small
// segment accepts.
var packers = sync.Pool{New: func() any { return newPacker() }}

func newPacker() *packer {
	// Everything that could change bytes is pinned: concurrency, checksum (pebble has its own), window.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(256<<10), zstd.WithSingleSegment(true),
		zstd.WithAllLitEntropyCompression(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		fault.Bug("zstd refuses constant options: %v", err)
	}
	return &packer{enc: enc, huff: huff0.Scratch{Reuse: huff0.ReusePolicyNone}}
}

// frameZstdMin is the shortest input worth a zstd frame: its headers alone have 12 bytes.
const frameZstdMin = 24

// append makes a frame of text and heads, in which zstd finds repetitions.
func (p *packer) append(dst, raw []byte) []byte {
	return p.shorter(dst, raw, p.zstd(raw))
}

// plane makes a frame of residuals. Matches in noise cost time and space: Huffman codes alone are smaller (0.48 against
// 0.50 B a sample), twice as fast to make and a third faster to open. Only where they leave less than two bits a byte
// may there be repetitions worth looking for.
func (p *packer) plane(dst, raw []byte) []byte {
	if len(raw) < planeHuffMin || len(raw) > huff0.BlockSizeMax {
		return p.append(dst, raw)
	}
	if isFill(raw) {
		return append(dst, frameFill, 1, raw[0])
	}
	h, _, err := huff0.Compress4X(raw, &p.huff)
	if err != nil { // incompressible, also for zstd, or one symbol
		return p.shorter(dst, raw, nil)
	}
	if len(h) < len(raw)/4 {
		if z := p.zstd(raw); z != nil && len(z) < len(h) {
			return p.shorter(dst, raw, z)
		}
	}
	dst = append(dst, frameHuff)
	dst = binary.AppendUvarint(dst, uint64(len(h)))
	return append(dst, h...)
}

// planeHuffMin: below it the table costs more than it saves.
const planeHuffMin = 256

// zstd returns the compressed form in memory that its next call overwrites; nil if raw is too short to gain.
func (p *packer) zstd(raw []byte) []byte {
	if len(raw) < frameZstdMin {
		return nil
	}
	p.buf = p.enc.EncodeAll(raw, p.buf[:0])
	return p.buf
}

// shorter reads the zstd frame, if there is one, or raw bytes, or one byte.
func (p *packer) shorter(dst, raw, z []byte) []byte {
	switch {
	case len(raw) > 1 && isFill(raw):
		return append(dst, frameFill, 1, raw[0])
	case z != nil && len(z) < len(raw):
		dst = append(dst, frameZstd)
		dst = binary.AppendUvarint(dst, uint64(len(z)))
		return append(dst, z...)
	}
	dst = append(dst, frameRaw)
	dst = binary.AppendUvarint(dst, uint64(len(raw)))
	return append(dst, raw...)
}

// isFill reports whether all bytes are one; b has at least one.
func isFill(b []byte) bool {
	for _, c := range b[1:] {
		if c != b[0] {
			return false
		}
	}
	return true
}

// errForm is the error of every decoder here for bytes that do not follow FORMAT.md; the reader adds file and key.
func errForm(what string) error { return fault.Errorf(fault.Corrupt, "malformed %s", what) }

// cursor walks over bytes that may be malformed. After the first bad read everything it gives is zero and bad is set.
// So decoders read all fields first and look at bad once, before a value is used as a length or an index. Before that they must not
// allocate by a number they read: count bounds those.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) fail() { c.b, c.bad = nil, true }

func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.fail()
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return v
}

func (c *cursor) uvarint() uint64 {
	// Most numbers in heads are below 128.
	if len(c.b) > 0 && c.b[0] < 0x80 {
		v := c.b[0]
		c.b = c.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// count reads a uvarint that must not exceed max.
func (c *cursor) count(max int) int {
	v := c.uvarint()
	if v > uint64(max) {
		c.fail()
		return 0
	}
	return int(v)
}

func (c *cursor) varint() int64 { return unzigzag(c.uvarint()) }

func (c *cursor) uint64() uint64 {
	if b := c.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// bytes cuts n bytes off without copying; nil when there are fewer.
func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.fail()
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

// end reports whether everything was read and well formed.
func (c *cursor) end() bool { return !c.bad && len(c.b) == 0 }

// frame opens a frame of raw length rawLen. The result is buf's memory, grown if need be, or aliases the cursor's
// bytes; buf is returned for reuse. On malformed bytes the cursor is bad.
// buf may be nil, for frames that live on.
func (c *cursor) frame(d *zstd.Decoder, rawLen int, buf []byte) (raw, reuse []byte) {
	return c.open(d, nil, rawLen, buf)
}

// open is frame; with huff, which is reused, it also opens frames of Huffman codes.
func (c *cursor) open(d *zstd.Decoder, huff *huff0.Scratch, rawLen int, buf []byte) (raw, reuse []byte) {
	form := c.byte()
	stored := c.bytes(c.count(len(c.b)))
	switch {
	case c.bad:
	case form == frameRaw && len(stored) == rawLen:
		return stored, buf
	case form == frameFill && len(stored) == 1:
		buf = slices.Grow(buf[:0], rawLen)[:rawLen]
		for i := range buf {
			buf[i] = stored[0]
		}
		return buf, buf
	case form == frameZstd:
		// The decoder's fast path needs room behind the output; DecodeAll is limited to the capacity (newDecoder).
		buf = slices.Grow(buf[:0], rawLen+frameSlack)
		out, err := d.DecodeAll(stored, buf[:0:rawLen+frameSlack])
		if err == nil && len(out) == rawLen {
			return out, buf
		}
	case form == frameHuff && huff != nil && rawLen <= huff0.BlockSizeMax:
		buf = slices.Grow(buf[:0], rawLen)
		// The table is a part of the stored bytes, as each plane has its own distribution.
		s, rest, err := huff0.ReadTable(stored, huff)
		if err != nil {
			break
		}
		out, err := s.Decoder().Decompress4X(buf[:0:rawLen], rest)
		if err == nil && len(out) == rawLen {
			return out, buf
		}
	}
	c.fail()
	return nil, buf
}

// frameSlack is room behind the raw length, in bytes: zstd copies in pieces of 16, if they may end behind the output, and byte by byte if not.
const frameSlack = 64

// newDecoder makes the decoder that all readers of a cache share; it is safe for concurrent use.
func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(1<<30), zstd.WithDecoderLowmem(true))
	if err != nil {
		fault.Bug("zstd refuses constant options: %v", err)
	}
	return d
}

// zigzag makes small numbers of either sign small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3.
func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
