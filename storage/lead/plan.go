package lead

import (
	"fmt"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// held is a placement that is here.
type held struct {
	Partition point.PartitionID
	Placement point.PlacementID
	// Empty: it never took a row.
	Empty bool
	// Covered: the lease row names others that hold every acked row, and not this placement.
	Covered bool
}

// view is what is known of a table.
type view struct {
	Map    *topology.Map // nil: none
	Seen   uint64        // the highest seq ever seen here
	Server topology.ServerID
	Held   []held
}

// kind is what to do with a partition or a placement.
type kind uint8

const (
	// serve: the placement may lead. Its rows, if there are any, are loaded already: a server loads all it has at its start.
	serve kind = iota
	// unload: as serve, but no row is taken any more (C78).
	unload
	// final: unload, and nothing is in it: whoever leads it may have it taken out of the map.
	final
	// remove: the map says explicitly that it is not wanted here any more, and no acked row goes with it.
	remove
	// alarm: the map does not want what is here, or is not to be believed; it stays, and a person looks.
	alarm
)

var kindNames = [...]string{serve: "serve", unload: "unload", final: "final", remove: "remove", alarm: "alarm"}

// action is one thing to do. Partition 0: of the table as a whole.
type action struct {
	kind      kind
	partition point.PartitionID
	placement point.PlacementID
	why       string
}

func (a action) String() string {
	s := fmt.Sprintf("%-6s p%d", kindNames[a.kind], a.partition)
	if a.partition == 0 {
		s = kindNames[a.kind]
	}
	if a.placement != 0 {
		s += fmt.Sprintf(" placement %d", a.placement)
	}
	if a.why != "" {
		s += ": " + a.why
	}
	return s
}

// plan says what a server does about a table (C16, C17): removals and alarms by what is held, then what it serves, in the
// map's order. It is asked again after every change, so what it says once more is nothing new.
//
//	held here                   the map says                           so
//	anything                    nothing: there is no map               alarm
//	anything                    it is older than one seen before       alarm
//	placement 7 of partition 3  3 is not in it, though given out       remove: dropped
//	                            3 is on this server by placement 7     serve, or unload
//	                            3 is on others, or here by placement 8 remove if others have all acked rows or it is empty,
//	                                                                   else alarm, and it may go on to lead
func plan(v view) []action {
	switch {
	case v.Map == nil && len(v.Held) == 0:
		return nil
	case v.Map == nil:
		return []action{{kind: alarm, why: fmt.Sprintf("the table has no map, but %d partitions are here; nothing is deleted", len(v.Held))}}
	case v.Map.Seq < v.Seen:
		return []action{{kind: alarm, why: fmt.Sprintf("its map is at %d, but %d was seen before; nothing is deleted or begun", v.Map.Seq, v.Seen)}}
	}
	var out []action
	here := map[point.PartitionID]held{}
	for _, h := range v.Held {
		a, known := v.about(h)
		if !known || a.kind == alarm {
			here[h.Partition] = h
		}
		if known {
			out = append(out, a)
		}
	}
	for at := range v.Map.All() {
		h, isHere := here[at.ID]
		pl, ok := at.On(v.Server)
		_, joining := at.JoiningOn(v.Server)
		switch {
		case joining: // it leads nothing before it is live
		case isHere && (!ok || pl.ID != h.Placement):
			// The only copy of acked rows goes on to be led by whoever has it, whatever the map says.
			out = append(out, action{kind: unload, partition: at.ID, placement: h.Placement, why: "it alone has the rows"})
		case !ok:
		case at.Accepts():
			out = append(out, action{kind: serve, partition: at.ID, placement: pl.ID})
		case !isHere || h.Empty:
			out = append(out, action{kind: final, partition: at.ID, placement: pl.ID})
		default:
			out = append(out, action{kind: unload, partition: at.ID, placement: pl.ID})
		}
	}
	return out
}

// about says what to do with a placement that the map does not list; known is false when it does.
func (v *view) about(h held) (a action, known bool) {
	a = action{partition: h.Partition, placement: h.Placement}
	at, ok := v.Map.ByID(h.Partition)
	if !ok {
		a.kind, a.why = remove, fmt.Sprintf("dropped by map %d", v.Map.Seq)
		if h.Partition >= v.Map.NextID {
			a.kind, a.why = alarm, fmt.Sprintf("map %d never gave this partition out", v.Map.Seq)
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
		a.kind, a.why = remove, "it is empty, and the map has other placements"
	case h.Covered:
		a.kind, a.why = remove, "others have every acked row, and the map has other placements"
	default:
		a.kind, a.why = alarm, "the map has other placements, but nobody else is known to have its rows"
	}
	return a, true
}
