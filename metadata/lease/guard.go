package lease

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Guard is the write of one METADATA transaction into the lease row of one partition that it changes. It is part of the store transaction
// that commits the change, so that a server with an older map can neither acquire the partition nor add to its in-sync list:
//
//	row             the placements change, or it ends       it is dropped     it must be unused
//	none            free, epoch 0, empty, seq               gone, seq         gone, seq
//	free            seq                                     gone, seq         gone, seq if empty or epoch 0, else Stale
//	held            seq; holder, boot and epoch stay        seq               seq and no list if empty, else Stale
//	deleted by hand Unavailable until its holder or a       gone, seq         Stale
//	                person puts it back
//	lists none      Invalid
//	that stays
//
// The last line: the partition may have rows, and the change removes every listed placement from the map, or has it join again. It was planned when others were listed, and
// would leave no placement that may lead. The error is Invalid and not Stale, since the same change on the same map would be refused again. ForceJoin is not refused: by it a
// person gives the rows up.
//
// Epoch, ends, nonce, offline and bump are kept. The in-sync list is removed only if the row says that the partition is empty and a member is not among its
// placements any more (Vacated).
type Guard struct {
	Partition Partition
	// Dropped: the partition is not in the new map. Unused: the change also relies on the partition being empty.
	Dropped, Unused bool
	// Placements are those of the new map that may lead. Left are those of the old one that may not any more, unless a person gave them up.
	Placements, Left []topology.Placement
}

// Guards lists the guards of the transaction from base to next. A new partition needs none: no older map has it. New
// joining placements need none either: they may not lead.
func Guards(base, next *topology.Map, ops []topology.Op) []Guard {
	unused := topology.Unused(ops)
	var out []Guard
	for _, c := range topology.Changes(base, next) {
		g := Guard{Partition: Partition{Table: next.Table, ID: c.ID}}
		switch {
		case c.Was == nil:
			continue
		case c.Is == nil:
			g.Dropped, g.Unused = true, slices.Contains(unused, c.ID)
		case c.Was.Accepts() == c.Is.Accepts() && slices.Equal(c.Was.Placements, c.Is.Placements) && !lostJoining(c.Was, c.Is):
			continue
		default:
			g.Placements = c.Is.Placements
			if !slices.ContainsFunc(ops, func(op topology.Op) bool { f, ok := op.(topology.ForceJoin); return ok && f.Partition == c.ID }) {
				g.Left = slices.DeleteFunc(slices.Clone(c.Was.Placements), func(p topology.Placement) bool { return slices.Contains(c.Is.Placements, p) })
			}
		}
		out = append(out, g)
	}
	return out
}

// lostJoining reports whether a placement that joined is neither joining nor live any more.
func lostJoining(was, is *topology.Partition) bool {
	return slices.ContainsFunc(was.Joining, func(p topology.Placement) bool {
		return !slices.Contains(is.Joining, p) && !slices.Contains(is.Placements, p)
	})
}

// Keys returns the keys of the rows that Write reads.
func (g Guard) Keys() [2]string { return [2]string{RowKey(g.Partition), bornKey(g.Partition)} }

// Write returns the conditions and the write for the rows as they were read; absent rows are left out. mark is 0 if the
// transaction is committed in the same step. Otherwise it is the revision of the table's row that the swap will compare: the
// row must not say yet that the partition is gone, and a row marked since that revision needs nothing. Errors are
// Stale (the partition is used), Unavailable (deleted by hand) and Invalid (unreadable, or it lists none that stays).
func (g Guard) Write(seq uint64, rows map[string]coord.Row, mark coord.Revision) ([]coord.Condition, []coord.Write, error) {
	keys := g.Keys()
	row, there := rows[keys[0]]
	born, led := rows[keys[1]]
	conditions := []coord.Condition{{Key: keys[0], Revision: row.Revision}}
	if !there {
		conditions = append(conditions, coord.Condition{Key: keys[1], Revision: born.Revision})
	}
	l := Lease{State: Free, Empty: !led}
	if there {
		var err error
		if l, err = DecodeLease(row.Value); err != nil && !g.Dropped {
			return nil, nil, fault.Wrap(err, fault.Invalid, "partition %s: its lease row must be put right first", g.Partition)
		} else if err != nil {
			l = Lease{State: Gone}
		}
	}
	switch {
	case g.Unused && (there && !l.Empty && l.Epoch != 0 || !there && led):
		return nil, nil, fault.Errorf(fault.Stale, "partition %s was led, and may hold rows", g.Partition)
	case !l.Empty && g.leaveNone(l.InSync):
		return nil, nil, fault.Errorf(fault.Invalid, "partition %s: none of the placements that have its rows would stay; plan anew by its lease row", g.Partition)
	case !there && led && !g.Dropped:
		return nil, nil, fault.Errorf(fault.Unavailable, "partition %s: its lease row was deleted; its leader, or a person, must put it back first", g.Partition)
	}
	if mark != 0 && there && l.Seq >= seq && row.Revision > mark {
		return nil, nil, nil
	}
	if g.Unused || !g.Dropped && l.Empty && slices.ContainsFunc(l.InSync, g.left) {
		l = l.Vacated()
	}
	if g.Dropped && mark == 0 && l.State == Free {
		l.State = Gone
	}
	l.Seq = max(l.Seq, seq)
	return conditions, []coord.Write{{Key: keys[0], Value: l.Encode()}}, nil
}

// leaveNone reports whether the change removes a listed placement and no other one of the list may lead by the new map.
func (g Guard) leaveNone(list []Member) bool {
	leaves := func(m Member) bool {
		return slices.ContainsFunc(g.Left, func(p topology.Placement) bool { return p.ID == m.Placement })
	}
	return slices.ContainsFunc(list, leaves) && !slices.ContainsFunc(list, func(m Member) bool { return !g.left(m) })
}

// left reports whether the new map lacks this placement.
func (g Guard) left(m Member) bool {
	return !slices.ContainsFunc(g.Placements, func(p topology.Placement) bool { return p.ID == m.Placement })
}

// Swept records the transaction of a table up to which rows of dropped partitions were deleted. An acquisition that finds no row compares this one,
// and refuses while its map is older: the row that would have stopped it may be one of the deleted ones.
type Swept struct {
	Seq uint64 `json:"seq"`
}

// SweptKey is the key of a table's Swept row.
func SweptKey(table string) string { return sweptPrefix + table }

// Encode returns the row's stored form: JSON with a version.
func (s Swept) Encode() []byte {
	type stored struct {
		V int `json:"v"`
		Swept
	}
	return mustJSON(stored{rowVersion, s})
}

// DecodeSwept reads a Swept row. Errors are Corrupt: then no partition without a row is acquired.
func DecodeSwept(b []byte) (Swept, error) {
	var s struct {
		V int `json:"v"`
		Swept
	}
	if err := decode(b, &s, &s.V); err != nil {
		return Swept{}, fault.Annotate(err, "swept row")
	}
	return s.Swept, nil
}

// Barring returns the row that keeps servers with a map older than transaction seq from acquiring the partition and from changing its
// in-sync list. Compare the row at its revision; seq is of a committed map.
func (l Lease) Barring(seq uint64) Lease { l.Seq = max(l.Seq, seq); return l }

// MayDelete reports whether a server may delete its copy of a partition that a map of transaction seq does not place there: no
// leader can list the copy as in sync any more. Compare the row at its revision when committing to the deletion.
func (l *Lease) MayDelete(placement point.PlacementID, seq uint64) bool {
	return l.Seq >= seq && !slices.ContainsFunc(l.InSync, func(m Member) bool { return m.Placement == placement })
}
