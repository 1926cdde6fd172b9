package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// TestAGatewayReceivesTheServersTime: a gateway with a clock ahead gets an answer that it can retry by, and the stream goes on.
func TestAGatewayReceivesTheServersTime(t *testing.T) {
	m, p := pair(t)
	m.clock = 1e18
	st := openStream(t, p)
	in := peer.Insert{Partition: 1, Stamp: rank.At(1e18 + 5e9), IDs: []point.SeriesID{1}, Times: []point.Nanos{2}, Values: []float64{3}}
	err := st.Insert(t.Context(), &in)
	clock, ahead := peer.NeedsStamp(err)
	if !ahead || clock != 1e18 || !fault.Is(err, fault.Stale) {
		t.Fatalf("five seconds ahead: %v, the servers' time %d", err, clock)
	}
	if len(m.got) != 0 {
		t.Error("it was kept all the same")
	}
	in.Stamp = rank.At(clock)
	if err := st.Insert(t.Context(), &in); err != nil || len(m.got) != 1 {
		t.Fatalf("with the servers' time: %v", err)
	}
}

// ofContext is the part of a gRPC stream that inserts use.
type ofContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s ofContext) Context() context.Context { return s.ctx }

// TestAGatewayOfBeforeIsStampedByTheServer: it would treat the answer as a broken stream.
func TestAGatewayOfBeforeIsStampedByTheServer(t *testing.T) {
	m := newMemory()
	m.clock = 1e18
	_, srv := serve(t, m, Settings{})
	for version, want := range map[uint8]int{1: 1, 2: 0} {
		m.got = nil
		rec, err := new(insertEncoder).encode(&peer.Insert{Partition: 1, Stamp: rank.At(1e18 + 3600e9), IDs: []point.SeriesID{1}, Times: []point.Nanos{2}, Values: []float64{3}})
		if err != nil {
			t.Fatal(err)
		}
		in := &inserts{s: srv, ss: ofContext{ctx: t.Context()}, stream: &memoryStream{m}, version: version}
		err = in.do(job{1, rec[recordLen:], mem.SliceBuffer(nil), false})
		if len(m.got) != want || (err == nil) != (want == 1) {
			t.Errorf("a gateway of version %d an hour ahead: %v, %d inserts are kept", version, err, len(m.got))
		}
		if want == 1 && m.got[0].Stamp != rank.At(1e18) {
			t.Errorf("kept with the stamp %d", m.got[0].Stamp)
		}
	}
}

// TestAGatewayLearnsTheStampThatItIsBehind. One of a version before gets no such answer: the server stamps its insert.
func TestAGatewayLearnsTheStampThatItIsBehind(t *testing.T) {
	m := newMemory()
	m.newest = rank.At(1e18) | 7
	_, srv := serve(t, m, Settings{})
	for version, kept := range map[uint8]int{1: 1, streamLate - 1: 1, streamLate: 0} {
		m.got = nil
		rec, err := new(insertEncoder).encode(&peer.Insert{Partition: 1, Stamp: rank.At(1e18 - 3600e9), IDs: []point.SeriesID{1}, Times: []point.Nanos{2}, Values: []float64{3}})
		if err != nil {
			t.Fatal(err)
		}
		in := &inserts{s: srv, ss: ofContext{ctx: t.Context()}, stream: &memoryStream{m}, version: version}
		err = in.do(job{1, rec[recordLen:], mem.SliceBuffer(nil), false})
		if len(m.got) != kept || (err == nil) != (kept == 1) {
			t.Errorf("a gateway of version %d an hour behind: %v, %d inserts are kept", version, err, len(m.got))
		}
	}
	addr, _ := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{})
	err := openStream(t, p).Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: rank.At(1e18 - 3600e9), IDs: []point.SeriesID{1}, Times: []point.Nanos{2}, Values: []float64{3}})
	if newest, ok := peer.StampAbove(err); !ok || newest != m.newest || !fault.Is(err, fault.Stale) {
		t.Errorf("an hour behind: %v, above %d", err, newest)
	}
}
