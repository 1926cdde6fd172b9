package intake_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
)

// TestSendersAreListedOnceARequest: rows of known series count too, and a series has its sender although its first write failed.
func TestSendersAreListedOnceARequest(t *testing.T) {
	f := start(t)
	send := func(remote, agent, lines string, want int) {
		t.Helper()
		rq := httptest.NewRequest("POST", "/write?db=x", strings.NewReader(lines))
		rq.RemoteAddr = remote
		rq.Header.Set("User-Agent", agent)
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, rq)
		if rec.Code != want {
			t.Fatal(rec.Code, rec.Body.String())
		}
	}
	of := func() recent.TableSenders {
		t.Helper()
		l := f.senders.Lists(time.Now(), func(string) bool { return true }, true)
		if len(l.Tables) != 1 {
			t.Fatalf("%+v", l)
		}
		return l.Tables[0]
	}
	f.memory.table("x").fail(errors.New("no leader"))
	send("10.1.2.3:4000", "first", "cpu,host=a usage=1,idle=2", 500)
	f.memory.table("x").fail(nil)
	send("10.1.2.99:4001", "first", "cpu,host=a usage=1,idle=2\ncpu,host=a usage=2 5\ncpu,host=b usage=1", 204)
	got := of()
	want := recent.Sender{Protocol: "influx1", Agent: "first", Network: "10.1.2.0/24"}
	if len(got.Senders) != 1 || got.Senders[0].Sender != want || got.Senders[0].Requests != 2 || got.Senders[0].Rows != 4 || got.Senders[0].NewSeries != 3 {
		t.Fatalf("%+v", got.Senders)
	}
	if len(got.Names) != 2 || got.Names[0].Name != "cpu_usage" || got.Names[0].NewSeries != 2 || got.Names[1].Name != "cpu_idle" {
		t.Errorf("%+v", got.Names)
	}
	send("[2001:db8:1:2:3::4]:1", "second", "cpu,host=a usage=3", 204)
	send("127.0.0.1:1", "second", "cpu usage=", 400)
	got = of()
	if len(got.Senders) != 2 || got.Senders[0].Network != "2001:db8:1:2::/64" || got.Senders[0].NewSeries != 0 || got.Senders[0].Rows != 1 {
		t.Errorf("a request that is refused writes nothing: %+v", got.Senders)
	}
}
