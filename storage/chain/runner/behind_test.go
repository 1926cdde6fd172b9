package runner

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
)

// TestAMemberThatWasAwayGetsAllFramesInTheirOrder: more than memory keeps, frames of one row and such as are longer than a group, and than
// the first bytes of a link.
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
		n.must(n.EachFrameUpTo(point.Serial{}, n.Last(), func(_ point.Serial, rec []byte) error {
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

// TestReadsOfTheLogForMembersThatAreBehindAreBooked: each read had a window of 1 MiB in no account, and a server that comes back is behind
// in all its partitions at once. With memory for one read all members get their frames, one read after the other.
func TestReadsOfTheLogForMembersThatAreBehindAreBooked(t *testing.T) {
	_, nodes, end := runSome(t, 4, chain.Settings{SilentAfter: time.Hour, SlowAfter: time.Hour, PingEvery: 20 * time.Millisecond})
	defer end()
	head, away := nodes[0], nodes[1:]
	head.chains.reads = newLogReads(1) // before anything is read
	var most atomic.Int64
	head.chains.OnReadingGrowth(func(to int64) { most.Store(max(most.Load(), to)) })
	for _, n := range away {
		server := string(n.self.Server)
		head.links.Disconnect(server)
		for _, up := head.links.Link(server); up; _, up = head.links.Link(server) {
			time.Sleep(time.Millisecond)
		}
	}
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	for i := range 300 { // more than memory keeps
		r := &partition.Rows{Stamp: point.Stamp(i+1) << 20, Level: point.One}
		for k := range 1_000 {
			r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(i*1_000+k+1)*1_000_003), append(r.Values, rand.Float64())
		}
		head.must(head.Append(r))
	}
	for _, n := range away {
		rpc.JoinLinks(head.links, n.links)
	}
	for _, n := range away {
		for n.Last() != head.Last() {
			time.Sleep(time.Millisecond)
		}
	}
	if n := most.Load(); n != brick.ReadBytes {
		t.Errorf("%d bytes were booked for reads at a time, want those of one", n)
	}
	for head.chains.ReadingBytes() != 0 { // else some stay booked
		time.Sleep(time.Millisecond)
	}
}

// TestNoMoreReadsAreUnderWayThanHaveMemory: the others wait, and each has its turn.
func TestNoMoreReadsAreUnderWayThanHaveMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reads = 7
		r := newLogReads(2*brick.ReadBytes + 5)
		var underWay, done atomic.Int64
		goOn := make(chan struct{})
		for range reads {
			go func() {
				if err := r.do(t.Context(), atOnce, func() error {
					underWay.Add(1)
					<-goOn
					underWay.Add(-1)
					return nil
				}); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}()
		}
		for i := range int64(reads) {
			synctest.Wait()
			if n, want := underWay.Load(), min(2, reads-i); n != want || r.held.Load() != want*brick.ReadBytes {
				t.Errorf("%d reads are under way with %d bytes booked, want %d", n, r.held.Load(), want)
			}
			goOn <- struct{}{}
		}
		synctest.Wait()
		if done.Load() != reads || r.held.Load() != 0 {
			t.Errorf("%d reads of %d are done, and %d bytes stay booked", done.Load(), reads, r.held.Load())
		}
	})
}

