package intake_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/point"
)

// both sends a request to either server, which must answer alike, and gives the answer.
func (f *front) both(t *testing.T, what, body string, header ...string) answer {
	t.Helper()
	a := f.do(t, what, []byte(body), header...)
	method, target, _ := strings.Cut(what, " ")
	rq := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		rq.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	f.ServeHTTP(rec, rq)
	if rec.Code != a.status || rec.Body.String() != a.body {
		t.Errorf("%s %v: fasthttp %d %q, net/http %d %q", what, header, a.status, a.body, rec.Code, rec.Body.String())
	}
	return a
}

// TestARequestThatSaysYesAndNoIsNotAcked: half of it would be kept where it asked for all or nothing, and acked before it was
// durable where it asked for that too.
func TestARequestThatSaysYesAndNoIsNotAcked(t *testing.T) {
	f := start(t)
	samples, collected := string(rw1(t, series("m", now, 1))), otlpJSONBody(now, 1)
	f.do(t, "POST /write?db=x", []byte("m v=1")).want(t, 204)
	before := f.memory.table("x").count()
	for _, c := range []struct {
		what   string
		header []string
		says   string
	}{
		{"POST /write?db=x", []string{intake.AtomicHeader, "true", intake.AtomicHeader, "false"}, "X-Spillway-Atomic"},
		{"POST /write?db=x", []string{intake.AtomicHeader, "false", intake.AtomicHeader, "true"}, "X-Spillway-Atomic"},
		{"POST /write?db=x&atomic=true", []string{intake.AtomicHeader, "false"}, "X-Spillway-Atomic"},
		{"POST /write?db=x&atomic=false", []string{intake.AtomicHeader, "true"}, "X-Spillway-Atomic"},
		{"POST /write?db=x&atomic=true&atomic=0", nil, "atomic"},
		{"POST /api/v2/write?bucket=x&smear=on", []string{intake.SmearHeader, "off"}, "X-Spillway-Smear"},
		{"POST /api/v3/write_lp?db=x", []string{intake.SmearHeader, "on", intake.SmearHeader, "off"}, "X-Spillway-Smear"},
		{"POST /write?db=x", []string{intake.AckHeader, "received", intake.AckHeader, "all"}, "X-Spillway-Ack"},
		{"POST /write?db=x", []string{intake.AckHeader, "all", intake.AckHeader, "received"}, "X-Spillway-Ack"},
		{"POST /write?db=x&precision=s&precision=ns", nil, "precision"},
		{"POST /write?db=x&consistency=all&consistency=any", nil, "consistency"},
		{"POST /api/v3/write_lp?db=x&no_sync=false&no_sync=true", nil, "no_sync"},
		{"POST /api/v3/write_lp?db=x&accept_partial=false&accept_partial=1", nil, "accept_partial"},
		{"POST /write?db=x", []string{"Content-Encoding", "identity", "Content-Encoding", "gzip"}, "Content-Encoding"},
	} {
		a := f.both(t, c.what, "m v=1", c.header...)
		a.want(t, 400, "contradicts itself", c.says)
	}
	for _, header := range [][]string{
		{intake.AtomicHeader, "true", intake.AtomicHeader, "false"}, {intake.SmearHeader, "on", intake.SmearHeader, "off"},
		{intake.AckHeader, "received", intake.AckHeader, "all"}, {"Content-Encoding", "zstd"},
		{"Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request"},
	} {
		f.both(t, "POST /api/v1/write", samples, append(append([]string{"X-Spillway-Table", "x"}, rw1Header...), header...)...).
			want(t, 400, "contradicts itself", header[0])
	}
	for _, header := range [][]string{
		{intake.AtomicHeader, "true", intake.AtomicHeader, "false"}, {"Content-Type", "application/x-protobuf"},
		{"Content-Encoding", "identity", "Content-Encoding", "gzip"},
	} {
		f.both(t, "POST /v1/metrics", collected, append([]string{"X-Spillway-Table", "x", "Content-Type", "application/json"}, header...)...).
			want(t, 400, "contradicts itself", header[0])
	}
	if n := f.memory.table("x").count(); n != before {
		t.Errorf("%d rows of refused requests are stored", n-before)
	}
}

// TestASenderMayRepeatItself: proxies add a header that is there, and the same word may be written in several ways.
func TestASenderMayRepeatItself(t *testing.T) {
	f := start(t)
	f.do(t, "POST /write?db=x&atomic=1&atomic=", []byte("m v=1"), intake.AtomicHeader, "true", intake.AtomicHeader, "", intake.AtomicHeader, "T",
		intake.AckHeader, "one", intake.AckHeader, "one", "Content-Encoding", "identity", "Content-Encoding", "identity").want(t, 204)
	if got := f.memory.table("x").lastLevel(); got != point.One {
		t.Errorf("level %v", got)
	}
	f.do(t, "POST /api/v1/write", rw1(t, series("m", now, 1)), append(append([]string{"X-Spillway-Table", "x"}, rw1Header...), rw1Header...)...).want(t, 204)
}

// TestAStatementHiddenBehindAnotherIsNotRun: a proxy that lets SHOW pass and looks at one q must not let a DROP pass by the other.
func TestAStatementHiddenBehindAnotherIsNotRun(t *testing.T) {
	f := start(t)
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	f.both(t, "POST /query?q=SHOW+DATABASES", "q=CREATE+DATABASE+hidden", form...).want(t, 400, "the parameter q says")
	f.both(t, "POST /query", "q=SHOW+DATABASES&q=CREATE+DATABASE+hidden", form...).want(t, 400, "the parameter q says")
	f.both(t, "GET /query?q=SHOW+DATABASES&q=SHOW+MEASUREMENTS", "").want(t, 400, "the parameter q says")
	f.do(t, "POST /query?q=SHOW+DATABASES", []byte("q=SHOW+DATABASES"), form...).want(t, 200)
}
