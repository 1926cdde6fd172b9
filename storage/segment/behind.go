package segment

import (
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// ReadBehind is ReadInto, but appends the rows of series i to into[i], where those of earlier segments are. ok is false if some did not follow them, or were
// histograms: then into is of no use, and the segments are to be read as runs.
func (r *Reader) ReadBehind(m *Memory, ids []point.DenseID, at []Place, lo, hi point.Nanos, spare int, into []*rows.Gathered) (ok bool, err error) {
	s := m.state
	s.spare, s.into, s.lo, s.hi, s.refused = spare, into, lo, hi, false
	err = r.read(s, ids, at, lo, hi, nil)
	s.into, s.group = nil, nil
	return !s.refused, err
}

// addChunk decodes the rows of chunk i that are in the range behind those of other segments.
func (r *Reader) addChunk(s *readState, i int, to *rows.Gathered, left int) error {
	ch := &s.b.chunks[i]
	if ch.form == formHist || s.refused {
		s.refused = true
		return s.b.skip(i)
	}
	ts, err := r.column(s, ch.times)
	if err != nil {
		return err
	}
	if len(ts) != ch.rows {
		return errForm("block: a chunk and its times differ in length")
	}
	from, end := within(ts, s.lo, s.hi)
	if from == end {
		return s.b.skip(i)
	}
	if !to.Follows(ts[from]) {
		s.refused = true
		return s.b.skip(i)
	}
	later := ch.rows*(left-1) + to.Room(s.spare) // what this segment has behind surely comes
	if to.Empty() {
		to.Reserve(s.values.take(ch.rows+later, !s.keep))
	}
	place := to.Add(ts[from:end:end], ch.lo, ch.hi, later)
	if len(place) == len(ts) {
		s.b.values(i, place)
		return nil
	}
	s.part = slices.Grow(s.part[:0], len(ts))[:len(ts)]
	s.b.values(i, s.part)
	copy(place, s.part[from:end])
	return nil
}

// gatherPlain is addChunk of the wanted ones of a plain block.
func (s *readState) gatherPlain(b *plainBlock, left int) {
	for _, p := range s.group {
		ch := b.find(uint8(p.at.slot()))
		if ch == nil {
			continue
		}
		ts := b.columns[ch.column]
		from, end := within(ts, s.lo, s.hi)
		if from == end {
			continue
		}
		to := s.into[p.index]
		switch {
		case to.Empty():
			to.Reserve(s.values.take(len(ts)*left+to.Room(s.spare), !s.keep))
		case !to.Follows(ts[from]):
			s.refused = true
			return
		}
		copy(to.Add(ts[from:end:end], ch.lo, ch.hi, len(ts)*(left-1)+to.Room(s.spare)), b.values[int(ch.at)+from:int(ch.at)+end])
	}
}

// within returns where the times in [lo, hi] are: of narrow partitions mostly all.
func within(ts []point.Nanos, lo, hi point.Nanos) (from, end int) {
	if end = len(ts); end > 0 && lo <= ts[0] && ts[end-1] <= hi {
		return 0, end
	}
	from, _ = slices.BinarySearch(ts, lo)
	return from, from + sort.Search(end-from, func(k int) bool { return ts[from+k] > hi })
}
