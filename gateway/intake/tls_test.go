package intake_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestTLSCutByAnAttackerIsNoEndOfABody: an attacker on the wire can end the TCP connection, but not TLS. Chunks without an
// end, and a length that was not reached, are not stored.
func TestTLSCutByAnAttackerIsNoEndOfABody(t *testing.T) {
	f := startTLS(t)
	for _, request := range []string{
		"POST /write?db=x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nm v=1 1\nm v=2 2",
		"POST /write?db=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nm v=1 1\n\r\n",
		"POST /write?db=x HTTP/1.0\r\nHost: x\r\n\r\nm v=1 1\nm v=2 2",
	} {
		w := f.dial(t)
		w.say(request)
		if err := w.Conn.(*tls.Conn).NetConn().(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(w.r)
		if n := f.memory.table("x").count(); n != 0 {
			t.Errorf("%q: %d rows were stored", request, n)
		}
	}
	wantMetric(t, f, "spillway_intake_in_flight_bytes", 0)
}

func TestHandshakesAreBoundedInTime(t *testing.T) {
	f := startTLS(t, func(s *intake.Settings) { s.PeekTimeMax = 100 * time.Millisecond })
	for _, said := range []string{"", "\x16\x03\x01", "\x16\x03\x01\x40\x00" + strings.Repeat("x", 100)} {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(c, said)
		if _, err := io.Copy(io.Discard, c); err != nil && os.IsTimeout(err) {
			t.Errorf("%q keeps a connection: %v", said, err)
		}
		_ = c.Close()
	}
	eventually(t, "the failed handshakes are counted", func() bool { return metric(t, f, "spillway_intake_failed_tls_handshakes_total") == 3 })
}

// A request in the clear may need longer than a hundredth of the time that it has: the machine is busy.
func TestPlainHTTPIsAnsweredThatItNeedsTLS(t *testing.T) {
	f := startTLS(t)
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, get("/ping"))
	if text, _ := io.ReadAll(c); !strings.Contains(string(text), "400 Bad Request") || !strings.Contains(string(text), "https") {
		t.Errorf("plain HTTP is answered %q", text)
	}
}

// guardedFront asks for a token, which may write to mine.
func guardedFront(t *testing.T) (f *front, token string) {
	t.Helper()
	token = access.NewToken()
	entry, err := access.Entry(token, access.Token{Name: "telegraf", Scopes: []access.Scope{{Tables: []string{"mine"}, May: []string{"write"}}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tokens.yml")
	if err := os.WriteFile(file, []byte("tokens:\n"+entry), 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := access.Open(access.Deps{}, access.Settings{TokensFile: file})
	if err != nil {
		t.Fatal(err)
	}
	m := newMemory()
	f = startGuarded(t, guard, m)
	f.memory = m
	return f, token
}

// TestEachRequestOfAConnectionShowsWhoSendsIt: a proxy sends requests of many senders over one connection, and the first
// sender does not vouch for any other.
func TestEachRequestOfAConnectionShowsWhoSendsIt(t *testing.T) {
	f, token := guardedFront(t)
	signed := func(target, body string) string {
		return strings.Replace(post(target, body), "Host: x", "Host: x\r\nAuthorization: Bearer "+token, 1)
	}
	for _, handOver := range []bool{false, true} {
		w := f.dial(t)
		w.say(signed("/write?db=mine", "m v=1 1"))
		w.hear().want(t, 204)
		if handOver {
			w.say(get("/other"))
			w.hear().want(t, 200)
		}
		w.say(signed("/write?db=mine", "m v=2 2"), signed("/write?db=other", ""), post("/write?db=mine", ""), signed("/write?db=mine", "m v=3 3"))
		w.hear().want(t, 204)
		w.hear().want(t, 403, `lacks the right`)
		w.hear().want(t, 401, `Www-Authenticate: Basic realm="InfluxDB"`)
		w.hear().want(t, 204)
	}
	if n := f.memory.table("mine").count(); n != 3 {
		t.Errorf("%d rows", n)
	}
}

// TestWhatStrangersSendIsNotRead: their bodies use no memory, and is no request.
func TestWhatStrangersSendIsNotRead(t *testing.T) {
	f, token := guardedFront(t)
	inner := strings.Replace(post("/write?db=mine", "m v=1 1"), "Host: x", "Host: x\r\nAuthorization: Bearer "+token, 1)
	w := f.dial(t)
	w.say(post("/write?db=mine", strings.Repeat(inner, 1000)))
	w.hear().want(t, 401, "Connection: close")
	w.closed()
	w = f.dial(t)
	w.say("POST /write?db=mine HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\nm")
	w.hear().want(t, 401, "Connection: close") // when no more of the body has come
	for range 3 {
		f.do(t, "POST /write?db=mine", []byte("m v=1 1"), "Authorization", "Bearer "+token, "Authorization", "Bearer "+token).want(t, 401)
	}
	if n := f.memory.table("mine").count(); n != 0 {
		t.Errorf("%d rows of strangers were stored", n)
	}
}

// startGuarded starts a Front behind a guard.
func startGuarded(t testing.TB, guard *access.Guard, w intake.Writer) *front {
	t.Helper()
	f := &front{metrics: prometheus.NewRegistry(), client: &http.Client{Transport: &http.Transport{}}}
	var err error
	f.Front, err = intake.New(intake.Deps{Writer: w, Access: guard, Registerer: f.metrics, Fallback: http.HandlerFunc(f.serve)}, intake.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, false)
	return f
}

// BenchmarkWireGuarded is BenchmarkWireSmall with a token.
func BenchmarkWireGuarded(b *testing.B) {
	token := access.NewToken()
	entry, err := access.Entry(token, access.Token{Name: "telegraf", Scopes: []access.Scope{{Tables: []string{"x"}, May: []string{"write"}}}})
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "tokens.yml")
	if err := os.WriteFile(file, []byte("tokens:\n"+entry), 0o600); err != nil {
		b.Fatal(err)
	}
	guard, err := access.Open(access.Deps{}, access.Settings{TokensFile: file})
	if err != nil {
		b.Fatal(err)
	}
	benchWireWith(b, startGuarded(b, guard, hole{point.NewDict(0)}), "/write?db=x", fmt.Sprintf("Authorization: Bearer %s\r\n", token), []byte("m v=1"), 1)
}
