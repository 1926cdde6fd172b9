package runner

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

var theKey = lease.Partition{Table: "t", ID: 1}

const theEpoch point.Epoch = 3

// node is a server with one placement, on a disk in memory.
type node struct {
	*partition.Partition
	t      *testing.T
	self   lease.Member
	index  *series.Index
	brick  *brick.Brick
	links  *rpc.Links
	chains *Chains
	leads  bool
	list   []lease.Member
	later  atomic.Uint64 // epochs after theEpoch: that of the lease
}

type noBytes struct{}

func (noBytes) Add(int64) {}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// Kept and the following methods are those of Leases: one server leads, and its lease goes on.
func (n *node) Kept(string, point.PartitionID) bool { return true }

func (n *node) Copied() []Led {
	if !n.leads {
		return nil
	}
	return []Led{{Partition: theKey, Epoch: n.epoch(), List: n.list}}
}

func (n *node) CopiedOf(lease.Partition) (Led, bool) {
	for _, l := range n.Copied() {
		return l, true
	}
	return Led{}, false
}

func (n *node) Changes() uint64 { return n.later.Load() }

func (n *node) epoch() point.Epoch { return theEpoch + point.Epoch(n.later.Load()) }

func (n *node) Led(lease.Partition) (point.Epoch, bool) { return n.epoch(), n.leads }

// leadIn renews the lease in a later epoch, and has the chain lead in it.
func (n *node) leadIn(later uint64) {
	n.t.Helper()
	n.later.Store(later)
	n.must(n.LeadCopies(n.t.Context(), theKey, n.epoch()))
}

func (n *node) Placed(lease.Partition) chain.Placements {
	return chain.Placements{All: n.list, MinInSync: 2}
}

func (n *node) Relist(_ lease.Partition, epoch point.Epoch, ask uint64, members []lease.Member) {
	n.chains.Listed(theKey, ask, true, epoch, members)
}

func (n *node) GiveUp(_ lease.Partition, why string) { n.t.Error(why) }

// Placement and the following methods are those of Partitions.
func (n *node) Placement(p lease.Partition) (*partition.Partition, bool) {
	return n.Partition, p == theKey
}

func (n *node) Copy(p lease.Partition, id point.PlacementID) (*partition.Partition, error) {
	if p != theKey || id != n.self.Placement {
		return nil, fault.Errorf(fault.Stale, "%v is not here", p)
	}
	return n.Partition, nil
}

func (n *node) LeadCopies(ctx context.Context, p lease.Partition, epoch point.Epoch) error {
	return n.chains.Lead(ctx, p, n.Partition, epoch)
}

func openNode(t *testing.T, i int, set chain.Settings) *node {
	return openNodeOn(t, i, vfs.NewMem(), set)
}

