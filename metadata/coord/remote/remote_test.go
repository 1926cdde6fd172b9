package remote_test

import (
	"bytes"
	"fmt"
	"net"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/coord/remote"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// noStorage has no rows: only those of the coordination store are asked for here.
type noStorage struct{ peer.Storage }

func anything(coord.Write, []coord.Condition) bool { return true }

// through opens a store at second hand, over gRPC.
func through(t *testing.T, store coord.Store, mayWrite func(coord.Write, []coord.Condition) bool) coord.Store {
	t.Helper()
	plain := rpc.TLS{Insecure: true}
	srv, err := rpc.NewServer(rpc.Deps{Storage: noStorage{}, Rows: remote.Serve(store, mayWrite)}, rpc.Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	p, err := rpc.Dial(l.Addr().String(), rpc.DialSettings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := srv.Shutdown(t.Context()); err != nil && !fault.Is(err, fault.Canceled) {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return remote.Open(p, p.Close)
}

func TestConformance(t *testing.T) {
	coordtest.Run(t, func(t *testing.T) coord.Store { return through(t, mem.New(), anything) })
}

func TestConformanceWithoutAWire(t *testing.T) {
	coordtest.Run(t, func(*testing.T) coord.Store {
		store := mem.New()
		return remote.Open(remote.Serve(store, anything), store.Close)
	})
}

// TestRowsOfTheClusterAreNotWrittenByHand: one refused row refuses the transaction.
func TestRowsOfTheClusterAreNotWrittenByHand(t *testing.T) {
	store := mem.New()
	s := through(t, store, func(w coord.Write, _ []coord.Condition) bool { return w.Key != "master" })
	_, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "audit/1", Value: []byte("x")}, {Key: "master", Delete: true}})
	if !fault.Is(err, fault.Denied) {
		t.Fatal(err)
	}
	if rows, _, err := store.List(t.Context(), ""); err != nil || len(rows) != 0 {
		t.Errorf("%v %v", rows, err)
	}
	if _, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "audit/1", Value: []byte("x")}}); err != nil || !ok {
		t.Errorf("%v %v", ok, err)
	}
}

// TestLargeListsArrive: the lease rows of a table of a hundred thousand partitions, over the wire, as of one revision.
func TestLargeListsArrive(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 20_000
	}
	store := mem.New()
	var writes []coord.Write
	for i := range n {
		writes = append(writes, coord.Write{Key: fmt.Sprintf("leases/p/cpu/%020d", i), Value: bytes.Repeat([]byte{'v'}, 500)})
	}
	rev, _, err := store.Commit(t.Context(), nil, writes)
	if err != nil {
		t.Fatal(err)
	}
	s := through(t, store, anything)
	rows, at, err := s.List(t.Context(), "leases/")
	if err != nil || len(rows) != n || at != rev {
		t.Fatalf("%d rows as of %d, %v", len(rows), at, err)
	}
	for i, row := range rows {
		if row.Key != writes[i].Key || len(row.Value) != 500 || row.Revision != rev {
			t.Fatalf("row %d is %s at %d", i, row.Key, row.Revision)
		}
	}
}

// TestAStoppingServerEndsWatches: else it would wait for its administrators.
func TestAStoppingServerEndsWatches(t *testing.T) {
	plain := rpc.TLS{Insecure: true}
	srv, err := rpc.NewServer(rpc.Deps{Storage: noStorage{}, Rows: remote.Serve(mem.New(), anything)}, rpc.Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	p, err := rpc.Dial(l.Addr().String(), rpc.DialSettings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := remote.Open(p, p.Close)
	seen, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- s.Watch(t.Context(), "a", 0, func([]coord.Event) error { seen <- struct{}{}; return nil })
	}()
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "a"}}); err != nil {
		t.Fatal(err)
	}
	<-seen
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("the watch ended with %v", err)
	}
}
