package clustertest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterGatewaysAgreeAboutAPair sends each replica of a pair to another gateway. One replica is kept, also by a gateway that was
// killed and started; when its rows stop, the other one is elected, also at the gateway that never received the first.
func TestClusterGatewaysAgreeAboutAPair(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 2, Env: []string{"SPILLWAY_HA_ENABLED=true", "SPILLWAY_HA_UPDATE_INTERVAL=1s", "SPILLWAY_HA_FAILOVER_TIMEOUT=15s"}})
	c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()))
	base, sent := time.Now().Add(-time.Minute).UnixMilli(), int64(0)
	send := func(door int, replica string) {
		t.Helper()
		sent++
		body := fmt.Sprintf("paired,cluster=x,__replica__=%s v=%d %d", replica, map[string]int{"a": 1, "b": 2}[replica], base+sent)
		c.acked(c.doors[door], "default", body)
	}
	kept := func(value int) bool { // rows of a replica, all in one series
		status, text := processtest.AskAt(c.doors[0], "default", "paired_v[1h]", time.Now())
		return status == http.StatusOK && strings.Contains(text, fmt.Sprintf(`,"%d"]`, value))
	}
	elected := func(door int) string {
		_, text, err := c.doors[door].Get("/api/v1/status/ha")
		if err != nil {
			return err.Error()
		}
		_, replica, _ := strings.Cut(string(text), `"elected":"`)
		replica, _, _ = strings.Cut(replica, `"`)
		return replica
	}
	send(0, "a")
	c.within(processtest.Patience, "both gateways know the pair", func() bool { return elected(0) == "a" && elected(1) == "a" })
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		send(0, "a")
		send(1, "b")
		if e := elected(0) + elected(1); e != "aa" {
			t.Fatalf("elected: %s", e)
		}
	}
	c.within(processtest.Patience, "rows of the elected replica are kept", func() bool { return kept(1) })
	if kept(2) {
		t.Error("rows of the other replica are kept")
	}
	c.Gateways[1].Kill()
	c.start(c.Gateways[1])
	if got := elected(1); got != "a" {
		t.Errorf("a gateway that begins anew elects %q", got)
	}
	c.within(processtest.Patience, "the other replica takes over", func() bool {
		send(1, "b")
		return elected(1) == "b" && elected(0) == "b"
	})
	send(1, "b")
	send(0, "a")
	c.within(processtest.Patience, "its rows are kept", func() bool { return kept(2) })
	if n := processtest.Metric(t, c.doors[0].Addr, "spillway_tracker_duplicate_samples_total"); n < 1 {
		t.Errorf("the first gateway counts %v duplicates", n)
	}
}
