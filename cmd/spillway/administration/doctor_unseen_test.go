package administration

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// deafPeer is a server that says nothing of its tables.
type deafPeer struct{ townPeer }

func (deafPeer) Stats(context.Context, string, int) (*peer.Stats, error) {
	return nil, fault.Errorf(fault.Unavailable, "connection refused")
}

// TestDoctorReportsALiveServerThatDoesNotAnswer: what lay on it counted as well.
func TestDoctorReportsALiveServerThatDoesNotAnswer(t *testing.T) {
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, dial := range map[string]func(topology.ServerID, string) (peers.Peer, error){
		"refused": func(topology.ServerID, string) (peers.Peer, error) {
			return nil, fault.Errorf(fault.Unavailable, "no route")
		},
		"silent": func(topology.ServerID, string) (peers.Peer, error) { return deafPeer{}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			tw := newTown(t)
			if err := registry.Register(t.Context(), tw.store, registry.Server{ID: "s1", Addr: "s1:8430", Host: "h1", Store: "d-s1"}, false, func(string) bool { return false }); err != nil {
				t.Fatal(err)
			}
			a, err := openAdmin(t.Context(), keepOpen{tw.store}, dial, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer a.close()
			e := examination{admin: a, s: master.State{Tables: []*topology.Map{m}, Servers: []master.Server{{Server: registry.Server{ID: "s1"}, Live: true}, {Server: registry.Server{ID: "s2"}}}}}
			e.damaged(t.Context())
			if len(e.report) != 1 || e.report[0].Kind != "not examined" || e.report[0].Subject != "s1" {
				t.Errorf("%+v", e.report)
			}
		})
	}
}
