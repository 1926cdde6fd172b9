package rank

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Servers is one server's record of the others' clocks: how far each is ahead of a steady clock of its own, which is never
// set. A slow heartbeat makes a clock seem slow, never fast. For one caller at a time; the zero Servers is ready.
type Servers struct {
	offsets map[string]offset
	scratch []int64
}

// offset is a server's wall clock minus our steady one.
type offset struct {
	nanos int64
	at    point.Nanos // of our steady clock, when the heartbeat came
}

// ForgetAfter is how long a server without heartbeats counts. Long enough for a coordination store that is away: our
// steady clock goes on with the last offsets.
const ForgetAfter = 10 * time.Minute

// ServersMax bounds the number of clocks remembered.
const ServersMax = 1 << 12

// Observe records that it was wall at a server when it was steady here. Only a time that was sent just now may be
// observed: a stored row has any age.
func (s *Servers) Observe(server string, wall, steady point.Nanos) {
	if s.offsets == nil {
		s.offsets = map[string]offset{}
	}
	if _, ok := s.offsets[server]; !ok && len(s.offsets) >= ServersMax {
		return
	}
	s.offsets[server] = offset{wall - steady, steady}
}

// Forget drops the observations of a server.
func (s *Servers) Forget(server string) { delete(s.offsets, server) }

// Near counts the clocks that were observed within the last fresh of time, and how many of these lie within some time of an offset.
func (s *Servers) Near(steady point.Nanos, fresh time.Duration, offset int64, within time.Duration) (near, known int) {
	for _, o := range s.offsets {
		if steady-o.at > int64(fresh) {
			continue
		}
		known++
		if d := o.nanos - offset; -int64(within) <= d && d <= int64(within) {
			near++
		}
	}
	return near, known
}

// Offset gives the difference to add to the steady clock for the median of the servers' clocks, of an even number the
// lower; false while no clock was observed.
func (s *Servers) Offset(steady point.Nanos) (int64, bool) {
	s.scratch = s.scratch[:0]
	for server, o := range s.offsets {
		if steady-o.at > int64(ForgetAfter) {
			delete(s.offsets, server)
			continue
		}
		s.scratch = append(s.scratch, o.nanos)
	}
	if len(s.scratch) == 0 {
		return 0, false
	}
	slices.Sort(s.scratch)
	return s.scratch[(len(s.scratch)-1)/2], true
}
