package rpc

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// TestAStaleAnswerNamesTheNewerMap through gRPC, and only one within the bounds; a peer that names none works as before.
func TestAStaleAnswerNamesTheNewerMap(t *testing.T) {
	stale := fault.Errorf(fault.Stale, "map 9 is newer")
	at := peer.MapAt{Txn: peer.TxnID{1, 2, 3}, Seq: 9, Servers: []string{"n1", "n2", "n3"}}
	got, ok := peer.MapOf(ofStatus(toStatus(fault.Annotate(peer.WithMap(stale, at), "server n1"))))
	if !ok || !reflect.DeepEqual(got, at) {
		t.Errorf("arrived as %+v, %t", got, ok)
	}
	if err := ofStatus(toStatus(stale)); !fault.Is(err, fault.Stale) {
		t.Errorf("without a map: %v", err)
	} else if _, ok := peer.MapOf(err); ok {
		t.Error("a map out of nothing")
	}

	f := func(what string, newest *peerpb.MapAt) {
		t.Helper()
		s, err := status.New(codes.FailedPrecondition, "x").WithDetails(&peerpb.Fault{Kind: "stale", Newest: newest})
		if err != nil {
			t.Fatal(err)
		}
		back := ofStatus(s.Err())
		if at, ok := peer.MapOf(back); ok || !fault.Is(back, fault.Stale) {
			t.Errorf("%s: %v with %+v", what, back, at)
		}
	}
	txn := make([]byte, 16)
	txn[0] = 1
	f("a short transaction id", &peerpb.MapAt{Txn: txn[:15], Seq: 1, Servers: []string{"n1"}})
	f("the transaction id of none", &peerpb.MapAt{Txn: make([]byte, 16), Seq: 1, Servers: []string{"n1"}})
	f("no sequence number", &peerpb.MapAt{Txn: txn, Servers: []string{"n1"}})
	f("no servers", &peerpb.MapAt{Txn: txn, Seq: 1})
	f("a server without a name", &peerpb.MapAt{Txn: txn, Seq: 1, Servers: []string{""}})
	f("a server of a long name", &peerpb.MapAt{Txn: txn, Seq: 1, Servers: []string{strings.Repeat("n", peer.MapServerBytesMax+1)}})
	f("many servers", &peerpb.MapAt{Txn: txn, Seq: 1, Servers: strings.Split(strings.Repeat("n ", peer.MapServersMax), " ")})
	if peer.WithMap(nil, at) != nil {
		t.Error("an error out of nothing")
	}
}

// TestAnAnswerThatMayLackRowsSaysSo through gRPC, beside the newest map; an error of an older peer has no mark.
func TestAnAnswerThatMayLackRowsSaysSo(t *testing.T) {
	stale := fault.Errorf(fault.Stale, "the copy may lack rows")
	at := peer.MapAt{Txn: peer.TxnID{1}, Seq: 9, Servers: []string{"n1"}}
	err := ofStatus(toStatus(fault.Annotate(peer.WithMap(peer.Unsure(stale), at), "server n1")))
	if got, ok := peer.MapOf(err); !peer.IsUnsure(err) || !ok || got.Seq != 9 || !fault.Is(err, fault.Stale) {
		t.Errorf("arrived as %v, unsure: %t, map %+v", err, peer.IsUnsure(err), got)
	}
	if err := ofStatus(toStatus(stale)); peer.IsUnsure(err) || !fault.Is(err, fault.Stale) {
		t.Errorf("unsure out of nothing: %v", err)
	}
	s, err := status.New(codes.FailedPrecondition, "x").WithDetails(&peerpb.Fault{Kind: "stale"})
	if err != nil || peer.IsUnsure(ofStatus(s.Err())) {
		t.Errorf("an older peer's: %v", err)
	}
	if peer.Unsure(nil) != nil {
		t.Error("an error out of nothing")
	}
}

// TestCopiesOfAKindToComeAreRefused: an answer for the leader alone would not be what the asker means.
func TestCopiesOfAKindToComeAreRefused(t *testing.T) {
	if _, err := ofSelect(&peerpb.Select{Copies: 4}); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
	for _, c := range []uint32{3, 8, 256, 260} {
		if _, err := ofDeletion(&peerpb.Select{Copies: c}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a deletion in copies of kind %d: %v", c, err)
		}
	}
}

// TestAnOlderGatewayReceivesNoMap: it would treat the ack as a broken stream.
func TestAnOlderGatewayReceivesNoMap(t *testing.T) {
	at := peer.MapAt{Txn: peer.TxnID{1}, Seq: 9, Servers: []string{"n1"}}
	m, p := pair(t)
	st := openStream(t, p)
	m.fail = peer.WithMap(fault.Errorf(fault.Stale, "not here"), at)
	err := st.Insert(t.Context(), &peer.Insert{})
	if got, ok := peer.MapOf(err); !ok || !reflect.DeepEqual(got, at) || !fault.Is(err, fault.Stale) {
		t.Errorf("%v with %+v", err, got)
	}
	_, srv := serve(t, m, Settings{})
	rec, err := new(insertEncoder).encode(&peer.Insert{Partition: 1})
	if err != nil {
		t.Fatal(err)
	}
	in := &inserts{s: srv, ss: ofContext{ctx: t.Context()}, stream: &memoryStream{m}, version: 2}
	err = in.do(job{1, rec[recordLen:], mem.SliceBuffer(nil), false})
	if _, ok := peer.MapOf(err); ok || !fault.Is(err, fault.Stale) || err.Error() != "not here" {
		t.Errorf("to version 2: %v", err)
	}
}

// TestARefusedConnectionIsNoAnswer: a gateway leaves alone only servers that do not answer.
func TestARefusedConnectionIsNoAnswer(t *testing.T) {
	if err := ofStatus(status.Error(codes.Unavailable, "connection refused")); peer.IsAnswer(err) || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v counts as an answer, or is of kind %v", err, fault.KindOf(err))
	}
	if err := ofStatus(toStatus(fault.Errorf(fault.Unavailable, "the disk is full"))); !peer.IsAnswer(err) || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v does not count as an answer, or is of kind %v", err, fault.KindOf(err))
	}
}
