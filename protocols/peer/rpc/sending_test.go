package rpc

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	grpcpeer "google.golang.org/grpc/peer"
)

// unreadStream is a call of which nothing is read.
type unreadStream struct{ ofContext }

func (s unreadStream) SendMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

// TestASlowExportKeepsTheConnectionOfItsGateway: a client read for longer than five minutes what one server had sent, and the connection to another one, whose rows come behind those, was closed with
// all calls on it.
func TestASlowExportKeepsTheConnectionOfItsGateway(t *testing.T) {
	for _, c := range []struct {
		name            string
		reads           bool
		deadline, after time.Duration // 0: none; the connection stays
	}{
		{"a select that ends by itself", true, 30 * time.Minute, 0},
		{"a select that ends later", true, 3 * time.Hour, time.Hour},
		{"a select without an end", true, 0, 5 * time.Minute},
		{"another call", false, 30 * time.Minute, 5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &closes{}
				ctx, end := context.WithCancel(grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: pacedInfo{conn: conn}}))
				defer end()
				if c.deadline > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, c.deadline)
					defer stop()
				}
				srv := &Server{deps: Deps{Log: slog.New(slog.DiscardHandler)}}
				a := &arrivingStream{ServerStream: unreadStream{ofContext{nil, ctx}}, s: srv, sending: sending{max: 5 * time.Minute, reads: c.reads}}
				done := make(chan error, 1)
				go func() { done <- a.SendMsg(nil) }()
				if c.after == 0 {
					<-done
					if time.Sleep(time.Hour); conn.closed.Load() {
						t.Error("the connection is closed")
					}
					return
				}
				time.Sleep(c.after - time.Second)
				if synctest.Wait(); conn.closed.Load() {
					t.Error("the connection is closed too soon")
				}
				time.Sleep(2 * time.Second)
				if synctest.Wait(); !conn.closed.Load() {
					t.Errorf("the connection stays for longer than %v", c.after)
				}
				end()
				<-done
			})
		})
	}
}
