package standalonetest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestAtomicRequestsAreKeptWholeOrNotAtAll sends requests with rows in two partitions, or with one bad row, by every
// protocol: a clear error names the rows, and nothing is kept. Without the header the good rows are.
func TestAtomicRequestsAreKeptWholeOrNotAtAll(t *testing.T) {
	p := processtest.New(t, "SPILLWAY_TABLES_PARTITION_WIDTH=1h")
	p.Start()
	hour := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	near, far := hour.Add(time.Minute), hour.Add(61*time.Minute)
	lines := func(times ...time.Time) string {
		b := ""
		for i, at := range times {
			b += fmt.Sprintf("m,i=%d v=%d %d\n", i, i, at.UnixNano())
		}
		return b
	}
	remote := func(times ...time.Time) string {
		var r prompb.WriteRequest
		for i, at := range times {
			r.Timeseries = append(r.Timeseries, prompb.TimeSeries{
				Labels:  []prompb.Label{{Name: "__name__", Value: "m_v"}, {Name: "i", Value: fmt.Sprint(i)}},
				Samples: []prompb.Sample{{Timestamp: at.UnixMilli(), Value: float64(i)}},
			})
		}
		return string(processtest.Packed(t, r.Marshal))
	}
	f := func(table, path string, header http.Header, body string, want int, rows int, says ...string) {
		t.Helper()
		status, text, err := p.Do(http.MethodPost, path, header, []byte(body))
		if err != nil || status != want {
			t.Errorf("%s: %d %s %v, want %d", path, status, text, err, want)
		}
		for _, s := range says {
			if !strings.Contains(string(text), s) {
				t.Errorf("%s: the answer %q has no %q", path, text, s)
			}
		}
		n := 0
		if status, text, _ := p.Get("/t/" + table + "/api/v1/query?query=sum(count_over_time(m_v[1d]))"); status == http.StatusOK {
			_, _ = fmt.Sscanf(string(text)[strings.LastIndex(string(text), `,"`)+2:], "%d", &n)
		}
		if n != rows {
			t.Errorf("%s: %d rows are kept, want %d", path, n, rows)
		}
	}
	text := func(atomic string) http.Header {
		h := http.Header{"Content-Type": {"text/plain"}}
		if atomic != "" {
			h.Set("X-Spillway-Atomic", atomic)
		}
		return h
	}
	for table, path := range map[string]string{"v1": "/write?db=v1", "v2": "/api/v2/write?bucket=v2", "v3": "/api/v3/write_lp?db=v3"} {
		f(table, path, text("true"), lines(near, near, far), http.StatusBadRequest, 0, "one partition", "number 3", `i=\"2\"`, far.UTC().Format("2006-01-02T15:04"))
		f(table, path+"&atomic=true", text(""), lines(near, far), http.StatusBadRequest, 0, "one partition")
		f(table, path, text("true"), lines(near, near)+"no line\n", http.StatusBadRequest, 0, "number 3", "kept whole or not at all")
		f(table, path, text("perhaps"), lines(near), http.StatusBadRequest, 0, "use true or false")
		f(table, path, text("true"), lines(near, near, near), http.StatusNoContent, 3)
		f(table, path, text(""), lines(near, near, near, near, far), http.StatusNoContent, 5)
	}
	header := func(atomic string) http.Header {
		return http.Header{"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Spillway-Atomic": {atomic}}
	}
	f("rw", "/t/rw/api/v1/write", header("true"), remote(near, far), http.StatusBadRequest, 0, "one partition", `i="1"`)
	f("rw", "/t/rw/api/v1/write", header("true"), remote(near, near), http.StatusNoContent, 2)
	many := strings.Builder{}
	for i := range 1<<16 + 1 {
		fmt.Fprintf(&many, "m,i=%d v=1 %d\n", i, near.UnixNano())
	}
	f("large", "/write?db=large", text("true"), many.String(), http.StatusRequestEntityTooLarge, 0, "one frame")
	f("large", "/write?db=large", text("false"), many.String(), http.StatusNoContent, 1<<16+1)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.Log)
	}
}

// TestAtomicRequestsSurviveKillsWhole kills the process while atomic requests are on their way: of each request all rows are there, or none,
// and all of those that were acked.
func TestAtomicRequestsSurviveKillsWhole(t *testing.T) {
	t.Parallel()
	const kills, rows = 3, 2000
	p := processtest.New(t, "SPILLWAY_TABLES_PARTITION_WIDTH=1h", "SPILLWAY_STORAGE_FLUSH_AGE=300ms", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	from := time.Now().Truncate(time.Hour).Add(-2 * time.Hour)
	p.Start()
	var acked []bool
	for kill := range kills {
		gone := make(chan struct{})
		go func() {
			time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
			p.Kill()
			close(gone)
		}()
		for open := true; open; {
			ms := from.UnixMilli() + int64(len(acked))
			var b strings.Builder
			for i := range rows {
				fmt.Fprintf(&b, "whole,i=%d v=1 %d\n", i, ms)
			}
			status, text, err := p.Do(http.MethodPost, "/write?db=default&precision=ms&atomic=true", nil, []byte(b.String()))
			if err == nil && status != http.StatusNoContent && status/100 != 5 {
				t.Fatalf("%d %s", status, text)
			}
			acked = append(acked, err == nil && status == http.StatusNoContent)
			select {
			case <-gone:
				open = false
			default:
			}
		}
		p.Start()
		counts := map[int64]int{}
		for _, samples := range p.Rows("whole_v", "3h", time.Now()) {
			for _, s := range samples {
				counts[s.Ms-from.UnixMilli()]++
			}
		}
		for i, ok := range acked {
			if n := counts[int64(i)]; n != rows && (ok || n != 0) {
				t.Errorf("after kill %d: of request %d (acked: %t) %d of %d rows are there", kill+1, i, ok, n, rows)
			}
		}
	}
	t.Logf("%d atomic requests, %d kills", len(acked), kills)
}
