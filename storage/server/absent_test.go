package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// absent is a chain with a copy that is away and stays on the list. Until back is closed it cannot say so.
type absent struct {
	t    *testing.T
	back chan struct{}
}

func (a *absent) Pass(_, _ point.Serial, _ []byte, _ brick.Wait) {}
func (a *absent) HandOn()                                        {}

func (a *absent) Await(context.Context, point.Serial) error {
	a.t.Error("a flush that is tried again waits for a copy as long as a row's writer does")
	return fault.Errorf(fault.Unavailable, "it is away")
}

func (a *absent) AwaitSoon(context.Context, point.Serial) error {
	<-a.back
	return fault.Errorf(fault.Unavailable, "it is away")
}

// TestOneAbsentCopyLeavesOtherTablesTheirRoomForRows: the flushes of all partitions waited for a large one of which a copy was away, 10 s a try; heads
// filled up, and rows were refused.
func TestOneAbsentCopyLeavesOtherTablesTheirRoomForRows(t *testing.T) {
	maps, truth := newMap(t), model{}
	p := startWith(t, vfs.NewMem(), maps, server.Settings{Server: "s1", Epoch: 1, Partition: partition.Settings{FlushIdle: time.Nanosecond}})
	defer p.stop(t)
	w := newWriter(t, p.server)
	for k := range 10 {
		var rows []row
		for i := range 20_000 {
			rows = append(rows, row{i, int64(1e9 + k), 1 / float64(i+k+3)})
		}
		w.insert(t, point.Stamp(2048+k), rows, truth) // partition 1
	}
	w.insert(t, 409600, []row{{1, 150e9, 1}}, truth) // partition 2
	one, _ := p.server.Placement(lease.Partition{Table: "t", ID: 1})
	two, _ := p.server.Placement(lease.Partition{Table: "t", ID: 2})
	if one.HeadBytes() < 1<<20 {
		t.Fatalf("a head of %d bytes is no large one", one.HeadBytes())
	}
	c := &absent{t, make(chan struct{})}
	must(t, one.LeadChain(2, c))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.server.Run(ctx) }()
	for limit := time.Now().Add(time.Minute); len(two.Segments()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Error("the other partition is not flushed while a copy of the first is away")
			break
		}
	}
	cancel()
	close(c.back)
	<-done
}
