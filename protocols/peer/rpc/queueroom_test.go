package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// figureOf is the value of a counter or gauge without labels.
func figureOf(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// senderTo is a server with the least room, and a link to each of these, as with builds that do not ask for room: they have 80 MiB for it
// from the beginning.
func senderTo(t *testing.T, to map[string]peer.LinkHandler) (from *Links, links map[string]*link, r *prometheus.Registry, end func()) {
	t.Helper()
	h := newEar()
	r = prometheus.NewRegistry()
	from, err := NewLinks(LinkSettings{Self: peer.LinkHello{Server: "hub", Boot: 1}, GiveUpAfter: time.Hour, SilenceAfter: time.Hour,
		RoomBytes: linkFrameWindowMin, Registerer: r}, h)
	if err != nil {
		t.Fatal(err)
	}
	from.settings.Self.Capabilities &^= peer.CanAskRoom
	var others []*Links
	links = map[string]*link{}
	for server, e := range to {
		other := linksGivenUp(t, time.Hour, server, e)
		JoinLinks(from, other)
		others = append(others, other)
		l := h.linked(t, len(others)).(*link)
		links[l.other.Server] = l
	}
	return from, links, r, func() {
		for _, to := range others {
			to.Close()
		}
		from.Close()
	}
}

// TestFramesThatARoomRefusesAreCounted: frames for servers that read nothing had all the room, those for others were refused every five
// seconds, and no figure said so.
func TestFramesThatARoomRefusesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		may := make(chan struct{})
		to := map[string]peer.LinkHandler{"healthy": newEar()}
		for i := range 2 {
			to[fmt.Sprint("frozen", i)] = &slowEar{newEar(), may}
		}
		from, links, r, end := senderTo(t, to)
		defer end()
		refused := 0
		for _, name := range []string{"frozen0", "frozen1"} {
			if err := sendFrame(t.Context(), links[name], &someRoute, make([]byte, 100), nil); err != nil { // its handler does not come back
				t.Fatal(err)
			}
			synctest.Wait()
			for range 2 {
				if err := sendFrame(t.Context(), links[name], &someRoute, make([]byte, 30<<20), nil); fault.Is(err, fault.Throttled) {
					refused++
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := figureOf(t, r, "spillway_rpc_link_refused_frames_total"); refused == 0 || got != float64(refused) {
			t.Errorf("%v frames are counted as refused, %d were", got, refused)
		}
		if got := figureOf(t, r, "spillway_rpc_link_queued_bytes"); got < 30<<20 || got > float64(from.HeldBytes()) {
			t.Errorf("%v bytes wait to be sent, of %d", got, from.HeldBytes())
		}
		close(may)
		synctest.Wait()
		if got := figureOf(t, r, "spillway_rpc_link_queued_bytes"); got != 0 {
			t.Errorf("%v bytes wait when all is sent", got)
		}
	})
}

// TestServersThatReadSlowlyDelayNoLongFrameOfAnother: two servers read a frame in three seconds each, and always had one of 31 MiB waiting
// here, all the room. Those of 2 MiB for a healthy one waited for them, three seconds each and more.
func TestServersThatReadSlowlyDelayNoLongFrameOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames, pace = 50, 10 * time.Millisecond
		to := map[string]peer.LinkHandler{"healthy": &pacedEar{newEar(), pace}}
		slow := map[string]*ear{}
		for i := range 2 {
			name := fmt.Sprint("slow", i)
			slow[name] = newEar()
			to[name] = &pacedEar{slow[name], 3 * time.Second}
		}
		from, links, _, end := senderTo(t, to)
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		var filling sync.WaitGroup
		for name := range slow {
			for range 3 {
				filling.Go(func() {
					for ctx.Err() == nil {
						_ = sendFrame(ctx, links[name], &someRoute, make([]byte, 31<<20), nil)
					}
				})
			}
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		for i := range frames {
			sent := make(chan struct{})
			if err := sendFrame(t.Context(), links["healthy"], &someRoute, make([]byte, 2<<20), func() { close(sent) }); err != nil {
				t.Fatalf("frame %d: %v", i, err)
			}
			<-sent
		}
		if took := time.Since(began); took > 2*frames*pace {
			t.Errorf("%d frames of 2 MiB, which the server needs %v for, took %v", frames, frames*pace, took)
		}
		time.Sleep(20 * time.Second)
		for name, e := range slow {
			e.note(func() {
				if n := len(e.frames); n < 3 {
					t.Errorf("%s has %d frames", name, n)
				}
			})
		}
		cancel()
		filling.Wait()
		time.Sleep(time.Minute)
		if held := from.HeldBytes(); held != 0 || from.queues.used() != 0 {
			t.Errorf("%d bytes stay booked, and %d of the queues", held, from.queues.used())
		}
	})
}

// TestALinkThatEndsLeavesTheLane: a server that reads nothing has the lane with one of the longest frames, another one waits for it, and the
// link to the first ends. The second has its frame at once, and nothing stays booked.
func TestALinkThatEndsLeavesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		may := make(chan struct{})
		healthy := newEar()
		from, links, _, end := senderTo(t, map[string]peer.LinkHandler{"healthy": healthy, "frozen": &slowEar{newEar(), may}})
		defer end()
		if err := sendFrame(t.Context(), links["frozen"], &someRoute, make([]byte, 100), nil); err != nil { // its handler does not come back
			t.Fatal(err)
		}
		synctest.Wait()
		if err := sendFrame(t.Context(), links["frozen"], &someRoute, make([]byte, 31<<20), nil); err != nil {
			t.Fatal(err)
		}
		began, sent := time.Now(), make(chan error, 1)
		go func() { sent <- sendFrame(t.Context(), links["healthy"], &someRoute, make([]byte, 31<<20), nil) }()
		synctest.Wait()
		if !from.queues.wanted() {
			t.Fatal("the second frame does not wait for the lane: the test shows nothing")
		}
		links["frozen"].Close("the test ends it")
		if err := <-sent; err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(may)
		synctest.Wait()
		if held := from.HeldBytes(); held != 0 || from.queues.used() != 0 || from.queues.room.lane != 0 {
			t.Errorf("%d bytes stay booked, %d of the queues, %d of the lane", held, from.queues.used(), from.queues.room.lane)
		}
	})
}
