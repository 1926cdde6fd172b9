package runner

import (
	"errors"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Gather makes frames of series with the ranks of their rows, for deliver: rows of about one rank in each.
type Gather struct{ s slice }

// NewGather makes one that accepts rows up to a size in memory; 0: any. Exact: a frame has the rows of one rank alone, where rows of several partitions may
// have been written within the same tenth of a second.
func NewGather(bytesMax int64, exact bool) *Gather {
	unit := point.Stamp(rankUnit)
	if exact {
		unit = 1
	}
	return &Gather{slice{bytesMax: bytesMax, unit: unit, open: map[point.Stamp]*building{}}}
}

// Take adds the rows of a series. It may keep them. Errors are those of IsFull.
func (g *Gather) Take(x *Series) error { return g.s.take(x) }

// IsFull reports whether an error says that the series have more rows than fit.
func IsFull(err error) bool { return errors.Is(err, errFull) }

// Bytes is the size in memory of the rows gathered.
func (g *Gather) Bytes() int64 { return g.s.bytes }

// Share is the part of the series that were seen, by their number: 1 after all.
func (g *Gather) Share() float64 {
	if g.s.of == 0 {
		return 1
	}
	return float64(g.s.at+1) / float64(g.s.of)
}

// Frames ends the gathering, and returns the frames in the order of their ranks.
func (g *Gather) Frames() []*frame.Frame {
	g.s.finish()
	return g.s.frames
}
