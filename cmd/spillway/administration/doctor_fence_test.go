package administration

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// fencedPeer is a server whose store was fenced before its process began. at is when; 0: it was not, or its build is older and does not say.
type fencedPeer struct {
	townPeer
	at point.Nanos
}

func (p fencedPeer) Stats(_ context.Context, table string, _ int) (*peer.Stats, error) {
	if table != "" || p.at == 0 {
		return &peer.Stats{}, nil
	}
	return &peer.Stats{Fence: peer.PastFence{At: p.at, Why: "fsync log/0000000007.log: input/output error"}}, nil
}

// TestDoctorNamesAStorageServerThatWasFenced: the process had started anew by the time that it was asked, and all was well: of a disk that fails.
func TestDoctorNamesAStorageServerThatWasFenced(t *testing.T) {
	at := time.Date(2026, 12, 1, 3, 4, 5, 0, time.UTC).UnixNano()
	tw := newTown(t)
	var e examination
	for _, id := range []topology.ServerID{"s1", "s2"} {
		row := registry.Server{ID: id, Addr: string(id) + ":8430", Host: string(id), Store: "d-" + lease.StoreID(id)}
		if err := registry.Register(t.Context(), tw.store, row, false, func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		e.s.Servers = append(e.s.Servers, master.Server{Server: row, Live: true})
	}
	dial := func(id topology.ServerID, _ string) (peers.Peer, error) {
		switch id {
		case "s1":
			return fencedPeer{}, nil
		case "s2":
			return fencedPeer{at: at}, nil
		}
		return nil, fault.Errorf(fault.NotFound, "no such server")
	}
	var err error
	if e.admin, err = openAdmin(t.Context(), keepOpen{tw.store}, dial, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.damaged(t.Context())
	if len(e.report) != 1 {
		t.Fatalf("found %+v, want one fence", e.report)
	}
	r := e.report[0]
	if r.Severity != "degraded" || r.Kind != "fenced before" || r.Subject != "s2" || !strings.Contains(r.What, "2026-12-01T03:04:05Z") ||
		!strings.Contains(r.What, "input/output error") || !strings.Contains(r.Do, "SpillwayStoreFenced.md") {
		t.Errorf("found %+v", r)
	}
}
