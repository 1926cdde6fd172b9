package process

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/local"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAClockThatJumpsDropsNothing starts a process on a host with a clock a hundred days ahead of the last trusted one:
// every partition is older than the retention, and none is dropped until a person confirms the clock.
func TestAClockThatJumpsDropsNothing(t *testing.T) {
	t.Parallel() // it waits until rows are older than the retention
	p := processtest.New(t, "SPILLWAY_TABLES_RETENTION=20s", "SPILLWAY_TABLES_PARTITION_WIDTH=1s", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	now := time.Now()
	const rows = 6
	var lines strings.Builder
	for i := range rows {
		fmt.Fprintf(&lines, "old,i=a x=%d %d\n", i, now.Add(time.Duration(-i)*time.Second).UnixMilli())
	}
	if status, text := p.Line(lines.String()); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.Log)
	}
	moveClock(t, p, -100*24*time.Hour)
	for time.Since(now) < 25*time.Second { // until all rows are older than the retention
		time.Sleep(100 * time.Millisecond)
	}
	kept := func() int {
		return len(p.Rows("old_x", "1h", now.Add(time.Second))["old_x/a"])
	}
	held := func() bool {
		_, text, err := p.Get("/api/v1/status/cluster")
		return err == nil && strings.Contains(string(text), "Retention holds")
	}
	p.Start()
	p.Eventually("the status page says what is held", held)
	if n := kept(); n != rows {
		t.Errorf("%d rows of %d are left", n, rows)
	}
	if said := p.Log.String(); strings.Contains(said, "partition dropped") || !strings.Contains(said, "--retention.confirmed") {
		t.Errorf("it said\n%s", said)
	}
	p.Stop()
	p.Start() // a restart is no confirmation
	p.Eventually("the status page says what is held", held)
	if n := kept(); n != rows {
		t.Errorf("%d rows of %d are left after a restart", n, rows)
	}
	p.Stop()
	p.Env = append(p.Env, "SPILLWAY_TABLES_RETENTION_CONFIRMED="+now.Add(time.Hour).UTC().Format(time.RFC3339))
	p.Start()
	p.Eventually("what was confirmed is dropped", func() bool { return kept() == 0 })
}

// TestRightRowsAreKeptByAProcessWhoseClockWasSetBack starts a process whose clock is three hours behind where it was last seen, as after a boot with the
// clock of another zone. Rows with the right time were refused as too far ahead, and senders drop rows that are refused with 400; after the second start they were again.
func TestRightRowsAreKeptByAProcessWhoseClockWasSetBack(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	p.Stop()
	right := time.Now().Add(3 * time.Hour)
	changeClock(t, p, func(point.Nanos) point.Nanos { return right.UnixNano() })
	for start := range 3 {
		p.Start()
		if status, text := p.Line(fmt.Sprintf("x,i=%d v=2 %d", start, right.Add(time.Hour).UnixMilli())); status != http.StatusNoContent {
			t.Errorf("start %d: a row of now, after an hour off: %d %s", start, status, text)
		}
		if status, text := p.Line(fmt.Sprintf("x v=3 %d", right.Add(8*24*time.Hour).UnixMilli())); status != http.StatusBadRequest {
			t.Errorf("start %d: a row of a week ahead: %d %s", start, status, text)
		}
		if _, text, err := p.Get("/api/v1/status/cluster"); err != nil || !strings.Contains(string(text), "before where it was last seen") {
			t.Errorf("start %d: the page says %s, %v", start, text, err)
		}
		p.Eventually("the metric says so", func() bool {
			_, text, err := p.Get("/metrics")
			return err == nil && strings.Contains(string(text), "\nspillway_clock_wrong 1\n")
		})
		p.Stop()
	}
	stored := point.Nanos(0)
	changeClock(t, p, func(at point.Nanos) point.Nanos { stored = at; return at })
	if stored < right.UnixNano() {
		t.Errorf("%v is remembered, want %v or later", time.Unix(0, stored), right)
	}
}

