package unzstd

import (
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	blockHeaderBytes = 3
	blockBytesMax    = 128 << 10
	checksumBytes    = 4
	magicBytes       = 4
	checksumFlag     = 1 << 2 // of the byte behind the magic number
)

// walker goes from block to block over all frames of a body, and reads nothing but headers.
type walker struct {
	packed []byte

	frame    int // where the present one begins
	header   zstd.Header
	within   bool // a frame has more blocks
	block    int  // where the present block begins
	end      int  // where the present block ends, with the frame's checksum if it is the last one
	produces int64
}

var errBlock = errors.New("zstd: a block of a reserved type")

// next goes to the next block; false at the end of the body. Frames to be skipped have no blocks.
func (w *walker) next() (bool, error) {
	for !w.within {
		if w.end == len(w.packed) {
			return false, nil
		}
		w.frame = w.end
		if err := w.header.Decode(w.packed[w.frame:]); err != nil {
			return false, err
		}
		w.end += w.header.HeaderSize
		if w.header.Skippable {
			if int64(w.header.SkippableSize) > int64(len(w.packed)-w.end) {
				return false, io.ErrUnexpectedEOF
			}
			w.end += int(w.header.SkippableSize)
			continue
		}
		w.within = true
	}
	w.block = w.end
	if len(w.packed)-w.block < blockHeaderBytes {
		return false, io.ErrUnexpectedEOF
	}
	b := w.packed[w.block:]
	h := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
	last, kind, size := h&1 == 1, h>>1&3, h>>3
	w.produces = int64(size)
	switch kind {
	case 0: // raw
	case 1: // one byte, repeated
		size = 1
	case 2: // compressed
		w.produces = blockBytesMax
	default:
		return false, errBlock
	}
	w.end = w.block + blockHeaderBytes + size
	if last {
		w.within = false
		if w.header.HasCheckSum {
			w.end += checksumBytes
		}
	}
	if w.end > len(w.packed) {
		return false, io.ErrUnexpectedEOF
	}
	return true, nil
}

// bound gives an upper bound of the unpacked size. A frame that declares its size is checked against the limits at once.
func (l Limits) bound(packed []byte) (int64, error) {
	w := walker{packed: packed}
	var sum, declared int64
	for {
		ok, err := w.next()
		if err != nil || !ok {
			return sum, err
		}
		if !w.header.HasFCS {
			sum += w.produces
			continue
		}
		if w.within {
			continue // to the frame's end
		}
		size := w.header.FrameContentSize
		if size > uint64(l.Max) || declared+int64(size) > l.Max {
			return 0, ErrTooLarge
		}
		declared += int64(size)
		sum += int64(size)
		if declared > max(l.Free, l.Expand*int64(w.end)) {
			return 0, ErrExpands
		}
	}
}

// head gives the first blocks of packed, n bytes or a little less but one block at least, as a complete
// body. A frame that declares its size is left out when it does not fit: cut, it would be invalid. packed was walked
// before.
func head(packed []byte, n int) []byte {
	if n >= len(packed) {
		return packed
	}
	w := walker{packed: packed}
	cut, frame, block, within := 0, 0, 0, false
	for {
		ok, err := w.next()
		if err != nil || !ok || w.end > n && cut > 0 {
			break
		}
		if w.header.HasFCS && w.within {
			continue
		}
		cut, frame, block, within = w.end, w.frame, w.block, w.within
	}
	part := append([]byte(nil), packed[:cut]...)
	if within { // make this block the frame's last
		part[block] |= 1
		part[frame+magicBytes] &^= checksumFlag
	}
	return part
}
