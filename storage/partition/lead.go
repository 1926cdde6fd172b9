package partition

import (
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Lead makes frames be taken under an epoch from now on: the brick refuses lower ones before this returns, also after a
// crash (I3). Serials go on from those of the epoch before. Doing it again is fine and cheap. Errors are Stale (a higher
// epoch has begun, or dropped) and Unavailable.
func (p *Partition) Lead(epoch point.Epoch) error {
	if p.Leads(epoch) {
		return nil
	}
	b := p.deps.Brick
	if highest := b.HighestEpoch(p.ident.Placement); epoch < highest {
		return p.notLed(epoch, highest)
	}
	if err := b.RaiseEpoch(p.ident.Placement, epoch); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return p.gone()
	case epoch < p.mu.epoch:
		return p.notLed(epoch, p.mu.epoch)
	}
	p.mu.epoch, p.mu.raised = epoch, true
	return nil
}

// Leads reports whether frames are taken under an epoch.
func (p *Partition) Leads(epoch point.Epoch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.epoch == epoch && p.mu.raised
}

// notLed is the answer to who acts by an epoch that is not the one in which frames are taken.
func (p *Partition) notLed(asked, now point.Epoch) error {
	return fault.Errorf(fault.Stale, "partition %s/%d is not led in epoch %d here; the highest is %d", p.ident.Table, p.ident.Partition, asked, now)
}

// RankAbove makes all frames from now on rank above s. It lasts as long as the process does: it is called again before the first
// frame of each epoch.
func (p *Partition) RankAbove(s point.Stamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.ranks.Observe(s)
}

// HighestRank is the highest of all frames and segments.
func (p *Partition) HighestRank() point.Stamp {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.ranks.Highest()
}

// Ends are, per epoch, the last frame that was taken. Frames that come meanwhile may be missing.
func (p *Partition) Ends() []point.EpochEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	ends := raise(p.mu.state.Ends, p.mu.ends...)
	if p.mu.pending != nil {
		ends = raise(ends, p.mu.pending.ends...)
	}
	return ends
}

// Empty reports whether the placement holds no row and never held one that is not deleted.
func (p *Partition) Empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.last == point.Serial{} && len(p.mu.state.Segments) == 0
}
