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

// Scratch is memory for a frame that is delivered: as the caller lent or decoded it, and cut into the rows of each partition. Its content is valid until Put.
type Scratch struct {
	Frame frame.Frame

	decoder frame.Decoder
	kept    bool             // its definitions are strings that others keep
	lent    bool             // its memory is the caller's
	places  places           // of its series
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

// Of returns scratch memory for a frame of the caller's: its memory stays the caller's, and may be filled anew after Put. The frame is not changed. Were its columns kept with the scratch,
// the next frame that is decoded there, by another goroutine, would be written over the caller's next one.
func Of(f *frame.Frame) *Scratch {
	s := Get()
	s.Frame, s.lent = *f, true
	return s
}

// Decode fills the frame from its encoding, which this process made or decoded before. Definitions that the caller has kept are not decoded, and streams find their
// series by the places of the strings; nil: they are decoded.
func (s *Scratch) Decode(kept []point.Labels, body []byte) error {
	s.kept = kept != nil
	return s.decoder.DecodeWith(kept, body, &s.Frame)
}

// places has the ring points of a frame's series. They are computed only beside partitions that have a part of the ring: a hash of all labels of a series
// costs more than the rest of the search for its partition.
type places struct {
	rings []uint64
	known []bool
}

func (p *places) reset(n int) {
	p.rings, p.known = slices.Grow(p.rings[:0], n)[:n], slices.Grow(p.known[:0], n)[:n]
	clear(p.known)
}

// of returns the ring point of a series; 0 if the partition in question has the whole ring.
func (p *places) of(m *topology.Map, g *frame.Frame, id point.DenseID, in *topology.Partition) uint64 {
	if in != nil && in.PointLo == 0 && in.PointHi == 0 {
		return 0
	}
	if !p.known[id] {
		p.rings[id], p.known[id] = m.PointOf(g.Defs[id]), true
	}
	return p.rings[id]
}

// The rows and series, and the partitions, of a frame whose scratch is kept.
const (
	scratchRowsMax  = 1 << 14
	scratchPartsMax = 8
)

// Put gives the memory back.
func (s *Scratch) Put() {
	if s.lent {
		s.Frame, s.lent = frame.Frame{}, false
	}
	if max(len(s.Frame.IDs), len(s.Frame.Defs)) > scratchRowsMax || len(s.parts) > scratchPartsMax || len(s.Frame.Hists)+len(s.Frame.Exemplars) > 0 {
		return
	}
	clear(s.Frame.Defs) // a scratch keeps no series
	s.kept = false
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
