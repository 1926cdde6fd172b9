package process

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// TestAServerProvesItsAddress: the answer at its address decides whether a server registers, and whether it gets partitions. A failure that may pass raises no alarm yet.
func TestAServerProvesItsAddress(t *testing.T) {
	own := peer.Self{Server: "s3", Store: "d3", Process: "p3"}
	at := func(who peer.Self) string {
		t.Helper()
		srv, err := rpc.NewServer(rpc.Deps{Storage: struct{ peer.Storage }{}, Self: who}, rpc.Settings{TLS: rpc.TLS{Insecure: true}})
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, srv)
	}
	const noProcess = "127.0.0.1:1"
	row := func(id topology.ServerID, unreached string) *registry.Server {
		return &registry.Server{ID: id, Addr: noProcess, Host: "h", Store: "d3", Unreached: unreached}
	}
	f := func(name, addr string, before *registry.Server, waited time.Duration, wantUnreached bool, wantErr string, wantRefused bool) {
		t.Helper()
		p := &storage{cfg: &config{}, log: slog.New(slog.DiscardHandler), id: "s3"}
		p.cfg.Peer.Insecure = true
		p.view.Coord = mem.New()
		p.reach.self, p.reach.began = own, time.Now().Add(-waited)
		if before != nil {
			if err := registry.Register(t.Context(), p.view.Coord, *before, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		unreached, err := p.proveAddress(t.Context(), registry.Server{ID: "s3", Addr: addr, Host: "h3", Store: "d3"})
		if wantErr == "" && err != nil || wantErr != "" && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%s: error %v, want %q", name, err, wantErr)
		}
		if (unreached != "") != wantUnreached {
			t.Errorf("%s: unreached %q", name, unreached)
		}
		refused, err := registry.AllRefused(t.Context(), p.view.Coord, time.Now())
		if err != nil || (len(refused) == 1) != wantRefused {
			t.Errorf("%s: refused %+v %v", name, refused, err)
		}
	}
	const long = reachPatience + time.Minute
	f("itself", at(own), nil, 0, false, "", false)
	f("another process of its name, which the registry judges", at(peer.Self{Server: "s3", Store: "d3", Process: "p4"}), nil, long, false, "", false)
	another := at(peer.Self{Server: "s1", Store: "d1", Process: "p1"})
	f("another server, perhaps by an old answer of a resolver", another, nil, 0, false, "server s1 with the store directory d1 answers", false)
	f("another server", another, nil, long, false, "server s1 with the store directory d1 answers", true)
	f("a server of the build before", at(peer.Self{}), nil, long, false, "a process of an older build answers", true)
	f("no process yet", noProcess, nil, 0, false, "does not reach itself", false)
	f("no process", noProcess, nil, long, true, "", false)
	f("no process, and it was reached there before", noProcess, row("s3", ""), 0, false, "", false)
	f("no process, and it never was", noProcess, row("s3", "i/o timeout"), long, true, "", false)
	f("no process, and another is registered there", noProcess, row("s1", ""), long, false, "server s1 is registered at this server's address", true)
}

// TestAServerStartsWhereItWasReachedBefore, though another is registered there, too, as one that is gone and was not removed: behind some routers it does not reach itself, and its rows
// were away until a person removed the other.
func TestAServerStartsWhereItWasReachedBefore(t *testing.T) {
	p := &storage{cfg: &config{}, log: slog.New(slog.DiscardHandler), id: "s3"}
	p.cfg.Peer.Insecure = true
	p.view.Coord, p.reach.began = mem.New(), time.Now().Add(-time.Hour)
	self := registry.Server{ID: "s3", Addr: "127.0.0.1:1", Host: "h", Store: "d3"}
	for _, row := range []registry.Server{self, {ID: "s1", Addr: self.Addr, Host: "h", Store: "d1"}, {ID: "s9", Addr: self.Addr, Host: "h", Store: "d9"}} {
		if err := registry.Register(t.Context(), p.view.Coord, row, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if unreached, err := p.proveAddress(t.Context(), self); unreached != "" || err != nil {
		t.Errorf("%q %v", unreached, err)
	}
}
