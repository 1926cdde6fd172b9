package rules

import (
	"fmt"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Held is a placement that is here.
type Held struct {
	Partition point.PartitionID
	Placement point.PlacementID
	// Empty: it never accepted a row.
	Empty bool
	// Covered: the lease row names others that hold every acked row, and no leader can list this placement any more.
	Covered bool
}

// View is the state of a table.
type View struct {
	Map    *topology.Map // nil: none
	Seen   uint64        // the highest seq ever seen here
	Server topology.ServerID
	Held   []Held
}

// Kind is the action for a partition or a placement.
type Kind uint8

const (
	// Serve: the placement may lead. Its rows, if any, are loaded already: a server loads all placements at its start.
	Serve Kind = iota
	// Split: as Serve, and it is to be cut in two: its leader hands its part of the keyspace over to the halves (C22).
	Split
	// Unloading: as Serve, but it accepts no rows any more (C78).
	Unloading
	// Final: Unloading, and it is empty: its leader may have it removed from the map.
	Final
	// Remove: the map says explicitly that it is not wanted here any more, and no acked row is lost.
	Remove
	// Alarm: the map does not want the placement here, or is not to be believed; it stays, and a person looks.
	Alarm
)

var kindNames = [...]string{Serve: "serve", Split: "split", Unloading: "unload", Final: "final", Remove: "remove", Alarm: "alarm"}

// Action is one thing to do. Partition 0: of the table as a whole.
type Action struct {
	Kind      Kind
	Partition point.PartitionID
	Placement point.PlacementID
	IfEmpty   bool // Remove: only if it is still empty
	Why       string
}

func (a Action) String() string {
	s := fmt.Sprintf("%-6s p%d", kindNames[a.Kind], a.Partition)
	if a.Partition == 0 {
		s = kindNames[a.Kind]
	}
	if a.Placement != 0 {
		s += fmt.Sprintf(" placement %d", a.Placement)
	}
	if a.Why != "" {
		s += ": " + a.Why
	}
	return s
}

// The actions of a server for a table (C16, C17): doubt, or else judge for the placements held and serve for each of the map's. They are worked
// out again after every change, so a repeated action is nothing new.
//
//	held here                   the map says                           so
//	anything                    nothing: there is no map               alarm
//	anything                    it is older than one seen before       alarm
//	placement 7 of partition 3  3 is not in it, though given out       remove: dropped
//	                            3 is on this server by placement 7     serve, or unload
//	                            3 is on others, or here by placement 8 Remove if others have all acked rows or it is empty,
//	                                                                   else alarm, and it may go on to lead

// doubt returns what keeps the map from being carried out, or nil.
func (v *View) doubt() []Action {
	switch {
	case v.Map == nil && len(v.Held) == 0:
		return nil
	case v.Map == nil:
		return []Action{{Kind: Alarm, Why: fmt.Sprintf("the table has no map, but %d partitions are here; nothing is deleted", len(v.Held))}}
	case v.Map.Seq < v.Seen:
		return []Action{{Kind: Alarm, Why: fmt.Sprintf("its map is at %d, but %d was seen before; nothing is deleted or begun", v.Map.Seq, v.Seen)}}
	}
	return nil
}

// judge returns the actions for placements that the map does not list, and which of the placements here stay.
func (v *View) judge() (out []Action, here map[point.PartitionID]Held) {
	here = map[point.PartitionID]Held{}
	for _, h := range v.Held {
		a, known := v.about(h)
		if !known || a.Kind == Alarm {
			here[h.Partition] = h
		}
		if known {
			out = append(out, a)
		}
	}
	return out, here
}

// serve returns how the server serves one partition; false: not at all.
func (v *View) serve(at *topology.Partition, here map[point.PartitionID]Held) (Action, bool) {
	h, isHere := here[at.ID]
	pl, ok := at.On(v.Server)
	a := Action{Partition: at.ID, Placement: pl.ID}
	_, joining := at.JoiningOn(v.Server)
	switch {
	case joining: // it leads nothing before it is live
		return a, false
	case isHere && (!ok || pl.ID != h.Placement):
		// The placement with the only copy of acked rows goes on to lead, whatever the map says.
		a.Kind, a.Placement, a.Why = Unloading, h.Placement, "it alone has the rows"
	case !ok:
		return a, false
	case at.State == topology.Splitting:
		a.Kind = Split
	case at.Accepts():
		a.Kind = Serve
	case !isHere || h.Empty:
		a.Kind = Final
	default:
		a.Kind = Unloading
	}
	return a, true
}

// about returns the action for a placement that the map does not list; known is false when the map lists it.
func (v *View) about(h Held) (a Action, known bool) {
	a = Action{Partition: h.Partition, Placement: h.Placement}
	at, ok := v.Map.ByID(h.Partition)
	if !ok {
		a.Kind, a.Why = Remove, fmt.Sprintf("dropped by map %d", v.Map.Seq)
		if h.Partition >= v.Map.NextID {
			a.Kind, a.Why = Alarm, fmt.Sprintf("map %d never gave this partition out", v.Map.Seq)
		}
		return a, true
	}
	pl, on := at.On(v.Server)
	if !on {
		pl, on = at.JoiningOn(v.Server)
	}
	switch {
	case on && pl.ID == h.Placement:
		return a, false
	case h.Empty:
		a.Kind, a.IfEmpty, a.Why = Remove, true, "it is empty, and the map has other placements"
	case h.Covered:
		a.Kind, a.Why = Remove, "others have every acked row, and the map has other placements"
	default:
		a.Kind, a.Why = Alarm, "the map has other placements, but no other server is known to have its rows"
	}
	return a, true
}
