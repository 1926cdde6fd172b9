package intake_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/intake"
)

// wire is one connection, spoken to in bytes.
type wire struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (f *front) dial(t testing.TB) *wire {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	if f.tls != nil {
		c = tls.Client(c, f.tls)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &wire{t, c, bufio.NewReader(c)}
}

func (w *wire) say(text ...string) {
	w.t.Helper()
	if _, err := io.WriteString(w.Conn, strings.Join(text, "")); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) hear() answer {
	w.t.Helper()
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if resp.Close {
		resp.Header.Set("Connection", "close")
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// closed waits for the end of the connection.
func (w *wire) closed() {
	w.t.Helper()
	rest, err := io.ReadAll(w.r)
	var reset net.Error
	if len(rest) > 0 || err != nil && errors.As(err, &reset) && reset.Timeout() {
		w.t.Errorf("the connection is not closed: %q, %v", rest, err)
	}
}

func post(target, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", target, len(body), body)
}

func get(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n" }

// TestRoutesMixOnOneConnection does the same as reverse proxies. The requests are pipelined: the bytes that fasthttp has
// read ahead must reach net/http.
func TestRoutesMixOnOneConnection(t *testing.T) { plainAndTLS(t, testRoutesMixOnOneConnection) }

func testRoutesMixOnOneConnection(t *testing.T, start starter) {
	f := start(t)
	long := strings.Repeat("y", 40_000) // more than any buffer
	f2 := strings.Join([]string{
		post("/write?db=x", "m v=1 1"),
		get("/ping"),
		post("/api/v1/query?a=b%20c", "query=up"), // from here on net/http
		post("/write?db=x", "m v=2 2"),
		get("/graph"),
		post("/api/v1/query", long),
		post("/t/x/write", "m v=3 3"),
	}, "")
	w := f.dial(t)
	go func() { io.WriteString(w.Conn, f2) }()
	w.hear().want(t, 204)
	w.hear().want(t, 204)
	w.hear().want(t, 200, "POST /api/v1/query?a=b%20c query=up", "X-Served-By: fallback")
	w.hear().want(t, 204)
	w.hear().want(t, 200, "GET /graph ")
	w.hear().want(t, 200, "POST /api/v1/query "+long)
	w.hear().want(t, 204)
	if got := f.memory.table("x").dump(); got != "{__name__=\"m_v\"} 1 @1\n{__name__=\"m_v\"} 2 @2\n{__name__=\"m_v\"} 3 @3\n" {
		t.Errorf("stored %s", got)
	}
	wantMetric(t, f, "spillway_intake_connections_handed_over_total", 1)
	wantMetric(t, f, "spillway_intake_connections", 1, "server", "nethttp")
}

func TestHandOverKeepsEveryKindOfBody(t *testing.T) { plainAndTLS(t, testHandOverKeepsEveryKindOfBody) }

func testHandOverKeepsEveryKindOfBody(t *testing.T, start starter) {
	f := start(t)
	big := strings.Repeat("z", 300_000)
	chunked := fmt.Sprintf("POST /other HTTP/1.1\r\nHost: x\r\nX-Mine: yes\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n%x\r\n%s\r\n0\r\n\r\n", len(big), big)
	expecting := "POST /other HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	for name, c := range map[string]struct{ request, want string }{
		"none":           {get("/other"), "GET /other "},
		"empty":          {post("/other", ""), "POST /other "},
		"short":          {post("/other", "hello"), "POST /other hello"},
		"long":           {post("/other", big), "POST /other " + big},
		"chunked":        {chunked, "POST /other hello" + big},
		"old and closed": {"POST /other HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", "POST /other hi"},
	} {
		t.Run(name, func(t *testing.T) {
			w := f.dial(t)
			w.say(get("/ping"))
			w.hear().want(t, 204)
			go func() { io.WriteString(w.Conn, c.request) }()
			if a := w.hear(); a.status != 200 || a.body != c.want {
				t.Errorf("status %d, body %.60q (%d bytes), want %d bytes", a.status, a.body, len(a.body), len(c.want))
			}
		})
	}
	w := f.dial(t)
	w.say(get("/ping"))
	w.hear().want(t, 204)
	w.say(expecting)
	if line, _ := w.r.ReadString('\n'); !strings.Contains(line, "100 Continue") {
		t.Fatalf("heard %q", line)
	}
	w.r.ReadString('\n')
	w.say("hello", get("/again"))
	w.hear().want(t, 200, "POST /other hello")
	w.hear().want(t, 200, "GET /again")
}

func TestFirstLineDecidesWhoServes(t *testing.T) { plainAndTLS(t, testFirstLineDecidesWhoServes) }

func testFirstLineDecidesWhoServes(t *testing.T, start starter) {
	f := start(t)
	for request, server := range map[string]string{
		post("/t/some/api/v1/push", ""):                 "fasthttp",
		get("/query"):                                   "fasthttp",
		"GET http://x/ping HTTP/1.1\r\nHost: x\r\n\r\n": "fasthttp",
		"\r\nGET /ping HTTP/1.1\r\nHost: x\r\n\r\n":     "fasthttp",
		get("/"):                                  "nethttp",
		get("/t/some/api/v1/query"):               "nethttp",
		get("/" + strings.Repeat("long", 1500)):   "nethttp",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n":   "nethttp",
		"POST /write HTTP/2.0\r\nHost: x\r\n\r\n": "nethttp",
		"GET /" + strings.Repeat("p", 600) + " HTTP/1.1\r\nHost: x\r\n\r\n": "nethttp",
	} {
		before := metric(t, f, "spillway_intake_connections", "server", server)
		w := f.dial(t)
		for i := range len(request) { // byte by byte: the peek must put them together
			if i < 40 {
				w.say(request[i : i+1])
			}
		}
		w.say(request[min(40, len(request)):])
		w.hear()
		if after := metric(t, f, "spillway_intake_connections", "server", server); after != before+1 && !strings.Contains(request, "HTTP/2.0") {
			t.Errorf("%.40q: %s serves %v connections, had %v", request, server, after, before)
		}
		w.Close()
		eventually(t, "the connection is forgotten", func() bool {
			return metric(t, f, "spillway_intake_connections", "server", server) == before
		})
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it never happened that %s", what)
}

func TestChunkedBodies(t *testing.T) { plainAndTLS(t, testChunkedBodies) }

func testChunkedBodies(t *testing.T, start starter) {
	f := start(t)
	w := f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nm v=1 1\r\n9;ext=1\r\n\nm v=2 2\n\r\n0\r\n\r\n")
	w.hear().want(t, 204)
	w.say(post("/write?db=x", "m v=3 3")) // the connection goes on
	w.hear().want(t, 204)
	if n := f.memory.table("x").count(); n != 3 {
		t.Errorf("%d rows", n)
	}
}

func TestExpectContinue(t *testing.T) { plainAndTLS(t, testExpectContinue) }

func testExpectContinue(t *testing.T, start starter) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax = 1000 })
	w := f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n")
	if line, _ := w.r.ReadString('\n'); !strings.Contains(line, "100 Continue") {
		t.Fatalf("heard %q", line)
	}
	w.r.ReadString('\n')
	w.say("m v=1 1")
	w.hear().want(t, 204)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
	w.hear().want(t, 413, "Connection: close", `{"error":"the body is larger than 1000 bytes; send it in smaller pieces"}`)
	w.closed()
	w = f.dial(t)
	w.say("POST /api/v2/write?bucket=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
	w.hear().want(t, 413, `{"code":"request too large","message":"the body is larger than 1000 bytes`)
	w.closed()
	w = f.dial(t)
	w.say("GET /query?q=DROP+DATABASE+x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
	w.hear().want(t, 413) // before the statement is executed
	w.closed()
	w = f.dial(t)
	w.say("PUT /write?db=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
	w.hear().want(t, 405, "Connection: close")
	w.closed()
}

// TestABodyThatEndsEarlyIsNotStored: fasthttp treats the end of the connection as the end of the body. Half a batch would
// be stored without a reader for its ack, and a line cut short is another line.
func TestABodyThatEndsEarlyIsNotStored(t *testing.T) {
	plainAndTLS(t, testABodyThatEndsEarlyIsNotStored)
}

func testABodyThatEndsEarlyIsNotStored(t *testing.T, start starter) {
	f := start(t)
	for name, request := range map[string]string{
		"within its length":     "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nm v=1 1\nm v=2 2",
		"long":                  "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nm v=1 1\n" + strings.Repeat("m v=2 2\n", 5000),
		"between two chunks":    "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nm v=1 1\n\r\n",
		"within a chunk":        "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n80\r\nm v=1 1\n",
		"within a chunk's size": "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nm v=1 1\n\r\n1",
	} {
		t.Run(name, func(t *testing.T) {
			w := f.dial(t)
			w.say(request)
			if err := w.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if a := w.hear(); a.status < 400 {
				t.Errorf("status %d", a.status)
			}
			if n := f.memory.table("x").count(); n != 0 {
				t.Errorf("%d rows were stored", n)
			}
		})
	}
	wantMetric(t, f, "spillway_intake_in_flight_bytes", 0)
}

func TestAmbiguousLengthsAreRefused(t *testing.T) { plainAndTLS(t, testAmbiguousLengthsAreRefused) }

func testAmbiguousLengthsAreRefused(t *testing.T, start starter) {
	f := start(t)
	for name, head := range map[string]string{
		"both":             "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
		"both, other case": "POST /write?db=x HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 7\r\n\r\n",
		"identity":         "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\nContent-Length: 7\r\n\r\n",
		"gzip, chunked":    "POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"two lengths":      "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n",
		"negative":         "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: -7\r\n\r\n",
		"chunks in 1.0":    "POST /write?db=x HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"both, not ours":   "POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := f.dial(t)
			w.say(get("/ping"))
			w.hear().want(t, 204)
			w.say(head, "m v=1 1")
			w.hear().want(t, 400, "Connection: close")
			w.closed()
		})
	}
	w := f.dial(t)
	w.say(get("/ping"), "BREW /write HTTP/1.1\r\nHost: x\r\n\r\n")
	w.hear().want(t, 204)
	w.hear().want(t, 501, "Connection: close")
	w.closed()
}

// TestWhatIsLeftOfARefusedBodyIsNoRequest: the body holds a request, and must not be served as one.
func TestWhatIsLeftOfARefusedBodyIsNoRequest(t *testing.T) {
	plainAndTLS(t, testWhatIsLeftOfARefusedBodyIsNoRequest)
}

func testWhatIsLeftOfARefusedBodyIsNoRequest(t *testing.T, start starter) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax = 2000 })
	w := f.dial(t)
	inner := post("/write?db=smuggled", "m v=1 1")
	w.say(post("/write?db=x", strings.Repeat(inner, 100)))
	w.hear().want(t, 413, "Connection: close")
	w.closed()
	w = f.dial(t)
	w.say(post("/write?precision=no", strings.Repeat(inner, 100)))
	w.hear().want(t, 400, "Connection: close")
	w.closed()
	if names, _ := f.memory.List(context.Background()); len(names) > 0 {
		t.Errorf("tables %v", names)
	}
}

