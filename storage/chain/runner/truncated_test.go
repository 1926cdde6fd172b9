package runner

import (
	"context"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
)

// slowServer is a member on a server that has no room for frames at first.
type slowServer struct {
	Wire
	to     lease.Member
	before func(group int) error // the wait for a group's room
	groups int
	frames []frame.Head
}

func (w *slowServer) Frames(ctx context.Context, p lease.Partition, epoch point.Epoch, from, to lease.Member, n, bytes int, send func(func([]byte) error) error) error {
	if to != w.to {
		return w.Wire.Frames(ctx, p, epoch, from, to, n, bytes, send)
	}
	w.groups++
	if err := w.before(w.groups); err != nil {
		return err
	}
	return send(func(rec []byte) error {
		h, err := frame.Header(rec)
		w.frames = append(w.frames, h)
		return err
	})
}

// TestFramesThatGoIntoSegmentsWhileAMemberHasNoRoomLeaveNoGap: frames are described, wait for room, and are gone from the log when they are to be read. Those that are passed on have no gap, and
// the machine learns where it ends, or that the member needs segments.
func TestFramesThatGoIntoSegmentsWhileAMemberHasNoRoomLeaveNoGap(t *testing.T) {
	away := lease.Member{Placement: 9, Server: "away"}
	slow := &slowServer{to: away}
	nodes := []*node{openNode(t, 1, chain.Settings{}), openNode(t, 2, chain.Settings{})}
	head := nodes[0]
	slow.Wire, head.chains.deps.Wire = head.chains.deps.Wire, slow
	_, end := run(t, nodes)
	defer end()
	ref := head.index.Intern(point.MakeLabels(point.MetricName, "m"))
	var frames []point.Serial
	append40 := func() {
		frames = frames[:0]
		for i := range 40 {
			r := &partition.Rows{Stamp: point.Stamp(time.Now().UnixNano()), Level: point.All}
			for k := range 2000 {
				r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(i*2000+k)*1_000_003), append(r.Values, 1/float64(k+3))
			}
			head.must(head.Append(r))
			frames = append(frames, head.Last())
		}
	}
	x := head.chains.find(theKey)
	f := func(name string, before func(group int) error, most int, wantUpto func() point.Serial, missing bool) {
		t.Helper()
		after := head.Last()
		append40()
		x.mu.Lock()
		x.mu.recent.clear() // as where other partitions had frames since
		x.mu.Unlock()
		slow.before, slow.groups, slow.frames = before, 0, nil
		goOn := busy(x)
		x.passOnLater(chain.PassOn{To: away, After: after, BytesMax: most}, theEpoch)
		x.mu.Lock()
		var got []chain.Passed
		for _, e := range x.mu.events {
			if p, ok := e.in.(chain.Passed); ok && p.To == away {
				got = append(got, p)
			}
		}
		x.mu.Unlock()
		goOn()
		if len(got) != 1 {
			t.Fatalf("%s: the machine gets %v", name, got)
		}
		upto := after
		for _, h := range slow.frames {
			if h.Prev != upto {
				t.Errorf("%s: a gap between %v and %v", name, upto, h.Serial)
			}
			upto = h.Serial
		}
		want := after
		if wantUpto != nil {
			want = wantUpto()
		}
		if p := got[0]; upto != want || p.Upto != upto || p.After != after || p.Missing != missing || (p.Bytes > 0) != (upto != after) {
			t.Errorf("%s: %d frames in %d groups up to %v, want up to %v; the machine gets %+v", name, len(slow.frames), slow.groups, upto, want, p)
		}
		head.brick.Release(head.self.Placement, head.Last())
	}
	release := func(n int) { head.brick.Release(head.self.Placement, frames[n]) }
	in := func(group, n int) func(int) error {
		return func(g int) error {
			if g == group {
				release(n)
			}
			return nil
		}
	}
	sent := func(n int) func() point.Serial { return func() point.Serial { return frames[n] } }
	const all = 64 << 20
	f("all are there", in(0, 0), all, sent(39), false)
	if slow.groups < 3 {
		t.Errorf("%d groups: the test shows nothing", slow.groups)
	}
	perGroup := len(slow.frames) / slow.groups
	f("a first part is gone", in(1, 0), all, nil, true)
	f("the first group is gone", in(1, perGroup+1), all, nil, true)
	f("all are gone", in(1, 39), all, nil, true)
	var first point.Serial
	second := func(n int) func(int) error {
		return func(g int) error {
			if g == 2 {
				first = slow.frames[len(slow.frames)-1].Serial
				release(n)
			}
			return nil
		}
	}
	afterFirst := func() point.Serial { return first }
	f("what is sent already goes", second(0), all, sent(39), false)
	f("a part of the second group is gone", second(perGroup+2), all, afterFirst, false)
	f("all of the rest are gone", second(39), all, afterFirst, false)
	full := fault.Errorf(fault.Throttled, "no room")
	f("there is no room", func(int) error { return full }, all, nil, false)
	f("there is no room, and they are gone", func(int) error { release(39); return full }, all, nil, false)
	f("there is no room for the second group", func(g int) error {
		if g == 2 {
			first = slow.frames[len(slow.frames)-1].Serial
			return full
		}
		return nil
	}, all, afterFirst, false)
}
