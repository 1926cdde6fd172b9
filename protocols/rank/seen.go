package rank

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Seen remembers which stamps of gateways a partition accepted lately. A gateway that gets no answer sends an insert again with the same
// stamp; the first try may hang in a server and come to its end when the second was acked and a later write, or a deletion, of the same
// rows was acked, too. Raised above those, it would restore the replaced rows. So a stamp that was accepted before, or that is older than those
// remembered from its gateway, is refused: a gateway that still waits sends the insert with a new stamp.
//
// A gateway may also have given a try up: its client came again through another one, or the rows were staged on other servers. Then no try with this stamp is
// known here. Whatever a gateway does of this kind it does after it waited for LateMax, so a stamp that is as far behind a newer one is refused too (Late).
//
// For one caller at a time; the zero Seen remembers nothing. It is of one process: an insert that hangs in one does not finish in another.
type Seen struct {
	ring     []point.Stamp // in the order of acceptance, from next on
	next     int
	gateways []seenGateway // at most Gateways
	newest   point.Stamp   // accepted or observed, of all gateways
}

// LateMax is how far an insert's stamp may be behind the newest that its partition accepted directly. Larger: an insert that a gateway gave up can still come
// out of a buffer and replace a row that was acked after it. Smaller: more inserts are sent twice where gateways' clocks differ.
const LateMax = 500 * time.Millisecond

type seenGateway struct {
	gateway   uint16
	newest    point.Stamp // accepted
	forgotten point.Stamp // the highest that the ring does not hold any more
}

// seenMax bounds the stamps remembered of a partition: an insert that hangs while so many others are accepted gets a new stamp. 4 KiB a
// partition that accepts so many.
const seenMax = 512

// Late reports whether a stamp is too far behind the newest one that was accepted or observed; an insert that its gateway still waits for gets one above that. now is the
// servers' time: if the newest stamp is ahead of it, their clocks were set back, and it counts no more.
func (s *Seen) Late(stamp point.Stamp, now point.Nanos) (newest point.Stamp, late bool) {
	if Ahead(s.newest, now) {
		s.newest = 0
	}
	return s.newest, s.newest > point.Stamp(LateMax) && stamp < s.newest-point.Stamp(LateMax)
}

// Observe records the stamp of rows that were staged: they keep it, and came instead of direct inserts.
func (s *Seen) Observe(stamp point.Stamp) { s.newest = max(s.newest, stamp) }

// Take reports whether an insert of this stamp may be accepted, and records that it was.
func (s *Seen) Take(stamp point.Stamp) bool {
	g := s.gateway(uint16(stamp % Step))
	if stamp <= g.newest && (g.forgotten > 0 && stamp <= g.forgotten || slices.Contains(s.ring, stamp)) {
		return false
	}
	g.newest, s.newest = max(g.newest, stamp), max(s.newest, stamp)
	if len(s.ring) < seenMax {
		s.ring = append(s.ring, stamp)
		return true
	}
	old := s.ring[s.next]
	s.ring[s.next] = stamp
	s.next = (s.next + 1) % seenMax
	of := s.gateway(uint16(old % Step))
	of.forgotten = max(of.forgotten, old)
	return true
}

// Rest releases memory when no insert came for a while. Stamps up to the newest of each gateway are refused afterwards.
func (s *Seen) Rest() {
	s.ring, s.next = nil, 0
	for i := range s.gateways {
		s.gateways[i].forgotten = s.gateways[i].newest
	}
}

func (s *Seen) gateway(n uint16) *seenGateway {
	for i := range s.gateways {
		if s.gateways[i].gateway == n {
			return &s.gateways[i]
		}
	}
	s.gateways = append(s.gateways, seenGateway{gateway: n})
	return &s.gateways[len(s.gateways)-1]
}
