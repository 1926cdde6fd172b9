package deliver

import (
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// part is the share of a frame that belongs to one partition. Its numbers of series are those of the frame.
type part struct {
	partition *topology.Partition
	in        peer.Insert
}

// Scratch is memory for a frame that is delivered: as the caller filled or decoded it, and cut into the rows of each partition. What it holds is valid until Put.
type Scratch struct {
	Frame frame.Frame

	decoder frame.Decoder
	rings   []uint64         // of its series
	ids     []point.SeriesID // of its series on a stream
	parts   []part           // those behind len keep their memory
}

var scratches = sync.Pool{New: func() any {
	s := new(Scratch)
	s.decoder.JoinDefs, s.decoder.KnownDefs = true, true
	return s
}}

// Get returns scratch memory.
func Get() *Scratch { return scratches.Get().(*Scratch) }

// Decode fills the frame from its encoding, which this process made or decoded before.
func (s *Scratch) Decode(body []byte) error { return s.decoder.Decode(body, &s.Frame) }

// The rows and series, and the partitions, of a frame whose scratch is kept.
const (
	scratchRowsMax  = 1 << 14
	scratchPartsMax = 8
)

// Put gives the memory back.
func (s *Scratch) Put() {
	if max(len(s.Frame.IDs), len(s.Frame.Defs)) > scratchRowsMax || len(s.parts) > scratchPartsMax || len(s.Frame.Hists)+len(s.Frame.Exemplars) > 0 {
		return
	}
	clear(s.Frame.Defs) // they are parts of one string
	scratches.Put(s)
}

// part returns the place of a partition's rows, which it begins.
func (s *Scratch) part(of *topology.Partition) int {
	for i := range s.parts {
		if s.parts[i].partition == of {
			return i
		}
	}
	n := len(s.parts)
	s.parts = slices.Grow(s.parts, 1)[:n+1]
	p := &s.parts[n]
	*p = part{partition: of, in: peer.Insert{IDs: p.in.IDs[:0], Times: p.in.Times[:0], Values: p.in.Values[:0]}}
	return n
}
