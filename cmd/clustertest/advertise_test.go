package clustertest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// doctor returns what the doctor says.
func (c *crowd) doctor() string {
	out, _ := exec.Command(c.Storage[0].Line[0], "doctor", "--coord="+c.Coord, "--dev.insecure-peers").CombinedOutput()
	return string(out)
}

// TestClusterGivesNothingToAServerThatNoProcessReaches: its heartbeats went through etcd, so that it counted as live, got partitions and copies, and their rows were staged for ever. One with
// another server's address was mistaken for that server.
func TestClusterGivesNothingToAServerThatNoProcessReaches(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c, later := newCrowdOf(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 1}, 2)
	lost, twin := later[0], later[1]
	nowhere, err := processes.FreeAddr()
	c.must(err)
	lost.Line = append(lost.Line, "--peer.advertise="+nowhere)
	twin.Line = append(twin.Line, "--peer.advertise="+c.Peers[0])
	c.must(twin.Launch())
	t.Cleanup(twin.Kill)
	c.start(lost)
	t.Cleanup(lost.Kill)
	c.within(processtest.Patience, "the doctor names both", func() bool {
		said := c.doctor()
		return strings.Contains(said, "unreached server (s3)") && strings.Contains(said, nowhere) &&
			strings.Contains(said, "wrong address (s4)") && strings.Contains(said, "server s1 with the store directory")
	})
	for _, row := range c.view.Registry.All() {
		if row.ID == "s4" {
			t.Errorf("registered with another server's address: %+v", row)
		}
	}
	for _, p := range []*processes.Process{lost, twin} {
		c.within(processtest.Patience, p.Name+" logs an error", func() bool { return strings.Contains(p.Said(), "level=ERROR") })
	}
	c.table("t", 24*time.Hour, 2)
	for i := range 8 {
		c.acks("t", fmt.Sprintf("m,i=%d v=1 %d", i, time.Now().Add(-time.Duration(i)*24*time.Hour).UnixMilli()))
	}
	var m *topology.Map
	c.within(processtest.Patience, "each row has a partition", func() (ok bool) { // rows are acked when they are staged
		m, ok = c.view.Tables.Get("t")
		return ok && m.Len() >= 8
	})
	for p := range m.All() {
		for _, pl := range p.Placements {
			if pl.Server != "s1" && pl.Server != "s2" {
				t.Errorf("p%d has a placement on %s", p.ID, pl.Server)
			}
		}
	}
	// Restarted with the right address, it is used.
	c.stop(lost)
	lost.Line = slices.DeleteFunc(lost.Line, func(arg string) bool { return strings.HasPrefix(arg, "--peer.advertise=") })
	c.start(lost)
	c.within(processtest.Patience, "the doctor finds s3 well", func() bool { return !strings.Contains(c.doctor(), "(s3)") })
}

// TestClusterLetsPeersDecideWhoIsReached: behind some routers a host does not reach itself at the address by which others do.
func TestClusterLetsPeersDecideWhoIsReached(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	row := registry.Server{ID: "s9", Addr: l.Addr().String(), Host: "h9", Store: "d9", Unreached: "i/o timeout", Since: time.Now().UTC()}
	c.must(registry.Register(t.Context(), c.view.Coord, row, false, nil))
	serve := func(store string, l net.Listener) {
		t.Helper()
		srv, err := rpc.NewServer(rpc.Deps{Storage: struct{ peer.Storage }{}, Self: peer.Self{Server: "s9", Store: store, Process: "p"}}, rpc.Settings{TLS: rpc.TLS{Insecure: true}})
		c.must(err)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = srv.Shutdown(ctx)
			<-served
		})
	}
	serve("another", l)
	ctx, cancel := context.WithTimeout(t.Context(), processtest.Patience)
	defer cancel()
	c.within(processtest.Patience, "the view notices that another process answers", func() bool {
		err := c.view.Reach(ctx, row)
		return err != nil && strings.Contains(err.Error(), "server s9 with the store directory another")
	})
	if now, _ := c.view.Registry.Get("s9"); now.Takes() {
		t.Errorf("taken for it: %+v", now)
	}
	l, err = net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	row.Addr = l.Addr().String()
	c.must(registry.Register(t.Context(), c.view.Coord, row, false, nil))
	serve("d9", l)
	c.within(processtest.Patience, "a peer reached it", func() bool {
		now, ok := c.view.Registry.Get("s9")
		return ok && now.Takes()
	})
}
