package intake_test

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/ha"
	"github.com/spillwaydb/spillway/gateway/ha/tracker"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestARequestWithRowsOfTwoPairsKeepsNoUselessReplicaElected: the clock of replica a of x is a day ahead, and all its rows are refused. As they came with
// good rows of y, a stayed elected, and the good rows of b were answered as duplicates and lost.
func TestARequestWithRowsOfTwoPairsKeepsNoUselessReplicaElected(t *testing.T) {
	s := ha.Settings{Enabled: true, UpdateInterval: setting.Span(time.Second / 2), FailoverTimeout: setting.Span(time.Second)}
	s.SetDefaults()
	pairs, err := tracker.Open(t.Context(), tracker.Deps{Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Rand: rand.New(rand.NewPCG(1, 2))}, s)
	if err != nil {
		t.Fatal(err)
	}
	f := startPaired(t, newMemory(), pairs)
	f.memory.table("default").dict.Replicas(pairs.Labels("default"))
	row := func(cluster, replica string, at time.Time) []byte {
		return rw1(t, series("up", at, 1, "cluster", cluster, "__replica__", replica), series("up", now, 1, "cluster", "y", "__replica__", "a"))
	}
	f.do(t, "POST /api/v1/write", row("x", "a", now.Add(24*time.Hour)), rw1Header...).want(t, 400, "too far ahead")
	eventually(t, "replica b of x is elected, though a sends on", func() bool {
		f.do(t, "POST /api/v1/write", row("x", "a", now.Add(24*time.Hour)), rw1Header...)
		f.do(t, "POST /api/v1/write", row("x", "b", now), rw1Header...).want(t, 204)
		return f.memory.table("default").count() == 2
	})
}

// startPaired starts a Front with pairs of senders.
func startPaired(t testing.TB, m *memory, pairs intake.Replicas) *front {
	t.Helper()
	f := &front{memory: m, metrics: prometheus.NewRegistry(), client: &http.Client{Transport: &http.Transport{}}}
	var err error
	f.Front, err = intake.New(intake.Deps{Writer: m, Replicas: pairs, Registerer: f.metrics, Fallback: http.HandlerFunc(f.serve)}, intake.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, false)
	return f
}
