package topology

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Presplit makes narrow partitions before "now" reaches them (C35): those in Replace, which begin after Now and
// hold no rows, go, and Partitions come, with an id of their own each from the map's NextID on. Covered space stays covered
// (I2), and uncovered space may be covered from now on. The proposer makes sure that the old ones hold no rows: it compares, in
// the same transaction of the store, that they have no lease rows.
type Presplit struct {
	Now        point.Nanos
	Replace    []point.PartitionID
	Partitions []Partition
}

func (o Presplit) apply(t *txn) error {
	if t.presplit(o) {
		return nil
	}
	var old []*Partition
	for _, id := range o.Replace {
		p, err := t.get(id)
		if err != nil {
			return err
		}
		if p.State != Live {
			return fault.Errorf(fault.Stale, "%s is %s: let that finish first", name(id), p.State)
		}
		if p.TimeLo <= o.Now {
			return fault.Errorf(fault.Invalid, "%s began at %s, it is %s: only what is to come can be presplit; split it instead", name(id), stamp(p.TimeLo), stamp(o.Now))
		}
		old = append(old, p)
		t.remove(p)
	}
	if err := t.create(o.Partitions); err != nil {
		return err
	}
	for _, p := range old {
		b := p.box()
		var hi, lo, carry uint64
		t.m.overlapping(p.TimeLo, p.TimeHi-1, func(o *box, _ *Partition) bool {
			if o.overlaps(&b) {
				h, l := o.share(&b).area()
				lo, carry = bits.Add64(lo, l, 0)
				hi, _ = bits.Add64(hi, h, carry)
			}
			return true
		})
		// The partitions that overlap it overlap nothing else, so their areas add up to its own only if they cover it whole.
		if h, l := b.area(); hi != h || lo != l {
			return fault.Errorf(fault.Invalid, "%s would no longer be covered everywhere (I2): let the new partitions fill it", p)
		}
	}
	return nil
}

// presplit reports whether the op is in place already.
func (t *txn) presplit(o Presplit) bool {
	for i := range o.Partitions {
		if p, ok := t.byID(o.Partitions[i].ID); !ok || !p.equal(&o.Partitions[i]) {
			return false
		}
	}
	for _, id := range o.Replace {
		if _, ok := t.byID(id); ok || id >= t.m.NextID {
			return false
		}
	}
	return true
}

// share returns the intersection of two boxes. They must overlap.
func (b box) share(o *box) box {
	b, _ = b.ringCut(o.pointLo, o.pointHi)
	b.timeLo, b.timeHi = max(b.timeLo, o.timeLo), min(b.timeHi, o.timeHi)
	return b
}

// area is ring points × nanoseconds, below 2^128: the times of int64 have fewer than 2^64 steps between them.
func (b box) area() (hi, lo uint64) {
	d := uint64(b.timeHi) - uint64(b.timeLo)
	hi, lo = bits.Mul64(b.pointHi-1-b.pointLo, d)
	lo, carry := bits.Add64(lo, d, 0)
	return hi + carry, lo
}

// String describes the op for people.
func (o Presplit) String() string {
	s := "presplit"
	if len(o.Replace) > 0 {
		s += " " + names(o.Replace)
	}
	for i := range o.Partitions {
		s += "\n  " + o.Partitions[i].String()
	}
	return s
}

// Edge is a time at which partitions to come should begin or end, in a range of the ring. PointHi 0 means 2^64: with two
// zeros it is for all columns.
type Edge struct {
	At               point.Nanos
	PointLo, PointHi uint64
}

// Presplitting plans the presplit of many edges at once. Partitions that begin after now and lie wholly within an edge's
// ring range are cut at it; from each edge to the next of the same range, uncovered space gets partitions, a column each.
// Edges up to now are passed over. place is called once for each new partition.
func (m *Map) Presplitting(now point.Nanos, edges []Edge, place func(point.PartitionID) []Placement) Presplit {
	t := &txn{m: *m}
	edges = slices.DeleteFunc(slices.Clone(edges), func(e Edge) bool { return e.At <= now })
	slices.SortFunc(edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.PointLo, b.PointLo), cmp.Compare(a.PointHi, b.PointHi), cmp.Compare(a.At, b.At))
	})
	out := Presplit{Now: now}
	cuts := map[point.PartitionID][]point.Nanos{}
	var order []*Partition
	for _, e := range edges {
		ring := box{timeLo: e.At - 1, timeHi: e.At + 1, pointLo: e.PointLo, pointHi: e.PointHi}
		m.overlapping(e.At, e.At, func(b *box, p *Partition) bool {
			inside := b.pointLo >= e.PointLo && (e.PointHi == 0 || b.pointHi != 0 && b.pointHi <= e.PointHi)
			if inside && b.overlaps(&ring) && p.State == Live && p.TimeLo > now && p.TimeLo < e.At {
				if cuts[p.ID] == nil {
					order = append(order, p)
				}
				cuts[p.ID] = append(cuts[p.ID], e.At)
			}
			return true
		})
	}
	for _, p := range order {
		at := append(cuts[p.ID], p.TimeHi)
		slices.Sort(at)
		lo := p.TimeLo
		t.remove(p)
		out.Replace = append(out.Replace, p.ID)
		for _, hi := range slices.Compact(at) {
			c := &Partition{ID: t.m.NextID, PointLo: p.PointLo, PointHi: p.PointHi, TimeLo: lo, TimeHi: hi, Placements: place(t.m.NextID)}
			t.m.NextID++
			t.put(c)
			out.Partitions, lo = append(out.Partitions, *c), hi
		}
	}
	for i, e := range edges {
		if i+1 < len(edges) && edges[i+1].PointLo == e.PointLo && edges[i+1].PointHi == e.PointHi && edges[i+1].At > e.At {
			t.each(e, edges[i+1].At, func(ps []Partition) { out.Partitions = append(out.Partitions, ps...) }, place)
		}
	}
	return out
}

// each fills the free space from an edge up to until.
func (t *txn) each(e Edge, until point.Nanos, f func([]Partition), place func(point.PartitionID) []Placement) {
	for at := e.At; at < until; {
		f(t.fill(at, e.At, until, e.PointLo, e.PointHi, place))
		next := until // the first later moment at which something that was free may be free no more, or the reverse
		t.m.overlapping(at, until-1, func(b *box, _ *Partition) bool {
			if b.timeHi > at {
				next = min(next, b.timeHi)
			}
			return true
		})
		at = next
	}
}

// String describes the edge for people.
func (e Edge) String() string {
	return fmt.Sprintf("%s ring [%#x, %s)", stamp(e.At), e.PointLo, ringEnd(e.PointHi))
}
