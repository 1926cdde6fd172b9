package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// pieceEar keeps pieces of segments until the test releases them.
type pieceEar struct {
	*ear
	kept []peer.Body
}

func (e *pieceEar) Piece(_ peer.Link, _ *peer.Route, _ peer.SegmentPiece, b peer.Body) {
	e.note(func() { e.pieces++; e.kept = append(e.kept, b) })
}

// transferPieces sends so many of the longest pieces on a link, one after the other, as a transfer does.
func transferPieces(ctx context.Context, l peer.Link, n int) error {
	data := make([]byte, peer.LinkPieceBytesMax)
	for i := range n {
		if err := l.Piece(ctx, &someRoute, peer.SegmentPiece{Slot: 1, Offset: uint64(i) * peer.LinkPieceBytesMax}, data); err != nil {
			return err
		}
	}
	return nil
}

// TestPiecesFromManyServersHaveOneBound: twenty servers send segments to one whose disk is slow. Each had a window of 4 MiB, 80 MiB beside
// the memory.
func TestPiecesFromManyServersHaveOneBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers, each = 20, 40
		e := &pieceEar{ear: newEar()}
		to, _, links, end := hub(t, e, servers)
		defer end()
		var sending sync.WaitGroup
		for _, l := range links {
			sending.Go(func() {
				if err := transferPieces(t.Context(), l, each); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		const most = linkFrameWindowMin/pieceRoomShare + servers*pieceWindowLeast
		if held := to.HeldBytes(); held > most || held < most/2 {
			t.Errorf("%d KiB of pieces are held, the bound is %d", held>>10, most>>10)
		}
		for done := 0; done < servers*each; {
			synctest.Wait()
			e.mu.Lock()
			kept := e.kept
			e.kept = nil
			e.mu.Unlock()
			if len(kept) == 0 {
				t.Fatalf("%d pieces of %d have come, and the others wait for ever", done, servers*each)
			}
			for _, b := range kept {
				b.Done()
			}
			done += len(kept)
		}
		sending.Wait()
		if held := to.HeldBytes(); held != 0 {
			t.Errorf("%d bytes stay booked", held)
		}
	})
}

// TestPiecesToManyServersHaveOneBound: twenty servers read nothing, and a server that sends segments to all held 4 MiB for each. One more
// that reads has its segment meanwhile, and each of them once it reads again.
func TestPiecesToManyServersHaveOneBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frozen, each = 20, 40
		may := make(chan struct{})
		healthy := newEar()
		to := map[string]peer.LinkHandler{"healthy": healthy}
		for i := range frozen {
			to[fmt.Sprint("frozen", i)] = &slowEar{newEar(), may}
		}
		from, links, _, end := senderTo(t, to)
		defer end()
		var sending sync.WaitGroup
		var sent atomic.Int64
		for name, l := range links {
			if name == "healthy" {
				continue
			}
			if err := sendFrame(t.Context(), l, &someRoute, make([]byte, 100), nil); err != nil { // its handler does not come back
				t.Fatal(err)
			}
			synctest.Wait()
			sending.Go(func() {
				if err := transferPieces(t.Context(), l, each); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			})
		}
		synctest.Wait()
		if held := from.HeldBytes(); held > linkFrameWindowMin/pieceRoomShare+frozen*pieceFirstBytes || held < frozen*peer.LinkPieceBytesMax {
			t.Errorf("%d KiB of pieces wait to be sent", held>>10)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := transferPieces(ctx, links["healthy"], each); err != nil {
			t.Errorf("pieces for a server that reads: %v", err)
		}
		// A transfer that is stopped, and a link that ends, leave nothing behind.
		ctx, stop := context.WithCancel(t.Context())
		var stopped sync.WaitGroup
		for _, l := range links {
			stopped.Go(func() { _ = transferPieces(ctx, l, 100) })
		}
		synctest.Wait()
		stop()
		stopped.Wait()
		close(may)
		sending.Wait()
		synctest.Wait()
		n, used := sent.Load(), from.pieces.used()
		if n != frozen || from.HeldBytes() != 0 || used != 0 || from.pieces.wanted() {
			t.Errorf("%d transfers of %d have ended, %d bytes stay booked, and %d of the room", n, frozen, from.HeldBytes(), used)
		}
	})
}

// TestWindowsForPiecesAreShares of the room, as far as it is left, and never less than four pieces.
func TestWindowsForPiecesAreShares(t *testing.T) {
	for _, c := range []struct {
		room, given int64
		servers     int
		want        int64
	}{
		{64 << 20, 0, 2, 4 << 20},
		{8 << 20, 0, 4, 2 << 20},
		{8 << 20, 7 << 20, 4, 1 << 20},
		{8 << 20, 8 << 20, 4, pieceWindowLeast},
		{8 << 20, 0, 20, pieceWindowLeast},
	} {
		if got := pieceWindowOf(c.room, 4<<20, c.given, c.servers); got != c.want {
			t.Errorf("%+v: a window of %d", c, got)
		}
	}
}

// TestWindowsForPiecesOfServersThatAreGoneAreFree: servers come and go, and each has what those before had.
func TestWindowsForPiecesOfServersThatAreGoneAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, _, _, end := hub(t, newEar(), 0)
		defer end()
		for i := range 10 {
			e := newEar()
			s := linksGivenUp(t, time.Minute, fmt.Sprint("s", i), e)
			JoinLinks(s, to)
			if w := e.linked(t, 1).(*link).pieceRoom.room; w != 4<<20 {
				t.Errorf("server %d has a window of %d", i, w)
			}
			s.Close()
			synctest.Wait()
		}
		if n := len(to.mu.windows); n != 0 {
			t.Errorf("%d servers that are gone have windows", n)
		}
	})
}

// TestAServerThatDialsAgainKeepsItsWindow: its newer link replaced the older one, whose end freed the window of both. So servers
// that came later were given the same room again.
func TestAServerThatDialsAgainKeepsItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers = 6
		to, _, _, end := hub(t, newEar(), 0)
		defer end()
		for i := range servers {
			var older *Links
			for range 2 { // the second is a process that started anew
				e := newEar()
				s := linksGivenUp(t, time.Minute, fmt.Sprint("s", i), e)
				JoinLinks(s, to)
				e.linked(t, 1)
				if older != nil {
					older.Close()
				}
				older = s
				synctest.Wait()
			}
			defer older.Close()
		}
		given := int64(0)
		for _, l := range to.mu.links {
			given += l.pieces.window
		}
		if most := to.settings.PieceRoomBytes + servers*pieceWindowLeast; len(to.mu.links) != servers || given > most {
			t.Errorf("%d servers are given windows of %d bytes, the bound is %d", len(to.mu.links), given, most)
		}
	})
}
