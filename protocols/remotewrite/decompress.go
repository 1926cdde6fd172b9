package remotewrite

import (
	"encoding/binary"

	"github.com/golang/snappy"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// snappyRatioMax is above the ratio that the snappy block format can reach: three bytes make at most 64. A block
// that declares more is corrupt, and is refused before memory is allocated.
const snappyRatioMax = 22

// DecompressSnappy decodes a snappy block into dst if its capacity suffices, else into new memory, and returns the whole
// result. Errors: TooLarge if the block declares more than max bytes, Invalid if it is corrupt.
//
// It accepts the snappy block format and nothing else: not frames, not the repeat codes of s2.
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
