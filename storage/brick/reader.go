package brick

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The reader reads the recyclable chunk format that record.LogWriter writes. It is the brick's own because pebble's reader decides
// between end and damage by pebble's rules: an orphaned chunk is skipped, a trailer counts as the end wherever it stands, a bad
// chunk ends the log unless a sync offset contradicts (which counts partial blocks only). Here every oddity is reported with its
// place, and Recover decides by the content of the records.

// ReadBytes is the most that Replay has in memory beside a record: it reads so much at once.
const ReadBytes = windowSize

const (
	blockSize       = 32 << 10
	chunkHeaderSize = 11
	windowSize      = 1 << 20 // bytes read at once

	chunkFull   = 5
	chunkFirst  = 6
	chunkMiddle = 7
	chunkLast   = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkSum is the checksum of a chunk from its type byte on: CRC-32C, rotated and shifted as LevelDB does.
func chunkSum(b []byte) uint32 {
	c := crc32.Update(0, castagnoli, b)
	return (c>>15 | c<<17) + 0xa282ead8
}

var (
	// errTrailer: the file was ended by its writer here.
	errTrailer = errors.New("end of file, as written")
	// errShort: the file ends between two records, without a trailer.
	errShort = errors.New("end of file without a trailer")
)

// A chunk, and a record of 70,000 bytes from offset 0 on:
//
//	0         4       6      7         11
//	┌─────────┬───────┬──────┬─────────┬─────────┐        block 0: first, 32,757 bytes │ block 1: middle, 32,757 │ block 2: last, 4,486
//	│ sum u32 │ n u16 │ type │ tag u32 │ n bytes │        a block has 32,768 bytes, and fewer than 11 at its end are zeros
//	└─────────┴───────┴──────┴─────────┴─────────┘        sum covers type, tag and bytes

// badChunk is bytes that differ from those written, or are incomplete.
type badChunk struct {
	start int64 // of the record the chunk belongs to
	chunk int64
	why   string
}

func (e *badChunk) Error() string {
	return fmt.Sprintf("record at offset %d is unreadable (chunk at %d: %s)", e.start, e.chunk, e.why)
}

// reader walks the records of one log file. It reads in windows and allocates no more than the file holds.
type reader struct {
	f    io.ReaderAt
	tag  uint32 // the log number in every chunk of this file
	size int64

	pos   int64 // of the next chunk
	buf   []byte
	bufAt int64
	rec   []byte // a record of several chunks
}

// newReader starts at offset from, which must be where a record starts. buf is memory to use, or nil.
func newReader(f io.ReaderAt, size int64, tag uint32, from int64, buf []byte) *reader {
	return &reader{f: f, tag: tag, size: size, pos: from, buf: buf[:0]}
}

func fileSize(f vfs.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// window returns n bytes at off, which is within the file. n is at most blockSize, and within one block.
func (r *reader) window(off int64, n int) ([]byte, error) {
	if off < r.bufAt || off+int64(n) > r.bufAt+int64(len(r.buf)) {
		want := int(min(windowSize, r.size-off))
		if cap(r.buf) < want {
			r.buf = make([]byte, want)
		}
		r.bufAt, r.buf = off, r.buf[:want]
		if m, err := r.f.ReadAt(r.buf, off); m < want {
			r.buf = r.buf[:0]
			return nil, fmt.Errorf("read %d bytes at %d: %w", want, off, err)
		}
	}
	return r.buf[off-r.bufAt:][:n], nil
}

// skipPadding moves over the zeros at the end of a block that are too few for a chunk.
func (r *reader) skipPadding() {
	if left := blockSize - r.pos%blockSize; left < chunkHeaderSize {
		r.pos += left
	}
}

// recordEnd returns the end of a record of n bytes that starts at from: the start of the next one.
func recordEnd(from int64, n int) int64 {
	for {
		m := min(int64(n), blockSize-from%blockSize-chunkHeaderSize)
		from, n = from+chunkHeaderSize+m, n-int(m)
		if left := blockSize - from%blockSize; left < chunkHeaderSize {
			from += left
		}
		if n == 0 {
			return from
		}
	}
}

// next returns the next record and its start; the bytes stay valid until the following call. At the end of the records the error
// is errTrailer or errShort, at garbage a *badChunk; any other error is the disk's.
func (r *reader) next() (rec []byte, start int64, err error) {
	r.skipPadding()
	start = r.pos
	r.rec = r.rec[:0]
	for n := 0; ; n++ {
		r.skipPadding()
		payload, kind, err := r.chunk(start, n == 0)
		if err != nil {
			r.pos = start
			return nil, start, err
		}
		switch kind {
		case chunkFull:
			return payload, start, nil
		case chunkLast:
			r.rec = append(r.rec, payload...)
			return r.rec, start, nil
		}
		r.rec = append(r.rec, payload...)
	}
}

// chunk reads the chunk at r.pos and moves behind it. The header is not covered by itself: its length is used only within the block and the file, and the
// checksum is of that many bytes, type and tag among them, so that a changed length fails there. The tag is compared before the checksum: bytes that another
// store or another file wrote have good checksums of their own. errShort is an end between records, where a crash may leave it; an end within one is a bad
// chunk, and the caller decides which of both is a torn end.
func (r *reader) chunk(start int64, first bool) (payload []byte, kind byte, err error) {
	bad := func(why string) ([]byte, byte, error) { return nil, 0, &badChunk{start, r.pos, why} }
	if r.pos >= r.size {
		if first {
			return nil, 0, errShort
		}
		return bad("the file ends within the record")
	}
	if r.pos+chunkHeaderSize > r.size {
		return bad("the file ends within a chunk header")
	}
	h, err := r.window(r.pos, chunkHeaderSize)
	if err != nil {
		return nil, 0, err
	}
	sum, n, tag := binary.LittleEndian.Uint32(h), int64(binary.LittleEndian.Uint16(h[4:])), binary.LittleEndian.Uint32(h[7:])
	kind = h[6]
	switch {
	case first && kind == chunkFull && tag == r.tag+1 && n == 0 && sum == 0:
		return nil, 0, errTrailer
	case kind < chunkFull || kind > chunkLast:
		return bad(fmt.Sprintf("type %d", kind))
	case tag != r.tag:
		return bad(fmt.Sprintf("log tag %08x instead of %08x", tag, r.tag))
	case first != (kind == chunkFull || kind == chunkFirst):
		return bad(fmt.Sprintf("type %d out of order", kind))
	case r.pos%blockSize+chunkHeaderSize+n > blockSize:
		return bad("it would cross a block")
	case r.pos+chunkHeaderSize+n > r.size:
		return bad("the file ends within it")
	}
	c, err := r.window(r.pos, int(chunkHeaderSize+n))
	if err != nil {
		return nil, 0, err
	}
	if chunkSum(c[6:]) != sum {
		return bad("checksum")
	}
	r.pos += chunkHeaderSize + n
	return c[chunkHeaderSize:], kind, nil
}

// scan looks for whole chunks that begin a record at or behind offset from, wherever they stand, and calls f with the record's
// header until f returns false. It finds records behind garbage. The tag depends on the store's secret UUID, so a client
// cannot send bytes that look like a chunk.
func (r *reader) scan(from int64, f func(start int64, h header) bool) error {
	var tag [4]byte
	binary.LittleEndian.PutUint32(tag[:], r.tag)
	for off := from; off < r.size; off = off&^(blockSize-1) + blockSize {
		b, err := r.window(off, int(min(blockSize-off%blockSize, r.size-off)))
		if err != nil {
			return err
		}
		for i := 0; i+chunkHeaderSize <= len(b); {
			// The tag stands 7 bytes behind the beginning of its chunk. No chunk crosses a block, so each block is searched by itself.
			j := bytes.Index(b[i+7:], tag[:])
			if j < 0 {
				break
			}
			i += j
			payload, ok := firstPiece(b[i:])
			if !ok {
				i++
				continue
			}
			start, end := off+int64(i), i+chunkHeaderSize+len(payload)
			if b[i+6] == chunkFirst && len(payload) < headerSize {
				end = len(b) // such a chunk fills its block, and the next read may replace the bytes of b
				if payload, err = r.withSecond(payload, start); err != nil {
					return err
				}
			}
			if h, _, err := decodeRecord(payload); err == nil && !f(start, h) {
				return nil
			}
			i = end
		}
	}
	return nil
}

// firstPiece returns the payload of the chunk at the start of b if it is whole and begins a record. b ends with its block.
func firstPiece(b []byte) (payload []byte, ok bool) {
	if len(b) < chunkHeaderSize || b[6] != chunkFull && b[6] != chunkFirst {
		return nil, false
	}
	n := chunkHeaderSize + int(binary.LittleEndian.Uint16(b[4:]))
	if n > len(b) || chunkSum(b[6:n]) != binary.LittleEndian.Uint32(b) {
		return nil, false
	}
	return b[chunkHeaderSize:n], true
}

// withSecond returns the first piece of the record at start joined with its second one: a record that starts 11 to 50 bytes before
// the end of a block has the rest of its header in the next. If the second piece is unreadable, the first is returned alone.
func (r *reader) withSecond(piece []byte, start int64) ([]byte, error) {
	joined := bytes.Clone(piece)
	pos := r.pos
	defer func() { r.pos = pos }()
	r.pos = start&^(blockSize-1) + blockSize
	payload, _, err := r.chunk(start, false)
	if err != nil && !isBadChunk(err) {
		return nil, err
	}
	return append(joined, payload...), nil
}
