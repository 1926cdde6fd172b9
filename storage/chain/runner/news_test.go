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
		if got, ok := e.news.in.(chain.Received); ok {
			if ping, ok := got.Message.(chain.Ping); ok {
				newest = ping.Sent
			}
		}
	}
	x.mu.Unlock()
	if waiting > 10 {
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

// TestAPingThatComesOftenIsAnswered: the newest of several is handled in place of the oldest one, and not at the end of a queue that is never empty.
func TestAPingThatComesOftenIsAnswered(t *testing.T) {
	n := openNode(t, 1, chain.Settings{})
	x := n.chains.of(theKey, n.Partition)
	other := lease.Member{Placement: 2, Server: "s2"}
	goOn := busy(x)
	x.post(event{in: chain.Raised{Epoch: 1}})
	ping := func(sent chain.Time) {
		x.post(event{in: chain.Received{From: other, Message: chain.Ping{Epoch: 1, Sent: sent}}})
	}
	ping(1)
	x.post(event{in: chain.Raised{Epoch: 2}})
	ping(2)
	x.mu.Lock()
	var at, all int
	for _, e := range x.mu.events {
		if _, raised := e.in.(chain.Raised); raised {
			all++
		} else if e.news != nil && e.news.of.from == other {
			at = all
		}
	}
	x.mu.Unlock()
	if at != 1 || all != 2 {
		t.Errorf("the ping waits for %d of %d events", at, all)
	}
	goOn()
	n.chains.stop()
	n.links.Close()
	n.Close()
	n.must(n.brick.Close())
}
