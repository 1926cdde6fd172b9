package segment

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// checkedFile compares the checksum of each block that is read before pebble does. Pebble looks for a single flipped bit in a block that
// does not match: it computes the sum again for each bit of the first 40 KiB, at each read. That is 17 ms for a block of 6 KiB, and 86 s of a
// processor, which no query can end, for one of 4 MiB of histograms.
type checkedFile struct {
	objstorage.Readable
	size   int64
	handle objstorage.NoopReadHandle
}

func newCheckedFile(f objstorage.Readable) *checkedFile {
	c := &checkedFile{Readable: f, size: f.Size()}
	c.handle = objstorage.MakeNoopReadHandle(c)
	return c
}

// NewReadHandle implements objstorage.Readable. All handles are one: it has no state.
func (c *checkedFile) NewReadHandle(objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return &c.handle
}

// ReadAt implements objstorage.Readable. What ends with the file is the footer, which has another form; all else is a block, its kind of
// compression in a byte, and the masked CRC-32C of both (RocksDB's format of block-based tables).
func (c *checkedFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := c.Readable.ReadAt(ctx, p, off)
	n := len(p) - crc32.Size
	if err != nil || off+int64(len(p)) >= c.size || n < 0 {
		return err
	}
	want := binary.LittleEndian.Uint32(p[n:])
	if got := masked(crc32.Checksum(p[:n], crc32.MakeTable(crc32.Castagnoli))); got != want {
		return fault.Errorf(fault.Corrupt, "the block of %d bytes at %d has the checksum %08x, and not %08x", len(p), off, got, want)
	}
	return nil
}

// masked is how tables store a checksum, so that the checksum of bytes that hold one is not a constant.
func masked(sum uint32) uint32 { return bits.RotateLeft32(sum, 17) + 0xa282ead8 }
