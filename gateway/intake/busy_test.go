package intake_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake"
)

// small is the budget of these tests: a body of 1 MiB needs more than half of it while its buffer grows, and its rows need more than all of it.
func small(s *intake.Settings) {
	s.BodyBytesMax, s.DecodedBytesMax, s.InFlightBytesMax = 1<<20, 1<<20, 2<<20
}

var (
	largeBody  = []byte(strings.Repeat("m v=1\n", 150_000))
	middleBody = []byte(strings.Repeat("m v=1\n", 17_000))
)

// TestALargeRequestIsServedOnAGatewayThatIsNeverIdle: it was answered 503 however often it was sent, and all that its sender had queued behind it waited.
func TestALargeRequestIsServedOnAGatewayThatIsNeverIdle(t *testing.T) {
	f := start(t, small)
	entered, release := f.memory.table("x").stop()
	defer release()
	var sent sync.WaitGroup
	for range 3 {
		sent.Go(func() { f.do(t, "POST /write?db=x", middleBody).want(t, 204) })
		<-entered
		f.memory.table("x").waiting() // for the log: it needs no processor
	}
	sent.Go(func() { f.do(t, "POST /write?db=x", largeBody).want(t, 204) })
	eventually(t, "the large request waits", func() bool { return metric(t, f, "spillway_intake_requests_awaiting_memory") == 1 })
	release()
	sent.Wait()
}

// TestLargeAndSmallRequestsAreServedBesideEachOther: a stream of each, all through the same budget. Neither starves the other, and the memory stays bounded.
func TestLargeAndSmallRequestsAreServedBesideEachOther(t *testing.T) {
	f := start(t, small)
	var most atomic.Int64
	f.OnInFlightGrowth(func(to int64) {
		for now := most.Load(); to > now && !most.CompareAndSwap(now, to); now = most.Load() {
		}
	})
	ctx, done := context.WithTimeout(t.Context(), 4*time.Minute) // seconds, on a quiet machine
	defer done()
	var large, middle, tiny atomic.Int64
	enough := func() bool { return large.Load() >= 3 && middle.Load() >= 10 && tiny.Load() >= 10 }
	var all sync.WaitGroup
	stream := func(senders int, path string, body []byte, served *atomic.Int64) {
		for range senders {
			all.Go(func() {
				for ctx.Err() == nil && !enough() {
					switch a := f.do(t, path, body); a.status {
					case http.StatusNoContent:
						served.Add(1)
					case http.StatusServiceUnavailable:
					default:
						t.Errorf("%s: %d %s", path, a.status, a.body)
						return
					}
				}
			})
		}
	}
	stream(3, "POST /write?db=x", largeBody, &large)
	stream(4, "POST /write?db=x", middleBody, &middle)
	stream(2, "POST /write?db=y", []byte("m v=1\n"), &tiny)
	all.Wait()
	if !enough() {
		t.Errorf("served: %d large, %d middle, %d small", large.Load(), middle.Load(), tiny.Load())
	}
	// The rows of one large body (3.6 MB) are beside the budget; a quarter is for those that wait, an eighth for the others of the one with the turn.
	if limit := int64(2<<20+2<<20) + 24*150_000 + 2<<20; most.Load() > limit {
		t.Errorf("%d bytes were in flight, more than %d", most.Load(), limit)
	}
	eventually(t, "nothing is left", func() bool {
		return metric(t, f, "spillway_intake_in_flight_bytes") == 0 && metric(t, f, "spillway_intake_requests_awaiting_memory") == 0
	})
}
