package runner

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// logOf is a log that gets frames of one size.
type logOf struct {
	recent
	last point.Serial
}

func (l *logOf) frame(bytes int) {
	next := point.Serial{Epoch: 1, Seq: l.last.Seq + 1}
	l.add(next, l.last, make([]byte, bytes))
	l.last = next
}

// TestRecentFramesOfThousandsOfPartitionsLeaveMemoryToQueries: each partition with copies kept a MiB of its newest frames for good, also where nothing was written any more, in no account: of
// 4,000 partitions 4 GiB, which ended the process.
func TestRecentFramesOfThousandsOfPartitionsLeaveMemoryToQueries(t *testing.T) {
	const most = 1 << 20
	all := &recents{most: most}
	booked := int64(0)
	all.held.OnGrowth(func(to int64) { booked = max(booked, to) })
	logs := make([]logOf, 400)
	for i := range logs {
		logs[i].of = all
		for range 10 {
			logs[i].frame(10 << 10)
		}
	}
	if n := all.held.Load(); n < most/2 || n > most || booked > most+100<<10+keptCost {
		t.Errorf("%d bytes are held, and %d were booked; want at most %d", n, booked, int64(most))
	}
	newest := &logs[len(logs)-1]
	if frames, found := newest.after(point.Serial{Epoch: 1, Seq: newest.last.Seq - 1}, most); !found || len(frames) != 1 {
		t.Errorf("the newest frame is not there: %d frames, %v", len(frames), found)
	}
	if frames, _ := logs[0].after(point.Serial{}, most); len(frames) > 0 {
		t.Errorf("%d frames of the partition that was written first are kept", len(frames))
	}
	for range 200 {
		newest.frame(10 << 10)
	}
	if newest.bytes > cacheBytesMax {
		t.Errorf("one partition has %d bytes", newest.bytes)
	}
	newest.frame(2 * most)
	if frames, found := newest.after(point.Serial{Epoch: 1, Seq: newest.last.Seq - 1}, 1); !found || len(frames) != 1 {
		t.Error("a frame that is longer than all may be is not there to be passed on")
	}
	newest.frame(1)
	newest.add(point.Serial{Epoch: 2, Seq: 1}, point.Serial{Epoch: 1, Seq: 5}, make([]byte, 5)) // after a cut
	if newest.bytes != 5+keptCost || all.held.Load() != newest.bytes {
		t.Errorf("after a cut %d bytes are kept, and %d of all", newest.bytes, all.held.Load())
	}
	for i := range logs {
		logs[i].clear()
	}
	if n := all.held.Load(); n != 0 || all.order.Len() != 0 {
		t.Errorf("%d bytes stay booked, of %d logs", n, all.order.Len())
	}
}