func openNodeOn(t *testing.T, i int, fs vfs.FS, set chain.Settings) *node {
	n := &node{t: t, index: series.New()}
	var err error
	n.brick, err = brick.Open(brick.Deps{FS: fs}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	n.must(err)
	n.must(n.brick.Recover(func(point.PlacementID) point.Serial { return point.Serial{} }, func(point.PlacementID, point.Serial, []byte) error { return nil }))
	log := slog.New(slog.DiscardHandler)
	n.self = lease.Member{Placement: point.PlacementID(i), Server: topology.ServerID(fmt.Sprintf("s%d", i)), Store: StoreOf(n.brick.ID())}
	n.Partition, err = partition.Create(partition.Deps{Brick: n.brick, Index: n.index, Cache: segment.NewCache(1 << 14), Log: log,
		Metrics: partition.NewMetrics(prometheus.NewRegistry()), HeadBytes: noBytes{}, Compacting: new(budget.Held)},
		partition.Settings{}, partition.Identity{Table: "t", Partition: 1, Placement: n.self.Placement, TimeHi: 1 << 60}, 0)
	n.must(err)
	wire := &LinkWire{}
	n.links, err = rpc.NewLinks(rpc.LinkSettings{Self: peer.LinkHello{Server: string(n.self.Server), Boot: uint64(i), Store: n.brick.ID(), Capabilities: peer.CanRest}}, Handler{Wire: wire})
	n.must(err)
	began := time.Now()
	n.chains = New(Deps{Server: string(n.self.Server), Store: n.self.Store, Leases: n, Wire: wire, Clock: func() chain.Time { return time.Since(began) },
		Epoch: n.brick.HighestEpoch, Watch: n.brick.Watch, Log: log}, set)
	n.chains.Serve(n)
	wire.Join(n.chains, n.links.Link)
	return n
}

// runNodes runs three servers; the first leads.
func runNodes(t *testing.T, set chain.Settings) (ctx context.Context, nodes []*node, end func()) {
	return runSome(t, 3, set)
}

func runSome(t *testing.T, count int, set chain.Settings) (ctx context.Context, nodes []*node, end func()) {
	for i := range count {
		nodes = append(nodes, openNode(t, i+1, set))
	}
	ctx, end = run(t, nodes)
	return ctx, nodes, end
}

// run runs servers; the first leads.
func run(t *testing.T, nodes []*node) (ctx context.Context, end func()) {
	var list []lease.Member
	for _, n := range nodes {
		list = append(list, n.self)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i, n := range nodes {
		n.list, n.leads = list, i == 0
		for _, m := range nodes[:i] {
			rpc.JoinLinks(m.links, n.links)
		}
	}
	for i, n := range nodes {
		for _, m := range nodes[:i] { // a link that is not up loses its messages
			for _, up := m.links.Link(string(n.self.Server)); !up; _, up = m.links.Link(string(n.self.Server)) {
				time.Sleep(time.Millisecond)
			}
		}
	}
	for _, n := range nodes {
		running.Go(func() { _ = n.chains.Run(ctx) })
	}
	for !nodes[0].Leads(theEpoch) {
		time.Sleep(time.Millisecond)
	}
	return ctx, func() {
		cancel()
		running.Wait()
		for _, n := range nodes {
			n.links.Close()
			n.Close()
			n.must(n.brick.Close())
		}
	}
}

// Writers append at once on a leader with two followers, and its head is frozen meanwhile: every row that was acked is in all three logs, in one order.
func TestRowsOfManyWritersAreOnAllPlacementsWhenTheyAreAcked(t *testing.T) {
	ctx, nodes, end := runNodes(t, chain.Settings{SilentAfter: time.Minute, SlowAfter: time.Minute})
	head := nodes[0]
	var writers sync.WaitGroup
	for w := range 8 {
		ref := head.index.Intern(point.MakeLabels(point.MetricName, fmt.Sprint("m", w)))
		writers.Go(func() {
			for i := range 50 {
				level := point.All
				if i%7 == 3 && i < 49 {
					level = point.One
				}
				err := head.Append(&partition.Rows{Stamp: point.Stamp(i*8+w+1) << 20, Level: level, Refs: []series.Ref{ref}, Times: []point.Nanos{int64(i + 1)}, Values: []float64{1}})
				if err != nil {
					t.Error(err)
					return
				}
				if i == 25 && w == 0 {
					if err := head.Flush(ctx, partition.ByAge); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	writers.Wait() // the last row of each writer is acked by all, and no row is newer than these
	for _, n := range nodes[1:] {
		if n.Last() != head.Last() {
			t.Errorf("%s ends with %v, the leader with %v", n.self.Server, n.Last(), head.Last())
		}
	}
	end()
}

// The first row of a new partition is acked although no message of its chain is ever sent again: the message that makes a follower's placement is handled
// once it is made, and the follower answers once the epoch is durable. (Of two followers the second may report to the first before that one is made; the
// next ping repeats it.)
func TestTheFirstRowOfAPartitionDoesNotWaitForAPing(t *testing.T) {
	_, nodes, end := runSome(t, 2, chain.Settings{PingEvery: time.Hour, SilentAfter: 24 * time.Hour, SlowAfter: 24 * time.Hour})
	head := nodes[0]
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	acked := make(chan error, 1)
	go func() {
		acked <- head.Append(&partition.Rows{Stamp: 1 << 20, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{1}, Values: []float64{1}})
	}()
	select {
	case err := <-acked:
		head.must(err)
	case <-time.After(time.Minute):
		t.Fatal("the row is not acked without pings")
	}
	end()
}

// replaced is a server on which another placement of the partition comes while it is looked at.
type replaced struct {
	*node
	by func() *partition.Partition
}

func (r replaced) Placement(lease.Partition) (*partition.Partition, bool) { return r.by(), true }

// TestAPlacementThatFollowsAnotherKeepsItsChain: its first row began a chain while the end of the old placement's was seen. That chain was forgotten
// instead of the old one and ran on, and rows and messages of the partition found none.
func TestAPlacementThatFollowsAnotherKeepsItsChain(t *testing.T) {
	old, next := openNode(t, 1, chain.Settings{}), openNode(t, 2, chain.Settings{})
	c, key := old.chains, lease.Partition{Table: "t", ID: 1}
	if c.of(key, old.Partition) == nil {
		t.Fatal("no chain")
	}
	c.forget(replaced{old, func() *partition.Partition {
		c.of(key, next.Partition)
		return next.Partition
	}})
	if x := c.find(key); x == nil || x.p != next.Partition {
		t.Errorf("the placement that is here has the chain %v", x)
	}
	for _, n := range []*node{old, next} {
		n.chains.stop()
		n.links.Close()
		n.Close()
		n.must(n.brick.Close())
	}
}

// busy keeps the events of a chain from being handled until the returned function handles them, as a goroutine does that is at work.
func busy(x *placement) (goOn func()) {
	x.mu.Lock()
	for x.mu.draining {
		x.idle.Wait()
	}
	x.mu.draining = true
	x.mu.Unlock()
	return func() { x.handleAll(true) }
}

// TestAServerThatLeadsAnewWhileRowsComeGoesOn: a row was accepted in the epoch before while the next one began. The log had it before the chain's machine did, and the process ended.
func TestAServerThatLeadsAnewWhileRowsComeGoesOn(t *testing.T) {
	n := openNode(t, 1, chain.Settings{})
	n.list, n.leads = []lease.Member{n.self}, true
	x := n.chains.of(theKey, n.Partition)
	ref := n.index.Intern(point.MakeLabels(point.MetricName, "m"))
	write := func(i int64) {
		n.must(n.Append(&partition.Rows{Stamp: point.Stamp(i) << 20, Level: point.Received, Refs: []series.Ref{ref}, Times: []point.Nanos{i}, Values: []float64{1}}))
	}
	for i := range int64(3) {
		goOn := busy(x)
		n.later.Store(uint64(i))
		if i > 0 {
			write(i)
			write(i + 10)
		}
		n.must(x.lead(&Led{Partition: theKey, Epoch: n.epoch(), List: n.list}))
		goOn()
	}
	goOn := busy(x)
	write(30)
	goOn()
	x.mu.Lock()
	end, _ := x.mu.machine.End()
	x.mu.Unlock()
	if end != n.Last() {
		t.Errorf("the chain ends with %v, the log with %v", end, n.Last())
	}
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}

// TestARowThatAnotherLeaderCutOffIsNotAcked: its writer was held up while its server lost the lead, another one cut the row off, and the server led again. Rows of the new epoch were acknowledged, and
// the lost one with them.
func TestARowThatAnotherLeaderCutOffIsNotAcked(t *testing.T) {
	n := openNode(t, 1, chain.Settings{})
	n.list, n.leads = []lease.Member{n.self}, true
	x := n.chains.of(theKey, n.Partition)
	ref := n.index.Intern(point.MakeLabels(point.MetricName, "m"))
	for i := range int64(2) {
		n.leadIn(2 * uint64(i))
		n.must(n.Append(&partition.Rows{Stamp: point.Stamp(i+1) << 20, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{i}, Values: []float64{1}}))
	}
	if last := n.Last(); last.Epoch != theEpoch+2 {
		t.Fatalf("the last frame is %v", last)
	}
	x.post(event{tick: true}) // compares the epoch with that of the lease
	n.must(x.Await(t.Context(), point.Serial{Epoch: theEpoch, Seq: 1}))
	for _, cut := range []point.Serial{{Epoch: theEpoch, Seq: 2}, {Epoch: theEpoch + 1, Seq: 1}, {Epoch: theEpoch - 1, Seq: 1}} {
		if err := x.Await(t.Context(), cut); !fault.Is(err, fault.Stale) {
			t.Errorf("frame %v, which the log does not have: %v", cut, err)
		}
	}
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}

// TestACopyThatCannotFollowIsAnErrorAndNotTriedAllTheTime: rows in its segments that its leader never had are for a person to decide about. Each try read its whole log,
// every five seconds, and the log had a warning of each.
func TestACopyThatCannotFollowIsAnErrorAndNotTriedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		x := &placement{c: &Chains{deps: Deps{Log: slog.New(slog.NewTextHandler(&said, nil))}}, key: theKey}
		x.ctx, x.cancel = context.WithTimeout(t.Context(), time.Hour)
		defer x.cancel()
		tries := 0
		if x.again("set surplus frames aside", func() error {
			tries++
			return fault.Errorf(fault.Corrupt, "rows in its segments that its leader never had")
		}) {
			t.Error("it goes on")
		}
		if most := 80; tries < 60 || tries > most || strings.Count(said.String(), "level=ERROR") != tries {
			t.Errorf("%d tries in an hour, at most %d: %s", tries, most, said.String()[:200])
		}
	})
}

// TestACopyThatAPersonHelpedIsTriedSoonAgain: one minute of damage, and from then on a busy disk cost a minute at each try.
func TestACopyThatAPersonHelpedIsTriedSoonAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &placement{c: &Chains{deps: Deps{Log: slog.New(slog.DiscardHandler)}}, key: theKey}
		x.ctx, x.cancel = context.WithCancel(t.Context())
		defer x.cancel()
		began := time.Now()
		damaged, busy := began.Add(time.Hour), began.Add(time.Hour+2*againDamagedMax+time.Minute)
		var last time.Time
		if !x.again("set surplus frames aside", func() error {
			now := time.Now()
			ago := now.Sub(last)
			last = now
			switch {
			case now.Before(damaged):
				return fault.Errorf(fault.Corrupt, "rows in its segments that its leader never had")
			case now.Before(busy):
				return fault.Errorf(fault.Unavailable, "the disk is busy")
			case ago > againMax:
				t.Errorf("the last try was %v ago", ago)
			}
			return nil
		}) {
			t.Error("it does not go on")
		}
	})
}
