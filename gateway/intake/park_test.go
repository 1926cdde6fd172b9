package intake_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake"
)

// parked waits until so many connections have left their server, or have none yet.
func (f *front) parked(t *testing.T, n float64) {
	t.Helper()
	eventually(t, "the connection is parked", func() bool { return metric(t, f, "spillway_intake_connections", "server", "peek") == n })
}

// TestAConnectionGoesOnAfterAPause: one that is silent for long leaves its server, and comes back with the next request, of any kind.
func TestAConnectionGoesOnAfterAPause(t *testing.T) { plainAndTLS(t, testAConnectionGoesOnAfterAPause) }

func testAConnectionGoesOnAfterAPause(t *testing.T, start starter) {
	f := start(t, func(s *intake.Settings) { s.PeekTimeMax, s.HeaderTimeMax = time.Minute, time.Minute })
	w := f.dial(t)
	w.say(post("/write?db=x", "m v=1 1"))
	w.hear().want(t, 204)
	f.parked(t, 1)
	w.say(post("/write?db=x", "m v=2 2"))
	w.hear().want(t, 204)
	f.parked(t, 1)
	w.say(post("/write?db=x", "m v=3 3"), post("/write?db=x", "m v=4 4"), get("/ping")) // in one piece
	for range 3 {
		w.hear().want(t, 204)
	}
	f.parked(t, 1)
	w.say("POST /write?db=x HTTP/1.1\nHost: x\nContent-Length: 8\n\nm v=5 5\n")
	w.hear().want(t, 204)
	if n := f.memory.table("x").count(); n != 5 {
		t.Errorf("%d rows", n)
	}
}

// TestARequestInPiecesArrivesWhole: with pauses in which the connection leaves its server, before, within and behind requests.
func TestARequestInPiecesArrivesWhole(t *testing.T) { plainAndTLS(t, testARequestInPiecesArrivesWhole) }

func testARequestInPiecesArrivesWhole(t *testing.T, start starter) {
	t.Parallel()
	f := start(t)
	long := "m v=1 " + strings.Repeat("1\nm v=1 ", 1000) + "1"
	chunked := "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nm v=\r\n3\r\n2 2\r\n0\r\n\r\n"
	text := post("/write?db=x", "m v=1 1") + get("/ping") + chunked + post("/write?db=x", long) + post("/other", "query=up")
	for _, at := range []int{3, 40, 66, 70, 74, 90, 120, 150, 160, 170, 190, 200, 5000, 8000} {
		w := f.dial(t)
		w.say(text[:at])
		time.Sleep(300 * time.Millisecond) // the pause: any length is right
		w.say(text[at:])
		for range 4 {
			w.hear().want(t, 204)
		}
		w.hear().want(t, 200, "POST /other query=up")
	}
	if n := f.memory.table("x").count(); n != 2 {
		t.Errorf("%d rows", n)
	}
}

// TestAPauseEndsAfterItsTime: a parked connection is closed like any idle one, and one with half a request is answered.
func TestAPauseEndsAfterItsTime(t *testing.T) {
	t.Parallel()
	f := start(t, func(s *intake.Settings) { s.IdleTimeMax, s.HeaderTimeMax = time.Second, 500*time.Millisecond })
	w := f.dial(t)
	w.say(get("/ping"))
	w.hear().want(t, 204)
	w.closed()
	w = f.dial(t)
	w.say(get("/ping"), "POST /write?db=x HTTP/1.1\r\nHost: x\r\n")
	w.hear().want(t, 204)
	w.hear().want(t, 408)
	w.closed()
	wantMetric(t, f, "spillway_intake_connections", 0, "server", "peek")
}

// TestShutdownClosesParkedConnections, and waits for one with half a request.
func TestShutdownClosesParkedConnections(t *testing.T) {
	f := start(t)
	idle, half := f.dial(t), f.dial(t)
	idle.say(get("/ping"))
	idle.hear().want(t, 204)
	half.say(get("/ping"), "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\nm v=")
	half.hear().want(t, 204)
	f.parked(t, 1)
	done := make(chan error, 1)
	go func() { done <- f.Shutdown(context.Background()) }()
	idle.closed()
	select {
	case err := <-done:
		t.Fatalf("shutdown did not wait: %v", err)
	default:
	}
	half.say("1 1")
	half.hear().want(t, 204, "Connection: close")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(half.r); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestALargeBodyForTheOtherServerIsNotCountedForEver: its header came in two pieces and has a bare line feed, so that net/http serves it after it was gathered. Counted
// for ever, a thousand of them would have all later large bodies held back.
func TestALargeBodyForTheOtherServerIsNotCountedForEver(t *testing.T) {
	f := start(t)
	body := strings.Repeat("m v=1 1\n", 1000)
	for range 3 {
		w := f.dial(t)
		w.say("POST /write?db=x HTTP/1.1\r\n")
		eventually(t, "fasthttp gets the connection", func() bool { return metric(t, f, "spillway_intake_connections", "server", "fasthttp") == 1 })
		w.say("Host: x\nContent-Length: 8000\r\n\r\n" + body[:1])
		w.say(body[1:])
		w.hear().want(t, 204)
	}
	if n := f.LargeBodies(); n != 0 {
		t.Errorf("%d large bodies are counted, and none is read", n)
	}
}
