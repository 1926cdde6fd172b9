package partition

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// SurplusContent is what a surplus file holds.
type SurplusContent struct {
	Table     string
	Partition point.PartitionID
	Placement point.PlacementID
	After     point.Serial
	Frames    int
	Rows      int
	Deletions int // frames that are none of rows
}

// cutHead reads what stands between the magic and the first frame.
func (c *SurplusContent) cutHead(b []byte) (rest []byte, err error) {
	n := int64(binary.LittleEndian.Uint32(b))
	if n+4*8 > int64(len(b)-4) {
		return nil, fault.Errorf(fault.Corrupt, "it ends within its head")
	}
	c.Table, b = string(b[4:4+n]), b[4+n:]
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	c.Partition, c.Placement, c.After = point.PartitionID(number(0)), point.PlacementID(number(1)), point.Serial{Epoch: point.Epoch(number(2)), Seq: number(3)}
	return b[4*8:], nil
}

// CheckSurplus decodes every frame of a surplus file, without changing it. Errors are Corrupt and Unavailable.
func CheckSurplus(fs vfs.FS, path string) (SurplusContent, error) {
	b, err := readAll(fs, path)
	if err != nil {
		return SurplusContent{}, err
	}
	var frames, rows, deletions int
	c, err := eachSurplus(b, func(f *frame.Frame) error {
		if f.Kind == frame.Delete {
			deletions++
			return nil
		}
		frames, rows = frames+1, rows+f.Samples()
		return nil
	})
	if err != nil {
		return SurplusContent{}, err
	}
	c.Frames, c.Rows, c.Deletions = frames, rows, deletions
	no, base := 0, fs.PathBase(path)
	_, _ = fmt.Sscanf(base, "%d-%d.%d", new(uint64), new(uint64), &no) // most have no third number
	if base != surplusName(c.After, no) {
		return c, fault.Errorf(fault.Corrupt, "it is of placement %s, behind %v: it has the wrong name", c.Placement, c.After)
	}
	return c, nil
}