// allocated measures the heap memory that f allocates, freed or not.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

func TestDeclaredSizesCostNothing(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax, s.InFlightBytesMax = 1<<30, 2<<30 })
	for _, length := range []string{"33554432", "1073741824"} {
		for _, path := range []string{"/write?db=x", "/api/v1/write", "/api/v1/query"} {
			w := f.dial(t)
			n := allocated(func() {
				w.say("POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+length+"\r\n\r\n", "m v=1 1")
				time.Sleep(20 * time.Millisecond)
			})
			if n > 256<<10 {
				t.Errorf("%s with a length of %s took %d bytes", path, length, n)
			}
			w.Close()
		}
	}
	w := f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nm")
	w.hear().want(t, 413)
}

func TestBombsStaySmall(t *testing.T) {
	f := start(t)
	zeros := make([]byte, 63<<20)
	var deflated bytes.Buffer
	zw := zlib.NewWriter(&deflated)
	zw.Write(zeros)
	zw.Close()
	enc, _ := zstd.NewWriter(nil)
	var noSize bytes.Buffer
	sw, _ := zstd.NewWriter(&noSize)
	sw.Write(zeros)
	sw.Close()
	lie := append([]byte{0x80, 0x80, 0x80, 0x1f}, "tiny"...) // snappy that declares 62 MiB
	influx, remote := "POST /write?db=x", "POST /api/v1/write"
	for _, c := range []struct {
		name, what string
		body       []byte
		header     []string
		status     int
		most       int64
	}{
		{"gzip", influx, gzipped(string(zeros)), []string{"Content-Encoding", "gzip"}, 413, 1 << 20},
		{"deflate", influx, deflated.Bytes(), []string{"Content-Encoding", "deflate"}, 413, 1 << 20},
		{"zstd with its size", influx, enc.EncodeAll(zeros, nil), []string{"Content-Encoding", "zstd"}, 413, 1 << 20},
		{"zstd without", influx, noSize.Bytes(), []string{"Content-Encoding", "zstd"}, 413, 1 << 20},
		{"rw zstd", remote, enc.EncodeAll(zeros, nil), []string{"Content-Type", "application/x-protobuf", "Content-Encoding", "zstd"}, 413, 1 << 20},
		{"snappy that lies", remote, lie, rw1Header, 400, 1 << 20},
		{"snappy too large", remote, snappy.Encode(nil, make([]byte, 65<<20)), rw1Header, 413, 16 << 20},
	} {
		// A decoder's first allocations are kept and are not the bomb's, and there is a decoder a processor: the least of
		// many.
		n := int64(math.MaxInt64)
		for range 4 + 2*runtime.GOMAXPROCS(0) {
			var a answer
			n = min(n, allocated(func() { a = f.do(t, c.what, c.body, c.header...) }))
			a.want(t, c.status)
		}
		if n > c.most {
			t.Errorf("%s: %d bytes packed cost %d bytes of memory", c.name, len(c.body), n)
		}
	}
	wantMetric(t, f, "spillway_intake_in_flight_bytes", 0)
}

