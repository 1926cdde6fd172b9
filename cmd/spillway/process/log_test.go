package process

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

func TestLinesAreCountedAlsoWhenTheLevelHidesThem(t *testing.T) {
	var out bytes.Buffer
	r := prometheus.NewRegistry()
	log := newLog(&out, "logfmt", slog.LevelWarn, r)
	log.Info("table created", "table", "a")
	log.With("table", "b").Info("table created")
	log.WithGroup("g").Warn("disk is slow", "ms", 3)
	log.Debug("nobody looks")
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="disk is slow" g.ms=3`) {
		t.Errorf("printed %q", got)
	}
	want := `# HELP spillway_log_messages_total Lines logged, by level and message, also those that the level hides.
# TYPE spillway_log_messages_total counter
spillway_log_messages_total{event="disk is slow",level="warn"} 1
spillway_log_messages_total{event="table created",level="info"} 2
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// TestClientsMakeNoMetricsOfTheirAddresses: net/http's lines at log_level debug became a series each, as many as bad connections came.
func TestClientsMakeNoMetricsOfTheirAddresses(t *testing.T) {
	var out bytes.Buffer
	r := prometheus.NewRegistry()
	web := slog.NewLogLogger(newLog(&out, "logfmt", slog.LevelDebug, r).Handler(), slog.LevelDebug)
	for _, addr := range []string{"192.0.2.1:1000", "192.0.2.1:1001"} {
		web.Printf("http2: server: error reading preface from client %s: bogus greeting", addr)
	}
	if n, err := testutil.GatherAndCount(r); err != nil || n != 0 || strings.Count(out.String(), "bogus") != 2 {
		t.Errorf("%d series, %v, and the log:\n%s", n, err, &out)
	}
}

// TestEveryLineOfAJSONLogIsJSON, from the start of a process to its end: what reads logs refused the lines that were for people.
func TestEveryLineOfAJSONLogIsJSON(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_LOG_FORMAT=json", "SPILLWAY_LOG_LEVEL=debug", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	if status, text, err := p.Do("POST", "/write?db=made", nil, []byte("m v=1\nbad")); err != nil || status != 400 {
		t.Fatalf("%d %s %v", status, text, err)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	said := map[string]int{}
	for line := range strings.Lines(p.Log.String()) {
		var l struct {
			Time       time.Time
			Level, Msg string
			URL        string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Msg == "" || l.Level == "" || l.Time.IsZero() {
			t.Errorf("%v: %q", err, line)
		}
		said[l.Msg]++
		if l.Msg == "ready" && l.URL != "http://"+p.Addr {
			t.Errorf("it is ready at another address than %s: %s", p.Addr, line)
		}
	}
	for _, msg := range []string{"ready", "table created", "stopping"} {
		if said[msg] == 0 {
			t.Errorf("%q is not in the log:\n%s", msg, &p.Log)
		}
	}
}
