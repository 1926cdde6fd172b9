package runner

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/storage/chain"
)

const (
	// leaveLook is how often Leave looks whether the heads have answered.
	leaveLook = 5 * time.Millisecond
	// headlessMax is how long Leave waits for a head to appear: the partitions that were led here are led elsewhere by then, if any server can.
	headlessMax = 2 * time.Second
)

// Leave removes this server's placements from the chains that others lead, so that no writer waits for them once the process has ended. It is called
// when all leases were released, and returns when the heads have answered, or ctx ends; left are the placements that were answered. From now
// on no placement here is sure, and reads are answered by other copies.
// A placement without a head gets no answer. Leave waits headlessMax for such ones, since a server that leads next sends Begin within that time.
func (c *Chains) Leave(ctx context.Context) (left, all int) {
	c.mu.Lock()
	c.mu.leaving = true
	c.mu.Unlock()
	for _, x := range c.all() {
		x.post(event{in: chain.Leaving{}})
	}
	began := time.Now()
	look := time.NewTicker(leaveLook)
	defer look.Stop()
	for {
		n, headless := 0, 0
		copies := c.all()
		for _, x := range copies {
			switch gone, alone := x.left(); {
			case gone:
				n++
			case alone:
				headless++
			}
		}
		if waits := len(copies) - n; waits == 0 || waits == headless && time.Since(began) >= headlessMax {
			return n, len(copies)
		}
		select {
		case <-ctx.Done():
			return n, len(copies)
		case <-look.C:
		}
	}
}

func (x *placement) left() (left, headless bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.machine.Left()
}