// moveClock moves the clock that a stopped process has stored.
func moveClock(t *testing.T, p *processtest.Process, by time.Duration) {
	t.Helper()
	changeClock(t, p, func(at point.Nanos) point.Nanos {
		if at == 0 {
			t.Fatal("the clock is not remembered")
		}
		return at + int64(by)
	})
}

// changeClock changes the clock that a stopped process has stored; 0: it has not stored any.
func changeClock(t *testing.T, p *processtest.Process, change func(point.Nanos) point.Nanos) {
	t.Helper()
	s, err := local.Open(vfs.Default, filepath.Join(p.Dir, "data", "coord"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	row, ok, err := s.Get(t.Context(), clockRow)
	if err != nil {
		t.Fatal(err)
	}
	at := point.Nanos(0)
	if ok {
		if at, err = strconv.ParseInt(string(row.Value), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: clockRow, Value: strconv.AppendInt(nil, change(at), 10)}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestARetentionOfTheStartNamesTheTablesThatKeepTheirs: a start with --retention=7d looked as if all tables kept their
// rows that long; one of them was named.
func TestARetentionOfTheStartNamesTheTablesThatKeepTheirs(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	const warning = "the retention that is set is that of new tables"
	p.Start()
	for _, q := range []string{"CREATE DATABASE hosts WITH DURATION 30d", "CREATE DATABASE week WITH DURATION 7d", "CREATE DATABASE kept"} {
		if status, text, err := p.Get("/query?q=" + url.QueryEscape(q)); err != nil || status != http.StatusOK || strings.Contains(string(text), "error") {
			t.Fatalf("%s: %d %s %v", q, status, text, err)
		}
	}
	file := filepath.Join(p.Dir, "spillway.yaml")
	if err := os.WriteFile(file, []byte("tables: {retention: 30d}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, start := range []struct {
		flag, tables, command string
	}{
		{"", "", ""}, // none is set
		{"--retention=7d", "default (for ever), hosts (30d), kept (for ever)", "spillway table set default --retention=1w"},
		{"--retention=0", "hosts (30d), week (1w)", "spillway table set hosts --retention=0s"},
		{"--config.file=" + file, "default (for ever), kept (for ever), week (1w)", "spillway table set default --retention=30d"},
	} {
		p.Stop()
		p.More = nil
		if start.flag != "" {
			p.More = []string{start.flag}
		}
		p.Start()
		said := p.Log.String()
		if start.tables == "" {
			if strings.Contains(said, warning) {
				t.Errorf("no retention is set, and it said\n%s", said)
			}
			continue
		}
		if strings.Count(said, warning) != 1 || !strings.Contains(said, fmt.Sprintf("tables=%q command=%q", start.tables, start.command)) {
			t.Errorf("%s: %q and %q are missing in\n%s", start.flag, start.tables, start.command, said)
		}
	}
}

// TestADatabaseForHoursForgetsItsRows: it was refused, since its partitions were to be a day wide, and the first write made it with rows that stay for ever.
func TestADatabaseForHoursForgetsItsRows(t *testing.T) {
	p := open(t)
	for _, q := range []string{"CREATE DATABASE hours WITH DURATION 6h", "CREATE DATABASE month WITH DURATION 30d"} {
		if code, text := p.do(t, http.MethodPost, "/query?q="+url.QueryEscape(q), ""); code != http.StatusOK || strings.Contains(text, "error") {
			t.Errorf("%s: %d %s", q, code, text)
		}
	}
	if code, text := p.do(t, http.MethodPost, "/api/v2/buckets", `{"name":"hour","retentionRules":[{"type":"expire","everySeconds":3600}]}`); code != http.StatusCreated {
		t.Errorf("the bucket: %d %s", code, text)
	}
	for name, want := range map[string]struct{ retention, width time.Duration }{
		"hours": {6 * time.Hour, 6 * time.Hour},
		"hour":  {time.Hour, time.Hour},
		"month": {30 * 24 * time.Hour, 24 * time.Hour},
	} {
		if m, ok := p.tables.Get(name); !ok || m.Config.Retention != want.retention || m.Config.PartitionWidth != want.width {
			t.Errorf("table %s is there: %t, with %+v, want %v", name, ok, m, want)
		}
	}
}
