package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterPartitionsWithoutRowsAreReadWhileTheirLeaderIsAway kills and freezes the server that leads most partitions: some have rows, some had none yet. Queries are answered
// with every row, and without a warning, also over those of which no copy has anything to answer with.
func TestClusterPartitionsWithoutRowsAreReadWhileTheirLeaderIsAway(t *testing.T) {
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: []string{unmerged}})
	r := newReads(c)
	r.fill(40)
	c.within(processtest.Patience, "all rows are at their leaders", func() bool { return c.waiting() == 0 }) // rows are acked when they are staged
	c.cover("copied", r.from.Add(-12*time.Hour), time.Hour, 12)
	ps := c.partitions("copied")
	written := slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { return len(c.view.Leaders.InSync(p)) == 0 })
	at, from := strconv.FormatInt(r.from.Add(4*time.Hour).Unix(), 10), strconv.FormatInt(r.from.Add(-12*time.Hour).Unix(), 10)
	kinds := []emptyKind{
		{"with rows", "query?" + url.Values{"query": {"count_over_time(seen_v[241m])"}, "time": {at}}.Encode(), `"40"`, 3 * time.Second},
		{"with rows and without", "query?" + url.Values{"query": {"count_over_time(seen_v[17h])"}, "time": {at}}.Encode(), `"40"`, 3 * time.Second},
		{"evaluated on servers", "query_range?" + url.Values{"query": {"sum(count_over_time(seen_v[1h]))"}, "start": {from}, "end": {at}, "step": {"3600"}}.Encode(), `"10"`, 3 * time.Second},
		{"look-up", "label/__name__/values?" + url.Values{"start": {from}, "end": {at}}.Encode(), "seen_v", 3 * time.Second},
	}
	for _, freeze := range []bool{false, true} {
		what := "killed"
		if freeze {
			what = "frozen"
		}
		inTime(t, "no answer waits until another leads, leader "+what, func() bool {
			c.within(2*processtest.Patience, "all are led, those with rows with three in sync", func() bool {
				return len(c.unled(ps)) == 0 && !slices.ContainsFunc(written, func(p lease.Partition) bool { return len(c.inSync(p)) < 3 })
			})
			time.Sleep(2 * time.Second) // as in allInSync
			victim := c.server(c.leadsMost(c.emptyRows(ps)))
			before, began := r.still.sum(), time.Now()
			t.Logf("%s is %s; it leads %d of %d partitions with rows, %d of %d without", victim.Name, what, len(c.led(written, topology.ServerID(victim.Name))), len(written),
				len(c.led(c.emptyRows(ps), topology.ServerID(victim.Name))), len(ps)-len(written))
			if freeze {
				c.must(victim.Pause())
			} else {
				victim.Kill()
			}
			answers := c.ask(kinds, began, 7*time.Second)
			if freeze {
				c.must(victim.Resume())
			} else {
				c.start(victim)
			}
			slow := r.still.sum() - before
			inTime := true
			for _, k := range kinds {
				var slowest, when time.Duration
				codes := map[int]int{}
				for _, a := range answers[k.what] {
					if a.took > slowest {
						slowest, when = a.took, a.at
					}
					if codes[a.status]++; a.status != http.StatusOK && codes[a.status] == 1 || a.status == http.StatusOK && (a.warned || !strings.Contains(a.text, k.want)) {
						t.Logf("%s, asked %v after: %d %s", k.what, a.at.Round(time.Millisecond), a.status, a.text)
					}
					if a.status == http.StatusOK && !strings.Contains(a.text, k.want) {
						t.Errorf("%s: rows are missing", k.what)
					}
					inTime = inTime && !a.warned
				}
				t.Logf("%s: %v, the slowest %v, asked %v after; this machine stood still for %v", k.what, codes, slowest.Round(time.Millisecond), when.Round(time.Millisecond), slow.Round(time.Millisecond))
				inTime = inTime && codes[http.StatusOK] == len(answers[k.what]) && slowest <= k.bound+slow
			}
			return inTime
		})
	}
}

type emptyKind struct {
	what, path, want string
	bound            time.Duration
}

type emptyAnswer struct {
	at, took time.Duration
	status   int
	warned   bool
	text     string
}

// emptyRows leaves out partitions that had rows.
func (c *crowd) emptyRows(ps []lease.Partition) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { return !c.view.Leaders.HadNoRows(p) })
}

// ask asks all kinds again and again, whether or not the questions before were answered.
func (c *crowd) ask(kinds []emptyKind, began time.Time, during time.Duration) map[string][]emptyAnswer {
	var mu sync.Mutex
	all := map[string][]emptyAnswer{}
	var asked sync.WaitGroup
	for ; time.Since(began) < during; time.Sleep(250 * time.Millisecond) {
		for _, k := range kinds {
			asked.Go(func() {
				a := emptyAnswer{at: time.Since(began)}
				status, body, err := c.doors[0].Get("/t/copied/api/v1/" + k.path)
				a.took = time.Since(began) - a.at
				a.status, a.text = status, fmt.Sprintf("%.300s %v", body, err)
				var said struct{ Warnings []string }
				a.warned = json.Unmarshal(body, &said) == nil && len(said.Warnings) > 0
				mu.Lock()
				defer mu.Unlock()
				all[k.what] = append(all[k.what], a)
			})
		}
	}
	asked.Wait()
	return all
}
