package segment

import "github.com/spillwaydb/spillway/protocols/point"

// rowBytes is the memory of a row as it is read: time, value and rank.
const rowBytes = 24

// EachGroup calls f with the ids of each group of series, in file order, and with about how many bytes the rows of one of them are when they are read: an equal
// part of the group's. No rows are read for it. ids are valid until f returns; f's error ends the walk and is returned as it is.
func (r *Reader) EachGroup(f func(ids []point.DenseID, bytes int64) error) error {
	if err := r.acquire(); err != nil {
		return err
	}
	defer func() { _ = r.release() }()
	t, err := r.iter()
	if err != nil {
		return err
	}
	s := r.cache.getState()
	defer r.cache.putState(s)
	for number := uint32(0); ; number++ {
		// Groups are numbered without gaps: the first that is missing is the end.
		if s.key = keyOfGroup(s.key, number, kindRecord); !t.find(s.key) {
			return t.close()
		}
		var bytes int64
		if err = s.record.parse(t.val); err != nil {
			err = r.corrupt(s.key, err)
		} else if bytes, err = r.rowsBytes(t, s, number); err == nil {
			err = f(s.record.ids, bytes/int64(len(s.record.ids)))
		}
		if err != nil {
			_ = t.close()
			return err
		}
	}
}

// rowsBytes is about the memory of the rows of the group in s.record. Each series of histograms has some in the first block, whose head says how many bytes.
// Those in the blocks behind are guessed, high rather than low: a series' chunk there has as many bytes as a chunk is cut at, or as the longest in the first.
func (r *Reader) rowsBytes(t *tableIter, s *readState, number uint32) (n int64, err error) {
	blocks := s.record.blocks
	s.key = keyBlock(s.key, number, blocks[0].lo)
	if !t.find(s.key) {
		return 0, r.missing(t, s.key)
	}
	if err := s.block.openHead(&cursor{b: t.val}, number, r.cache.decoder); err != nil {
		return 0, r.corrupt(s.key, err)
	}
	having, longest := 0, histChunkBytes
	for i := range s.block.chunks {
		if ch := &s.block.chunks[i]; ch.form == formHist {
			having, longest = having+1, max(longest, ch.histBytes)
			n += int64(ch.histBytes)
		}
	}
	for i, b := range blocks {
		n += int64(b.rows) * rowBytes
		if i > 0 {
			n += int64(min(having, b.rows)) * int64(longest)
		}
	}
	return n, nil
}
