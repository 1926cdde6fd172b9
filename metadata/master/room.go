package master

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Rows are copied only to servers whose disks have room for them: heartbeats (lease.Beat) report the room beside the reserve.
//
//	before a copy begins   room ≥ rows of the placements that are being filled there + rows of this one and a quarter; where that is not known, it begins
//	while it goes on       the server accepted no more rows, or said that some of this partition did not fit: the placement leaves the map, its copy is deleted,
//	                       and another server is chosen; if there is none, an alarm says how much room is needed
//
// The quarter is what other writers use meanwhile, and keeps a copy from beginning again where it just failed.

// takes reports whether a server has room for a partition's rows beside the copies that it is being filled with.
func (st *standing) takes(bytes int64) bool {
	return st.fits(bytes) && (st.Beat.Room == 0 || st.Beat.Room-st.coming >= withSpare(bytes))
}

// fits reports whether a server would have room for a partition's rows if nothing else was being copied to it.
func (st *standing) fits(bytes int64) bool {
	return st.Beat.Room == 0 || st.Beat.Room >= withSpare(bytes)
}

func withSpare(bytes int64) int64 { return bytes + bytes/4 }

// LacksRoom returns why a server has no room for a partition's rows; "": it has, or it is not known.
func LacksRoom(s *State, key lease.Partition, to topology.ServerID) string {
	return newIndex(*s, Settings{}).lacksRoom(to, s.Sizes[key].Bytes)
}

// lacksRoom returns why a server that a person chose has no room for so many bytes; "": it has, or there is none.
func (v *view) lacksRoom(s topology.ServerID, bytes int64) string {
	if st := v.servers[s]; st != nil && !st.fits(bytes) {
		return fmt.Sprintf("%s has room for %s, and the partition of %s needs %s", s, Bytes(st.Beat.Room), Bytes(bytes), Bytes(withSpare(bytes)))
	}
	return ""
}

// full returns why a server cannot hold the rest of a partition that is being copied to it; "": it can.
func (v *view) full(s topology.ServerID, key lease.Partition) string {
	switch st := v.servers[s]; {
	case st == nil:
	case st.Beat.ReadOnly != "":
		return fmt.Sprintf("%s takes no more rows: %s", s, st.Beat.ReadOnly)
	case slices.Contains(st.Beat.NoRoom, key.String()):
		return fmt.Sprintf("%s has no room for its %s: %s are left there", s, Bytes(v.Sizes[key].Bytes), Bytes(st.Beat.Room))
	}
	return ""
}

// unplaced is a partition with rows for which no server has room.
type unplaced struct {
	part lease.Partition
	most *standing // of the servers that may have it otherwise, the one with most room
}

// roomless notes a partition for which no server was chosen, if one would be if its disk had more room.
func (p *planner) roomless(w where) {
	bytes, most := w.bytes, (*standing)(nil)
	w.bytes, w.to = 0, ""
	for _, st := range p.order {
		if p.unsuitable(&w, st) || !p.set.ShareHosts && slices.ContainsFunc(w.has, func(s topology.ServerID) bool { return p.servers[s] != nil && p.servers[s].Host == st.Host }) {
			continue
		}
		if st.fits(bytes) {
			return // it waits for other copies
		}
		if most == nil || st.Beat.Room > most.Beat.Room {
			most = st
		}
	}
	if most != nil {
		p.unplaced = append(p.unplaced, unplaced{w.part, most})
	}
}

// roomAlarm reports the partitions for which no server has room.
func (p *planner) roomAlarm() {
	if len(p.unplaced) == 0 {
		return
	}
	largest := slices.MaxFunc(p.unplaced, func(a, b unplaced) int {
		return cmp.Or(cmp.Compare(p.Sizes[a.part].Bytes, p.Sizes[b.part].Bytes), comparePartitions(b.part, a.part))
	})
	bytes := p.Sizes[largest.part].Bytes
	p.alarm(largest.part.Table, largest.part.ID, fmt.Sprintf("no server has room for %d partitions with rows", len(p.unplaced)),
		"%s has %s, for which %s must be free beside the reserve; most is on %s, %s: make room on disks, or start a server",
		largest.part, Bytes(bytes), Bytes(withSpare(bytes)), largest.most.ID, Bytes(largest.most.Beat.Room))
}
