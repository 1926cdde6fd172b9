package runner

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// Query asks for staged rows.
type Query struct {
	Table  string
	Lo, Hi point.Nanos // both included
	Match  func(point.Labels) bool
	// Labels has each series that matches; none is empty. Frames that are known to have no such series are not decoded. Nil: nothing is known. Deletions do not use them.
	Labels     []Label
	LabelsOnly bool
	Hold       uint64 // of Hold, and of a deletion of which it has lasted; 0: none
	// Take books the bytes of rows before they use memory.
	Take func(int64) error
}

// Label is a label of a series.
type Label struct{ Name, Value string }

// rowBytes is about the memory of a row with its rank, while it is merged.
// 32 of a gatheredRow, and 24 in the answer: time, value and rank.
const rowBytes = 56

// Read returns the series with staged rows in a range, in label order, with ranks.
// It copies the list of frames under the lock, and decodes them without it: bodies are never changed once they are
// held. A frame that leaves meanwhile is still in the answer; its rows then come twice, with the same rank, which
// merges to one.
func (s *Store) Read(q *Query) ([]peer.Series, error) {
	labels := make([]uint64, len(q.Labels))
	for i, l := range q.Labels {
		labels[i] = hashOf(l.Name, l.Value)
	}
	made := map[staging.ID]filter{}
	defer s.keepFilters(made)
	_, begun := s.deps.Ways.Map(q.Table)
	frames := s.overlapping(q.Table, q.Lo, q.Hi, labels)
	slices.SortFunc(frames, func(a, b held) int { return cmp.Or(cmp.Compare(a.Lo, b.Lo), a.ID.Compare(b.ID)) }) // then rows come nearly sorted
	// The definitions were checked when the frame was staged, or when the log was read at the start (Frame.Check,
	// Decode).
	d := frame.Decoder{KnownDefs: true}
	var g frame.Frame
	into := gathering{q: q, series: map[point.Labels]*gathered{}}
	for i := range frames {
		h := &frames[i]
		if h.Before(begun) { // of a table that was dropped: it ends at the next look
			continue
		}
		if err := q.Take(int64(h.Rows)*rowBytes + h.Bytes); err != nil {
			return nil, err
		}
		if err := d.DecodeWith(h.defs, h.body, &g); err != nil {
			return nil, err
		}
		if h.filter == nil && len(labels) > 0 {
			made[h.ID] = filterOf(&g, int64(len(h.body)))
		}
		into.add(&g)
	}
	return into.all(), nil
}

// Frames passes the encoded frames of a table that Read may return to give, which does not keep them. Errors are those of give.
func (s *Store) Frames(table string, give func([]byte) error) error {
	_, begun := s.deps.Ways.Map(table)
	for _, h := range s.overlapping(table, math.MinInt64, math.MaxInt64, nil) {
		if h.Before(begun) {
			continue
		}
		if err := give(h.body); err != nil {
			return err
		}
	}
	return nil
}
