package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
