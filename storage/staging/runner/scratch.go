package runner

import (
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// scratchBytesMax bounds the memory of each part of a scratch that is kept.
const scratchBytesMax = 1 << 20

// writer is scratch memory for frames that are encoded and logged.
type writer struct {
	encoder frame.Encoder
	body    []byte
	record  []byte
}

var writers = sync.Pool{New: func() any { return new(writer) }}

func (w *writer) put() {
	if cap(w.body) <= scratchBytesMax && cap(w.record) <= scratchBytesMax {
		writers.Put(w)
	}
}

// encode returns the encoding of a frame in memory of just its size: it is held until the frame is forwarded.
func encode(g *frame.Frame) []byte {
	w := writers.Get().(*writer)
	defer w.put()
	w.body = w.encoder.Append(w.body[:0], g)
	return slices.Clone(w.body)
}

// log appends the record of a frame to the journal.
func (s *Store) log(f *staging.Frame, body []byte) (in *file, seq uint64, err error) {
	w := writers.Get().(*writer)
	defer w.put()
	w.record = staging.AppendFrame(w.record[:0], f, body)
	return s.journal.append(w.record, 1)
}

// reader is scratch memory for a frame that is forwarded: decoded, and cut into the rows of each partition. What it holds is valid until put.
type reader struct {
	decoder frame.Decoder
	frame   frame.Frame
	rings   []uint64         // of its series
	ids     []point.SeriesID // of its series on a stream
	parts   []part           // those behind len keep their memory
}

var readers = sync.Pool{New: func() any {
	r := new(reader)
	r.decoder.JoinDefs = true
	return r
}}

// The rows and series, and the partitions, of a frame whose scratch is kept.
const (
	readerRowsMax  = 1 << 14
	readerPartsMax = 8
)

func (r *reader) put() {
	if max(len(r.frame.IDs), len(r.frame.Defs)) > readerRowsMax || len(r.parts) > readerPartsMax || len(r.frame.Hists)+len(r.frame.Exemplars) > 0 {
		return
	}
	clear(r.frame.Defs) // they are parts of one string
	readers.Put(r)
}

// part returns the place of a partition's rows, which it begins.
func (r *reader) part(of *topology.Partition) int {
	for i := range r.parts {
		if r.parts[i].partition == of {
			return i
		}
	}
	n := len(r.parts)
	r.parts = slices.Grow(r.parts, 1)[:n+1]
	p := &r.parts[n]
	*p = part{partition: of, in: peer.Insert{IDs: p.in.IDs[:0], Times: p.in.Times[:0], Values: p.in.Values[:0]}}
	return n
}
