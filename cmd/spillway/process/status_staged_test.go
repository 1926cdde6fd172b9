package process

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

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
	if text := administration.StagedProblem(held, now); text != "on s1, the oldest for 1m0s" {
		t.Errorf("%q", text)
	}
	if text := administration.StagedProblem(held[1:], now); text != "" {
		t.Errorf("%q", text)
	}
}
