package intake

import (
	"strings"
	"testing"
)

func TestARequestIsSeenToBeWhole(t *testing.T) {
	f := func(text string, want arrival) {
		t.Helper()
		got, end := arrived([]byte(text))
		if got != want {
			t.Errorf("%.100q: %d, want %d", text, got, want)
		}
		if got == inWhole && strings.Contains(text, "\r\n\r\n") { // the next request begins behind it
			if again, same := arrived([]byte(text + "POST")); again != inWhole || same != end && end != len(text) {
				t.Errorf("%.100q: it ends at %d, and with more at %d", text, end, same)
			}
		}
	}
	const post, get = "POST /write HTTP/1.1\r\nHost: x\r\n", "GET /ping HTTP/1.1\r\nHost: x\r\n"
	f("", inHeader)
	f("\r\n\r\n\r\n", inHeader)
	f(post, inHeader)
	f(post+"Content-Length: 3\r\n", inHeader)
	f(get+"\r\n", inWhole)
	f("\r\n\r\n"+get+"\r\n"+get, inWhole)
	f(post+"Content-Length: 3\r\n\r\nab", inBody)
	f(post+"content-length:3\r\n\r\nab", inBody)
	f(post+"Content-Length: 3\r\n\r\nabc", inWhole)
	f(post+"Content-Length: 3\r\n\r\nabcPOST", inWhole)
	f(post+"Content-Length: 5000\r\n\r\nab", inLarge)
	f(post+"Content-Length: 3\r\n\r\n", inBody)

	const chunked = post + "Transfer-Encoding: chunked\r\n\r\n"
	f(chunked, inLarge)
	f(chunked+"3\r\nabc\r\n", inLarge)
	f(chunked+"3\r\nabc\r\n0\r\n", inLarge)
	f(chunked+"3\r\nabc\r\n0\r\n\r\n", inWhole)
	f(chunked+"3;a=b\r\nabc\r\n0;c\r\n\r\n", inWhole)
	f(chunked+"3\r\nabc\r\n0\r\nX-A: b\r\n", inLarge)
	f(chunked+"3\r\nabc\r\n0\r\nX-A: b\r\n\r\n", inWhole)
	f(chunked+"A\r\n0\r\n\r\n12345\r\n", inLarge) // the end is within the content
	f(chunked+"A\r\n0\r\n\r\n12345\r\n0\r\n\r\n", inWhole)
	f(chunked+"7fffffffffffffff\r\nabc", inLarge)

	// A server refuses these, or has to answer first.
	f(post+"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", inWhole)
	f(post+"Content-Length: -3\r\n\r\n", inWhole)
	f(post+"Content-Length: 99999999999999999999\r\n\r\n", inWhole)
	f(post+"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", inWhole)
	f(post+"Transfer-Encoding: gzip, chunked\r\n\r\n", inWhole)
	f("POST /write HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", inWhole)
	f(chunked+"x\r\n", inWhole)
	f(chunked+"ffffffffffffffff\r\n", inWhole)
	f(post+"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", inWhole)
}

// FuzzArrived: more bytes never take a request back to a stage before.
func FuzzArrived(f *testing.F) {
	f.Add([]byte("POST /write HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("POST /write HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		was := inHeader
		for n := range len(b) + 1 {
			now, end := arrived(b[:n])
			if end > n || now == inWhole && end == 0 {
				t.Fatalf("%q: a request of %d bytes", b[:n], end)
			}
			if now < was && now != inHeader || was == inWhole && now != inWhole {
				t.Fatalf("%q: %d after %d bytes, %d before", b, now, n, was)
			}
			was = now
		}
	})
}
