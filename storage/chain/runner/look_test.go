package runner

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/storage/chain"
)

// reads counts how often the leases of all partitions are read.
type reads struct {
	*node
	n       int
	changes atomic.Uint64
}

func (r *reads) Copied() []Led { r.n++; return nil }

func (r *reads) Changes() uint64 { return r.changes.Load() }

// TestALeaseThatChangedIsReadAtTheNextLook: a copy that leads after a failover begins its epoch there, and its writers wait for that. What
// did not change is read once a second.
func TestALeaseThatChangedIsReadAtTheNextLook(t *testing.T) {
	n := openNode(t, 1, chain.Settings{})
	r := &reads{node: n}
	n.chains.deps.Leases = r
	look := func(want int, why string) {
		t.Helper()
		n.chains.look(t.Context(), n)
		n.chains.lookedAt = time.Now().Add(time.Hour) // however slow this machine is, a second is not over
		if r.n != want {
			t.Errorf("%s: the leases were read %d times, not %d", why, r.n, want)
		}
	}
	look(1, "the first look")
	look(1, "nothing changed")
	r.changes.Add(1)
	look(2, "a lease changed")
	look(2, "nothing changed since")
	x := n.chains.of(theKey, n.Partition)
	x.mu.Lock()
	x.mu.epoch = theEpoch
	x.mu.Unlock()
	x.over(theEpoch, nil)
	look(3, "an epoch ended")
	look(3, "nothing changed since")
	n.chains.lookedAt = time.Now().Add(-lookMax)
	look(4, "a second is over")
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}
