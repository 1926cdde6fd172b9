package partition

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// ready makes rows appendable: the brick has the epoch, and the series are in memory. If both are done already, each costs a look under the lock.
func (p *Partition) ready(waits func()) error {
	p.mu.Lock()
	epoch, raised, damaged := p.mu.epoch, p.mu.raised, p.mu.damaged
	p.mu.Unlock()
	if damaged != nil {
		return fault.Wrap(damaged, fault.Unavailable, "no rows are taken")
	}
	if !raised && epoch != 0 {
		// Brick.Append would do it, but under the partition's lock and with an fsync.
		waits()
		if err := p.Lead(epoch); err != nil {
			return err
		}
	}
	if p.isWarm() {
		return nil
	}
	waits()
	return p.warm()
}

// warm loads every series of the partition into ids and the table's index. A partition that is only read stays cold and its segments answer.
// flushMu and not mu is held while segments are read: reads go on, and appends wait in ready for their series.
func (p *Partition) warm() error {
	if p.isWarm() {
		return nil
	}
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	return p.warmOrdered()
}

// warmOrdered is warm under the flush lock: segments stay as they are meanwhile.
func (p *Partition) warmOrdered() error {
	p.mu.Lock()
	isWarm, dropped, segments := p.mu.warm, p.mu.dropped, p.mu.segments
	p.mu.Unlock()
	if dropped {
		return p.gone()
	}
	if isWarm {
		return nil
	}
	known := newIDs(p.deps.Index)
	load := known.load
	if definitions(segments) > p.settings.WarmSeriesMax {
		known.quiet, load = newQuiet(), known.loadQuiet
	}
	for _, g := range segments {
		if err := load(g); err != nil {
			known.release() // all or nothing: the next try starts again
			return fault.Annotate(err, "partition %s/%d", p.ident.Table, p.ident.Partition)
		}
	}
	p.mu.Lock()
	old := p.ids.Swap(known)
	p.mu.warm = true
	if len(segments) > 0 {
		p.mu.rewarmed++
	}
	p.mu.order, p.mu.revived, p.mu.ordered = nil, nil, 0
	if known.quiet != nil {
		p.mu.ordered = known.len() // those that are not in memory are in no order
	}
	p.mu.Unlock()
	old.release()
	return nil
}

// loadSection is how many series enter the index at a time. Larger: the index is locked less often, and appends to other partitions of the table wait longer
// each time.
const loadSection = 2048

// load loads the series that a segment defines.
func (x *ids) load(g *segmentRef) error {
	var labels []point.Labels
	var refs []series.Ref
	err := g.reader.EachDefinition(func(id point.DenseID, l point.Labels) error {
		if n := x.len() + len(labels); int(id) != n {
			return outOfOrder(g, id, n)
		}
		if labels = append(labels, l); len(labels) == loadSection {
			refs = x.intern(labels, refs)
			labels = labels[:0]
		}
		return nil
	})
	x.intern(labels, refs)
	return err
}

// outOfOrder: dense ids are given without gaps, so a gap means that a segment of the chain is missing or not this partition's.
func outOfOrder(g *segmentRef, id point.DenseID, n int) error {
	return fault.Errorf(fault.Corrupt, "segment %v defines series %d after %d", g.info.ID, id, n)
}

// definitions counts the series that segments define.
func definitions(of []*segmentRef) (n int) {
	for _, g := range of {
		n += int(g.info.Definitions)
	}
	return n
}

func (p *Partition) isWarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.warm
}

// NamesBytes is the memory that a Cool would release, beside names that have other holders; 0 when the partition is cold.
func (p *Partition) NamesBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.warm {
		return 0
	}
	const orderBytes = 4
	return int64(p.ids.Load().bytes() + len(p.mu.order)*orderBytes)
}

// Cool releases the memory of the series' names, once every frame is in segments and no row came for a while: a narrow partition
// waits no longer than its flush did, the first time. Open views keep theirs.
func (p *Partition) Cool(now time.Time, idle time.Duration) bool {
	old := p.cool(now, idle)
	if old == nil {
		return false
	}
	old.release() // not under the lock: many series need a while
	return true
}

func (p *Partition) cool(now time.Time, idle time.Duration) *ids {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ident.narrow() {
		idle = min(idle, p.settings.narrowIdle()<<min(p.mu.rewarmed, rewarmedMost))
	}
	if !p.mu.warm || p.mu.last != p.mu.state.Flushed || len(p.mu.frozen) > 0 || now.Sub(p.mu.lastWrite) < idle {
		return nil
	}
	p.mu.warm = false
	p.mu.seen.Rest()
	p.mu.order, p.mu.revived, p.mu.ordered = nil, nil, 0
	return p.ids.Swap(newIDs(p.deps.Index))
}
