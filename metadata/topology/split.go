package topology

import (
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// SplitBegin begins to cut a live partition in two (C21). It goes on accepting writes; the children get their ids
// and places, so that servers can begin to fill them, but are no partitions until SplitFinalize. Both halves hold
// something: begin < cut < end, strictly (C23).
type SplitBegin struct {
	Partition point.PartitionID
	Split     Split
}

func (o SplitBegin) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	switch p.State {
	case Splitting:
		if p.Split.equal(&o.Split) {
			return nil
		}
		return fault.Errorf(fault.Stale, "%s is being split at %s already: finish or abort that first", name(p.ID), p.Split)
	case Unload:
		return fault.Errorf(fault.Stale, "%s accepts no writes any more: split %s", name(p.ID), names(p.Into))
	}
	next := p.clone()
	s := o.Split
	next.State, next.Split = Splitting, &s
	next = next.clone() // the op's memory stays the proposer's
	if err := next.valid(); err != nil {
		return err
	}
	for _, c := range []Child{s.Low, s.High} {
		if err := t.use(c.ID); err != nil {
			return err
		}
	}
	t.put(next)
	return nil
}

// String describes the op for people.
func (o SplitBegin) String() string {
	return fmt.Sprintf("begin to split %s at %s", name(o.Partition), &o.Split)
}

// SplitFinalize hands writes over from a sealed partition to its children, in one step: they become live, it unloads into
// them. Low names the split by the id of its low child, so that a late message cannot finish another one.
type SplitFinalize struct {
	Partition point.PartitionID
	Low       point.PartitionID
}

func (o SplitFinalize) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if p.State == Unload && p.Into[0] == o.Low {
		return nil
	}
	if p.State != Splitting || p.Split.Low.ID != o.Low {
		return fault.Errorf(fault.Stale, "%s is not being split into %s and another: begin that first", name(p.ID), name(o.Low))
	}
	children := p.Children()
	old := p.clone()
	old.State, old.Split, old.Into = Unload, nil, []point.PartitionID{p.Split.Low.ID, p.Split.High.ID}
	t.put(old)
	for _, c := range children {
		t.put(c.clone())
	}
	return nil
}

// String describes the op for people.
func (o SplitFinalize) String() string {
	return fmt.Sprintf("hand %s over to its children %s and the other", name(o.Partition), name(o.Low))
}

// SplitAbort forgets a split that is not finalized. The ids of its children stay used. Low names the split as in SplitFinalize.
type SplitAbort struct {
	Partition point.PartitionID
	Low       point.PartitionID
}

func (o SplitAbort) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if err != nil {
		return err
	}
	if p.State == Live {
		return nil
	}
	if p.State != Splitting || p.Split.Low.ID != o.Low {
		return fault.Errorf(fault.Stale, "the split of %s into %s and another is over or not the one under way: look at the newest map", name(p.ID), name(o.Low))
	}
	next := p.clone()
	next.State, next.Split = Live, nil
	t.put(next)
	return nil
}

// String describes the op for people.
func (o SplitAbort) String() string {
	return fmt.Sprintf("abort the split of %s into %s and another", name(o.Partition), name(o.Low))
}

// UnloadFinal removes a partition once all its rows are in those it unloads into (C78). The proposer made sure of that:
// they are acked there at level all. One that unloads into it too goes on to unload into its heirs.
type UnloadFinal struct {
	Partition point.PartitionID
}

// heirsMax bounds the heirs of a partition, including their own heirs.
const heirsMax = 64

func (o UnloadFinal) apply(t *txn) error {
	p, err := t.get(o.Partition)
	if fault.Is(err, fault.Stale) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.State != Unload {
		return fault.Errorf(fault.Invalid, "%s is %s: only one that unloads can be finished; to delete its rows, drop it", name(p.ID), p.State)
	}
	for q := t.owing(p, nil); q != nil; q = t.owing(p, nil) {
		next := q.clone()
		at := slices.Index(next.Into, p.ID)
		next.Into = slices.Replace(next.Into, at, at+1, p.Into...)
		if len(next.Into) > heirsMax {
			return fault.Errorf(fault.Stale, "%s would unload into %d partitions instead of %s: it must finish first", name(q.ID), len(next.Into), name(p.ID))
		}
		t.put(next)
	}
	t.remove(p)
	return nil
}

