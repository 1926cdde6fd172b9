package runner

import (
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
)

// hangingDisk is a disk on which fsyncs do not return between hang and goOn.
type hangingDisk struct {
	mu    sync.Mutex
	until chan struct{} // nil: it does not hang
	hung  chan struct{} // 1 once an fsync hangs
}

func (d *hangingDisk) fs() vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		default:
			return nil
		}
		d.mu.Lock()
		until := d.until
		d.mu.Unlock()
		if until != nil {
			select {
			case d.hung <- struct{}{}:
			default:
			}
			<-until
		}
		return nil
	}))
}

func (d *hangingDisk) hang() (goOn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until, d.hung = make(chan struct{}), make(chan struct{}, 1)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(d.until)
		d.until = nil
	}
}

// TestAServerWhoseDiskHangsKeepsItsMemory: while an fsync did not return, pings, reports and ticks of each partition were queued until the process had no memory left,
// a tick each millisecond.
func TestAServerWhoseDiskHangsKeepsItsMemory(t *testing.T) {
	var disk hangingDisk
	n := openNodeOn(t, 1, disk.fs(), chain.Settings{})
	other := n.self
	other.Placement, other.Server = 2, "s2"
	n.list, n.leads = []lease.Member{n.self, other}, true
	x := n.chains.of(theKey, n.Partition)
	goOn, led := disk.hang(), make(chan error, 1)
	x.post(event{lead: &Led{Partition: theKey, Epoch: theEpoch, List: n.list}, done: led})
	<-disk.hung
	const rounds = 10_000
	for i := range rounds {
		at := chain.Time(i)
		for _, m := range []chain.Message{chain.Ping{Epoch: 1, Sent: at}, chain.Pong{Epoch: 1, Sent: at}, chain.Report{Epoch: 1, Version: uint64(i)}, chain.Refuse{Epoch: 1, End: point.Serial{Epoch: 1, Seq: uint64(i)}}} {
			n.chains.Message(theKey, other, n.self.Placement, m)
		}
		x.post(event{tick: true})
		n.chains.linked(other.Server)
	}
	x.mu.Lock()
	waiting, newest := len(x.mu.events), chain.Time(0)
	for _, e := range x.mu.events {
		if e.news == nil {
			continue
		}
		if got, ok := e.in.(chain.Received); ok {
			if ping, ok := got.Message.(chain.Ping); ok {
				newest = ping.Sent
			}
		}
	}
	x.mu.Unlock()
	if waiting > 20 {
		t.Errorf("%d events wait after %d rounds of messages", waiting, rounds)
	}
	if newest != rounds-1 {
		t.Errorf("the ping that waits is number %d of %d", newest, rounds)
	}
	for i := range 2 * newsMax { // of members that a wrong peer claims
		other.Placement = point.PlacementID(i + 3)
		n.chains.Message(theKey, other, n.self.Placement, chain.Ping{Epoch: 1})
	}
	x.mu.Lock()
	waiting = len(x.mu.events)
	x.mu.Unlock()
	if waiting > newsMax+10 {
		t.Errorf("%d events wait after messages of %d members", waiting, 2*newsMax)
	}
	goOn()
	n.must(<-led)
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}

// TestABusyMemberDoesNotAnswerAtOnce: the newest ping was handled in place of the oldest one, before frames that had come before it, so that a member with too much to do
// seemed to be cut off, and rows were kept elsewhere.
// TestAPingThatComesOftenIsAnswered: the oldest one keeps its place, or none would be handled in a queue that is never empty.
func TestABusyMemberDoesNotAnswerAtOnce(t *testing.T) { pingsBetweenFrames(t, 4, 4) }
func TestAPingThatComesOftenIsAnswered(t *testing.T)  { pingsBetweenFrames(t, 1, 1) }

// pingsBetweenFrames has four pings come, each behind an event that counts, while a placement is busy. The ping of that number waits for so many of these events.
func pingsBetweenFrames(t *testing.T, ping chain.Time, want int) {
	n := openNode(t, 1, chain.Settings{})
	x := n.chains.of(theKey, n.Partition)
	other := lease.Member{Placement: 2, Server: "s2"}
	goOn := busy(x)
	for i := range chain.Time(4) {
		x.post(event{in: chain.Raised{Epoch: point.Epoch(i + 1)}})
		x.post(event{in: chain.Received{From: other, Message: chain.Ping{Epoch: 1, Sent: i + 1}}})
	}
	waits := map[chain.Time]int{}
	x.mu.Lock()
	var before int
	for _, e := range x.mu.events {
		switch in := e.in.(type) {
		case chain.Raised:
			before++
		case chain.Received:
			waits[in.Message.(chain.Ping).Sent] = before
		}
	}
	x.mu.Unlock()
	if len(waits) != 2 || waits[ping] != want || before != 4 {
		t.Errorf("pings wait for events: %v; number %d for %d of 4, want %d", waits, ping, waits[ping], want)
	}
	goOn()
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}
