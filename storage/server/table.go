package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/share"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/series"
)

// table is this server's part of a table.
type table struct {
	// Constant after newTable.
	name  string
	index *series.Index

	heads    tableHeads
	series   *tableSeries
	families families
	order    order

	came uint64 // series of the index at the last look of enterSeries; owned by recover, then by that loop of Run

	creating sync.Mutex // one partition is made at a time; acquired before mu
	mu       struct {
		sync.RWMutex
		partitions map[point.PartitionID]*partition.Partition
		byTime     []*partition.Partition // the same by time; nil after a change. Elements are never changed: all returns the slice itself
		// A gate outlives a lease: it is what a hand-over waits for, and what a later lease of the same partition finds
		// sealed.
		gates   map[point.PartitionID]*door    // of all that were ever led here and not dropped since
		dropped map[point.PartitionID]struct{} // by order, and perhaps still in the map
	}
}

func newTable(name string, heads, all *share.Pool, weight func() int64) *table {
	t := &table{name: name, index: series.New(), heads: newTableHeads(heads, weight)}
	t.series = newTableSeries(name, all, t.index, weight)
	t.mu.partitions = map[point.PartitionID]*partition.Partition{}
	t.mu.gates = map[point.PartitionID]*door{}
	t.mu.dropped = map[point.PartitionID]struct{}{}
	return t
}

func (t *table) get(id point.PartitionID) (*partition.Partition, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p, ok := t.mu.partitions[id]
	return p, ok
}

// gate gives a partition's gate, or makes it.
func (t *table) gate(id point.PartitionID) *door {
	t.mu.RLock()
	g, ok := t.mu.gates[id]
	t.mu.RUnlock()
	if ok {
		return g
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if g, ok = t.mu.gates[id]; !ok {
		g = &door{}
		t.mu.gates[id] = g
	}
	return g
}

func (t *table) add(p *partition.Partition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.partitions[p.Identity().Partition] = p
	t.mu.byTime = nil
}

// create makes a partition unless another request did meanwhile. A dropped partition is Stale: its rows were deleted,
// and a gateway that still routes by a map with it must get the newer map.
func (t *table) create(id point.PartitionID, create func() (*partition.Partition, error)) (*partition.Partition, error) {
	t.creating.Lock()
	defer t.creating.Unlock()
	if p, ok := t.get(id); ok {
		return p, nil
	}
	if t.isDropped(id) {
		return nil, fault.Errorf(fault.Stale, "partition %s/%d was dropped", t.name, id)
	}
	p, err := create()
	if err != nil {
		return nil, err
	}
	t.add(p)
	return p, nil
}

func (t *table) isDropped(id point.PartitionID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.mu.dropped[id]
	return ok
}

// drop removes a partition for good. After an error it is still listed, closed, so that the drop can be retried. A
// dropped partition that is no longer in the map m can be forgotten: no request makes a partition that the map does not
// have.
func (t *table) drop(id point.PartitionID, m *topology.Map) error {
	t.creating.Lock()
	defer t.creating.Unlock()
	t.mu.Lock()
	t.mu.dropped[id] = struct{}{}
	if m != nil {
		maps.DeleteFunc(t.mu.dropped, func(old point.PartitionID, _ struct{}) bool {
			_, mapped := m.ByID(old)
			return old != id && !mapped
		})
	}
	p, ok := t.mu.partitions[id]
	t.mu.Unlock()
	if !ok {
		return nil
	}
	return t.dropLocked(p)
}

// remove removes one placement, and nothing else of the partition. Rows that it alone has are put aside where the partition lives on.
func (t *table) remove(id point.PartitionID, placement point.PlacementID, ifEmpty bool, livesOn func(*partition.Partition) bool) error {
	t.creating.Lock()
	defer t.creating.Unlock()
	p, ok := t.get(id)
	if !ok || p.Identity().Placement != placement {
		return nil
	}
	if !ifEmpty {
		p.Close()
	} else if !p.CloseEmpty() {
		return fault.Errorf(fault.Stale, "partition %d took rows meanwhile", id)
	}
	if livesOn(p) {
		if err := p.PutSurplusAside(); err != nil { // closed: nothing more is cut off
			return err
		}
	}
	return t.dropLocked(p)
}

// forget deletes a gate that has no partition.
func (t *table) forget(id point.PartitionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.mu.partitions[id]; !ok {
		delete(t.mu.gates, id)
	}
}

// dropLocked removes a partition; creating is held.
// creating is held across the disk writes of a creation or drop, so that a partition is not made while its files are
// removed; reads and inserts of other partitions need mu alone.
func (t *table) dropLocked(p *partition.Partition) error {
	if err := p.Drop(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.partitions, p.Identity().Partition)
	t.mu.byTime = nil
	delete(t.mu.gates, p.Identity().Partition)
	return nil
}

// all lists the partitions by time. The list is shared: it is only read. It is sorted once for all queries until partitions come or go.
func (t *table) all() []*partition.Partition {
	t.mu.RLock()
	ps := t.mu.byTime
	t.mu.RUnlock()
	if ps != nil {
		return ps
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ps = make([]*partition.Partition, 0, len(t.mu.partitions))
	for _, p := range t.mu.partitions {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b *partition.Partition) int { return cmp.Compare(a.Identity().TimeLo, b.Identity().TimeLo) })
	t.mu.byTime = ps
	return ps
}

// overlapping lists the partitions with rows in [lo, hi], by time; ids nil: of all.
func (t *table) overlapping(ids []point.PartitionID, lo, hi point.Nanos) (out []*partition.Partition) {
	named := func(id point.PartitionID) bool { return slices.Contains(ids, id) }
	switch {
	case ids == nil:
		named = func(point.PartitionID) bool { return true }
	case slices.IsSorted(ids): // as they are but for splits
		named = func(id point.PartitionID) bool {
			_, ok := slices.BinarySearch(ids, id)
			return ok
		}
	}
	for _, p := range t.all() {
		at := p.Identity()
		if at.TimeLo > hi {
			break
		}
		if at.TimeHi > lo && named(at.Partition) {
			out = append(out, p)
		}
	}
	return out
}

func cmpString(a, b string) int { return strings.Compare(a, b) }
