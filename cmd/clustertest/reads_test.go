package clustertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// reads is a writer of rows of one series, a second apart, and queries that count them.
type reads struct {
	c            *crowd
	still        *standstill
	from         time.Time
	acked, begun atomic.Int64

	mu      sync.Mutex
	slowest time.Duration
	queries int
	errs    []string
	refused []string // answers of 503
}

func newReads(c *crowd) *reads {
	c.t.Helper()
	c.table("copied", time.Hour, 3)
	return &reads{c: c, still: watchStandstill(c.t), from: time.Now().Add(-6 * time.Hour).Truncate(time.Hour)}
}

// rowsMax is how many rows there may be: one every five seconds in four partitions of an hour.
const rowsMax = 4 * 720

// row is the time of a row: in four partitions by turns, which the first rows make. A partition that is made while a
// server is away has one copy less for a moment.
func (r *reads) row(i int64) time.Time {
	return r.from.Add(time.Duration(i%4)*time.Hour + time.Duration(i/4)*5*time.Second)
}

// put sends the next row until it is acked, or stop says so.
func (r *reads) put(d *processtest.Process, stop func() bool) {
	i := r.begun.Add(1) - 1
	line := fmt.Sprintf("seen v=1 %d", r.row(i).UnixMilli())
	for !stop() {
		if status, _, err := processtest.PutLine(d, "copied", line); err == nil && status == http.StatusNoContent {
			r.acked.Add(1)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *reads) fill(n int) {
	r.c.t.Helper()
	end := time.Now().Add(processtest.Patience)
	for range n {
		if r.put(r.c.doors[0], func() bool { return time.Now().After(end) }); r.acked.Load() != r.begun.Load() {
			r.c.t.Fatalf("%d of %d rows are acked", r.acked.Load(), r.begun.Load())
		}
	}
}

// count asks how many rows there are; warnings are those of the answer.
func (r *reads) count(d *processtest.Process, params string) (status, rows int, warnings []string, took time.Duration, text string) {
	q := url.Values{"query": {"count_over_time(seen_v[5h])"}, "time": {strconv.FormatInt(r.from.Add(4*time.Hour).Unix(), 10)}}
	began := time.Now()
	status, body, err := d.Get("/t/copied/api/v1/query?" + q.Encode() + params)
	took = time.Since(began)
	if err != nil {
		return 0, 0, nil, took, err.Error()
	}
	var answer struct {
		Warnings []string
		Data     struct{ Result []struct{ Value [2]any } }
	}
	if json.Unmarshal(body, &answer) == nil && len(answer.Data.Result) > 0 {
		text, _ := answer.Data.Result[0].Value[1].(string)
		rows, _ = strconv.Atoi(text)
	}
	return status, rows, answer.Warnings, took, fmt.Sprintf("%.300s", body)
}

// loop asks again and again: each answer must have every row that was acked before the question, and no other than those begun.
func (r *reads) loop(d *processtest.Process, params string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		least := r.acked.Load()
		status, rows, warnings, took, text := r.count(d, params)
		r.mu.Lock()
		r.queries++
		r.slowest = max(r.slowest, took)
		if status == http.StatusServiceUnavailable {
			r.refused = append(r.refused, text)
		} else if most := r.begun.Load(); status != http.StatusOK || int64(rows) < least || int64(rows) > most || len(warnings) > 0 {
			r.errs = append(r.errs, fmt.Sprintf("%d with %d rows after %v, %d to %d are right: %s", status, rows, took.Round(time.Millisecond), least, most, text))
		}
		r.mu.Unlock()
	}
}

// during runs a reader at each gateway, and a writer, while f does harm. It reports whether no query was refused, and none waited until another server leads.
func (r *reads) during(what string, f func()) (inTime bool) {
	r.c.t.Helper()
	r.slowest, r.queries, r.refused = 0, 0, nil
	before := r.still.sum()
	stop := make(chan struct{})
	var g sync.WaitGroup
	for _, d := range r.c.doors {
		g.Go(func() { r.loop(d, "", stop) })
	}
	over := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	g.Go(func() {
		for !over() && r.begun.Load() < rowsMax {
			r.put(r.c.doors[len(r.c.doors)-1], func() bool { return false })
			time.Sleep(50 * time.Millisecond)
		}
	})
	r.c.within(processtest.Patience, "every gateway answers", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.queries >= 2*len(r.c.doors) })
	f()
	close(stop)
	g.Wait()
	for _, e := range r.errs {
		r.c.t.Errorf("%s: %s", what, e)
	}
	r.errs = nil
	still := r.still.sum() - before
	r.c.t.Logf("%s: %d answers, all complete; the slowest took %v; %d rows are acked", what, r.queries, r.slowest.Round(time.Millisecond), r.acked.Load())
	if len(r.refused) > 0 { // as where a second server stands still
		r.c.t.Logf("%s: %d queries were refused; the first: %.300s", what, len(r.refused), r.refused[0])
	}
	return len(r.refused) == 0 && r.slowest <= 3*time.Second+still
}

