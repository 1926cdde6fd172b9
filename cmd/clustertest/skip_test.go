package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterReadersMaySkipStagedRows: rows wait for up to half a minute. A query that skips them lacks some, and has the watermark: before it the answer is the same as that of a
// query that reads them. Look-ups skip them too.
func TestClusterReadersMaySkipStagedRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("narrow", 10*time.Second, 1)
	c.command("table", "set", "narrow", "--smear=30s")
	l := c.flow("narrow", 160)
	defer l.stop()
	const until = 20 * time.Second
	time.Sleep(until) // some rows have left, others have not
	l.stop()
	var mark time.Time
	var all, skipped skimmed
	c.within(processtest.Patience, "an answer has a watermark", func() bool {
		all, skipped = l.read(0, time.Now().Add(time.Second), ""), l.read(1, time.Now().Add(time.Second), "&staged=skip")
		if all.rows != l.acked.Load() || len(all.Warnings) > 0 || skipped.rows >= all.rows {
			return false
		}
		mark = watermark(skipped.Warnings)
		return !mark.IsZero() && mark.After(l.from.Add(time.Second))
	})
	t.Logf("%d rows were acked, %d are read with those that wait, %d without them, with %q", l.acked.Load(), all.rows, skipped.rows, skipped.Warnings)
	before := mark.Add(-time.Millisecond)
	c.within(processtest.Patience, "rows before the watermark are answered", func() bool { // 503 is no answer yet
		all, skipped = l.read(0, before, ""), l.read(1, before, "&staged=skip")
		return all.rows >= 0 && skipped.rows >= 0
	})
	t.Logf("before the watermark, %v: %d rows are read with those that wait, %d without them, with %q", mark, all.rows, skipped.rows, skipped.Warnings)
	if all.rows == 0 || all.rows != skipped.rows || len(skipped.Warnings) > 0 {
		t.Error("before the watermark nothing is left out")
	}
	c.within(processtest.Patience, "labels have a watermark", func() bool {
		l.request(0) // the rows of before may have left
		status, body, err := c.doors[0].Get("/t/narrow/api/v1/labels?staged=skip")
		if err != nil || status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Fatalf("labels: %d %s %v", status, body, err)
		}
		return status == http.StatusOK && !watermark(warningsOf(body)).IsZero()
	})
	l.check()
}

type skimmed struct {
	Warnings []string
	rows     int64
}

// read counts the rows up to a time.
func (l *flow) read(door int, until time.Time, params string) (s skimmed) {
	q := url.Values{"query": {fmt.Sprintf("sum(count_over_time(flow_v[%ds]))", int(until.Sub(l.from).Seconds())+5)}, "time": {strconv.FormatFloat(float64(until.UnixMilli())/1000, 'f', 3, 64)}}
	status, body, err := l.c.doors[door].Get("/t/" + l.table + "/api/v1/query?" + q.Encode() + params)
	var a struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &a) != nil {
		l.c.t.Logf("%d %s %v", status, body, err)
		return skimmed{rows: -1}
	}
	if len(a.Data.Result) > 0 {
		s.rows, _ = strconv.ParseInt(fmt.Sprint(a.Data.Result[0].Value[1]), 10, 64)
	}
	s.Warnings = warningsOf(body)
	return s
}

func warningsOf(body []byte) []string {
	var a struct{ Warnings []string }
	_ = json.Unmarshal(body, &a)
	return a.Warnings
}

var timesBefore = regexp.MustCompile(`those of times before (\S+Z), are in the answer`)

// watermark is the time before which no row is left out; zero: no warning has it.
func watermark(warnings []string) (t time.Time) {
	if i := slices.IndexFunc(warnings, timesBefore.MatchString); i >= 0 {
		t, _ = time.Parse(time.RFC3339Nano, timesBefore.FindStringSubmatch(warnings[i])[1])
	}
	return t
}
