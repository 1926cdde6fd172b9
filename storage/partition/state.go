package partition

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Identity is what a placement is: constant for its whole life.
type Identity struct {
	Table     string            `json:"table"`
	Partition point.PartitionID `json:"partition"`
	Placement point.PlacementID `json:"placement"`
	TimeLo    point.Nanos       `json:"time_lo"`
	TimeHi    point.Nanos       `json:"time_hi"` // exclusive
	// PointLo and PointHi are the column of the ring; PointHi is exclusive, 0 means 2^64. Both 0: the whole ring.
	PointLo uint64 `json:"point_lo,omitempty"`
	PointHi uint64 `json:"point_hi,omitempty"`
}

// whole reports whether the placement's column is the whole ring.
func (i *Identity) whole() bool { return i.PointLo == 0 && i.PointHi == 0 }

// narrowMax is up to which width a partition is narrow: a series has few rows in it, and what its partition costs is shared by few.
const narrowMax = 10 * time.Minute

func (i *Identity) narrow() bool { return uint64(i.TimeHi)-uint64(i.TimeLo) <= uint64(narrowMax) }

// segmentRange is what its segments tell of the partition.
func (i *Identity) segmentRange() *segment.Range {
	return &segment.Range{TimeLo: i.TimeLo, TimeHi: i.TimeHi, PointLo: i.PointLo, PointHi: i.PointHi}
}

func (i *Identity) contains(ring uint64) bool {
	return ring >= i.PointLo && (i.PointHi == 0 || ring < i.PointHi)
}

// State is a placement's catalogue entry: which segments hold its rows, and from which log frame on they do not.
type State struct {
	Identity
	// Flushed is the last frame whose rows are in segments; recovery replays what follows.
	Flushed point.Serial `json:"flushed"`
	// Ends are, per epoch, the last frame contained in the segments together.
	Ends []point.EpochEnd `json:"ends,omitempty"`
	// Segments, oldest first: at most one major, and that first.
	Segments []SegmentState `json:"segments,omitempty"`
	// NextSegment is the seq of the next segment id.
	NextSegment uint64 `json:"next_segment"`
	// Adopting is the id of a segment that is being taken over from the leader; nil: none is. A file under it that Segments does
	// not list was not adopted.
	Adopting *point.SegmentID `json:"adopting,omitempty"`
	// Incomplete says why the entry, which was rebuilt, may lack rows that were acked; empty: it lacks none. The partition is
	// closed as long as it says so.
	Incomplete string `json:"incomplete,omitempty"`
}

// SegmentState is a segment and the deletions that still have to be applied to what it gives.
type SegmentState struct {
	segment.Info
	Tombstones []Tombstone `json:"tombstones,omitempty"`
}

// Tombstone hides the rows of matching series in [Lo, Hi].
type Tombstone struct {
	Matchers []peer.Matcher `json:"matchers"`
	Lo       point.Nanos    `json:"lo"`
	Hi       point.Nanos    `json:"hi"`
	// At is the frame that brought it: it goes if that frame is cut off the log. Zero: it came in a segment, or before frames
	// were told; it stays.
	At point.Serial `json:"at,omitzero"`
}

// noteSerial says which frame brought a deletion.
func (s *State) noteSerial(t Tombstone, at point.Serial) {
	for i := range s.Segments {
		for j := range s.Segments[i].Tombstones {
			if g := &s.Segments[i].Tombstones[j]; g.At == (point.Serial{}) && g.equal(t) {
				g.At = at
			}
		}
	}
}

const statePrefix = "p/"

// StatePrefix is where catalogue entries of placements lie.
func StatePrefix() []byte { return []byte(statePrefix) }

// EntryKey is where the entry of a placement lies.
func EntryKey(id point.PlacementID) string {
	return string((&State{Identity: Identity{Placement: id}}).key())
}

func (s *State) key() []byte { return fmt.Appendf(nil, "%s%016x", statePrefix, uint64(s.Placement)) }

// Entry gives the catalogue's key and value.
func (s *State) Entry() (key, value []byte) { return s.key(), s.encode() }

// encode gives the entry: a version and JSON. Entries are written once per flush; a person with a hex dump can read them.
func (s *State) encode() []byte {
	b, err := json.Marshal(versioned{V: stateVersion, State: s})
	if err != nil {
		fault.Bug("a catalogue entry does not encode: %v", err)
	}
	return b
}

type versioned struct {
	V int `json:"v"`
	*State
}

const stateVersion = 1

// DecodeState reads an entry. Errors are Corrupt.
func DecodeState(b []byte) (*State, error) {
	v := versioned{State: &State{}}
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "catalogue entry of a partition")
	}
	if v.V != stateVersion {
		return nil, fault.Errorf(fault.Corrupt, "catalogue entry of version %d; this build reads version %d", v.V, stateVersion)
	}
	return v.State, v.State.check()
}

// check reports the first thing that no flush or compaction could have written.
func (s *State) check() error {
	bad := func(format string, args ...any) error {
		return fault.Annotate(fault.Errorf(fault.Corrupt, format, args...), "catalogue entry of partition %s/%d", s.Table, s.Partition)
	}
	if s.TimeLo >= s.TimeHi {
		return bad("its range of time is empty")
	}
	if s.PointHi != 0 && s.PointLo >= s.PointHi {
		return bad("its column of the ring is empty")
	}
	var before point.SegmentID
	for i, g := range s.Segments {
		if g.Major != (i == 0) {
			return bad("segment %v at place %d: the chain must start with its only major", g.ID, i)
		}
		if i > 0 && g.Base != before {
			return bad("segment %v is based on %v, but follows %v", g.ID, g.Base, before)
		}
		before = g.ID
	}
	if s.Flushed != (point.Serial{}) && !slices.Contains(s.Ends, point.EpochEnd(s.Flushed)) {
		return bad("flushed up to %v, which is none of its ends %v", s.Flushed, s.Ends)
	}
	return nil
}

// raise returns ends, which are in rising order of epochs, with each epoch raised to what by says of it.
func raise(ends []point.EpochEnd, by ...point.EpochEnd) []point.EpochEnd {
	out := slices.Clone(ends)
	for _, e := range by {
		i, ok := slices.BinarySearchFunc(out, e, func(a, b point.EpochEnd) int { return cmp.Compare(a.Epoch, b.Epoch) })
		if ok {
			out[i].Seq = max(out[i].Seq, e.Seq)
		} else {
			out = slices.Insert(out, i, e)
		}
	}
	return out
}
