package rpc

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAMessageThatLosesItsRoomWithItsLastPieceIsNotReadAsAnEmptyOne: the reader stood still behind the last piece, the message lost its memory meanwhile, and a request was read without a part of it.
func TestAMessageThatLosesItsRoomWithItsLastPieceIsNotReadAsAnEmptyOne(t *testing.T) {
	for _, inserts := range []bool{true, false} {
		srv := arrivingServer()
		room := srv.arrivals.calls
		if inserts {
			room = srv.arrivals.short
		}
		in := &arrival{of: &srv.arrivals, room: room, length: 2 * arrivingPiece, inserts: inserts}
		piece := func() error { return in.keep(mem.BufferSlice{mem.SliceBuffer(make([]byte, arrivingPiece))}) }
		if err := piece(); err != nil {
			t.Fatal(err)
		}
		has, err := room.enter(t.Context(), time.Second, "a", in.needs())
		if err != nil {
			t.Fatal(err)
		}
		in.enter(has)
		if err := piece(); err != nil {
			t.Fatal(err)
		}
		in.drop() // as wait.step does
		data, _, err := in.whole()
		wantKind(t, "a message that was dropped", err, fault.Throttled)
		if data != nil || srv.ArrivingBytes() != 0 || room.used() != 0 {
			t.Errorf("inserts %v: %d bytes are there, %d counted, %d in use", inserts, data.Len(), srv.ArrivingBytes(), room.used())
		}
	}
}

// TestASlowMessageMakesNoRoomForACallerThatIsGone: each caller that left while it waited for room counted as one that found none.
func TestASlowMessageMakesNoRoomForACallerThatIsGone(t *testing.T) {
	r := newSharedRoom(2, 1)
	if _, err := r.enter(t.Context(), time.Hour, "a", 1); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	_, err := r.enter(ctx, time.Hour, "a", 1) // one is left for others
	wantKind(t, "a caller that is gone", err, fault.Throttled)
	if n := r.refusals(); n != 0 {
		t.Errorf("%d found no room", n)
	}
}
