package partition

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Identity identifies a placement: constant for its whole life.
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

func (i *Identity) narrow() bool { return point.Narrow(i.TimeLo, i.TimeHi) }

// segmentRange is the partition's range as its segments state it.
func (i *Identity) segmentRange() *segment.Range {
	return &segment.Range{TimeLo: i.TimeLo, TimeHi: i.TimeHi, PointLo: i.PointLo, PointHi: i.PointHi}
}

func (i *Identity) contains(ring uint64) bool {
	return ring >= i.PointLo && (i.PointHi == 0 || ring < i.PointHi)
}

// State is a placement's catalogue entry: which segments hold its rows, and from which log frame on they do not.
type State struct {
	Identity
	// Flushed is the last frame with its rows in segments; recovery replays the frames behind it.
	Flushed point.Serial `json:"flushed"`
	// Ends are, per epoch, the last frame contained in the segments together.
	Ends []point.EpochEnd `json:"ends,omitempty"`
	// Segments, oldest first: at most one major, and that first.
	Segments []SegmentState `json:"segments,omitempty"`
	// Deleted are the newest deletions, in the order of their ranks.
	Deleted []Deleted `json:"deleted,omitempty"`
	// NextSegment is the seq of the next segment id.
	NextSegment uint64 `json:"next_segment"`
	// Adopting is the id of a segment that is being adopted from the leader; nil: none is. A file under it that Segments does not list was not adopted.
	Adopting *point.SegmentID `json:"adopting,omitempty"`
	// Incomplete says why a rebuilt entry may lack acked rows; empty: it lacks none. The partition is closed while it is set.
	Incomplete string `json:"incomplete,omitempty"`
}

// SegmentState is a segment and the deletions that reads of it still have to apply.
type SegmentState struct {
	segment.Info
	Tombstones []Tombstone `json:"tombstones,omitempty"`
}

// Tombstone hides the rows of matching series in [Lo, Hi].
type Tombstone struct {
	Matchers []peer.Matcher `json:"matchers"`
	Lo       point.Nanos    `json:"lo"`
	Hi       point.Nanos    `json:"hi"`
	// At is the frame that brought it: if that frame is cut off the log, the tombstone is removed. Zero: it came in a segment, or
	// before frames were recorded; it stays.
	At point.Serial `json:"at,omitzero"`
}

// State returns the catalogue entry as it is now. It is never changed: a later one is another State.
func (p *Partition) State() *State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state
}

// EndsUpTo returns, per epoch, the last frame contained in the segments up to the i-th.
func (s *State) EndsUpTo(i int) []point.EpochEnd {
	return endsWith(s.Segments[:i], s.Segments[i].Ends)
}

const statePrefix = "p/"

// StatePrefix is the prefix of the catalogue entries of placements.
func StatePrefix() []byte { return []byte(statePrefix) }

// EntryKey is the key of a placement's entry.
func EntryKey(id point.PlacementID) string {
	return string((&State{Identity: Identity{Placement: id}}).key())
}

func (s *State) key() []byte { return StateKey(s.Placement) }

// StateKey is the catalogue's key of a placement's state, which is there until the placement is dropped.
func StateKey(id point.PlacementID) []byte {
	return fmt.Appendf(nil, "%s%016x", statePrefix, uint64(id))
}

// Entry returns the catalogue's key and value.
func (s *State) Entry() (key, value []byte) { return s.key(), s.encode() }

// encode returns the entry: a version and JSON. Entries are written once per flush; an operator with a hex dump can read them.
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

// check returns an error for the first contradiction: a state that no flush or compaction could have written.
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

// raise returns ends, in rising order of epochs, with each epoch raised to its value in by.
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
