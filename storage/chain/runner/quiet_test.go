package runner

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestAReadOfAQuietCopyIsSureAndARowIsAckedByAll: three placements become quiet, and none of their timers is due soon. A read at a copy makes it sure, and a row at the
// leader of a quiet chain is in all logs when it is acked.
func TestAReadOfAQuietCopyIsSureAndARowIsAckedByAll(t *testing.T) {
	ctx, nodes, end := runNodes(t, chain.Settings{SilentAfter: time.Minute, SlowAfter: time.Minute, QuietAfter: 500 * time.Millisecond, QuietPingEvery: 30 * time.Second})
	defer end()
	head, copied := nodes[0], nodes[2]
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	quiet := func() bool {
		for _, n := range nodes {
			x := n.chains.find(theKey)
			if x == nil {
				return false
			}
			x.mu.Lock()
			rests := x.mu.machine.Quiet() && x.mu.armed-n.chains.deps.Clock() > 5*time.Second
			x.mu.Unlock()
			if !rests {
				return false
			}
		}
		return true
	}
	for i := range 3 {
		err := head.Append(&partition.Rows{Stamp: point.Stamp(i+1) << 20, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{int64(i + 1)}, Values: []float64{1}})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Last() != head.Last() {
				t.Errorf("row %d is acked, and %s ends with %v, the leader with %v", i, n.self.Server, n.Last(), head.Last())
			}
		}
		for !quiet() {
			time.Sleep(5 * time.Millisecond)
		}
		for !copied.chains.Sure(theKey) { // a busy machine may need longer than a read waits
			copied.chains.Wake(ctx, []lease.Partition{theKey})
			time.Sleep(time.Millisecond)
		}
	}
}

// A server that cannot rest gets a ping instead, and its answers never agree.
func TestServersThatCannotRestArePingedOn(t *testing.T) {
	ping := chain.Ping{Epoch: 7, Version: 2, Sent: 5, Own: point.Serial{Epoch: 1, Seq: 2}, End: point.Serial{Epoch: 1, Seq: 3}, Quiet: true}
	for _, m := range []chain.Message{ping, chain.Pong{Epoch: 7, Sent: 5, Quiet: true}} {
		if got := inward(7, outward(m, peer.CanRest)); got != m {
			t.Errorf("%+v arrives as %+v", m, got)
		}
	}
	awake := ping
	awake.Quiet = false
	if got := inward(7, outward(ping, peer.CanLeave)); got != awake {
		t.Errorf("%+v arrives as %+v, want %+v", ping, got, awake)
	}
}
