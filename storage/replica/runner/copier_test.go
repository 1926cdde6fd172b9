package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two servers in one process with a placement of one partition each: the first leads, the second follows. Frames are not passed on:
// the follower gets all by segments.
type pair struct {
	t       *testing.T
	leader  *node
	follows *node
}

// node is a server: its store and its links are real, its chain is a constant.
type node struct {
	*partition.Partition
	t      *testing.T
	name   string
	fs     vfs.FS
	brick  *brick.Brick
	cache  *segment.Cache
	index  *series.Index
	links  *rpc.Links
	copier *Copier
	stamp  point.Stamp
	lane   *lane.Lane // of the compactions
	copy   chains.Copy
	joined atomic.Bool
	reads  atomic.Int64 // of logs
	stop   func()
}

type noBytes struct{}

func (noBytes) Add(int64) {}

// alone is a chain in which all other placements have all frames at once.
type alone struct{}

func (alone) Pass(point.Serial, point.Serial, []byte, brick.Wait) {}

func (alone) HandOn() {}

func (alone) Await(context.Context, point.Serial) error     { return nil }
func (alone) AwaitSoon(context.Context, point.Serial) error { return nil }

const epoch point.Epoch = 3

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// Leading and the following methods implement Chains.
func (n *node) Leading() (all []chains.Copy) {
	if n.copy.Leads {
		all = append(all, n.copy)
	}
	return all
}

func (n *node) Copy(p lease.Partition, id point.PlacementID) (chains.Copy, bool) {
	c := n.copy
	c.Joined = n.joined.Load()
	return c, p == c.Partition && id == c.Self.Placement
}

func (n *node) Adopt(_ context.Context, _ lease.Partition, _ point.PlacementID, sender point.Epoch, info segment.Info, path string) error {
	return n.AdoptVerified(sender, info, path)
}

func (n *node) ReadFrames(_ context.Context, at *partition.Partition, after, upto point.Serial, f func(point.Serial, []byte) error) error {
	n.reads.Add(1)
	return at.EachFrameUpTo(after, upto, f)
}

func openNode(t *testing.T, name string, id point.PlacementID, set Settings) *node {
	t.Helper()
	n := &node{t: t, name: name, fs: vfs.NewMem(), cache: segment.NewCache(1 << 14), index: series.New(), stamp: 1 << 40, lane: lane.New(func() bool { return true }, 1)}
	log := slog.New(slog.DiscardHandler)
	var err error
	n.brick, err = brick.Open(brick.Deps{FS: n.fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	n.must(err)
	n.must(n.brick.Recover(func(point.PlacementID) point.Serial { return point.Serial{} }, func(point.PlacementID, point.Serial, []byte) error { return nil }))
	deps := partition.Deps{Brick: n.brick, Index: n.index, Cache: n.cache, Log: log, Metrics: partition.NewMetrics(prometheus.NewRegistry()),
		HeadBytes: noBytes{}, Compacting: new(budget.Held), Lane: n.lane}
	n.Partition, err = partition.Create(deps, partition.Settings{}, partition.Identity{Table: "t", Partition: 1, Placement: id, TimeHi: 1 << 60}, 0)
	n.must(err)
	handler := &Handler{Next: chains.Handler{Wire: &chains.LinkWire{}}}
	n.links, err = rpc.NewLinks(rpc.LinkSettings{Self: peer.LinkHello{Server: name, Boot: uint64(id), Store: n.brick.ID(), Capabilities: peer.CanCompare}}, handler)
	n.must(err)
	n.copy = chains.Copy{Partition: lease.Partition{Table: "t", ID: 1}, At: n.Partition, Epoch: epoch,
		Self: lease.Member{Placement: id, Server: topology.ServerID(name), Store: chains.StoreOf(n.brick.ID())}}
	began := time.Now()
	n.copier = New(Deps{Brick: n.brick, Chains: n, Clock: func() replica.Time { return time.Since(began) }, Log: log}, set)
	handler.Join(n.copier)
	return n
}

func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.copier.Run(ctx) }()
	n.stop = func() {
		cancel()
		n.must(<-done)
	}
}

