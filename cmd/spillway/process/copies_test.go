package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/storage/chain/runner"
)

// unchanging is a registry in which nothing changes.
type unchanging []registry.Server

func (u unchanging) All() []registry.Server   { return u }
func (u unchanging) Changed() <-chan struct{} { return nil }

// TestAServerThatCouldNotBeDialledIsLinkedToLater: a dial fails while a certificate is being replaced. The server was dialled again only when another
// one came or left, and its copies got no rows until then.
func TestAServerThatCouldNotBeDialledIsLinkedToLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		began := time.Now()
		var tries []time.Duration
		err := followServers(ctx, unchanging{{ID: "s2"}}, func([]registry.Server) bool {
			tries = append(tries, time.Since(began))
			if len(tries) == 12 {
				go end()
				return true
			}
			return false
		})
		if err != nil || len(tries) != 12 {
			t.Fatalf("tries at %v: %v", tries, err)
		}
		for i, most := 1, redialFirst; i < len(tries); i, most = i+1, min(2*most, redialMost) {
			if pause := tries[i] - tries[i-1]; pause < most/2 || pause > most*3/2 {
				t.Errorf("try %d came after %v, and about %v was due", i, pause, most)
			}
		}
	})
}

func TestAServerIsLinkedToOnceItsCertificateCanBeRead(t *testing.T) {
	dir := t.TempDir()
	tls := filesOf(dir, "127.0.0.1")
	links, err := rpc.NewLinks(rpc.LinkSettings{Self: peer.LinkHello{Server: "s1"}}, runner.Handler{Wire: &runner.LinkWire{}})
	if err != nil {
		t.Fatal(err)
	}
	c := copies{links: links, dialed: map[topology.ServerID]dialedServer{}, refused: map[topology.ServerID]string{}}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	connect := func() bool {
		return c.connect([]registry.Server{{ID: "s1"}, {ID: "s2", Addr: "127.0.0.1:1"}}, "s1", rpc.DialSettings{TLS: tls}, slog.New(slog.DiscardHandler))
	}
	if connect() || len(c.dialed) > 0 {
		t.Errorf("without a certificate %v is dialled", c.dialed)
	}
	if _, err := (&credentials.Certs{OutDir: dir, Storage: []string{"127.0.0.1"}, Gateways: []string{"gw"}, Days: 1}).Make(); err != nil {
		t.Fatal(err)
	}
	if !connect() || len(c.dialed) != 1 {
		t.Errorf("with a certificate %v is dialled", c.dialed)
	}
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if !connect() {
		t.Error("a server that was dialled is dialled again")
	}
}

// TestServersThatMovedOutOfReachStillCount: with two of three at a new address where no process reaches them, the third acked rows of which there was one copy. One that never was reached counts
// for nothing: a cluster of one server goes on as one when another joins with a wrong address.
func TestServersThatMovedOutOfReachStillCount(t *testing.T) {
	f := func(before *registry.Server, want bool) {
		t.Helper()
		store := mem.New()
		if before != nil {
			if err := registry.Register(t.Context(), store, *before, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // it is restarted, as wrong as before
			if err := registry.Register(t.Context(), store, registry.Server{ID: "s2", Addr: "b:1", Host: "h2", Store: "d", Copies: registry.CopiesOn, Unreached: "i/o timeout"}, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		all, err := registry.List(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		if got := placeable(all); len(got) != 1 || got[0].Leaves == want {
			t.Errorf("before %+v: %+v", before, got)
		}
	}
	f(&registry.Server{ID: "s2", Addr: "a:1", Host: "h2", Store: "d"}, true)
	f(&registry.Server{ID: "s2", Addr: "a:1", Host: "h2", Store: "d", Unreached: "i/o timeout"}, false)
	f(nil, false)
}