// String describes the op for people.
func (o UnloadFinal) String() string { return "forget " + name(o.Partition) + ", which is unloaded" }

// Merge makes one partition of closed neighbours: in time with the same ring range, or on the ring with the same times. All
// end before ClosedBefore, the time before which the proposer expects nothing new. They unload into the new one, Into, whatever servers each lies on.
type Merge struct {
	Partitions   []point.PartitionID // two or more, in order
	Into         Child
	ClosedBefore point.Nanos
}

// MergeMax bounds how many partitions one Merge has.
const MergeMax = 1024

// apply may come twice: a proposal whose answer was lost is made again. It changes nothing then, and must not fail, although those that were merged may
// be gone by now. Any placements will do for the new one, since rows are moved to it as inserts; they had to be the same when segments were to be handed over.
func (o Merge) apply(t *txn) error {
	if len(o.Partitions) < 2 || len(o.Partitions) > MergeMax {
		return fault.Errorf(fault.Invalid, "%d partitions to merge: name 2 to %d neighbours", len(o.Partitions), MergeMax)
	}
	if done, ok := t.byID(o.Into.ID); ok && slices.Equal(done.Placements, o.Into.Placements) && t.mergedInto(o.Partitions, done.ID) {
		return nil
	}
	var sum Partition
	for i, id := range o.Partitions {
		p, err := t.get(id)
		if err != nil {
			return err
		}
		switch {
		case p.State != Live:
			return fault.Errorf(fault.Stale, "%s is %s: let that finish first", name(id), p.State)
		case len(p.Joining) > 0:
			return fault.Errorf(fault.Invalid, "%s has placements that join: let that finish first", name(id))
		case p.TimeHi > o.ClosedBefore:
			return fault.Errorf(fault.Invalid, "%s is open until %s, after %s: merge what is closed", name(id), stamp(p.TimeHi), stamp(o.ClosedBefore))
		}
		if err := validPlaces(o.Into.ID, o.Into.Placements, nil); err != nil {
			return err
		}
		switch {
		case i == 0:
			sum = Partition{PointLo: p.PointLo, PointHi: p.PointHi, TimeLo: p.TimeLo, TimeHi: p.TimeHi}
		case p.PointLo == sum.PointLo && p.PointHi == sum.PointHi && p.TimeLo == sum.TimeHi:
			sum.TimeHi = p.TimeHi
		case p.TimeLo == sum.TimeLo && p.TimeHi == sum.TimeHi && p.PointLo == sum.PointHi && sum.PointHi != 0:
			sum.PointHi = p.PointHi
		default:
			return fault.Errorf(fault.Invalid, "%s does not begin where %s ends, with the same ring range or the same times: name neighbours, in order", name(id), name(o.Partitions[i-1]))
		}
		sum.Incomplete = sum.Incomplete || p.Incomplete
	}
	if err := t.use(o.Into.ID); err != nil {
		return err
	}
	sum.ID, sum.Placements = o.Into.ID, slices.Clone(o.Into.Placements)
	for _, id := range o.Partitions {
		p, err := t.get(id)
		if err != nil {
			return err
		}
		old := p.clone()
		old.State, old.Into = Unload, []point.PartitionID{sum.ID}
		t.put(old)
	}
	t.put(&sum)
	return nil
}

// mergedInto reports whether all of ids unload into one, or have done so and are gone.
func (t *txn) mergedInto(ids []point.PartitionID, into point.PartitionID) bool {
	for _, id := range ids {
		if p, ok := t.byID(id); ok && !slices.Contains(p.Into, into) {
			return false
		}
	}
	return true
}

// String describes the op for people.
func (o Merge) String() string {
	return fmt.Sprintf("merge %s, closed before %s, into %s", names(o.Partitions), stamp(o.ClosedBefore), o.Into)
}
