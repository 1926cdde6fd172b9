package runner

import (
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/frame"
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

// put leaves large buffers to the collector, so that the pool holds little after a burst of large frames.
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

// logAll appends the records of new frames to the journal at once: they lie in one file.
func (s *Store) logAll(all []*newcomer) (seq uint64, err error) {
	w := writers.Get().(*writer)
	defer w.put()
	w.record = w.record[:0]
	for _, n := range all {
		w.record = staging.AppendFrame(w.record, &n.Frame, n.body)
	}
	in, seq, err := s.journal.append(w.record, len(all))
	for _, n := range all {
		n.in = in
	}
	return seq, err
}