// TestSlowBodiesHoldLittle: many senders that say much and send little.
func TestSlowBodiesHoldLittle(t *testing.T) {
	f := start(t)
	for range 50 {
		f.dial(t).say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\nm v=1")
	}
	eventually(t, "all bodies are waited for", func() bool { return metric(t, f, "spillway_intake_in_flight_bytes") >= 50*1024 })
	if n := metric(t, f, "spillway_intake_in_flight_bytes"); n > 50*1024 {
		t.Errorf("%v bytes in flight for 50 bodies of 5 bytes", n)
	}
	f.do(t, "POST /write?db=x", []byte("m v=1")).want(t, 204) // others are served meanwhile
}

func TestSlowSendersAreCutOff(t *testing.T) {
	t.Parallel()
	plainAndTLS(t, testSlowSendersAreCutOff)
}

func testSlowSendersAreCutOff(t *testing.T, start starter) {
	// Each time one bound is short, the one that the sender exceeds: the steps before it, such as a handshake, may last long on a busy machine.
	f := start(t, func(s *intake.Settings) { s.PeekTimeMax = time.Second })
	w := f.dial(t)
	_, _ = io.WriteString(w.Conn, "POST /wri") // the handshake counts: a connection that is closed amid it is closed, too
	w.closed()

	f = start(t, func(s *intake.Settings) { s.PeekTimeMax, s.HeaderTimeMax = time.Minute, 50*time.Millisecond })
	w = f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\n")
	w.hear().want(t, 408)
	w.closed()
	w = f.dial(t)
	w.say("GET /other HTTP/1.1\r\nHost: x\r\n")
	w.closed()

	f = start(t, func(s *intake.Settings) {
		s.PeekTimeMax, s.HeaderTimeMax, s.BodyTimeMax = time.Minute, time.Minute, 100*time.Millisecond
	})
	w = f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nm v=1")
	w.hear().want(t, 503, "did not arrive in time")
	w.closed()
	if n := f.memory.table("x").count(); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// A query may last minutes, but its form must arrive, and its answer be read: the server waited for both without end.
func TestSlowReadersAndWritersOfQueriesAreCutOff(t *testing.T) {
	t.Parallel()
	plainAndTLS(t, testSlowReadersAndWritersOfQueriesAreCutOff)
}

func testSlowReadersAndWritersOfQueriesAreCutOff(t *testing.T, start starter) {
	f := start(t, func(s *intake.Settings) { s.BodyTimeMax = 200 * time.Millisecond })
	w := f.dial(t)
	w.say("POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nquery=")
	w.hear().want(t, 200, "POST /other query=") // the part that the handler got before its reading failed
	w.closed()

	w = f.dial(t)
	w.say(get("/endless"))
	eventually(t, "the handler gives up", func() bool { return f.endless.Load() > 0 })

	// A connection stays open through answers and pauses that are longer than that.
	f = start(t, func(s *intake.Settings) { s.BodyTimeMax = 2 * time.Second })
	w = f.dial(t)
	w.say(post("/slow", "query=1"))
	w.hear().want(t, 200, "thought")
	time.Sleep(2500 * time.Millisecond) // the pause
	w.say(get("/other"))
	w.hear().want(t, 200, "GET /other")
}

func TestTooLongAHeader(t *testing.T) { plainAndTLS(t, testTooLongAHeader) }

func testTooLongAHeader(t *testing.T, start starter) {
	f := start(t)
	w := f.dial(t)
	w.say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nX-Long: "+strings.Repeat("h", 9000), "\r\n\r\n")
	w.hear().want(t, 431)
	w.closed()
}

// Senders that were refused for their header, and were still sending the body, saw a connection that was reset. That looks like a broken
// network, so they sent the same rows again and again, and the reason never reached them.
func TestAnswersSayWhyAHeaderIsRefused(t *testing.T) {
	plainAndTLS(t, testAnswersSayWhyAHeaderIsRefused)
}

func testAnswersSayWhyAHeaderIsRefused(t *testing.T, start starter) {
	f := start(t)
	const body = 8 << 20
	for status, lines := range map[int]string{
		431: "POST /write?db=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("t", 9000),
		400: "POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 5",
	} {
		w := f.dial(t)
		w.say(fmt.Sprintf("%s\r\nContent-Length: %d\r\n\r\n", lines, body))
		for range 8 {
			w.say(strings.Repeat("m v=1\n", body/8/6))
		}
		w.hear().want(t, status)
		w.closed()
	}
}

func TestBytesInFlightAreBounded(t *testing.T) {
	f := start(t, func(s *intake.Settings) {
		s.BodyBytesMax, s.DecodedBytesMax, s.InFlightBytesMax = 32<<10, 32<<10, 64<<10
		s.AnswerTimeMax = 2 * time.Second // a request that is large for this budget waits for half of it
	})
	// Three unfinished bodies hold 16 KiB each and grow no further; a fourth finds no room to grow.
	for range 3 {
		f.dial(t).say("POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 16000\r\n\r\n" + strings.Repeat("m v=1\n", 1500))
	}
	eventually(t, "three bodies are held", func() bool { return metric(t, f, "spillway_intake_in_flight_bytes") == 3*16<<10 })
	big := []byte(strings.Repeat("m v=1\n", 2000))
	for what, header := range map[string][]string{"POST /write?db=x": nil, "POST /api/v1/write": rw1Header} {
		f.do(t, what, big, header...).want(t, 503, "in flight", "Retry-After: 1")
	}
	f.do(t, "POST /api/v2/write?bucket=x", big).want(t, 429, "Retry-After: 1")
	f.do(t, "POST /write?db=x", []byte("m v=1")).want(t, 204)
}

func TestConnectionsAreBounded(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.ConnsMax = 2 })
	w1, w2 := f.dial(t), f.dial(t)
	w1.say(get("/ping"))
	w1.hear().want(t, 204)
	w2.say(get("/other"))
	w2.hear().want(t, 200)
	w3 := f.dial(t)
	w3.hear().want(t, 503, "Retry-After: 1", "Connection: close")
	w3.closed()
	w1.Close()
	eventually(t, "there is room again", func() bool { return metric(t, f, "spillway_intake_connections", "server", "fasthttp") == 0 })
	w4 := f.dial(t)
	w4.say(get("/ping"))
	w4.hear().want(t, 204)
	wantMetric(t, f, "spillway_intake_connections_refused_total", 1)
}

