package forward_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestRowsThatWaitForADeadCopyAreStagedAtOnce: three servers, n3 is dead. The leader n1 answers after 0.6 s that rows wait for n3's copy. They are staged then, on n1 and n2: the
// leader itself can hold them. Writers waited for a dead follower for two seconds.
func TestRowsThatWaitForADeadCopyAreStagedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holders{}
		c := newClusterWith(t, func(d *forward.Deps) { d.Staging = h }, forward.Settings{}, "n1", "n2", "n3")
		h.all = []topology.ServerID{"n3", "n1", "n2"}
		if _, err := c.forward.Table(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.tables.SetConfig(t.Context(), "t", topology.Config{PartitionWidth: time.Hour, Replicas: 3}); err != nil {
			t.Fatal(err)
		}
		mute := make(chan struct{})
		c.change(func() {
			c.leads[1], c.servers["n1"].stalls, c.servers["n3"].mute = "n1", 600*time.Millisecond, mute
		})
		defer close(mute)
		began := time.Now()
		if err := c.write(0); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		c.mu.Lock()
		defer c.mu.Unlock()
		at := map[topology.ServerID]bool{}
		for _, s := range c.staged {
			at[s.at] = true
		}
		if len(at) != 2 || at["n3"] {
			t.Errorf("staged are %v", c.staged)
		}
		if took > 950*time.Millisecond { // of a clock that waits for nothing else
			t.Errorf("the row was acked after %v", took)
		}
		if !slices.ContainsFunc(c.staged, func(s staged) bool { return s.at == "n1" }) {
			t.Errorf("the leader was not asked: %v", c.staged)
		}
	})
}
