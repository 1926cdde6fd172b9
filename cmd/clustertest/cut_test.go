package clustertest

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestClusterPartitionsAreCutAmidTheirRows: a partition with three copies of its rows is cut in the middle of them, by time, and then one half by ring.
// Through every gateway each row is found once and with the value acked last, and no deleted row: after each cut, after rows on both sides of the
// cut were written again, after a deletion, while the server that led the parent is dead, and when it is back.
func TestClusterPartitionsAreCutAmidTheirRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_API_ADMIN=true"))
	c.table("cut", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	parent := c.cover("cut", from, time.Hour, 1)[0]
	w := &cutRows{crowd: c, from: from, series: 32, written: map[string]map[int64]float64{}}
	w.write(1, 0, 60)
	c.within(2*processtest.Patience, "three copies have all rows", c.listed(parent, 3))
	w.check("before the cut")

	was, _ := c.waitLeader(parent)
	low, high := w.cut(parent, "time-middle")
	w.check("after the cut by time")
	w.write(2, 15, 45)
	w.check("rows on both sides were written again")
	w.cut(high, "ring-middle")
	w.check("after the cut by ring")
	w.write(3, 40, 60)
	w.erase(7)
	w.check("a series was deleted")

	c.server(was).Kill()
	w.check("the parent's leader is dead")
	w.write(4, 20, 50)
	w.check("rows were written without it")
	c.start(c.server(was))
	c.within(2*processtest.Patience, "three copies of the lower half have all rows", c.listed(low, 3))
	w.check("it is back")
}

// cutRows are the rows of some series, one a minute, by the value acked last. Two goroutines may write and delete at a time, each other series.
type cutRows struct {
	*crowd
	from    time.Time
	series  int
	mu      sync.Mutex
	written map[string]map[int64]float64
}

// write writes the rows of minutes lo to hi of all series with a value.
func (w *cutRows) write(value float64, lo, hi int) {
	w.t.Helper()
	all := make([]int, w.series)
	for s := range all {
		all[s] = s
	}
	w.writeTo(all, value, lo, hi)
}

// writeTo writes the rows of minutes lo to hi of some series with a value.
func (w *cutRows) writeTo(series []int, value float64, lo, hi int) {
	w.t.Helper()
	for minute := lo; minute < hi; minute++ {
		var b strings.Builder
		ms := w.from.Add(time.Duration(minute) * time.Minute).UnixMilli()
		for _, s := range series {
			fmt.Fprintf(&b, "m,i=%d v=%v %d\n", s, value, ms)
		}
		w.within(processtest.Patience, "a write is acked", func() bool {
			status, _, err := processtest.PutLine(w.doors[minute%len(w.doors)], "cut", b.String())
			return err == nil && status == http.StatusNoContent
		})
		w.mu.Lock()
		for _, s := range series {
			name := fmt.Sprintf("m_v/%d", s)
			if w.written[name] == nil {
				w.written[name] = map[int64]float64{}
			}
			w.written[name][ms] = value
		}
		w.mu.Unlock()
	}
}

// erase deletes a series, of all times.
func (w *cutRows) erase(series int) {
	w.t.Helper()
	w.within(processtest.Patience, "a deletion is acked", func() bool {
		answer, err := http.PostForm("http://"+w.doors[0].Addr+"/t/cut/api/v1/admin/tsdb/delete_series", url.Values{"match[]": {fmt.Sprintf(`m_v{i="%d"}`, series)}})
		w.must(err)
		_, err = io.Copy(io.Discard, answer.Body)
		w.must(err)
		w.must(answer.Body.Close())
		return answer.StatusCode/100 == 2
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, fmt.Sprintf("m_v/%d", series))
}

// cut has a command cut a partition, and returns its halves when they accept the rows. A partition without rows, or whose rows have all
// moved by then, has left the map: its halves are the new ones in its place.
func (w *cutRows) cut(p lease.Partition, at string) (low, high lease.Partition) {
	w.t.Helper()
	before, _ := w.view.Tables.Get(p.Table)
	was, ok := before.ByID(p.ID)
	if !ok {
		w.t.Fatalf("%v is not in the map, and cannot be split", p)
	}
	live := func() bool {
		m, _ := w.view.Tables.Get(p.Table)
		part, ok := m.ByID(p.ID)
		return ok && part.State == topology.Live
	}
	w.within(processtest.Patience, fmt.Sprintf("a split of %v is accepted", p), func() bool {
		out, err := w.try("partition", "split", p.Table, fmt.Sprint(p.ID), "--at", at)
		if err != nil && !late(out) && live() {
			w.t.Fatalf("split of %v: %v %s", p, err, out)
		}
		return err == nil || !live() // it may have begun though the command had no answer
	})
	var into []point.PartitionID
	w.within(2*processtest.Patience, "the halves take rows", func() bool {
		into = into[:0]
		m, _ := w.view.Tables.Get(p.Table)
		if part, ok := m.ByID(p.ID); ok {
			if part.State == topology.Unload {
				into = part.Into
			}
			return len(into) == 2
		}
		for q := range m.All() {
			if _, old := before.ByID(q.ID); !old && was.Contains(q.PointLo, q.TimeLo) {
				into = append(into, q.ID)
			}
		}
		return len(into) == 2
	})
	return lease.Partition{Table: p.Table, ID: into[0]}, lease.Partition{Table: p.Table, ID: into[1]}
}

// check compares the rows found by each gateway with those acked. An answer may fail while a leader changes, but never be wrong.
func (w *cutRows) check(when string) {
	w.t.Helper()
	for i, d := range w.doors {
		var got map[string][]processtest.Sample
		w.within(processtest.Patience, when+": an answer", func() bool {
			status, text := processtest.AskAt(d, "cut", "m_v[1h]", w.from.Add(time.Hour-time.Second))
			if status == http.StatusOK {
				got = processtest.SamplesOf(w.t, []byte(text))
			}
			return status == http.StatusOK
		})
		if len(got) != len(w.written) {
			w.t.Errorf("%s, gateway %d: %d series, %d were acked", when, i, len(got), len(w.written))
		}
		for name, want := range w.written {
			wrong := slices.ContainsFunc(got[name], func(s processtest.Sample) bool { return want[s.Ms] != s.Value })
			if wrong || len(got[name]) != len(want) {
				w.t.Errorf("%s, gateway %d: series %s has %v, acked were %v", when, i, name, got[name], want)
				break
			}
		}
	}
}
