package process

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// TestNoShortAnswersFromASegmentThatRots: under a running server one bit of a segment flips. The scrub finds it without a
// query's help, and reports it in the log, the metrics and the status page. From then on queries of the partition get an
// error that names the file, while rows are accepted and other partitions read. A restart changes nothing of that. With the
// file restored every acked row is there, those written meanwhile too.
func TestNoShortAnswersFromASegmentThatRots(t *testing.T) {
	p := processtest.New(t, "SPILLWAY_STORAGE_FLUSH_AGE=100ms", "SPILLWAY_STORAGE_FLUSH_IDLE=100ms", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1",
		"SPILLWAY_STORAGE_SCRUB_PERIOD=200ms", "SPILLWAY_STORAGE_SCRUB_BYTES_PER_SECOND=100MiB")
	p.Start()
	const from, day = 1_700_000_000 / 86400 * 86400, 86400
	write := func(at int) {
		t.Helper()
		status, text, err := p.Do(http.MethodPost, "/write?precision=s&db=default", nil, fmt.Appendf(nil, "cpu,i=a usage=%d %d\n", at, at))
		if err != nil || status != http.StatusNoContent {
			t.Fatalf("%d %s %v\n%s", status, text, err, &p.Log)
		}
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: %s\n%s", what, &p.Log)
			}
		}
	}
	metric := func(line string) bool {
		_, text, err := p.Get("/metrics")
		return err == nil && strings.Contains(string(text), "\n"+line+"\n")
	}
	query := func(at int) (int, string) {
		status, text, err := p.Get(fmt.Sprintf("/api/v1/query?query=cpu_usage[86390s]&time=%d", at))
		if err != nil {
			t.Fatal(err)
		}
		return status, string(text)
	}
	write(from + 10)
	var files []string
	until("a flush", func() bool {
		files, _ = filepath.Glob(filepath.Join(p.Dir, "data", "segments", "*", "*.seg"))
		return len(files) == 1
	})
	write(from + day + 10)
	until("a scrub of both segments", func() bool {
		all, _ := filepath.Glob(filepath.Join(p.Dir, "data", "segments", "*", "*.seg"))
		return len(all) == 2 && !metric("spillway_server_scrub_passes_total 0")
	})
	if !metric("spillway_server_scrub_damaged_segments_total 0") {
		t.Error("a whole segment is damaged")
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	rotten := append([]byte(nil), whole...)
	rotten[len(rotten)/3] ^= 16
	if err := processtest.Overwrite(files[0], rotten); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		until("the damage is found", func() bool { return metric("spillway_server_damaged_partitions 1") })
		if status, text := query(from + day - 1); status != http.StatusInternalServerError || !strings.Contains(text, files[0]) || !strings.Contains(text, "restore") {
			t.Errorf("a query of it: %d %s", status, text)
		}
		if status, text := query(from + 2*day - 1); status != http.StatusOK || !strings.Contains(text, fmt.Sprint(from+day+10)) {
			t.Errorf("a query of the other: %d %s", status, text)
		}
		_, text, err := p.Get(ui.Path)
		var s struct{ Data ui.Status }
		if err != nil || json.Unmarshal(text, &s) != nil || len(s.Data.Problems) != 1 || !strings.Contains(s.Data.Problems[0], files[0]) || s.Data.Servers[0].Scrub == nil {
			t.Errorf("the status page: %s", text)
		}
	}
	refused()
	write(from + 20)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.Log)
	}
	p.Start()
	refused()
	p.Stop()
	if err := processtest.Overwrite(files[0], whole); err != nil {
		t.Fatal(err)
	}
	p.Start()
	if got := p.Rows("cpu_usage", "10d", time.Unix(from+3*day, 0))["cpu_usage/a"]; len(got) != 3 {
		t.Errorf("restored: %v, want 3 rows", got)
	}
	passes := func() bool { return !metric("spillway_server_scrub_passes_total 0") }
	until("a pass over whole segments", passes)
	if !metric("spillway_server_damaged_partitions 0") {
		t.Error("a restored segment is damaged")
	}
}
