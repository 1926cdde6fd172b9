package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// screen is what the demo printed.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// within waits until ok returns true. On a busy machine a cluster needs minutes to start.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(processtest.Patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v not yet: %s", processtest.Patience, what)
		}
	}
}

// TestClusterDemoShowsAllThatItSays starts the demo with a small load: rows of each protocol are acked and read from every table, partitions exist
// ahead of their time, a line compares the tables, and at the end nothing is left.
func TestClusterDemoShowsAllThatItSays(t *testing.T) {
	if testing.Short() || os.Getenv("CLUSTER") == "" {
		t.Skip("make test-cluster runs it: it starts a cluster")
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	d, out, ended := &demo{rate: 300}, &screen{}, make(chan error, 1)
	p := processes.Plan{Bin: os.Getenv("CLUSTER_BIN"), Dir: t.TempDir(), Etcd: 1, Storage: 3, Gateways: 2, Memory: "512MiB", Certs: true, Env: []string{"SPILLWAY_STORAGE_FREE_BYTES_MIN=1"}}
	go func() { ended <- run(ctx, p, d, out) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out)
		}
	})
	address := regexp.MustCompile(`gateway +http://(\S+)/ `)
	within(t, "the demo writes", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		default:
		}
		return strings.Contains(out.String(), "The demo writes 303 rows a second")
	})
	var gateways []string
	for _, m := range address.FindAllStringSubmatch(out.String(), -1) {
		gateways = append(gateways, m[1])
	}
	if len(gateways) != 2 {
		t.Fatalf("%d gateways are shown", len(gateways))
	}
	for _, v := range []string{"lines", "remote_write", "kafka"} {
		for i, table := range demoTables {
			within(t, "rows by "+v+" are read from "+table, func() bool {
				return hosts(t, gateways[i%2], table, v) == 1
			})
		}
	}
	for _, v := range d.load.vias() { // rows are read before their ack has arrived
		within(t, "rows are acked by "+v.name, func() bool { return v.acked.Load() > 0 })
	}
	for _, table := range demoTables[:2] {
		within(t, "partitions of the next minutes exist in "+table, func() bool {
			s, err := tableStatus(t.Context(), gateways[0], table)
			return err == nil && ahead(s, time.Now()) > 20
		})
	}
	within(t, "a line compares the tables", func() bool {
		return regexp.MustCompile(`\d\d:\d\d:\d0  turns, off .* \| spread, 30s .* \| \d+, \d+, \d+ \| [\d,]+\n`).MatchString(out.String())
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if text := out.String(); !regexp.MustCompile(`rows acked: [\d,]+ by line protocol, [\d,]+ by remote write, [\d,]+ by Kafka\n$`).MatchString(text) {
		t.Error("its last line does not say what was acked")
	}
	for _, addr := range append(gateways, strings.Split(d.kafka, ",")...) {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			t.Errorf("%s answers still", addr)
		}
	}
}

// hosts counts the hosts with rows of one protocol (via); -1: the gateway did not answer.
func hosts(t *testing.T, gateway, table, via string) int {
	t.Helper()
	answer, err := http.Get("http://" + gateway + "/t/" + table + "/api/v1/query?" + url.Values{"query": {fmt.Sprintf("count(cpu_usage_user{via=%q})", via)}}.Encode())
	if err != nil {
		return -1
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	var body struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err != nil || answer.StatusCode != http.StatusOK || json.Unmarshal(text, &body) != nil || len(body.Data.Result) != 1 {
		return -1
	}
	n := 0
	_, _ = fmt.Sscan(fmt.Sprint(body.Data.Result[0].Value[1]), &n)
	return n
}

// TestTheBalanceCountsWhatCameToEachServer of partitions of now, and knows nothing at the first look or where the rows of one are not known.
func TestTheBalanceCountsWhatCameToEachServer(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	part := func(id uint64, from int, leader string, rows int) ui.Partition {
		n := uint64(rows)
		p := ui.Partition{ID: id, From: now.Add(time.Duration(from) * time.Second), To: now.Add(time.Duration(from+10) * time.Second), Leader: leader, Rows: &n}
		if rows < 0 {
			p.Rows = nil
		}
		return p
	}
	servers := []string{"s1", "s2", "s3"}
	var b balance
	f := func(at int, want string, parts ...ui.Partition) {
		t.Helper()
		got, known := b.look(&ui.Table{Partitions: parts}, now.Add(time.Duration(at)*time.Second), servers)
		text := fmt.Sprintf("%.0f %.2f", got, busiest(got))
		if !known {
			text = "unknown"
		}
		if text != want {
			t.Errorf("after %d s: %s, want %s", at, text, want)
		}
	}
	f(0, "unknown", part(1, -10, "s1", 500))
	f(10, "[10 50 0] 2.50", part(1, -10, "s1", 600), part(2, 0, "s2", 500), part(3, 30, "s3", 0))
	f(20, "[0 0 0] 0.00", part(1, -10, "s1", 600), part(2, 0, "s2", 500))
	f(30, "unknown", part(1, -10, "s1", 600), part(2, 0, "s2", -1))
	f(40, "[0 0 20] 3.00", part(1, -10, "s1", 600), part(4, 40, "s3", 200), part(9, -5000, "s1", 9999)) // a merged one of long ago is no load
	if n := ahead(&ui.Table{Partitions: []ui.Partition{part(1, -10, "", 0), part(2, 0, "", 0), part(3, 10, "", 0), part(4, 20, "", 0)}}, now); n != 2 {
		t.Errorf("%d partitions are ahead, want 2", n)
	}
}

func TestNumbersAreGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 123456: "123,456"} {
		if got := counted(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestTheLoadIsAboutWhatWasAskedFor: hosts have 101 rows a second each, and there is one for each protocol at least.
func TestTheLoadIsAboutWhatWasAskedFor(t *testing.T) {
	for rate, want := range map[int]int{1: 303, 300: 303, 1500: 1515, 10_000: 9999} {
		var l load
		l.makeFleets(rate)
		if got := l.perSecond(); got != want {
			t.Errorf("%d rows a second are asked for, and %d written, want %d", rate, got, want)
		}
	}
}
