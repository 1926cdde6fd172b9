package administration

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestDoctorReportsRowsThatWait: for longer than the change to another leader lasts, on fewer servers than an ack needs, or on a server that is dead.
func TestDoctorReportsRowsThatWait(t *testing.T) {
	f := func(held peer.StagedStats, replicas int, want ...string) {
		t.Helper()
		m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		e := examination{}
		e.staged(m, "s1", &held)
		got := ""
		for _, r := range e.report {
			got += r.Kind + ": " + r.What + "\n"
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%+v: %q lacks %q", held, got, w)
			}
		}
		if len(want) == 0 && got != "" || strings.Count(got, "\n") != len(want) {
			t.Errorf("%+v: %q", held, got)
		}
	}
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).UnixNano() }
	f(peer.StagedStats{Rows: 9, Later: 9, Oldest: ago(time.Hour)}, 3)
	f(peer.StagedStats{Rows: 9, Overdue: ago(5 * time.Second)}, 3)
	f(peer.StagedStats{Rows: 9, Later: 2, Overdue: ago(90 * time.Second)}, 3, "staged rows: 7 rows wait")
	f(peer.StagedStats{Rows: 9, Sole: 4}, 3, "staged once: 4 staged rows are held by this server alone, an ack needed 2")
	f(peer.StagedStats{Rows: 9, Sole: 9}, 1)

	e := examination{}
	e.s.Servers = []master.Server{{Server: registry.Server{ID: "s1", Staging: registry.StagingOf([]string{"a", "b"})}}, {Server: registry.Server{ID: "s2", Staging: "a"}, Live: true}, {Server: registry.Server{ID: "s3"}}}
	e.deadHolders()
	if len(e.report) != 1 || e.report[0].Subject != "s1" || !strings.Contains(e.report[0].What, "of tables a, b:") {
		t.Errorf("%+v", e.report)
	}
}