func newPair(t *testing.T, set Settings) *pair {
	t.Helper()
	return newPairOf(t, set, set)
}

func newPairOf(t *testing.T, leader, follows Settings) *pair {
	t.Helper()
	p := &pair{t: t, leader: openNode(t, "a", 1, leader), follows: openNode(t, "b", 2, follows)}
	l, f := p.leader, p.follows
	l.must(l.LeadChain(epoch, alone{}))
	f.must(f.FollowLeader(epoch))
	l.copy.Leads, l.copy.Others = true, []lease.Member{f.copy.Self}
	f.joined.Store(true)
	l.run()
	f.run()
	rpc.JoinLinks(l.links, f.links)
	t.Cleanup(func() {
		l.links.Close()
		f.links.Close()
		for _, n := range []*node{l, f} {
			n.stop()
			n.Close()
			n.cache.Close()
			n.must(n.brick.Close())
		}
	})
	return p
}

// write appends rows of one series and makes a segment of them.
func (n *node) write(rows int, value func(i int) float64) {
	n.t.Helper()
	ref := n.index.Intern(point.MakeLabels(point.MetricName, "m"))
	defer n.index.Release(ref)
	r := partition.Rows{Epoch: epoch}
	for i := range rows {
		n.stamp += 1024
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(n.stamp)), append(r.Values, value(i))
	}
	r.Stamp = n.stamp
	n.must(n.Append(&r))
	n.must(n.Flush(context.Background(), partition.ByRequest))
}

// readAll reads every row, from the disk for the most part: the cache is small.
func (n *node) readAll() error {
	v, err := n.View()
	if err != nil {
		return err
	}
	defer v.Close()
	ss, err := v.Match(nil)
	if err != nil {
		return err
	}
	return v.Read(ss, math.MinInt64, math.MaxInt64, func(int, rows.Run) error { return nil })
}

func (p *pair) within(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not yet: %s", what)
		}
	}
}

// same reports whether both placements have the same segments, and compares the bytes of their files.
func (p *pair) same() bool {
	p.t.Helper()
	a, b := p.leader.State(), p.follows.State()
	if len(a.Segments) != len(b.Segments) {
		return false
	}
	for i := range a.Segments {
		if a.Segments[i].ID != b.Segments[i].ID {
			return false
		}
		if !bytes.Equal(p.leader.bytesOf(i), p.follows.bytesOf(i)) {
			p.t.Fatalf("segment %v differs", a.Segments[i].ID)
		}
	}
	return true
}

func (n *node) bytesOf(i int) []byte {
	n.t.Helper()
	f, err := n.OpenSegment(n.State().Segments[i].ID)
	n.must(err)
	b, err := io.ReadAll(f)
	n.must(errors.Join(err, f.Close()))
	return b
}

// breaks flips two bytes of the i-th segment's file.
func (n *node) breaks(i int) point.SegmentID {
	n.t.Helper()
	g := n.State().Segments[i]
	f, err := n.fs.OpenReadWrite(n.brick.SegmentPath(n.Identity().Placement, g.ID), vfs.WriteCategoryUnspecified)
	n.must(err)
	_, err = f.WriteAt([]byte{0x5a, 0xa5}, g.Size/2)
	n.must(errors.Join(err, f.Sync(), f.Close()))
	return g.ID
}

func (n *node) unfinished() (names []string) {
	all, _ := n.fs.List(n.brick.SegmentDir(n.Identity().Placement))
	for _, name := range all {
		if strings.HasSuffix(name, unfinishedSuffix) {
			names = append(names, name)
		}
	}
	return names
}

func ramp(i int) float64 { return float64(i) }

