package topology

import (
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// OpsMax bounds the ops of one transaction, PartitionsMax the partitions of a map, TablePartitionsMax those that rows may bring into
// being: beyond it they wait until the master has made room.
const (
	OpsMax             = 1 << 16
	PartitionsMax      = 1 << 20
	TablePartitionsMax = 50_000
)

// Op is a change of a map, written down. Its proposer chose everything random or dependent on a clock, and put it in,
// so that every server that applies it to the same map gets the same bytes (C06). The ops of this package are all there are.
//
// An op that finds its effect in place already changes nothing. Otherwise it is refused with
//
//	Stale    its base is gone: load the newest map and plan again
//	Invalid  it can never be applied, or the message names the step to do first
type Op interface {
	// String describes the op for people.
	String() string

	apply(t *txn) error
	kind() opKind
	encode(e *encoder)
}

// Apply makes one transaction of the ops, in their order: all or none. It gives the same map when they change
// nothing, and otherwise one with a Seq higher by one. Errors name the op and are Stale or Invalid; see Op.
func (m *Map) Apply(ops ...Op) (*Map, error) {
	if len(ops) > OpsMax {
		return nil, fault.Errorf(fault.Invalid, "%d ops in one transaction: make several, of at most %d", len(ops), OpsMax)
	}
	t := &txn{m: *m}
	for i, op := range ops {
		if op == nil {
			return nil, fault.Errorf(fault.Invalid, "op %d of %d is nil", i+1, len(ops))
		}
		if err := op.apply(t); err != nil {
			return nil, fault.Annotate(err, "table %q seq %d, op %d of %d (%s)", m.Table, m.Seq, i+1, len(ops), op.kind())
		}
	}
	return t.seal(m)
}

// txn is a map that is being made.
type txn struct {
	m       Map
	changed bool
	wrote   bool // the indexes' rows of leaves are our own
}

func (t *txn) seal(base *Map) (*Map, error) {
	if !t.changed {
		return base, nil
	}
	m := t.m
	if m.Len() > PartitionsMax {
		return nil, fault.Errorf(fault.Invalid, "table %q would have %d partitions, at most %d are possible: make them wider, or drop old ones", m.Table, m.Len(), PartitionsMax)
	}
	m.Seq++
	if t.wrote {
		m.byTime.seal(t)
		m.byID.seal(t)
		m.stops, m.shelves = stops(&m.byTime), shelves(&m.byID)
	}
	return &m, nil
}

func (t *txn) write() {
	if !t.wrote {
		t.m.byTime.leaves, t.m.byID.leaves = slices.Clone(t.m.byTime.leaves), slices.Clone(t.m.byID.leaves)
		t.m.stops, t.m.shelves = nil, nil // they are of the map before
	}
	t.wrote, t.changed = true, true
}

// put inserts a partition, or its new value. Its rectangle must not have changed.
func (t *txn) put(p *Partition) {
	t.write()
	if old, ok := t.byID(p.ID); ok {
		t.m.total.remove(old)
	}
	t.m.total.add(p)
	t.m.byTime.put(t, p.box(), p)
	t.m.byID.put(t, number(p.ID), p)
}

func (t *txn) remove(p *Partition) {
	t.write()
	t.m.total.remove(p)
	t.m.byTime.remove(t, p.box())
	t.m.byID.remove(t, number(p.ID))
}

// byID looks into the index as it is now; the map's own ByID sees it as of the last transaction.
func (t *txn) byID(id point.PartitionID) (*Partition, bool) { return t.m.byID.get(number(id)) }

// use allocates a new id.
func (t *txn) use(id point.PartitionID) error {
	if id == 0 || id+1 == 0 {
		return fault.Errorf(fault.Invalid, "%d is no id of a partition: take the map's NextID and those after it", id)
	}
	if id < t.m.NextID {
		return fault.Errorf(fault.Stale, "id %s was given out before: plan anew on the newest map, whose next is %s", name(id), name(t.m.NextID))
	}
	t.m.NextID, t.changed = id+1, true
	return nil
}

// get returns the partition of an op. It is Stale when it was dropped or replaced, Invalid when it never was.
func (t *txn) get(id point.PartitionID) (*Partition, error) {
	if p, ok := t.byID(id); ok {
		return p, nil
	}
	if id == 0 || id >= t.m.NextID {
		return nil, fault.Errorf(fault.Invalid, "%s never existed: name a partition of the map", name(id))
	}
	return nil, fault.Errorf(fault.Stale, "%s is gone: plan anew on the newest map", name(id))
}

// add inserts a new partition, where nothing lies yet.
func (t *txn) add(p *Partition) error {
	b := p.box()
	var other *Partition
	t.m.overlapping(p.TimeLo, p.TimeHi-1, func(o *box, q *Partition) bool {
		if o.overlaps(&b) {
			other = q
		}
		return other == nil
	})
	if other != nil {
		return fault.Errorf(fault.Invalid, "%s would overlap %s (I2): leave out what is covered", p, other)
	}
	if err := t.use(p.ID); err != nil {
		return err
	}
	t.put(p)
	return nil
}

// Create makes partitions, where nothing lies yet (I2). Each is Live, with a new id from the map's NextID on; they
// may have fewer placements than Replicas, but not none.
type Create struct {
	Partitions []Partition
}

func (o Create) apply(t *txn) error { return t.create(o.Partitions) }

func (t *txn) create(ps []Partition) error {
	for i := range ps {
		p := ps[i].clone()
		if p.State != Live {
			return fault.Errorf(fault.Invalid, "%s is new and %s: make it live", name(p.ID), p.State)
		}
		if err := p.valid(); err != nil {
			return err
		}
		if old, ok := t.byID(p.ID); ok && old.equal(p) {
			continue
		}
		// The id first: a proposer that is late by one transaction should get Stale, not an overlap with another proposer's partition.
		if p.ID < t.m.NextID {
			return t.use(p.ID)
		}
		if err := t.add(p); err != nil {
			return err
		}
	}
	return nil
}

// String describes the op for people.
func (o Create) String() string {
	if len(o.Partitions) == 1 {
		return "create " + o.Partitions[0].String()
	}
	s := fmt.Sprintf("create %d partitions", len(o.Partitions))
	for i := range o.Partitions {
		s += "\n  " + o.Partitions[i].String()
	}
	return s
}

// Drop removes the named partitions, with all their rows. Those that are gone already are passed over. Of one that unloads,
// those that get its rows must go too, or be gone: else use UnloadFinal. Those alone may go, and leave keys without an
// owner until the one that unloads is gone: see Droppable.
type Drop struct {
	IDs []point.PartitionID
}

func (o Drop) apply(t *txn) error {
	for _, id := range o.IDs {
		if id == 0 || id >= t.m.NextID {
			return fault.Errorf(fault.Invalid, "%s never existed: name a partition of the map", name(id))
		}
		if p, ok := t.byID(id); ok {
			for _, heir := range p.Into {
				if _, ok := t.byID(heir); ok && !slices.Contains(o.IDs, heir) {
					return fault.Errorf(fault.Invalid, "%s unloads into %s: drop that too, or let it finish", name(id), name(heir))
				}
			}
		}
	}
	for _, id := range o.IDs {
		if p, ok := t.byID(id); ok {
			t.remove(p)
		}
	}
	return nil
}

// owing gives one that still unloads into p, other than those named; nil: there is none.
func (t *txn) owing(p *Partition, but []point.PartitionID) (owing *Partition) {
	b := p.box()
	t.m.overlapping(p.TimeLo, p.TimeHi-1, func(o *box, q *Partition) bool {
		if o.overlaps(&b) && slices.Contains(q.Into, p.ID) && !slices.Contains(but, q.ID) {
			owing = q
		}
		return owing == nil
	})
	return owing
}

// Inherits reports whether another partition still unloads into p, which is of this map.
func (m *Map) Inherits(p *Partition) bool { return (&txn{m: *m}).owing(p, nil) != nil }

// Droppable leaves out of ids parts of families of which others are not named: one that unloads while the partition that gets its
// rows stays (Drop would refuse it), and one that gets rows while the one that unloads them stays (its keys would have no
// owner). The slice is used.
func (m *Map) Droppable(ids []point.PartitionID) []point.PartitionID {
	t := &txn{m: *m}
	for {
		before := len(ids)
		kept := slices.Clone(ids)
		ids = slices.DeleteFunc(ids, func(id point.PartitionID) bool {
			p, ok := m.ByID(id)
			return !ok || t.owing(p, kept) != nil || slices.ContainsFunc(p.Into, func(heir point.PartitionID) bool {
				_, there := m.ByID(heir)
				return there && !slices.Contains(kept, heir)
			})
		})
		if len(ids) == before {
			return ids
		}
	}
}

// String describes the op for people.
func (o Drop) String() string { return "drop " + names(o.IDs) }

// Expire drops all partitions that lie wholly before the retention, seen from Now; Expired names those that leave no gaps.
type Expire struct {
	Now point.Nanos
}

func (o Expire) apply(t *txn) error { return Drop{IDs: t.m.before(o.Now)}.apply(t) }

// String describes the op for people.
func (o Expire) String() string { return "drop what expired by " + stamp(o.Now) }

// SetConfig sets another configuration. Partitions that exist keep their bounds.
type SetConfig struct {
	Config Config
	// Notes has Config.InSyncWas computed where the number of replicas alone is changed. Older builds refuse an op that has it; otherwise they and this one make
	// the same map.
	Notes bool
}

func (o SetConfig) apply(t *txn) error {
	if err := o.Config.Validate(); err != nil {
		return err
	}
	c := o.Config.normal()
	had := &t.m.Config
	if c.Ring != had.Ring && t.m.NextID > 1 {
		return fault.Errorf(fault.Invalid, "table %q has or had partitions, so its ring rule stays %q: rows lie by it; create another table", t.m.Table, had.Ring)
	}
	c.InSyncWas = had.InSyncWas
	if c.InSyncMin != had.InSyncMin || c.Replicas != had.Replicas && (o.Notes || had.InSyncMin > 0 || had.InSyncWas != InSyncWas{}) {
		c.InSyncWas = t.m.inSyncWas(c)
	}
	if c != *had {
		t.m.Config, t.changed = c, true
	}
	return nil
}

// String describes the op for people.
func (o SetConfig) String() string {
	c := o.Config.normal()
	s := fmt.Sprintf("set retention %v, partition width %v, %d replicas", c.Retention, c.PartitionWidth, c.Replicas)
	if c.Smear != (smear.Rule{}) {
		s += ", smear " + c.Smear.String()
	}
	if !c.Ring.IsZero() {
		s += fmt.Sprintf(", ring by %s", c.Ring)
	}
	if c.InSyncMin > 0 {
		s += fmt.Sprintf(", %d in sync", c.InSyncMin)
	}
	return s
}

// SetColumns sets how the ring is cut by partitions from Layout.From on; layouts from then on are replaced. From lies
// after Now, at a multiple of the partition width, and after all partitions that exist, so that nothing moves (C100). A map
// without partitions uses it from any such time, or from the lowest int64: from ever.
type SetColumns struct {
	Now    point.Nanos
	Layout Layout
}

func (o SetColumns) apply(t *txn) error {
	l := o.Layout.clone()
	if err := l.valid(); err != nil {
		return err
	}
	if old, from, _ := t.m.layout(l.From); from == l.From && old.equal(&l) {
		return nil
	}
	if lo, _ := t.m.Config.Aligned(l.From); lo != l.From {
		return fault.Errorf(fault.Invalid, "columns change at multiples of the partition width %v, such as %s, not at %s", t.m.Config.PartitionWidth, stamp(lo), stamp(l.From))
	}
	if t.m.Len() > 0 && l.From <= o.Now {
		return fault.Errorf(fault.Invalid, "columns change at a time to come, after %s, not at %s", stamp(o.Now), stamp(l.From))
	}
	for _, leaf := range t.m.byTime.leaves {
		for _, e := range leaf.entries {
			if e.key.timeHi > l.From {
				return fault.Errorf(fault.Invalid, "%s lies there already: choose a time from %s on, or split it", e.p, stamp(e.key.timeHi))
			}
		}
	}
	kept := slices.DeleteFunc(slices.Clone(t.m.Layouts), func(old Layout) bool { return old.From >= l.From })
	kept = append(kept, l)
	t.m.Layouts, t.changed = kept[max(len(kept)-LayoutsMax, 0):], true
	return nil
}

// String describes the op for people.
func (o SetColumns) String() string {
	return fmt.Sprintf("from %s on cut the ring by weights %v into%s", stamp(o.Layout.From), o.Layout.Weights, drawRanges(o.Layout.Ranges))
}
