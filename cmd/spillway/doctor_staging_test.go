package main

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

// TestTheStatusShowsRowsThatWait by table and server.
func TestTheStatusShowsRowsThatWait(t *testing.T) {
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1700000000, 0)
	held := []peer.StagedStats{{Server: "s1", Rows: 9, Bytes: 100, Later: 2, Sole: 1, Oldest: 5e9, Overdue: now.Add(-time.Minute).UnixNano()}, {Server: "s2", Rows: 3, Later: 3, Oldest: 6e9}}
	got := tableStatus(found{of: m, stats: &peer.Stats{Staged: held}}, now).Staged
	if len(got) != 2 || got[0].Server != "s1" || got[0].Rows != 9 || got[0].Later != 2 || got[0].Sole != 1 || got[0].Overdue == nil || got[1].Overdue != nil || !got[1].Oldest.Equal(time.Unix(6, 0)) {
		t.Errorf("%+v", got)
	}
	if text := stagedProblem(held, now); text != "on s1, the oldest for 1m0s" {
		t.Errorf("%q", text)
	}
	if text := stagedProblem(held[1:], now); text != "" {
		t.Errorf("%q", text)
	}
}