// allInSync waits until all three servers are listed, and for a moment: until their leaders have answered them as listed, after a restart.
func (r *reads) allInSync() {
	r.c.t.Helper()
	defer time.Sleep(2 * time.Second) // nothing that can be read shows those answers
	r.c.within(2*processtest.Patience, "all three are in sync", func() bool {
		for _, p := range r.c.partitions("copied") {
			if leader, _ := r.c.leader(p); leader == "" || len(r.c.inSync(p)) < 3 {
				return false
			}
		}
		return true
	})
}

// TestClusterCopiesAreReadWhileTheirLeaderIsAway kills and freezes the server that leads most partitions while queries run and rows are
// written: each query is answered with every row acked before it, without waiting until another server leads.
func TestClusterCopiesAreReadWhileTheirLeaderIsAway(t *testing.T) {
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	r := newReads(c)
	r.fill(200)
	for round := range 2 {
		for _, freeze := range []bool{false, true} {
			what := "killed"
			if freeze {
				what = "frozen"
			}
			inTime(t, "no answer waits until another leads, leader "+what, func() bool {
				r.allInSync()
				victim := c.server(c.leadsMost(c.partitions("copied")))
				return r.during(fmt.Sprintf("round %d, %s %s", round+1, victim.Name, what), func() {
					if !freeze {
						victim.Kill()
						time.Sleep(6 * time.Second)
						c.start(victim)
						return
					}
					c.must(victim.Pause())
					time.Sleep(6 * time.Second)
					c.must(victim.Resume())
					time.Sleep(500 * time.Millisecond)
				})
			})
		}
	}
	for i, d := range c.doors {
		t.Logf("gateway %d: %v hedges, %v merged answers", i, processtest.Metric(t, d.Addr, "spillway_fanout_hedges_total"), processtest.Metric(t, d.Addr, "spillway_fanout_merged_answers_total"))
	}
}

// TestClusterCopiesNeverAnswerWithLessThanWasAcked: a follower is cut off, rows are acked without it, then the two others are cut off: what it has
// is no answer. When one of the others is back, both together are.
func TestClusterCopiesNeverAnswerWithLessThanWasAcked(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	r := newReads(c)
	r.fill(100)
	r.allInSync()
	ps := c.partitions("copied")
	late := c.Storage[rand.IntN(3)]
	t.Logf("%s is cut off first", late.Name)
	c.must(late.Pause())
	c.within(processtest.Patience, "it is unlisted", func() bool { return unlisted(c, ps, late) })
	r.fill(50)
	others := []*processes.Process{}
	for _, s := range c.Storage {
		if s != late {
			others = append(others, s)
			c.must(s.Pause())
		}
	}
	c.must(late.Resume())
	for range 3 { // it answers with its rows only to a request that allows less, which says so
		for _, d := range c.doors {
			if status, rows, _, _, text := r.count(d, ""); status == http.StatusOK && rows < 150 {
				t.Fatalf("%d rows without a warning, 150 are acked: %s", rows, text)
			}
		}
	}
	status, rows, warnings, _, text := r.count(c.doors[0], "&partial_response=true")
	if status != http.StatusOK || rows != 150 && len(warnings) == 0 {
		t.Errorf("in part: %d with %d rows, warned of %q: %s", status, rows, warnings, text)
	}
	t.Logf("in part: %d rows, warned of %q", rows, warnings)
	c.must(others[0].Resume())
	began := time.Now()
	c.within(processtest.Patience, "two of three answer", func() bool {
		status, rows, _, _, _ := r.count(c.doors[0], "")
		if status == http.StatusOK && rows != 150 {
			t.Fatalf("%d rows, 150 are acked", rows)
		}
		return status == http.StatusOK
	})
	t.Logf("complete %v after the second was back", time.Since(began).Round(time.Millisecond))
	c.must(others[1].Resume())
	r.allInSync()
	for _, d := range c.doors {
		c.within(processtest.Patience, "the leaders answer", func() bool {
			status, rows, _, _, text := r.count(d, "&consistency=leader")
			if status != http.StatusServiceUnavailable && (status != http.StatusOK || rows != 150) {
				t.Fatalf("at the leaders: %d with %d rows: %s", status, rows, text)
			}
			return status == http.StatusOK
		})
	}
}

func unlisted(c *crowd, ps []lease.Partition, s *processes.Process) bool {
	for _, p := range ps {
		for _, in := range c.inSync(p) {
			if string(in) == s.Name {
				return false
			}
		}
	}
	return true
}