func TestShutdownFinishesWhatIsUnderWay(t *testing.T) {
	f := start(t)
	entered, release := f.memory.table("x").stop()
	defer release()
	idle, silent, plain := f.dial(t), f.dial(t), f.dial(t)
	idle.say(get("/ping"))
	idle.hear().want(t, 204)
	plain.say(get("/other"))
	plain.hear().want(t, 200)
	busy := f.dial(t)
	busy.say(post("/write?db=x", "m v=1 1"))
	<-entered
	done := make(chan error, 1)
	go func() { done <- f.Shutdown(context.Background()) }()
	idle.closed()
	silent.closed()
	select {
	case err := <-done:
		t.Fatalf("shutdown did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	busy.hear().want(t, 204, "Connection: close")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	plain.closed()
	if n := f.memory.table("x").count(); n != 1 {
		t.Errorf("%d rows", n)
	}
	if _, err := net.Dial("tcp", f.addr); err == nil {
		t.Error("it still listens")
	}
}

func TestShutdownLosesPatience(t *testing.T) {
	f := start(t)
	entered, release := f.memory.table("x").stop()
	defer release()
	w := f.dial(t)
	w.say(post("/write?db=x", "m v=1 1"))
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := f.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown: %v", err)
	}
	// The write may still be answered, but never as if it were done.
	if rest, _ := io.ReadAll(w.r); len(rest) > 0 && !strings.HasPrefix(string(rest), "HTTP/1.1 503 ") {
		t.Errorf("heard %q", rest)
	}
}

func TestAckThatDoesNotCome(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.AnswerTimeMax = 30 * time.Millisecond })
	_, release := f.memory.table("x").stop()
	defer release()
	f.do(t, "POST /write?db=x", []byte("m v=1")).want(t, 503, "Retry-After: 1")
	f.do(t, "POST /api/v1/write", rw1(t, series("m", now, 1)), append(rw1Header, "X-Spillway-Table", "x")...).want(t, 503)
}

