package metafile

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// head is the part of a file before the map (FORMAT.md).
type head struct {
	old    bool // version 1: sum is that of the encoded map, not a digest
	linked bool // version 3: the file is kept as a link
	seq    uint64
	base   peer.TxnID
	sum    uint64
	bytes  uint64 // of the encoded map; of a file that is not kept whole: about
	// root, in the former format, is the file on which this one's ops stand; zero: it is kept whole, or as a link.
	root peer.TxnID
}

const (
	// headBytes, in the order of encode: version, seq, base, sum, bytes, root, check.
	headVersion = 3
	headWhole   = 2
	headBytes   = 1 + 8 + 16 + 8 + 8 + 16 + 8
)

// encode writes the lowest version that says all: a whole file is version 2, which builds before links read.
func (h *head) encode() []byte {
	b := make([]byte, 0, headBytes)
	version := byte(headWhole) // builds from before read it
	switch {
	case h.old:
		version = 1
	case h.linked:
		version = headVersion
	}
	b = append(b, version)
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = append(b, h.base[:]...)
	b = binary.BigEndian.AppendUint64(b, h.sum)
	b = binary.BigEndian.AppendUint64(b, h.bytes)
	b = append(b, h.root[:]...)
	return binary.BigEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodeHead reads what encode wrote. Errors are Corrupt.
func decodeHead(b []byte) (h head, err error) {
	if len(b) > 0 && (b[0] == 0 || b[0] > headVersion) {
		return h, fault.Errorf(fault.Corrupt, "METADATA file of version %d; this build reads up to version %d", b[0], headVersion)
	}
	if len(b) != headBytes {
		return h, fault.Errorf(fault.Corrupt, "what stands before the map has %d bytes, not %d", len(b), headBytes)
	}
	if xxhash.Sum64(b[:headBytes-8]) != binary.BigEndian.Uint64(b[headBytes-8:]) {
		return h, fault.Errorf(fault.Corrupt, "what stands before the map does not match its sum")
	}
	h.old, h.linked = b[0] == 1, b[0] == headVersion
	h.seq = binary.BigEndian.Uint64(b[1:])
	copy(h.base[:], b[9:])
	h.sum = binary.BigEndian.Uint64(b[25:])
	h.bytes = binary.BigEndian.Uint64(b[33:])
	copy(h.root[:], b[41:])
	if h.linked && h.root != (peer.TxnID{}) {
		return h, fault.Errorf(fault.Corrupt, "a link that names the file below all")
	}
	if h.seq == 0 || h.bytes > peer.MapBytesMax {
		return h, fault.Errorf(fault.Corrupt, "transaction %d with a map of %d bytes cannot be", h.seq, h.bytes)
	}
	return h, nil
}
