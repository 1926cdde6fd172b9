package partition

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Digest summarises the contents of a placement in a few bytes. Placements with equal contents, from the same frame on, have equal ones.
type Digest struct {
	Segments uint64 // of the list of segments: ids, bases, checksums
	Ends     []point.EpochEnd
	Log      uint64 // of the frames behind After up to the last of Ends, as they stand in the log
	After    point.Serial
	Frames   int // in Log
}

// Digest reads the log behind serial after, which must be no lower than the last frame in the segments of any compared placement:
// earlier frames may be gone from the log. A frame that is being applied is in the log, and in no end yet: it does not count. It is read by
// read, which calls f as EachFrameUpTo does. Errors: Corrupt, Unavailable, and those of read.
func (p *Partition) Digest(after point.Serial, read func(after, upto point.Serial, f func(point.Serial, []byte) error) error) (Digest, error) {
	p.mu.Lock()
	st, ends, last := p.mu.state, p.endsLocked(), p.mu.last
	p.mu.Unlock()
	d := Digest{Segments: st.digest(), Ends: ends, After: after}
	sum := xxhash.New()
	err := read(after, last, func(_ point.Serial, rec []byte) error {
		d.Frames++
		_, _ = sum.Write(rec) // never fails
		return nil
	})
	d.Log = sum.Sum64()
	return d, err
}

// digest covers the state that must be the same at every placement. It excludes deletions: later segments' headers and the log
// hold all of them, and a leader that carried one out by a compaction drops it, while a follower that adopts the result still has
// it.
func (s *State) digest() uint64 {
	sum := xxhash.New()
	put := func(n uint64) { _, _ = sum.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	for i := range s.Segments {
		g := &s.Segments[i]
		for _, n := range []uint64{uint64(g.ID.Epoch), g.ID.Seq, uint64(g.Base.Epoch), g.Base.Seq, g.Checksum, uint64(g.Size)} {
			put(n)
		}
	}
	return sum.Sum64()
}
