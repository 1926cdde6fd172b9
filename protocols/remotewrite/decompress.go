package remotewrite

import (
	"encoding/binary"
	"errors"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// snappyRatioMax is above what the snappy block format can reach: three bytes make at most 64. A block that declares
// more is a lie, and is found out before memory is taken for it.
const snappyRatioMax = 22

// DecompressSnappy decodes a snappy block into dst if its capacity suffices, else into new memory, and returns the whole
// of it. Errors: TooLarge if the block declares more than max bytes, Invalid if it is corrupt.
//
// It takes the snappy block format and nothing else: not frames, not the repeat codes of s2.
// Format: https://github.com/google/snappy/blob/main/format_description.txt.
func DecompressSnappy(dst, src []byte, max int) ([]byte, error) {
	n, head := binary.Uvarint(src)
	switch {
	case head <= 0 || head > 5 || n > 1<<32-1:
		return nil, fault.Errorf(fault.Invalid, "corrupt snappy block: no length at its beginning; the framed format is not taken")
	case n > uint64(max):
		return nil, fault.Errorf(fault.TooLarge, "body of %d bytes when decompressed, at most %d are taken; send fewer samples a request", n, max)
	case n > uint64(len(src))*snappyRatioMax:
		return nil, fault.Errorf(fault.Invalid, "corrupt snappy block: %d bytes cannot hold the %d they declare", len(src), n)
	}
	out, err := snappy.Decode(dst[:cap(dst)], src)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "corrupt snappy block")
	}
	return out, nil
}

// Decompressor decodes bodies of every Encoding. It is safe for concurrent use; have one per server.
type Decompressor struct {
	// Constant after NewDecompressor.
	max  int
	zstd *zstd.Decoder
}

// NewDecompressor makes a Decompressor for bodies of at most max bytes when decompressed.
func NewDecompressor(max int) (*Decompressor, error) {
	// The window need not exceed the body, and 8 MiB is what every decoder must take (RFC 8878, 3.1.1.1.2).
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(max)), zstd.WithDecoderMaxWindow(uint64(windowOf(max))))
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "zstd decoder for bodies of %d bytes", max)
	}
	return &Decompressor{max: max, zstd: z}, nil
}

func windowOf(bodyMax int) int { return max(bodyMax, 8<<20) }

// Decompress decodes a body as DecompressSnappy does.
func (d *Decompressor) Decompress(dst, src []byte, enc Encoding) ([]byte, error) {
	if enc == Snappy {
		return DecompressSnappy(dst, src, d.max)
	}
	out, err := d.zstd.DecodeAll(src, dst[:0])
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, fault.Errorf(fault.TooLarge, "body of more than %d bytes when decompressed; send fewer samples a request", d.max)
	case err != nil:
		return nil, fault.Wrap(err, fault.Invalid, "corrupt zstd body")
	}
	return out, nil
}

// Close frees what the zstd decoder holds.
func (d *Decompressor) Close() { d.zstd.Close() }
