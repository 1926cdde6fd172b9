package partition

import (
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Lead makes the placement accept frames under an epoch from now on: before it returns, the brick refuses lower epochs, also after a
// crash (I3). Serials and the numbers of series continue from those of the epoch before, whichever placement led in it. Repeating
// the call is fine and cheap. A partition with followers keeps them in its next epoch: LeadChain begins that. Errors are Stale (a
// higher epoch has begun, another placement leads in this one, or dropped) and Unavailable.
func (p *Partition) Lead(epoch point.Epoch) error {
	if p.Leads(epoch) {
		return nil
	}
	return p.lead(epoch, nil)
}

// LeadChain is Lead for a partition with followers: its frames go to c, too.
func (p *Partition) LeadChain(epoch point.Epoch, c Followers) error { return p.lead(epoch, c) }

func (p *Partition) lead(epoch point.Epoch, c Followers) error {
	b := p.deps.Brick
	if highest := b.HighestEpoch(p.ident.Placement); epoch < highest {
		return p.notLed(epoch, highest)
	}
	if err := b.RaiseEpoch(p.ident.Placement, epoch); err != nil {
		return err
	}
	for late := true; late; { // the brick accepts no more frames of lower epochs
		if err := p.catchUp(); err != nil {
			return err
		}
		var err error
		if late, err = p.leadNow(epoch, c); err != nil {
			return err
		}
	}
	return nil
}

// leadNow begins to lead, unless frames are late.
func (p *Partition) leadNow(epoch point.Epoch, c Followers) (late bool, err error) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return false, p.gone()
	case p.isLateLocked() && p.mu.damaged == nil:
		return true, nil
	case epoch < p.mu.epoch || p.mu.follows && epoch <= p.mu.leader:
		return false, p.notLed(epoch, max(p.mu.epoch, p.mu.leader))
	case c == nil && p.mu.chain != nil && epoch != p.mu.epoch: // its followers would miss frames
		return false, p.notLed(epoch, p.mu.epoch)
	case c != nil && p.mu.chain == nil && p.mu.epoch == epoch && p.mu.raised: // they miss frames that were accepted under it
		return false, p.notLed(epoch, epoch)
	}
	if c != nil {
		p.mu.chain = c
	}
	if p.mu.epoch != epoch {
		p.endFoldLocked()
	}
	p.mu.epoch, p.mu.raised = epoch, true
	p.mu.follows, p.mu.leader = false, 0
	return false, nil
}

// Leads reports whether frames are accepted under an epoch.
func (p *Partition) Leads(epoch point.Epoch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.epoch == epoch && p.mu.raised
}

// notLed is the error for a caller with an epoch other than the one in which frames are accepted.
func (p *Partition) notLed(asked, now point.Epoch) error {
	return fault.Errorf(fault.Stale, "partition %s/%d is not led in epoch %d here; the highest is %d", p.ident.Table, p.ident.Partition, asked, now)
}

// RankAbove makes all frames from now on rank above s. It lasts as long as the process: it is called again before the first frame of each epoch.
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

// HighestLogged is HighestRank for a placement that follows: of the frames that it has logged, too. Errors are those of the log, Corrupt where the
// placement is damaged (its last frames may not be read yet), and Stale where it was dropped.
func (p *Partition) HighestLogged() (point.Stamp, error) {
	if err := p.catchUp(); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.dropped:
		return 0, p.gone()
	case p.mu.damaged != nil:
		return 0, p.mu.damaged
	}
	return p.mu.ranks.Highest(), nil
}

// Ends returns, per epoch, the last frame that was accepted. Frames that come meanwhile may be missing.
func (p *Partition) Ends() []point.EpochEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endsLocked()
}

func (p *Partition) endsLocked() []point.EpochEnd {
	ends := raise(p.mu.state.Ends, p.mu.ends...)
	ends = raise(ends, p.mu.late.ends...)
	for _, fr := range p.mu.frozen {
		ends = raise(ends, fr.ends...)
	}
	return ends
}

// Empty reports whether the placement holds no row and never held one that is not deleted.
func (p *Partition) Empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.emptyLocked()
}

func (p *Partition) emptyLocked() bool {
	return p.mu.last == point.Serial{} && len(p.mu.state.Segments) == 0
}
