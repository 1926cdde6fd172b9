package topology

import (
	"slices"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// PlacementsMax bounds the placements of one partition, live and joining each.
const PlacementsMax = 32

// NameMax bounds the names of tables and servers, in bytes.
const NameMax = 255

// ServerID names a storage server: valid UTF-8, 1 to NameMax bytes.
type ServerID string

// Placement is one assignment of a partition to a server. Its id is random and new at every assignment (C30).
type Placement struct {
	ID     point.PlacementID `json:"id"`
	Server ServerID          `json:"server"`
}

// State is the stage of a partition's life.
type State uint8

const (
	// Live partitions accept writes.
	Live State = iota
	// Splitting partitions accept writes until they are sealed; their children are named in Split and are no partitions yet.
	Splitting
	// Unload partitions accept nothing. Their rows go to those in Into, and are read here until all have them (C78).
	Unload
)

var stateNames = [...]string{Live: "live", Splitting: "splitting", Unload: "unload"}

// String gives the name for people.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText gives String's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Cut is the place where a partition is cut in two: at a ring point, or at a time. The value belongs to the high half.
type Cut struct {
	ByTime bool        `json:"by_time,omitempty"`
	Ring   uint64      `json:"ring,omitempty"`
	Time   point.Nanos `json:"time,omitempty"`
}

// AtRing cuts at a ring point.
func AtRing(ring uint64) Cut { return Cut{Ring: ring} }

// AtTime cuts at a time.
func AtTime(t point.Nanos) Cut { return Cut{ByTime: true, Time: t} }

// Child is a partition that a split makes.
type Child struct {
	ID         point.PartitionID `json:"id"`
	Placements []Placement       `json:"placements"` // in chain order
}

// Split is a split under way.
type Split struct {
	At   Cut   `json:"at"`
	Low  Child `json:"low"`
	High Child `json:"high"`
}

// Partition is a rectangle of the keyspace and where it lies. PointHi and TimeHi are exclusive; PointHi 0 means 2^64.
type Partition struct {
	ID      point.PartitionID `json:"id"`
	PointLo uint64            `json:"point_lo"`
	PointHi uint64            `json:"point_hi"`
	TimeLo  point.Nanos       `json:"time_lo"`
	TimeHi  point.Nanos       `json:"time_hi"`
	// Placements that should hold every row, in chain order. Never empty.
	Placements []Placement `json:"placements"`
	// Joining placements are being filled; no reader uses them.
	Joining []Placement `json:"joining,omitempty"`
	State   State       `json:"state,omitempty"`
	// Incomplete means that rows may be missing for good: a person made it go on without the servers that held them (C32).
	Incomplete bool `json:"incomplete,omitempty"`
	// Split is set while State is Splitting.
	Split *Split `json:"split,omitempty"`
	// Into names those that get the rows; set while State is Unload, and then never empty (C27). At most heirsMax.
	Into []point.PartitionID `json:"into,omitempty"`
}

// Contains reports whether a key lies in the partition.
func (p *Partition) Contains(ring uint64, t point.Nanos) bool {
	return t >= p.TimeLo && t < p.TimeHi && ring >= p.PointLo && (p.PointHi == 0 || ring < p.PointHi)
}

// SharesRing reports whether there is a ring point that lies in both partitions.
func (p *Partition) SharesRing(q *Partition) bool {
	return (p.PointHi == 0 || q.PointLo < p.PointHi) && (q.PointHi == 0 || p.PointLo < q.PointHi)
}

// Accepts reports whether the partition accepts writes: of all that contain a key, exactly one does (I2).
func (p *Partition) Accepts() bool { return p.State != Unload }

// On finds the live placement on a server.
func (p *Partition) On(s ServerID) (Placement, bool) { return on(p.Placements, s) }

// JoiningOn finds the joining placement on a server.
func (p *Partition) JoiningOn(s ServerID) (Placement, bool) { return on(p.Joining, s) }

func on(placed []Placement, s ServerID) (Placement, bool) {
	for _, pl := range placed {
		if pl.Server == s {
			return pl, true
		}
	}
	return Placement{}, false
}

// Children gives the partitions that a split under way will make, low before high; nil when none is.
func (p *Partition) Children() []*Partition {
	if p.Split == nil {
		return nil
	}
	half := func(c Child) Partition {
		return Partition{ID: c.ID, PointLo: p.PointLo, PointHi: p.PointHi, TimeLo: p.TimeLo, TimeHi: p.TimeHi,
			Placements: c.Placements, Incomplete: p.Incomplete}
	}
	low, high := half(p.Split.Low), half(p.Split.High)
	if at := p.Split.At; at.ByTime {
		low.TimeHi, high.TimeLo = at.Time, at.Time
	} else {
		low.PointHi, high.PointLo = at.Ring, at.Ring
	}
	return []*Partition{&low, &high}
}

// clone copies the parts that the caller of an op might change later.
func (p *Partition) clone() *Partition {
	c := *p
	c.Placements, c.Joining, c.Into = slices.Clone(p.Placements), slices.Clone(p.Joining), slices.Clone(p.Into)
	if p.Split != nil {
		s := *p.Split
		s.Low.Placements, s.High.Placements = slices.Clone(s.Low.Placements), slices.Clone(s.High.Placements)
		c.Split = &s
	}
	return &c
}

// equal compares everything.
func (p *Partition) equal(q *Partition) bool {
	return p.box() == q.box() && p.State == q.State && p.Incomplete == q.Incomplete &&
		slices.Equal(p.Placements, q.Placements) && slices.Equal(p.Joining, q.Joining) && slices.Equal(p.Into, q.Into) &&
		(p.Split == nil) == (q.Split == nil) && (p.Split == nil || p.Split.equal(q.Split))
}

func (s *Split) equal(o *Split) bool {
	return s.At == o.At && s.Low.ID == o.Low.ID && s.High.ID == o.High.ID &&
		slices.Equal(s.Low.Placements, o.Low.Placements) && slices.Equal(s.High.Placements, o.High.Placements)
}

// within checks that the cut leaves both halves something (C23).
func (c Cut) within(p *Partition) error {
	if c.ByTime {
		if c.Time <= p.TimeLo || c.Time >= p.TimeHi {
			return fault.Errorf(fault.Invalid, "%s cannot be cut at %s: choose a time after %s and before %s", name(p.ID), stamp(c.Time), stamp(p.TimeLo), stamp(p.TimeHi))
		}
		return nil
	}
	if c.Ring <= p.PointLo || p.PointHi != 0 && c.Ring >= p.PointHi {
		return fault.Errorf(fault.Invalid, "%s cannot be cut at ring point %#x: choose one above %#x and below %s", name(p.ID), c.Ring, p.PointLo, ringEnd(p.PointHi))
	}
	return nil
}

// valid checks a partition by itself: its form, its states, where it lies. Errors are Invalid.
func (p *Partition) valid() error {
	switch {
	case p.ID == 0:
		return fault.Errorf(fault.Invalid, "a partition has no id: take the map's NextID and those after it")
	case p.TimeLo >= p.TimeHi:
		return fault.Errorf(fault.Invalid, "%s is empty: it ends at %s and begins at %s", name(p.ID), stamp(p.TimeHi), stamp(p.TimeLo))
	case p.PointHi != 0 && p.PointLo >= p.PointHi:
		return fault.Errorf(fault.Invalid, "%s has an empty ring range", name(p.ID))
	case p.State > Unload:
		return fault.Errorf(fault.Invalid, "%s is in a state this build does not know: %d", name(p.ID), p.State)
	case (p.State == Splitting) != (p.Split != nil):
		return fault.Errorf(fault.Invalid, "%s is %s, which does not go with its split", name(p.ID), p.State)
	case (p.State == Unload) != (len(p.Into) > 0):
		return fault.Errorf(fault.Invalid, "%s is %s, which does not go with %d partitions that take over its rows (C27)", name(p.ID), p.State, len(p.Into))
	}
	if p.Split != nil {
		if err := p.Split.At.within(p); err != nil {
			return err
		}
		for _, c := range []Child{p.Split.Low, p.Split.High} {
			if err := validPlaces(c.ID, c.Placements, nil); err != nil {
				return err
			}
		}
	}
	return validPlaces(p.ID, p.Placements, p.Joining)
}

// validPlaces checks that a partition lies somewhere, and nowhere twice.
func validPlaces(id point.PartitionID, live, joining []Placement) error {
	if len(live) == 0 {
		return fault.Errorf(fault.Invalid, "%s lies nowhere: give it at least one placement", name(id))
	}
	if len(live) > PlacementsMax || len(joining) > PlacementsMax {
		return fault.Errorf(fault.Invalid, "%s has more than %d placements: remove some", name(id), PlacementsMax)
	}
	for i := range len(live) + len(joining) {
		a := nth(live, joining, i)
		if err := validName("server", string(a.Server)); err != nil {
			return fault.Annotate(err, "%s", name(id))
		}
		for j := range i {
			b := nth(live, joining, j)
			if a.Server == b.Server {
				return fault.Errorf(fault.Invalid, "%s would lie on server %s twice: choose another server", name(id), a.Server)
			}
			if a.ID == b.ID {
				return fault.Errorf(fault.Invalid, "%s would have two placements with the id %s: choose ids at random", name(id), a.ID)
			}
		}
	}
	return nil
}

func nth(live, joining []Placement, i int) Placement {
	if i < len(live) {
		return live[i]
	}
	return joining[i-len(live)]
}

func validName(what, s string) error {
	if s == "" || len(s) > NameMax || !utf8.ValidString(s) {
		return fault.Errorf(fault.Invalid, "the name of a %s is 1 to %d bytes of UTF-8, not %.40q", what, NameMax, s)
	}
	return nil
}
