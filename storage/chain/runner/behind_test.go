package runner

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
)

// TestAMemberThatWasAwayGetsAllFramesInTheirOrder: more than memory keeps, frames of one row and such as are longer than a group, and than the first bytes of a link.
func TestAMemberThatWasAwayGetsAllFramesInTheirOrder(t *testing.T) {
	_, nodes, end := runSome(t, 2, chain.Settings{SilentAfter: time.Hour, SlowAfter: time.Hour, PingEvery: 20 * time.Millisecond})
	defer end()
	head, follower := nodes[0], nodes[1]
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	rng, rows := rand.New(rand.NewPCG(1, 1)), 0
	put := func(level point.Level, n int) {
		r := &partition.Rows{Stamp: point.Stamp(rows+1) << 20, Level: level}
		for range n {
			rows++
			r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(rows)*1_000_003), append(r.Values, rng.Float64())
		}
		head.must(head.Append(r))
	}
	put(point.All, 1)
	head.links.Disconnect(string(follower.self.Server))
	for _, up := head.links.Link(string(follower.self.Server)); up; _, up = head.links.Link(string(follower.self.Server)) {
		time.Sleep(time.Millisecond)
	}
	for _, n := range []int{1, 200_000, 1, 20_000, 20_000, 1} {
		put(point.One, n)
	}
	for i := range 3_000 {
		put(point.One, 1+i%1000/999*5_000)
	}
	longest := 0
	frames := func(n *node) (all [][]byte) {
		n.must(n.EachFrame(point.Serial{}, func(_ point.Serial, rec []byte) error {
			all = append(all, bytes.Clone(rec))
			longest = max(longest, len(rec))
			return nil
		}))
		return all
	}
	want := frames(head)
	if longest <= 1<<20 {
		t.Errorf("the longest frame has %d bytes: the test shows nothing", longest)
	}
	rpc.JoinLinks(head.links, follower.links)
	for follower.Last() != head.Last() {
		time.Sleep(time.Millisecond)
	}
	got := frames(follower)
	if len(got) != len(want) {
		t.Fatalf("%d frames came of %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("frame %d is another one", i)
		}
	}
	for head.links.HeldBytes() != 0 { // else some stay booked
		time.Sleep(time.Millisecond)
	}
}