// noise does not compress.
func noise(int) float64 { return rand.Float64() } //nolint:gosec // bytes for a file

// TestAnEmptyFollowerGetsTheChainOfSegments: a major and minors, those that are made while it fetches, and then the major in their place.
func TestAnEmptyFollowerGetsTheChainOfSegments(t *testing.T) {
	p := newPair(t, Settings{})
	for i := range 5 {
		p.leader.write(100+i, ramp)
	}
	p.within("the follower has all segments", p.same)
	p.within("5 segments are counted", func() bool { return testutil.ToFloat64(p.follows.copier.metrics.adopted) == 5 })
	if p.leader.must(p.leader.Compact(t.Context(), partition.ByRequest)); len(p.leader.State().Segments) != 1 {
		t.Fatal("no major was made")
	}
	p.leader.write(10, ramp)
	p.within("the follower has the major and a minor", p.same)
	p.within("no placement is behind", func() bool { return testutil.ToFloat64(p.leader.copier.metrics.behind) == 0 })
	if names := p.follows.unfinished(); len(names) > 0 {
		t.Errorf("unfinished files are left: %v", names)
	}
	if a, b := p.leader.Flushed(), p.follows.Last(); a != b {
		t.Errorf("the leader's segments end with %v, the follower with %v", a, b)
	}
}

