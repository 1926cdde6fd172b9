package intake_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake"
)

// TestLinesThatEndWithLFAreAnswered: a header with bare line feeds, which RFC 9112 lets a server accept, was answered on the paths of
// queries, and on those of writes not until the time for a header was over.
func TestLinesThatEndWithLFAreAnswered(t *testing.T) {
	f := start(t, patient)
	for _, text := range []string{
		"POST /write?db=d HTTP/1.1\nHost: x\nContent-Length: 8\n\nm v=1 1\n",
		"POST /write?db=d HTTP/1.1\r\nHost: x\nContent-Length: 8\n\nm v=1 1\n",
		"\n\nPOST /write?db=d HTTP/1.1\nHost: x\nContent-Length: 8\n\nm v=1 1\n",
	} {
		w := f.dial(t)
		w.say(text)
		w.hear().want(t, 204)
	}
	w := f.dial(t)
	w.say("POST /write?db=d HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nm v=1 1\n\n\n")
	w.hear().want(t, 204)
	if by := metric(t, f, "spillway_intake_rows_accepted_total", "protocol", "influx1"); by != 4 {
		t.Errorf("%v rows were taken, want 4", by)
	}
}

// patient servers wait longer for a header than a test does for an answer.
func patient(s *intake.Settings) { s.HeaderTimeMax = time.Minute }

// TestWhatIsNotHTTPIsRefusedAtOnce: a bare carriage return within a line, or TLS on a port without, held a connection until the time
// for a header was over.
func TestWhatIsNotHTTPIsRefusedAtOnce(t *testing.T) {
	f := start(t, patient)
	for _, text := range []string{
		"GET /health HTTP/1.1\rHost: x\r\r", "POST /write HTTP/1.1\rHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00", "GET /write\x00 HTTP/1.1\r\n",
	} {
		w := f.dial(t)
		w.say(text)
		w.hear().want(t, 400, "not a request of HTTP/1")
		w.closed()
	}
}

// TestChunksCannotBeAllExtensions: the bytes that a body in chunks carries beside its content were neither counted nor bounded.
func TestChunksCannotBeAllExtensions(t *testing.T) {
	f := start(t)
	const head = "POST /write?db=d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	long := strings.Repeat("e", 100_000)
	for name, c := range map[string]struct {
		body  string
		says  string
		stays bool
	}{
		"a long extension":     {"8;" + long + "\r\nm v=1 1\n\r\n0\r\n\r\n", "more extensions than content", false},
		"many extensions":      {strings.Repeat("1;"+strings.Repeat("e", 200)+"\r\nm\r\n", 1000) + "0\r\n\r\n", "more extensions than content", false},
		"a long trailer":       {"8\r\nm v=1 1\n\r\n0\r\n" + strings.Repeat("X-A: b\r\n", 5000) + "\r\n", "the trailer", false},
		"a trailer that lies":  {"8\r\nm v=1 1\n\r\n0\r\nContent-Length: 5\r\n\r\n", "is not allowed there", false},
		"a short extension":    {"8;a=b\r\nm v=1 1\n\r\n0\r\n\r\n", "", true},
		"a short trailer":      {"8\r\nm v=1 1\n\r\n0\r\nX-A: b\r\n\r\n", "", true},
		"chunks of one byte":   {strings.Repeat("1\r\n\n\r\n", 50_000) + "8\r\nm v=1 1\n\r\n0\r\n\r\n", "", true},
		"one chunk of 400 kB":  {"61a80\r\n" + strings.Repeat("m v=1 1\n", 50_000) + "\r\n0\r\n\r\n", "", true},
		"an unfinished length": {strings.Repeat("0", 100_000), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := f.dial(t)
			w.say(head, c.body)
			if !c.stays {
				a := w.hear()
				a.want(t, 400, c.says)
				if strings.Contains(a.body, "fasthttp") || strings.Contains(a.body, "buffer") {
					t.Errorf("the answer speaks of a library: %s", a.body)
				}
				return
			}
			w.hear().want(t, 204)
			w.say("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n") // the connection goes on
			w.hear().want(t, 204)
		})
	}
}
