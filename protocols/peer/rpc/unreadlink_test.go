package rpc

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestAServerThatReadsNothingHoldsNoRoomForEver: its signs of life came, so its link never ended, and a long frame for it had the lane for
// frames of more than 16 MiB to all servers. One that reads a message now and then keeps its link.
func TestAServerThatReadsNothingHoldsNoRoomForEver(t *testing.T) {
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newEar()
			ls := linksOf(t, "b", h)
			p, ctx, cancel, err := ls.dialled()
			if err != nil {
				t.Fatal(err)
			}
			hello := linkGreeting{LinkHello: peer.LinkHello{Server: "x", Boot: 1}, versionMin: 1, versionMax: 9, frameWindow: 80 << 20, pieceWindow: 4 << 20}
			send := func(b []byte) error {
				buf, _ := pooled(b)
				return sendBuffer(p, buf)
			}
			if err := send(hello.append(nil)); err != nil {
				t.Fatal(err)
			}
			l := h.linked(t, 1).(*link)
			var other sync.WaitGroup
			other.Go(func() { // signs of life, which need no answer
				for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
					credit := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 0), 0)
					_ = send(endLinkRecord(append(beginLinkRecord(nil, linkCredit), credit...), 0, 0))
				}
			})
			sent := make(chan error, 1)
			go func() { sent <- sendFrame(t.Context(), l, &someRoute, make([]byte, 30<<20), nil) }()
			synctest.Wait()
			if !reads {
				time.Sleep(unreadMax + 2*time.Second)
				synctest.Wait()
				if err := l.why(); !fault.Is(err, fault.Unavailable) {
					t.Errorf("the link ended by %v", err)
				}
			} else {
				for range 10 {
					time.Sleep(unreadMax - 2*time.Second)
					var m message
					if err := p.RecvMsg(&m); err != nil {
						t.Fatal(err)
					}
					m.data.Free()
				}
				if err := l.why(); err != nil {
					t.Errorf("the link of a server that is only slow ended by %v", err)
				}
			}
			cancel(nil)
			ls.Close()
			other.Wait()
			if err := <-sent; err != nil {
				t.Errorf("the frame was not queued: %v", err)
			}
			if n := ls.HeldBytes(); n != 0 {
				t.Errorf("%d bytes stay booked", n)
			}
		})
	}
}
