package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterDeletedRowsStayHiddenThoughTheyWait: most rows of a smeared table wait when a series is deleted. With a server away the deletion is refused. Once it is acked, both
// gateways find no row of the series and all rows of the others: at once, after all storage servers were killed, and when the rows that waited are in their
// partitions. Rows written later are found.
func TestClusterDeletedRowsStayHiddenThoughTheyWait(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_API_ADMIN=true"}})
	c.table("narrow", 10*time.Second, 3)
	c.command("table", "set", "narrow", "--smear=60s")
	w := &deletions{c: c, series: 16}
	w.write(30)
	if n := c.waiting(); n == 0 {
		t.Fatal("no row waits: the test shows nothing")
	}
	w.check("rows wait")

	c.Storage[0].Kill()
	status, text := w.erase(1)
	t.Logf("a deletion while %s is away: %d %.300s", c.Storage[0].Name, status, text)
	if status != http.StatusServiceUnavailable {
		t.Errorf("a server with staged rows is away, and a deletion is answered %d %s", status, text)
	}
	c.start(c.Storage[0])
	c.within(processtest.Patience, "a deletion is acked", func() bool { status, text = w.erase(1); return status/100 == 2 })
	w.gone(1)
	w.check("after the deletion")
	t.Logf("%v rows wait, and series 1 is deleted; all storage servers are killed", c.waiting())
	for _, p := range c.Storage {
		p.Kill()
	}
	c.start(c.Storage...)
	if c.waiting() == 0 && time.Since(w.began) < time.Minute { // none waits longer
		t.Error("no row waits after the kill: the test shows nothing")
	}
	w.check("after the kill")

	w.write(5) // of the deleted series too
	w.check("rows were written again")
	began := time.Now()
	c.within(processtest.Patience, "a deletion is acked", func() bool { status, text = w.erase(2); return status/100 == 2 })
	for _, p := range c.Storage { // in the moment of its ack
		p.Kill()
	}
	t.Logf("the deletion of series 2 was acked within %v", time.Since(began).Round(time.Millisecond))
	w.gone(2)
	c.start(c.Storage...)
	w.check("killed at the ack")
	c.within(3*processtest.Patience, "nothing waits", func() bool { return c.waiting() == 0 })
	w.check("all rows are in their partitions")
}

// deletions are the rows of some series, and those that deletions left.
type deletions struct {
	c       *crowd
	series  int
	written int   // times, of each series
	from    []int // the first row that was not deleted, by series
	began   time.Time
}

// write writes rows of all series, ten times a second, through the gateways in turn.
func (w *deletions) write(n int) {
	w.c.t.Helper()
	if w.began.IsZero() {
		w.began, w.from = time.Now(), make([]int, w.series)
	}
	for range n {
		var b strings.Builder
		at := time.Now().UnixMilli()
		for s := range w.series {
			fmt.Fprintf(&b, "flow,s=%d v=%d %d\n", s, w.written, at)
		}
		w.c.within(processtest.Patience, "a write is acked", func() bool {
			status, _, err := processtest.PutLine(w.c.doors[w.written%len(w.c.doors)], "narrow", b.String())
			return err == nil && status == http.StatusNoContent
		})
		w.written++
		time.Sleep(100 * time.Millisecond)
	}
}

// erase deletes one series, of all times.
func (w *deletions) erase(series int) (status int, text string) {
	w.c.t.Helper()
	answer, err := http.PostForm("http://"+w.c.doors[0].Addr+"/t/narrow/api/v1/admin/tsdb/delete_series", url.Values{"match[]": {fmt.Sprintf(`flow_v{s="%d"}`, series)}})
	w.c.must(err)
	b, err := io.ReadAll(answer.Body)
	w.c.must(err)
	w.c.must(answer.Body.Close())
	return answer.StatusCode, string(b)
}

func (w *deletions) gone(series int) { w.from[series] = w.written }

// check counts the rows of each series through every gateway. A row that was deleted is never found; the others may be missing with an error or a warning while servers
// come back.
func (w *deletions) check(when string) {
	w.c.t.Helper()
	for i := range w.c.doors {
		last := ""
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(50 * time.Millisecond) {
			got, text := w.count(i)
			whole := got != nil
			for s := range w.series {
				want := w.written - w.from[s]
				whole = whole && got[s] == want
				if got != nil && got[s] > want {
					w.c.t.Fatalf("%s, gateway %d: %d rows of series %d, %d were written since its deletion", when, i, got[s], s, want)
				}
			}
			if whole {
				break
			}
			if last = text; time.Now().After(end) {
				w.c.t.Fatalf("%s, gateway %d: rows are missing: %.600s", when, i, last)
			}
		}
	}
}

// count returns the rows found by series; nil: there is no answer.
func (w *deletions) count(i int) (map[int]int, string) {
	now := time.Now().Add(time.Second)
	query := fmt.Sprintf("count_over_time(flow_v[%ds])", int(now.Sub(w.began).Seconds())+5)
	q := url.Values{"query": {query}, "time": {fmt.Sprint(now.Unix())}}
	status, body, err := w.c.doors[i].Get("/t/narrow/api/v1/query?" + q.Encode())
	var a struct {
		Data struct {
			Result []struct {
				Metric struct {
					S int `json:"s,string"`
				}
				Value [2]any
			}
		}
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &a) != nil {
		return nil, fmt.Sprintf("%d %s %v", status, body, err)
	}
	found := map[int]int{}
	for _, r := range a.Data.Result {
		var n int
		if _, err := fmt.Sscan(fmt.Sprint(r.Value[1]), &n); err != nil {
			return nil, err.Error()
		}
		found[r.Metric.S] = n
	}
	return found, string(body)
}
