package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/local"
)

// TestAClockThatJumpsDropsNothing starts a process on a host with a clock a hundred days ahead of the last trusted one:
// every partition is older than the retention, and none is dropped until a person confirms the clock.
func TestAClockThatJumpsDropsNothing(t *testing.T) {
	t.Parallel() // it waits until rows are older than the retention
	p := newProcess(t, "SPILLWAY_TABLES_RETENTION=20s", "SPILLWAY_TABLES_PARTITION_WIDTH=1s", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.start()
	now := time.Now()
	const rows = 6
	var lines strings.Builder
	for i := range rows {
		fmt.Fprintf(&lines, "old,i=a x=%d %d\n", i, now.Add(time.Duration(-i)*time.Second).UnixMilli())
	}
	if status, text := p.line(lines.String()); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.log)
	}
	moveClock(t, p, -100*24*time.Hour)
	for time.Since(now) < 25*time.Second { // until all rows are older than the retention
		time.Sleep(100 * time.Millisecond)
	}
	kept := func() int {
		return len(p.rows("old_x", "1h", now.Add(time.Second))["old_x/a"])
	}
	held := func() bool {
		_, text, err := p.get("/api/v1/status/cluster")
		return err == nil && strings.Contains(string(text), "Retention holds")
	}
	p.start()
	p.eventually("the status page says what is held", held)
	if n := kept(); n != rows {
		t.Errorf("%d rows of %d are left", n, rows)
	}
	if said := p.log.String(); strings.Contains(said, "partition dropped") || !strings.Contains(said, "--retention.confirmed") {
		t.Errorf("it said\n%s", said)
	}
	p.stop()
	p.start() // a restart is no confirmation
	p.eventually("the status page says what is held", held)
	if n := kept(); n != rows {
		t.Errorf("%d rows of %d are left after a restart", n, rows)
	}
	p.stop()
	p.env = append(p.env, "SPILLWAY_TABLES_RETENTION_CONFIRMED="+now.Add(time.Hour).UTC().Format(time.RFC3339))
	p.start()
	p.eventually("what was confirmed is dropped", func() bool { return kept() == 0 })
}

// moveClock changes the clock that a stopped process has stored.
func moveClock(t *testing.T, p *process, by time.Duration) {
	t.Helper()
	s, err := local.Open(vfs.Default, filepath.Join(p.dir, "data", "coord"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	row, ok, err := s.Get(t.Context(), clockRow)
	if err != nil || !ok {
		t.Fatalf("the clock is not remembered: %v", err)
	}
	at, err := strconv.ParseInt(string(row.Value), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: clockRow, Value: strconv.AppendInt(nil, at+int64(by), 10)}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
