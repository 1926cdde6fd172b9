package remotewrite

import (
	"sync"

	"github.com/spillwaydb/spillway/protocols/point"
)

// startsMax bounds the series that a Starts remembers: about 50 MB. Beyond it, it forgets all and begins again; then
// zeros are added a second time, which changes nothing, as they replace themselves.
const startsMax = 1 << 20

// Starts remembers which start timestamps of which series have had their zero sample. Use one for each Dict, because
// it identifies series by number. The zero Starts is ready and safe for concurrent use.
type Starts struct {
	mu struct {
		sync.Mutex
		series map[point.SeriesID]startState
	}
}

// startState holds milliseconds.
type startState struct {
	start int64 // the last that had its zero
	seen  int64 // the newest sample
}

// see notes a sample at t and reports whether a zero belongs before it at start: start is given, before t, new, and
// after every sample seen, so that no zero replaces a sample. Prometheus refuses the others as out of order.
func (s *Starts) see(id point.SeriesID, start, t int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.series == nil || len(s.mu.series) >= startsMax {
		s.mu.series = make(map[point.SeriesID]startState)
	}
	state, known := s.mu.series[id]
	first := start != 0 && start < t && (!known || start != state.start && start > state.seen)
	if first {
		state.start = start
	}
	if !known || t > state.seen {
		state.seen = t
	}
	s.mu.series[id] = state
	return first
}
