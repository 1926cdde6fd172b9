package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestClusterSeriesOfOneHostLieTogether makes a table whose series lie by host, in three columns on three servers. A query that names a host asks one server, one of all hosts asks
// all; every row is found, also after the column of a host was cut in two, its rows moved, and its leader was killed. A host with most rows is named by `doctor`.
func TestClusterSeriesOfOneHostLieTogether(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	plan := movesPlan()
	plan.Storage = 3
	c := newCrowd(t, plan)
	c.command("table", "create", "hosts", "--ring-by=host", "--weights=1,1,1", "--replicas=1", "--partition-width=1h")
	if out, code := c.cli("table", "show", "hosts"); code != 0 || !strings.Contains(out, "ring by") {
		t.Fatalf("table show: %d %s", code, out)
	}
	const hosts, cpus = 24, 8
	from := time.Now().Truncate(time.Hour).Add(-2 * time.Hour)
	write := func(door, value int) {
		var b strings.Builder
		for h := range hosts {
			for cpu := range cpus {
				for minute := range 50 {
					fmt.Fprintf(&b, "m,host=h%d,cpu=%d v=%d %d\n", h, cpu, value, from.Add(time.Duration(minute)*time.Minute).UnixMilli())
				}
			}
		}
		c.within(processtest.Patience, "a write is acked", func() bool {
			status, _, err := processtest.PutLine(c.doors[door], "hosts", b.String())
			return err == nil && status == http.StatusNoContent
		})
	}
	check := func(when string, value int) {
		t.Helper()
		for i, d := range c.doors {
			for query, want := range map[string]string{
				`sum(count_over_time(m_v[1h]))`:                  fmt.Sprint(hosts * cpus * 50),
				`sum(sum_over_time(m_v{host="h7"}[1h]))`:         fmt.Sprint(cpus * 50 * value),
				`sum(sum_over_time(m_v{host=~"h7|h8"}[1h]))`:     fmt.Sprint(2 * cpus * 50 * value),
				`count(count by (host) (m_v offset 10m))`:        fmt.Sprint(hosts),
				`sum(sum_over_time(m_v{host="h7",cpu="3"}[1h]))`: fmt.Sprint(50 * value),
			} {
				c.within(processtest.Patience, when+": an answer", func() bool {
					status, text := processtest.AskAt(d, "hosts", query, from.Add(time.Hour-time.Second))
					if status == http.StatusOK && !strings.Contains(text, `"`+want+`"`) {
						t.Errorf("%s, gateway %d: %s is not %s: %s", when, i, query, want, text)
					}
					return status == http.StatusOK
				})
			}
		}
	}
	write(0, 1)
	check("after a write", 1)
	write(1, 2)
	check("after an overwrite", 2)

	asked := func(selector string) []string {
		t.Helper()
		q := url.Values{"query": {"sum(m_v" + selector + ")"}, "time": {fmt.Sprint(from.Add(49 * time.Minute).Unix())}, "explain": {"1"}}
		var servers []string
		c.within(processtest.Patience, "an explanation", func() bool {
			status, text, err := c.doors[0].Get("/t/hosts/api/v1/query?" + q.Encode())
			var answer struct {
				Data struct {
					Explain struct{ Parts []struct{ Server string } }
				}
			}
			if err != nil || status != http.StatusOK || json.Unmarshal(text, &answer) != nil {
				return false
			}
			servers = servers[:0]
			for _, p := range answer.Data.Explain.Parts {
				servers = append(servers, p.Server)
			}
			slices.Sort(servers)
			servers = slices.Compact(servers)
			return len(servers) > 0
		})
		return servers
	}
	c.atLeaders("hosts") // rows that are staged are asked for at further servers
	if all, one := asked(""), asked(`{host="h7"}`); len(all) != 3 || len(one) != 1 || one[0] == "" {
		t.Errorf("for all hosts %v were asked, for one %v", all, one)
	}

	ps := c.partitions("hosts")
	m, _ := c.view.Tables.Get("hosts")
	cut := ps[slices.IndexFunc(ps, func(p lease.Partition) bool { at, _ := m.ByID(p.ID); return at.PointLo == 0 })]
	c.command("partition", "split", "hosts", fmt.Sprint(cut.ID), "--at=ring-middle")
	c.within(3*processtest.Patience, "the rows of a cut column have moved", func() bool {
		check("while they move", 2)
		m, _ := c.view.Tables.Get("hosts")
		_, there := m.ByID(cut.ID)
		return !there
	})
	was, _ := c.waitLeader(c.partitions("hosts")[0])
	c.server(was).Kill()
	c.start(c.server(was))
	check("a leader was killed", 2)

	var b strings.Builder
	for i := range 120_000 {
		fmt.Fprintf(&b, "hot,host=h7,i=%d v=1 %d\n", i%1000, from.Add(time.Duration(i/1000)*time.Second).UnixMilli())
	}
	c.within(processtest.Patience, "a write is acked", func() bool {
		status, _, err := processtest.PutLine(c.doors[0], "hosts", b.String())
		return err == nil && status == http.StatusNoContent
	})
	c.atLeaders("hosts") // before that servers do not count them
	c.within(processtest.Patience, "doctor names the host with most rows", func() bool {
		out, _ := c.cli("doctor")
		return strings.Contains(out, "uneven columns") && strings.Contains(out, `host="h7" has `)
	})
}