// TestAReadThatWaitsForMemoryEndsWithItsPlacement, and leaves the memory to others.
func TestAReadThatWaitsForMemoryEndsWithItsPlacement(t *testing.T) {
	r := newLogReads(1)
	ctx, end := context.WithCancel(t.Context())
	err := r.do(t.Context(), atOnce, func() error {
		end()
		return r.do(ctx, atOnce, func() error { return nil })
	})
	if err != context.Canceled || r.held.Load() != 0 {
		t.Errorf("%v, and %d bytes stay booked", err, r.held.Load())
	}
	if err := r.do(t.Context(), atOnce, func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func atOnce() error { return nil }

// TestAReadThatWaitsForAnFsyncHoldsNoMemory: with memory for one, a second read, of frames that are durable, went on after the fsync of the
// first ones. On a disk with fsyncs of 100 ms four reads of 128 KiB were 5 MB/s for all members.
func TestAReadThatWaitsForAnFsyncHoldsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLogReads(1)
		fsync, read := make(chan struct{}), 0
		go func() {
			if err := r.do(t.Context(), func() error { <-fsync; return nil }, func() error { read++; return nil }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if held := r.held.Load(); held != 0 {
			t.Errorf("%d bytes are booked for a read that has not begun", held)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.do(ctx, atOnce, atOnce); err != nil {
			t.Errorf("a read of durable frames: %v", err)
		}
		close(fsync)
		synctest.Wait()
		if read != 1 || r.held.Load() != 0 {
			t.Errorf("%d reads, and %d bytes stay booked", read, r.held.Load())
		}
	})
}

// TestReadsOfTheLogForComparisonsAreBooked: digests of logs had their windows, and frames as long as they come, in no account.
func TestReadsOfTheLogForComparisonsAreBooked(t *testing.T) {
	ctx, nodes, end := runSome(t, 1, chain.Settings{})
	defer end()
	head := nodes[0]
	var most atomic.Int64
	head.chains.OnReadingGrowth(func(to int64) { most.Store(max(most.Load(), to)) })
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	rng := rand.New(rand.NewPCG(1, 1))
	for i, n := range []int{1, 200_000, 1} {
		r := &partition.Rows{Stamp: point.Stamp(i+1) << 20, Level: point.One}
		for k := range n {
			r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(i*1_000_000+k+1)*1_000_003), append(r.Values, rng.Float64())
		}
		head.must(head.Append(r))
	}
	want, err := head.Digest(point.Serial{}, head.EachFrameUpTo)
	head.must(err)
	longest := 0
	got, err := head.Digest(point.Serial{}, func(after, upto point.Serial, f func(point.Serial, []byte) error) error {
		return head.chains.ReadFrames(ctx, head.Partition, after, upto, func(s point.Serial, rec []byte) error {
			longest = max(longest, len(rec))
			if booked := head.chains.ReadingBytes(); booked < int64(brick.ReadBytes+len(rec)) {
				t.Errorf("%d bytes are booked, and a frame of %d is read", booked, len(rec))
			}
			return f(s, rec)
		})
	})
	head.must(err)
	if got.Frames != 3 || got.Log != want.Log || longest <= brick.ReadBytes {
		t.Errorf("%+v, want %+v; the longest frame has %d bytes", got, want, longest)
	}
	if booked, n := most.Load(), head.chains.ReadingBytes(); booked != int64(brick.ReadBytes+longest) || n != 0 {
		t.Errorf("%d bytes were booked at most, and %d stay", booked, n)
	}
}

// opens counts files that are opened to be read.
type opens struct {
	vfs.FS
	n atomic.Int64
}

func (o *opens) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	o.n.Add(1)
	return o.FS.Open(name, opts...)
}

// TestABeginningEpochReadsNoLog: a server that got a new leader in all its partitions at once read the last frame of each, in no account,
// only to know that it is durable.
func TestABeginningEpochReadsNoLog(t *testing.T) {
	fs, set := &opens{FS: vfs.NewMem()}, chain.Settings{SilentAfter: time.Hour, SlowAfter: time.Hour}
	nodes := []*node{openNode(t, 1, set), openNodeOn(t, 2, fs, set)}
	head, follower := nodes[0], nodes[1]
	_, end := run(t, nodes)
	defer end()
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	put := func(i int, level point.Level) {
		r := &partition.Rows{Stamp: point.Stamp(i) << 20, Level: level}
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(i)), append(r.Values, 1)
		head.must(head.Append(r))
	}
	put(1, point.All)
	head.links.Disconnect(string(follower.self.Server))
	for _, up := head.links.Link(string(follower.self.Server)); up; _, up = head.links.Link(string(follower.self.Server)) {
		time.Sleep(time.Millisecond)
	}
	put(2, point.One) // it comes on another way
	head.must(head.EachFrameUpTo(follower.Last(), head.Last(), func(_ point.Serial, rec []byte) error {
		_, err := follower.Follow(theEpoch, bytes.Clone(rec))
		return err
	}))
	x, before := follower.chains.find(theKey), fs.n.Load()
	x.raise(chain.Raise{Epoch: theEpoch})
	if n := fs.n.Load() - before; n != 0 {
		t.Errorf("%d files were opened", n)
	}
	for last := (point.Serial{}); last != follower.Last(); { // else it was not waited for
		x.mu.Lock()
		last, _ = x.mu.machine.End()
		x.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if follower.Last() != head.Last() {
		t.Errorf("the follower ends with %v, the leader with %v", follower.Last(), head.Last())
	}
}
