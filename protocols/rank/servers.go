package rank

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Servers is one server's record of the others' clocks: how far each is ahead of a steady clock of its own, which is never
// set. A slow heartbeat makes a clock seem slow, never fast: for Offset the one that came fastest counts, of the last one to
// two LatePeriods. For one caller at a time; the zero Servers is ready.
type Servers struct {
	offsets map[string]offset
	scratch []int64
}

// offset is a server's wall clock minus our steady one.
type offset struct {
	newest         int64
	period, before int64       // the highest of the period that began at since, and of the one before
	since          point.Nanos // of our steady clock
	at             point.Nanos // of our steady clock, when the newest heartbeat came
}

func (o *offset) fastest() int64 { return max(o.period, o.before) }

// LatePeriod is for how long a heartbeat that came fast outweighs later ones, at least; at most twice as long. Longer: a clock
// that is set back is believed for longer. Shorter: where all heartbeats are late for as long, the servers' clocks seem slow;
// gateways are then refused, each at another moment, and stamp rows earlier than those that others staged before.
const LatePeriod = 30 * time.Second

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
	o, ok := s.offsets[server]
	if !ok && len(s.offsets) >= ServersMax {
		return
	}
	nanos := wall - steady
	switch past := steady - o.since; {
	case !ok || past >= 2*int64(LatePeriod):
		o.period, o.before, o.since = nanos, nanos, steady
	case past >= int64(LatePeriod):
		o.period, o.before, o.since = nanos, o.period, steady
	default:
		o.period = max(o.period, nanos)
	}
	o.newest, o.at = nanos, steady
	s.offsets[server] = o
}

// Own records our own clock, which no heartbeat makes seem slow.
func (s *Servers) Own(server string, wall, steady point.Nanos) {
	delete(s.offsets, server)
	s.Observe(server, wall, steady)
}

// Forget drops the observations of a server.
func (s *Servers) Forget(server string) { delete(s.offsets, server) }

// Known reports whether the clock of a server was observed.
func (s *Servers) Known(server string) bool {
	_, ok := s.offsets[server]
	return ok
}

// Near counts the clocks that were observed within the last fresh of time, and how many of these lie within some time of an offset.
func (s *Servers) Near(steady point.Nanos, fresh time.Duration, offset int64, within time.Duration) (near, known int) {
	for _, o := range s.offsets {
		if steady-o.at > int64(fresh) {
			continue
		}
		known++
		if d := o.newest - offset; -int64(within) <= d && d <= int64(within) {
			near++
		}
	}
	return near, known
}

// Offset gives the difference to add to the steady clock for the median of the servers' clocks, by the heartbeats that came fastest; of an even
// number the lower. False while no clock was observed.
func (s *Servers) Offset(steady point.Nanos) (int64, bool) {
	return s.median(steady, (*offset).fastest)
}

// Newest is Offset by the newest heartbeat of each server, even if it is late. Where the rates of clocks differ, an old heartbeat is off by more than a late one.
func (s *Servers) Newest(steady point.Nanos) (int64, bool) {
	return s.median(steady, func(o *offset) int64 { return o.newest })
}

func (s *Servers) median(steady point.Nanos, of func(*offset) int64) (int64, bool) {
	s.scratch = s.scratch[:0]
	for server, o := range s.offsets {
		if steady-o.at > int64(ForgetAfter) {
			delete(s.offsets, server)
			continue
		}
		s.scratch = append(s.scratch, of(&o))
	}
	if len(s.scratch) == 0 {
		return 0, false
	}
	slices.Sort(s.scratch)
	return s.scratch[(len(s.scratch)-1)/2], true
}
