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