// TestAFollowerGetsAFoldedMinorAndWhatIsFlushedMeanwhile: twelve small minors become one above the major. What is flushed meanwhile is sent at once, and then as the minor that is based on the result.
func TestAFollowerGetsAFoldedMinorAndWhatIsFlushedMeanwhile(t *testing.T) {
	p := newPair(t, Settings{})
	p.leader.write(5000, noise)
	for range 12 {
		p.leader.write(10, ramp)
	}
	p.within("the follower has all segments", p.same)
	query := p.leader.lane.Turn(&lane.Share{})
	p.leader.must(query.Next(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.leader.CompactIfDue(t.Context(), time.Now()) }()
	p.within("the compaction waits for its turn", func() bool { _, waiting := p.leader.lane.InUse(); return waiting > 0 })
	p.leader.write(10, ramp)
	p.within("the follower has what was flushed meanwhile", p.same)
	query.End()
	p.leader.must(<-done)
	if n := len(p.leader.State().Segments); n != 3 {
		t.Fatalf("%d segments, want the major, the twelve as one, and the last", n)
	}
	p.within("the follower has them", p.same)
	p.within("16 segments are counted", func() bool { return testutil.ToFloat64(p.follows.copier.metrics.adopted) == 16 })
}

// TestATransferGoesOnWhereItStopped: the link ends in the middle of a segment, and the bytes that are here are not sent again.
func TestATransferGoesOnWhereItStopped(t *testing.T) {
	p := newPair(t, Settings{BytesPerSecond: 512 << 10, Machine: replica.Settings{RetryMin: 10 * time.Millisecond}})
	p.leader.write(200_000, noise)
	size := float64(p.leader.State().Segments[0].Size)
	if size < 8*pieceBytes {
		t.Fatalf("the segment has %v bytes: too few for this test", size)
	}
	received := p.follows.copier.metrics.receivedBytes
	p.within("a part has arrived", func() bool { return testutil.ToFloat64(received) > size/3 })
	p.within("the leader says how far it is", func() bool {
		all := p.leader.copier.Transfers(p.leader.copy.Partition)
		return len(all) == 1 && all[0].To == "b" && float64(all[0].Total) == size && float64(all[0].Done) > size/3 && all[0].BytesPerSecond > 0
	})
	l, ok := p.leader.links.Link("b")
	if !ok {
		t.Fatal("there is no link")
	}
	for _, c := range []*Copier{p.leader.copier, p.follows.copier} {
		c.post(func() { c.rate = replica.NewRate(1 << 33) })
	}
	l.Close("a test")
	p.within("the follower has the segment", p.same)
	p.within("nothing is on its way", func() bool { return len(p.leader.copier.Transfers(p.leader.copy.Partition)) == 0 })
	// The parts since the last report to the machine, a second or 256 KiB, and those that were on their way.
	if n := testutil.ToFloat64(received); n > size*5/3 {
		t.Errorf("%v bytes received for a segment of %v", n, size)
	}
}

// TestAServerReceivesNoFasterThanItsSetting: many may send to it, each at its own rate.
func TestAServerReceivesNoFasterThanItsSetting(t *testing.T) {
	const setting = 1 << 20
	p := newPairOf(t, Settings{BytesPerSecond: 1 << 33}, Settings{BytesPerSecond: setting})
	began := time.Now()
	p.leader.write(200_000, noise)
	p.within("the follower has the segment", p.same)
	bytes := testutil.ToFloat64(p.follows.copier.metrics.receivedBytes)
	if at := (bytes - pieceBytes) / setting; bytes < 8*pieceBytes || time.Since(began).Seconds() < at {
		t.Errorf("%.0f bytes are here after %v, want %.1f s", bytes, time.Since(began), at)
	}
}

// TestATransferThatIsGivenUpWhileItWaitsForTheRateGivesTheWindowBack: its pieces fill the link's window, and a compaction makes another segment in its place.
func TestATransferThatIsGivenUpWhileItWaitsForTheRateGivesTheWindowBack(t *testing.T) {
	const window = 4 << 20
	p := newPairOf(t, Settings{BytesPerSecond: 1 << 33, Machine: replica.Settings{RetryMin: 10 * time.Millisecond}}, Settings{BytesPerSecond: 4096})
	for range 2 {
		p.leader.write(700_000, noise)
	}
	sent := p.leader.copier.metrics.sentBytes
	p.within("the window is full", func() bool { return testutil.ToFloat64(sent) > window-pieceBytes })
	p.leader.must(p.leader.Compact(t.Context(), partition.ByRequest))
	if n := p.leader.State().Segments[0].Size; n < 2*window {
		t.Fatalf("the segment has %v bytes: too few for this test", n)
	}
	p.follows.copier.post(func() { p.follows.copier.rate = replica.NewRate(1 << 33) })
	p.within("the follower has the other segment", p.same)
	p.within("no piece is held", func() bool { return p.follows.links.HeldBytes() == 0 })
	if names := p.follows.unfinished(); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// TestACheckOfADoubtedSegmentIsNoRest: while a server rests, its rate is an eighth of the setting, and its reads would wait eight times as long for the end of the check.
func TestACheckOfADoubtedSegmentIsNoRest(t *testing.T) {
	p := newPair(t, Settings{BytesPerSecond: 1 << 33})
	p.leader.write(50_000, noise)
	p.within("the follower has the segment", p.same)
	c, g := p.leader.copier, p.leader.State().Segments[0]
	before := c.copied.Load()
	if c.suspect(p.leader.copy.Partition, p.leader.Partition, g.ID); c.copied.Load()-before < uint64(g.Size) {
		t.Errorf("a check of %d bytes counts as %d", g.Size, c.copied.Load()-before)
	}
}

// TestASegmentThatIsDamagedAtItsLeaderIsNamed: no follower accepts it, and the leader finds the damage.
func TestASegmentThatIsDamagedAtItsLeaderIsNamed(t *testing.T) {
	p := newPair(t, Settings{Machine: replica.Settings{RetryMin: 10 * time.Millisecond, RetryMax: 20 * time.Millisecond}})
	p.leader.write(100, ramp)
	p.within("the follower has the first", p.same)
	p.follows.joined.Store(false) // nothing is accepted until the file is damaged
	p.leader.write(1000, noise)
	id := p.leader.breaks(1)
	p.follows.joined.Store(true)
	p.within("the leader finds its damage", func() bool { return p.leader.Damaged() != nil })
	if !strings.Contains(p.leader.Damaged().Error(), id.String()) {
		t.Errorf("the damage does not name segment %v: %v", id, p.leader.Damaged())
	}
	if n := len(p.follows.State().Segments); n != 1 || p.follows.Damaged() != nil {
		t.Errorf("the follower has %d segments, %v", n, p.follows.Damaged())
	}
}

// TestADamagedSegmentAtAFollowerIsFetchedAgain: in the middle of the chain.
func TestADamagedSegmentAtAFollowerIsFetchedAgain(t *testing.T) {
	p := newPair(t, Settings{BrokenEvery: 20 * time.Millisecond})
	for range 3 {
		p.leader.write(1000, noise)
	}
	p.within("the follower has all segments", p.same)
	for i := range 3 {
		id := p.follows.breaks(i)
		found, err := p.follows.CheckSegment(t.Context(), id, func(int) error { return nil })
		if p.follows.must(err); found != partition.FoundDamaged {
			t.Fatalf("segment %v is found %v", id, found)
		}
		p.within(fmt.Sprintf("segment %d is whole", i), func() bool { return p.follows.Damaged() == nil })
		if !p.same() {
			t.Fatal("the chains differ")
		}
	}
}

// TestADamagedSegmentAtTheLeaderIsFetchedFromAFollower: each segment in turn, found by a read. Meanwhile the leader accepts rows.
func TestADamagedSegmentAtTheLeaderIsFetchedFromAFollower(t *testing.T) {
	// The follower goes on for some periods of BrokenEvery after its leader asked: on a busy machine a segment of many pieces must fit into them.
	p := newPair(t, Settings{BrokenEvery: 200 * time.Millisecond, Machine: replica.Settings{RetryMin: 10 * time.Millisecond, RetryMax: 20 * time.Millisecond}})
	for range 3 {
		p.leader.write(20_000, noise)
	}
	p.within("the follower has all segments", p.same)
	for i := range 3 {
		p.leader.breaks(i)
		if err := p.leader.readAll(); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("a read of segment %d with flipped bytes: %v, want corrupt", i, err)
		}
		p.leader.write(10, ramp)
		p.within(fmt.Sprintf("segment %d is whole", i), func() bool {
			return testutil.ToFloat64(p.leader.copier.metrics.mended) == float64(i+1) && p.leader.Damaged() == nil
		})
		p.leader.must(p.leader.readAll())
		p.within("the follower has all segments", p.same)
	}
	p.within("no damage is counted", func() bool { return testutil.ToFloat64(p.leader.copier.metrics.broken) == 0 })
}

// TestADamagedSegmentIsFetchedAgainAfterALateOfferOfADeposedLeader: the follower regarded the sender of that offer as its leader, and asked no other server for the bytes.
func TestADamagedSegmentIsFetchedAgainAfterALateOfferOfADeposedLeader(t *testing.T) {
	p := newPair(t, Settings{BrokenEvery: 20 * time.Millisecond})
	p.leader.write(1000, noise)
	p.within("the follower has the segment", p.same)
	c, copy := p.follows.copier, p.follows.copy
	handled := make(chan struct{})
	c.post(func() {
		c.offered(copy.Partition, lease.Member{Placement: 3, Server: "c"}, copy.Self.Placement, epoch-1, &peer.SegmentOffer{Slot: 1, ID: point.SegmentID{Epoch: epoch - 1, Seq: 9}, Major: true, Size: 1})
		close(handled)
	})
	<-handled
	id := p.follows.breaks(0)
	found, err := p.follows.CheckSegment(t.Context(), id, func(int) error { return nil })
	if p.follows.must(err); found != partition.FoundDamaged {
		t.Fatalf("segment %v is found %v", id, found)
	}
	p.within("the segment is whole", func() bool { return p.follows.Damaged() == nil })
	if !p.same() {
		t.Fatal("the chains differ")
	}
}