// TestTLS serves HTTP/1.1 by fasthttp and by net/http, and HTTP/2 by net/http, over one listener.
func TestTLS(t *testing.T) {
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	defer certs.Close()
	f, err := intake.New(intake.Deps{Writer: newMemory(), Registerer: prometheus.NewRegistry(), Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s tls=%v", r.Proto, r.TLS != nil)
	})}, intake.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := tls.NewListener(raw, &tls.Config{Certificates: certs.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}})
	var wg sync.WaitGroup
	wg.Go(func() { f.Serve(ln) })
	for _, h2 := range []bool{false, true} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: h2}
		c := &http.Client{Transport: tr}
		proto := "HTTP/1.1"
		if h2 {
			proto = "HTTP/2.0"
		}
		for _, what := range []string{"POST /write?db=x", "GET /other", "POST /write?db=x"} {
			method, target, _ := strings.Cut(what, " ")
			rq, _ := http.NewRequest(method, "https://"+raw.Addr().String()+target, strings.NewReader("m v=1"))
			resp, err := c.Do(rq)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if method == "GET" && string(body) != proto+" tls=true" || method == "POST" && resp.StatusCode != 204 {
				t.Errorf("h2 %v: %s: %d %q", h2, what, resp.StatusCode, body)
			}
		}
		tr.CloseIdleConnections()
	}
	if err := f.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestSettingsReportEveryMistake(t *testing.T) {
	_, err := intake.New(intake.Deps{Registerer: prometheus.NewRegistry()}, intake.Settings{ConnsMax: -1, RetryAfter: time.Millisecond, InFlightBytesMax: 5})
	for _, piece := range []string{"ConnsMax", "RetryAfter", "InFlightBytesMax"} {
		if err == nil || !strings.Contains(err.Error(), piece) {
			t.Errorf("%v does not tell of %s", err, piece)
		}
	}
}
