package forward_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// TestAGatewayWithASlowClockWrites: partitions send its inserts back, since others wrote there by better clocks. It goes on from their stamps.
func TestAGatewayWithASlowClockWrites(t *testing.T) {
	slow := forward.NewClock(7, func() point.Nanos { return time.Now().Add(-time.Hour).UnixNano() })
	c := newClusterWith(t, func(d *forward.Deps) { d.Clock = slow }, forward.Settings{}, "n1")
	c.must(c.write(0))
	n1 := c.servers[topology.ServerID("n1")]
	for i := range 3 {
		n1.seen.Take(rank.At(time.Now().UnixNano()) | 1 + point.Stamp(i)*rank.Step)
		c.must(c.write(point.Nanos(i + 1)))
	}
	if n1.late != 1 {
		t.Errorf("%d inserts were sent back, one is enough", n1.late)
	}
	if got := slow.Reserve(1); rank.Time(got) < time.Now().Add(-time.Minute).UnixNano() {
		t.Errorf("the clock gives %v", time.Unix(0, rank.Time(got)))
	}
}

// TestWritesAreAckedSoonByAServerThatDoesNotKnowTheTimeYet: it refuses them without saying a time. No stamp is set back, and no
// writer gives up, asks without pause, or waits for long after the server knows it. Where others hold rows they are staged there.
func TestWritesAreAckedSoonByAServerThatDoesNotKnowTheTimeYet(t *testing.T) {
	const unsure = 2 * time.Second
	for name, c := range map[string]struct {
		stages bool
		within time.Duration
		asked  int
	}{
		"it is asked again":             {within: unsure + 750*time.Millisecond, asked: 14},
		"its rows are staged by others": {stages: true, within: follow.SilenceMax + 300*time.Millisecond, asked: 9},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &holders{}
				clock := forward.NewClock(7, nil)
				w := newClusterWith(t, func(d *forward.Deps) {
					if d.Clock = clock; c.stages {
						d.Staging = h
					}
				}, forward.Settings{}, "n1", "n2", "n3")
				h.all = []topology.ServerID{"n1", "n2", "n3"}
				w.must(w.write(0))
				began := time.Now()
				w.change(func() { // the second holder was started with it
					w.leads[1] = "n1"
					w.servers["n1"].unsure, w.servers["n2"].unsure = began.Add(unsure), began.Add(unsure)
				})
				if err := w.write(1); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > c.within {
					t.Errorf("the row was acked after %v", took)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if n := w.servers["n1"].asked; n == 0 || n > c.asked {
					t.Errorf("the leader was asked %d times", n)
				}
				if c.stages && (len(w.staged) != 1 || w.staged[0].at != "n3") {
					t.Errorf("staged are %v", w.staged)
				}
				if at := rank.Time(clock.Reserve(1)); at < began.UnixNano() {
					t.Errorf("stamps were set back to %v", time.Unix(0, at))
				}
			})
		})
	}
}

// TestAnInsertThatHangsDoesNotRestoreWhatWasReplaced: it was sent back and stamped anew, hung in its server as the stream broke, and was sent again with the
// stamp before, for which it was stamped anew once more. So it was not recognized when it came to its end, behind a later write of the same rows, and won over that.
func TestAnInsertThatHangsDoesNotRestoreWhatWasReplaced(t *testing.T) {
	now := time.Now()
	slow := func() point.Nanos { return now.Add(-time.Minute).UnixNano() }
	c := newClusterWith(t, func(d *forward.Deps) { d.Clock = forward.NewClock(0, slow) }, forward.Settings{}, "n1")
	n1 := c.servers["n1"]
	newest := point.Stamp(now.UnixNano()) // of another gateway
	n1.seen.Observe(newest)
	n1.hangs = func(s point.Stamp) bool { return s > newest && len(n1.hung) == 0 }
	if err := c.write(1); err != nil {
		t.Fatal(err)
	}
	if n1.late != 1 || len(n1.hung) != 1 {
		t.Fatalf("%d inserts were sent back, %d hung", n1.late, len(n1.hung))
	}
	if err := n1.timely(n1.hung[0]); err == nil {
		t.Error("the insert that hung is taken behind the one that was acked in its place")
	}
}
