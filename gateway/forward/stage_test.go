package forward_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
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
			c.leads[1], c.servers["n1"].slow, c.servers["n1"].stalls, c.servers["n3"].mute = "n1", 600*time.Millisecond, true, mute
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

// TestAnOverloadedLeaderIsNotStagedFor: the leader needs two seconds for each insert, of many writers at once, and answers pings. Then it refuses rows, too. Nothing is
// staged: other servers would get the load, and the leader the rows once more. A leader that answers no ping is staged for.
func TestAnOverloadedLeaderIsNotStagedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holders{}
		var deaf atomic.Bool // attempts that have ended may still ask
		ping := func(context.Context, topology.ServerID) error {
			if deaf.Load() {
				return fault.Errorf(fault.Unavailable, "no answer")
			}
			return nil
		}
		c := newClusterWith(t, func(d *forward.Deps) { d.Staging, d.Ping = h, ping }, forward.Settings{}, "n1", "n2", "n3")
		h.all = []topology.ServerID{"n2", "n3", "n1"}
		if _, err := c.forward.Table(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		writers := func(refused bool) (frames int) {
			t.Helper()
			var all sync.WaitGroup
			for range 40 {
				all.Go(func() {
					if err := c.write(0); (err != nil) != refused || refused && !fault.Is(err, fault.Throttled) {
						t.Errorf("a write ended with %v", err)
					}
				})
			}
			all.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.staged)
		}
		c.change(func() { c.leads[1], c.servers["n1"].slow = "n1", 2*time.Second })
		if n := writers(false); n > 0 {
			t.Errorf("%d frames were staged for a leader that is slow", n)
		}
		c.change(func() { c.servers["n1"].full = fault.Errorf(fault.Throttled, "too much") })
		if n := writers(true); n > 0 {
			t.Errorf("%d frames were staged for a leader that refuses rows", n)
		}
		deaf.Store(true)
		if n := writers(false); n == 0 {
			t.Error("nothing was staged for a leader that is deaf: this test shows nothing")
		}
	})
}

// TestSharesOfADeadLeaderAreLeaderless: the lease row of a server that was killed names it until another acquires it, which none does where it alone had the rows. Each write was
// staged or refused, and the counter of the alert stayed 0. A leader that sends heartbeats and does not answer is not counted: its process or the network is slow.
func TestSharesOfADeadLeaderAreLeaderless(t *testing.T) {
	for name, stages := range map[string]bool{"staged": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &holders{all: []topology.ServerID{"n2", "n3"}}
				var dead atomic.Bool
				c := newClusterWith(t, func(d *forward.Deps) {
					if d.Live = func(id topology.ServerID) bool { return id != "n1" || !dead.Load() }; stages {
						d.Staging = h
						d.Ping = func(context.Context, topology.ServerID) error { return fault.Errorf(fault.Unavailable, "no answer") }
					}
				}, forward.Settings{Timeout: 3 * time.Second}, "n1", "n2", "n3")
				c.change(func() { c.leads[1] = "n1" })
				c.must(c.write(0))
				write := func() {
					t.Helper()
					if err := c.write(0); (err == nil) != stages {
						t.Errorf("a write to a partition whose leader is away: %v", err)
					}
				}
				counts := func(want float64, when string) {
					t.Helper()
					if n := c.counted("spillway_forward_leaderless_shares_total", ""); n != want {
						t.Errorf("%v shares are leaderless %s, want %v", n, when, want)
					}
				}
				c.change(func() { c.servers["n1"].err = fault.Errorf(fault.Unavailable, "connection refused") })
				write()
				counts(0, "while heartbeats come")
				dead.Store(true)
				for range 3 { // the later ones may not ask it any more
					write()
				}
				counts(3, "without heartbeats")
				dead.Store(false)
				c.change(func() { c.servers["n1"].err = nil })
				time.Sleep(time.Minute) // of a clock that waits for nothing else
				c.must(c.write(0))
				counts(3, "once it is back")
			})
		})
	}
}
