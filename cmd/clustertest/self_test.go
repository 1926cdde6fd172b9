package clustertest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/scrape"
)

// TestClusterShowsItsOwnHistory: gateways and storage servers keep their metrics in a table, so that dashboards and the page show the time before a user
// looked without a Prometheus; storage servers that show certificates write it as those that show none.
func TestClusterShowsItsOwnHistory(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	for _, certs := range []bool{false, true} {
		t.Run(fmt.Sprintf("certs=%t", certs), func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Certs: certs, Env: []string{"SPILLWAY_SELF_SCRAPE_INTERVAL=1s", "SPILLWAY_STORAGE_COPIES=true"}})
			door := c.doors[0]
			c.acked(door, "default", fmt.Sprintf("cpu,host=a usage=1 %d", time.Now().UnixMilli()))
			if code, text := processtest.Ask(door, "default", "cpu_usage", time.Now()); code != http.StatusOK {
				t.Fatalf("%d %s", code, text)
			}
			equals := func(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
			door.UntilOwn(`count(up{job="spillway"})`, equals(5))
			door.UntilOwn(`count(spillway_lead_leading_partitions)`, equals(3))
			door.UntilOwn(`sum(spillway_intake_rows_accepted_total)`, equals(1))
			door.UntilOwn(`min(count_over_time(up[1h]))`, func(v float64) bool { return v >= 3 })
			door.Boards("overview", "ingest", "storage", "query", "cluster", "tenant")

			// Types and help texts came from storage servers, too.
			if _, text, _ := door.Get("/t/" + scrape.Table + "/api/v1/metadata?metric=spillway_lead_leading_partitions"); !strings.Contains(string(text), "gauge") {
				t.Errorf("what a storage server's metric means: %s", text)
			}
			for _, p := range c.All() {
				for line := range strings.Lines(p.Said()) { // a write may be late on a busy machine, but none may be refused
					if strings.Contains(line, "cannot write its own metrics") && !strings.Contains(line, "in time") {
						t.Errorf("%s says: %s", p.Name, line)
					}
				}
			}

			// One that is killed is not written for, and the others go on.
			c.Storage[2].Kill()
			door.UntilOwn(`count(count_over_time(up[4s]) > 0)`, equals(4))
			was := door.UntilOwn(`sum(count_over_time(up[1h]))`, func(v float64) bool { return v > 0 })
			door.UntilOwn(`sum(count_over_time(up[1h]))`, func(v float64) bool { return v >= was+8 })
		})
	}
}
