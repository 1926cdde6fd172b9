package runner

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/series"
)

// put appends a row and leaves it in the log.
func (n *node) put(v float64) {
	n.t.Helper()
	ref := n.index.Intern(point.MakeLabels(point.MetricName, "m"))
	defer n.index.Release(ref)
	n.stamp += 1024
	n.must(n.Append(&partition.Rows{Epoch: epoch, Stamp: n.stamp, Refs: []series.Ref{ref}, Times: []point.Nanos{point.Nanos(n.stamp)}, Values: []float64{v}}))
}

// follow copies the frames of another node that this one lacks.
func (n *node) follow(from *node) {
	n.t.Helper()
	n.must(from.EachFrameUpTo(n.Last(), from.Last(), func(_ point.Serial, rec []byte) error {
		wait, err := n.Follow(epoch, slices.Clone(rec))
		if err == nil {
			err = wait.Wait()
		}
		return err
	}))
}

// TestACopyThatHoldsOtherRowsIsFoundAndRepaired: three servers; one follower has frames of the same serials with other rows, which no checksum of its own shows. It is counted, gets its leader's rows,
// and the count ends. Where no copy agrees with the leader nothing is repaired.
func TestACopyThatHoldsOtherRowsIsFoundAndRepaired(t *testing.T) {
	set := Settings{CompareAfter: 10 * time.Millisecond, Compare: replica.CompareSettings{CompareEvery: 50 * time.Millisecond, CompareAgain: 20 * time.Millisecond}}
	for _, agrees := range []bool{true, false} {
		leader, odd, other, liar := openNode(t, "a", 1, set), openNode(t, "b", 2, set), openNode(t, "c", 3, set), openNode(t, "x", 4, set)
		all := []*node{leader, odd, other, liar}
		leader.must(leader.LeadChain(epoch, alone{}))
		liar.must(liar.LeadChain(epoch, alone{}))
		leader.copy.Leads, leader.copy.Others = true, []lease.Member{odd.copy.Self, other.copy.Self}
		for _, n := range []*node{odd, other} {
			n.must(n.FollowLeader(epoch))
			n.joined.Store(true)
		}
		for i := range 5 {
			leader.put(float64(i))
			liar.put(float64(i + i/4))
		}
		odd.follow(liar)
		other.follow(leader)
		p := &pair{t: t, leader: leader, follows: odd}
		if !agrees {
			leader.copy.Others = leader.copy.Others[:1]
		}
		for _, n := range all {
			n.run()
		}
		rpc.JoinLinks(leader.links, odd.links)
		rpc.JoinLinks(leader.links, other.links)
		m := leader.copier.metrics
		p.within("the difference is found", func() bool { return testutil.ToFloat64(m.differed) == 1 })
		if leader.reads.Load() == 0 || odd.reads.Load() == 0 {
			t.Error("logs are read in no account of the memory")
		}
		if agrees {
			p.within("it is over", func() bool { return testutil.ToFloat64(m.differences) == 0 && testutil.ToFloat64(m.repairs) == 1 })
			p.within("all have the same segments", p.same)
			p.within("and nothing is said of them", func() bool { return leader.copier.Differs(leader.copy.Partition) == "" })
		} else {
			compared := testutil.ToFloat64(m.compared)
			p.within("it is compared again", func() bool { return testutil.ToFloat64(m.compared) > compared+2 })
			if got := leader.copier.Differs(leader.copy.Partition); got != "server b differs in its log" {
				t.Errorf("said of the copies: %q", got)
			}
			if testutil.ToFloat64(m.differences) != 1 || testutil.ToFloat64(m.repairs) != 0 || len(leader.State().Segments) != 0 {
				t.Errorf("%v differ, %v repairs, segments %v", testutil.ToFloat64(m.differences), testutil.ToFloat64(m.repairs), leader.State().Segments)
			}
		}
		for _, n := range all {
			n.links.Close()
		}
		for _, n := range all {
			n.stop()
			n.Close()
			n.cache.Close()
			n.must(n.brick.Close())
		}
	}
}
