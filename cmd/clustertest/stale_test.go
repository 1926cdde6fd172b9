package clustertest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// cable is a TCP proxy that a test can cut: connections through it then no longer reach the other end.
type cable struct {
	to       string
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{to: to, listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.set(true)
		running.Wait()
	})
	return c
}

func (c *cable) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer to.Close()
	c.mu.Lock()
	cut := c.cut
	c.conns = append(c.conns, from, to)
	c.mu.Unlock()
	if cut {
		return
	}
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		close(done)
	}()
	_, _ = io.Copy(from, to)
	_ = from.Close()
	<-done
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	}
}

// behind starts one more gateway, which reaches etcd through a cable.
func (c *crowd) behind(w *cable) *processtest.Process {
	c.t.Helper()
	return c.oneMore(map[string]string{"--coord=": "etcd://" + w.listener.Addr().String()})
}

// over asks for all samples of m in [from, to] through a gateway.
func (c *crowd) over(door *processtest.Process, from, to time.Time, params string) (int, string) {
	q := url.Values{"query": {fmt.Sprintf("m_v[%dms]", to.Sub(from).Milliseconds())}, "time": {fmt.Sprintf("%.3f", float64(to.UnixMilli())/1000)}}
	status, text, err := door.Get("/t/cut/api/v1/query?" + q.Encode() + params)
	if err != nil {
		return 0, err.Error()
	}
	return status, string(text)
}

// TestClusterGatewayThatIsCutOffSaysSo: a gateway is cut off from etcd while another makes partitions. Its answers are
// complete, by maps that it fetches from storage; when it cannot be sure, it warns, or refuses.
func TestClusterGatewayThatIsCutOffSaysSo(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	wire := newCable(t, c.EtcdClients[0])
	cut := c.behind(wire)
	c.table("cut", time.Hour, 3)
	hour := time.Now().Truncate(time.Hour).Add(-12 * time.Hour)
	at := func(h int) time.Time { return hour.Add(time.Duration(h)*time.Hour + 30*time.Minute) }
	put := func(h int) {
		t.Helper()
		c.acks("cut", fmt.Sprintf("m,h=%d v=%d %d", h, h, at(h).UnixMilli()))
	}
	put(3)
	c.within(processtest.Patience, "the gateway behind the cable reads", func() bool {
		status, text := c.over(cut, at(3).Add(-time.Minute), at(3), "&partial_response=false")
		return status == http.StatusOK && strings.Contains(text, `"h":"3"`)
	})

	wire.set(true)
	began := time.Now()
	put(4)
	// whole reads hours through the gateway that is cut off. An answer of 200 must have all rows and no warning. It may refuse at first: rows are
	// acked when they are staged, before a storage server knows the partition that they are for.
	var status int
	var text string
	whole := func(from, to time.Time, hours ...string) {
		t.Helper()
		c.within(processtest.Patience, "the gateway that is cut off reads hours "+strings.Join(hours, ", "), func() bool {
			if status, text = c.over(cut, from, to, "&partial_response=false"); status == http.StatusServiceUnavailable {
				t.Logf("hours %v, %v after the cut: %s", hours, time.Since(began).Round(time.Millisecond), text)
				return false
			}
			for _, h := range hours {
				if status != http.StatusOK || !strings.Contains(text, `"h":"`+h+`"`) || strings.Contains(text, "warnings") {
					t.Fatalf("hours %v, %v after the cut: %d %s", hours, time.Since(began), status, text)
				}
			}
			return true
		})
	}
	// The leader of hour 3 has hour 4 in its map, and reports it, without etcd.
	whole(at(3).Add(-time.Minute), at(4), "3", "4")

	// Hour 6 is in no map that the gateway has: it warns, or refuses.
	c.within(processtest.Patience, "the gateway warns", func() bool {
		status, text = c.over(cut, at(6).Add(-time.Minute), at(6), "")
		if status != http.StatusOK {
			t.Fatalf("hour 6: %d %s", status, text)
		}
		return strings.Contains(text, `"warnings":[`) && strings.Contains(text, "may be missing")
	})
	t.Logf("%v after the cut: %s", time.Since(began).Round(time.Millisecond), text)
	status, text = c.over(cut, at(6).Add(-time.Minute), at(6), "&partial_response=false")
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "may be missing") {
		t.Errorf("hour 6, whole: %d %s", status, text)
	}
	t.Logf("whole: %d %s", status, text)
	// Times that the map covers are answered as before.
	if status, text = c.over(cut, at(3).Add(-time.Minute), at(3), "&partial_response=false"); status != http.StatusOK || strings.Contains(text, "warnings") {
		t.Errorf("hour 3: %d %s", status, text)
	}

	// Requests for all times warn as well; formats without a place for a warning are refused.
	f := func(path string, want int, says string) {
		t.Helper()
		code, text, err := cut.Get("/t/cut" + path)
		if err != nil || code != want || !strings.Contains(string(text), says) {
			t.Errorf("%s: %d %.300s %v, want %d and %q", path, code, text, err, want, says)
		}
	}
	f("/api/v1/labels", http.StatusOK, `"warnings":["rows of table`)
	f("/api/v1/labels?partial_response=false", http.StatusServiceUnavailable, "may be missing")
	f("/api/v1/series?match[]=m_v", http.StatusOK, `"h":"4"`)
	f("/federate?match[]=m_v", http.StatusServiceUnavailable, "may be missing")

	// Other gateways write to hour 6: no server in the gateway's map has its rows, and metadata servers are asked.
	put(6)
	whole(at(6).Add(-time.Minute), at(6), "6")
	if n := processtest.Metric(t, cut.Addr, "spillway_fanout_doubted_answers_total"); n < 2 {
		t.Errorf("%v answers were in doubt", n)
	}

	wire.set(false)
	c.within(processtest.Patience, "the gateway hears etcd again", func() bool {
		status, text = c.over(cut, at(7).Add(-time.Minute), at(7), "&partial_response=false")
		return status == http.StatusOK && !strings.Contains(text, "warnings")
	})
}
