package rpc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestAServerSaysWhichOneItIs, while it withholds all else, too: a wrong address of a server, where another one answers, was not noticed.
func TestAServerSaysWhichOneItIs(t *testing.T) {
	is := peer.Self{Server: "s1", Store: "d1", Process: "p1"}
	srv, err := NewServer(Deps{Storage: newMemory(), Self: is, Registerer: prometheus.NewRegistry()}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	srv.Withhold(fault.Errorf(fault.Unavailable, "it is not registered yet"))
	p := dial(t, serving(t, srv), DialSettings{TLS: plain})
	if got, err := p.Self(t.Context()); err != nil || got != is {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := p.Stats(t.Context(), "t", 1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a call that is withheld: %v", err)
	}
	srv.Withhold(nil)
	if _, err := p.Stats(t.Context(), "t", 1); fault.Is(err, fault.Unavailable) {
		t.Errorf("a call that is no longer withheld: %v", err)
	}
	// A peer of the build before reads the answer as nothing.
	if err := p.call(t.Context(), methodPing, &nothing{}, &nothing{}); err != nil {
		t.Error(err)
	}
}

// TestAServerOfTheBuildBeforeSaysNothing: its answer is no error, and no server's name.
func TestAServerOfTheBuildBeforeSaysNothing(t *testing.T) {
	addr, _ := serve(t, newMemory(), Settings{})
	got, err := dial(t, addr, DialSettings{TLS: plain}).Self(t.Context())
	if diff := cmp.Diff(peer.Self{}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}
