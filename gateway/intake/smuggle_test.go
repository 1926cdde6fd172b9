package intake_test

import (
	"io"
	"strings"
	"testing"
)

// TestNoRequestIsServedThatAProxyTookForABody: a proxy that goes by Content-Length sees one request, and sets its tenant.
// By Transfer-Encoding there are two, and the second names any tenant it likes.
func TestNoRequestIsServedThatAProxyTookForABody(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start starter) {
		f := start(t)
		inside := "GET /smuggled HTTP/1.1\r\nHost: x\r\nX-Scope-OrgID: other\r\n\r\n"
		for _, path := range []string{"/t/mine/api/v1/query", "/write?db=mine"} {
			w := f.dial(t)
			w.say("POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 64\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", inside)
			all, _ := io.ReadAll(w.r) // an error is a connection that was cut off, which is good
			if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 || strings.Contains(string(all), "smuggled") {
				t.Errorf("%s: %d answers:\n%s", path, n, all)
			}
		}
	})
}

// TestNoHeaderIsHiddenBehindAnotherOne: a line that begins with a blank belongs to the header before it, or is a header, by the server that reads it. So a proxy may
// see another length, or another tenant, than we do.
func TestNoHeaderIsHiddenBehindAnotherOne(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, start starter) {
		f := start(t)
		for _, lines := range []string{
			"X-A: b\r\n Content-Length: 99\r\nContent-Length: 7", "Content-Length:\r\n 7", "Transfer-Encoding:\r\n\tchunked", "Content-Length: 7\r\nX-A: b\r\n X-Scope-OrgID: other",
		} {
			w := f.dial(t)
			w.say("POST /write?db=mine HTTP/1.1\r\nHost: x\r\n", lines, "\r\n\r\nm v=1 1")
			w.hear().want(t, 400, "in a second line", "Connection: close")
			w.closed()
		}
		if names, _ := f.memory.List(t.Context()); len(names) > 0 {
			t.Errorf("tables %v", names)
		}
	})
}
