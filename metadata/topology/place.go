package topology

import (
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Join adds a placement that is to be filled (C31). Its server holds the partition in no other way yet.
type Join struct {
	Partition point.PartitionID
	Placement Placement
}

func (o Join) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if slices.Contains(p.Joining, o.Placement) || slices.Contains(p.Placements, o.Placement) {
		return nil
	}
	if p.State == Unload {
		return fault.Errorf(fault.Invalid, "%s is unloading: join %s, which take over its rows", name(p.ID), names(p.Into))
	}
	next := p.clone()
	next.Joining = append(next.Joining, o.Placement)
	return t.placed(next)
}

// placed stores a partition with other placements.
func (t *txn) placed(p *Partition) error {
	if err := validPlaces(p.ID, p.Placements, p.Joining); err != nil {
		return err
	}
	t.put(p)
	return nil
}

// String describes the op for people.
func (o Join) String() string {
	return fmt.Sprintf("let server %s join %s", o.Placement.Server, name(o.Partition))
}

// JoinFinalize makes a joining placement live, as the last of the chain. The leader proposes it, once the placement has
// every row (C28, C73).
type JoinFinalize struct {
	Partition point.PartitionID
	Placement point.PlacementID
}

func (o JoinFinalize) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if find(p.Placements, o.Placement) >= 0 {
		return nil
	}
	i := find(p.Joining, o.Placement)
	if i < 0 {
		return gone(p, o.Placement)
	}
	next := p.clone()
	next.Placements = append(next.Placements, next.Joining[i])
	next.Joining = slices.Delete(next.Joining, i, i+1)
	return t.placed(next)
}

func find(placed []Placement, id point.PlacementID) int {
	return slices.IndexFunc(placed, func(pl Placement) bool { return pl.ID == id })
}

func gone(p *Partition, id point.PlacementID) error {
	return fault.Errorf(fault.Stale, "%s has no placement %s any more: plan anew on the newest map", name(p.ID), id)
}

// String describes the op for people.
func (o JoinFinalize) String() string {
	return fmt.Sprintf("placement %s of %s has every row: make it live", o.Placement, name(o.Partition))
}

// Unjoin makes a live placement a joining one again. At least Replicas stay live (C34), unless the placement has Lost its
// store: then the map only admits the loss, and one is enough.
type Unjoin struct {
	Partition point.PartitionID
	Placement point.PlacementID
	Lost      bool
}

func (o Unjoin) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if find(p.Joining, o.Placement) >= 0 {
		return nil
	}
	i := find(p.Placements, o.Placement)
	if i < 0 {
		return gone(p, o.Placement)
	}
	floor := t.m.Config.Replicas
	if o.Lost {
		floor = 1
	}
	if err := keepsFloor(p, floor); err != nil {
		return err
	}
	next := p.clone()
	next.Joining = append(next.Joining, next.Placements[i])
	next.Placements = slices.Delete(next.Placements, i, i+1)
	return t.placed(next)
}

// keepsFloor checks that one live placement may go.
func keepsFloor(p *Partition, floor int) error {
	if n := len(p.Placements) - 1; n < floor {
		return fault.Errorf(fault.Invalid, "%s would have %d live placements, at least %d must stay (C34): let another server join and become live first", name(p.ID), n, floor)
	}
	return nil
}

// String describes the op for people.
func (o Unjoin) String() string {
	s := fmt.Sprintf("make placement %s of %s join anew", o.Placement, name(o.Partition))
	if o.Lost {
		s += ": its store is lost"
	}
	return s
}

// Remove removes a placement (C33); its server deletes the rows later. At least Replicas stay live (C34); a joining
// placement may go at any time.
type Remove struct {
	Partition point.PartitionID
	Placement point.PlacementID
}

func (o Remove) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if fault.Is(err, fault.Stale) {
		return nil
	}
	if err != nil {
		return err
	}
	next := p.clone()
	if i := find(p.Joining, o.Placement); i >= 0 {
		next.Joining = slices.Delete(next.Joining, i, i+1)
		return t.placed(next)
	}
	i := find(p.Placements, o.Placement)
	if i < 0 {
		return nil
	}
	if err := keepsFloor(p, t.m.Config.Replicas); err != nil {
		return err
	}
	next.Placements = slices.Delete(next.Placements, i, i+1)
	return t.placed(next)
}

// String describes the op for people.
func (o Remove) String() string {
	return fmt.Sprintf("take placement %s out of %s", o.Placement, name(o.Partition))
}

// ForceJoin lets a partition go on without the placements that hold it (C32): the placement, which is new or the server's present one, is live
// alone, those on other servers join again, and it is marked as incomplete, with those that get its rows. Rows may be lost, so a
// person stands for it: By and Reason are needed, and are for the log.
type ForceJoin struct {
	Partition point.PartitionID
	Placement Placement
	By        string
	Reason    string
}

// apply keeps the other placements as joining ones, though they may have all rows: they may come back without those that are acked from here on, and a
// joining placement is filled before it is read. Partitions that get the rows are marked first, since the mark would be gone with this one when its rows have
// moved, and their answers would lack rows without a warning.
func (o ForceJoin) apply(t *txn) error {
	if o.By == "" || o.Reason == "" || len(o.By) > NameMax || len(o.Reason) > NameMax {
		return fault.Errorf(fault.Invalid, "going on without the servers that hold %s may lose rows: say who wants it and why, in at most %d bytes each", name(o.Partition), NameMax)
	}
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if slices.Equal(p.Placements, []Placement{o.Placement}) && p.Incomplete {
		return nil
	}
	if p.State == Splitting {
		return fault.Errorf(fault.Invalid, "%s is being split: abort that first", name(p.ID))
	}
	for _, id := range p.Into {
		if heir, ok := t.byID(id); ok && !heir.Incomplete {
			marked := heir.clone()
			marked.Incomplete = true
			t.put(marked)
		}
	}
	next := p.clone()
	others := slices.DeleteFunc(append(next.Placements, next.Joining...), func(pl Placement) bool { return pl.Server == o.Placement.Server })
	next.Joining, next.Placements, next.Incomplete = others, []Placement{o.Placement}, true
	return t.placed(next)
}

// String describes the op for people.
func (o ForceJoin) String() string {
	return fmt.Sprintf("let %s go on with server %s alone, rows may be lost; %s: %s", name(o.Partition), o.Placement.Server, o.By, o.Reason)
}
