package runner

import (
	"context"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Copy is a placement of this server that has a chain, as the runner of storage/replica sees it.
type Copy struct {
	Partition lease.Partition
	Self      lease.Member
	At        *partition.Partition
	Epoch     point.Epoch // the highest that it promised
	Leads     bool        // in that epoch
	Joined    bool        // it is a member in that epoch and accepts frames and segments
	// Others are the other live placements of the partition, of one that leads. It must not be changed.
	Others []lease.Member
}

func (x *placement) copy() Copy {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := Copy{Partition: x.key, Self: x.self, At: x.p, Joined: x.mu.machine.Joined(), Others: x.mu.others}
	c.Epoch, c.Leads = x.mu.machine.Epoch()
	return c
}

// Leading returns the placements that lead a chain.
func (c *Chains) Leading() (all []Copy) {
	for _, x := range c.all() {
		if y := x.copy(); y.Leads {
			all = append(all, y)
		}
	}
	return all
}

// Copy returns a placement that has a chain.
func (c *Chains) Copy(key lease.Partition, id point.PlacementID) (Copy, bool) {
	x := c.find(key)
	if x == nil || x.self.Placement != id {
		return Copy{}, false
	}
	return x.copy(), true
}

// adoption is a request to adopt a segment. Frames and epochs go on meanwhile; a request to lead waits for its end.
type adoption struct {
	epoch point.Epoch
	info  segment.Info // as Partition.Verified returned it
	path  string
	done  chan error
}

// Adopt makes a verified file a segment of a placement that has joined the epoch of its sender, and then the chain goes on from the
// segment's end, if that is the newer one. One that leads accepts only the bytes of a damaged segment of its own. Errors are those of
// Partition.AdoptVerified.
func (c *Chains) Adopt(ctx context.Context, key lease.Partition, id point.PlacementID, epoch point.Epoch, info segment.Info, path string) error {
	x := c.find(key)
	if x == nil || x.self.Placement != id {
		return fault.Errorf(fault.Stale, "partition %v is not here", key)
	}
	a := &adoption{epoch, info, path, make(chan error, 1)}
	x.post(event{adopt: a})
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "adopt segment %v", info.ID)
	case <-x.ctx.Done():
		return fault.Errorf(fault.Stale, "partition %v is no longer here", key)
	}
}

// adopt begins an adoption; the loop calls it.
// The rename and the write to the catalogue run beside the events, for milliseconds to seconds; adopting keeps a second adoption and a request to lead waiting
// until they end. adopted is posted before the caller is answered, so that the next request finds the machine at the segment's end.
func (x *placement) adopt(a *adoption) {
	c := x.copy()
	switch {
	case !c.Joined && !c.Leads || c.Epoch != a.epoch:
		a.done <- fault.Errorf(fault.Stale, "partition %v neither follows a leader of epoch %d here nor leads in it", x.key, a.epoch)
		return
	case x.adopting:
		a.done <- fault.Errorf(fault.Unavailable, "partition %v adopts another segment", x.key)
		return
	}
	x.adopting = true
	x.c.work.Go(func() {
		err := x.p.AdoptVerified(a.epoch, a.info, a.path)
		x.post(event{adopted: true})
		a.done <- err
	})
}

// adopted gives the machine the log's ends after an adoption.
func (x *placement) adopted() {
	x.adopting = false
	if _, leads := x.leading(); leads { // a damaged file is whole again: the log is as it was
		return
	}
	x.mu.Lock()
	end, _ := x.mu.machine.End()
	x.mu.Unlock()
	switch ends, last := x.p.Ends(), x.p.Last(); {
	case end.Less(last): // no frame of the log is newer than the segment
		x.step(chain.Adopted{Ends: ends})
	default:
		// Frames up to the segment's end are durable in it, whether their fsync in the log is done or not.
		x.step(chain.Synced{Upto: x.p.Flushed()})
	}
}
