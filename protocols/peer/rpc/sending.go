package rpc

import "time"

// sending closes the connection of a call of which nothing is read for sending.max: gRPC's send waits for room as long as the connection lives, and with it the answer, the turn among queries, the
// goroutine, and what a storage keeps open for it. It belongs to the goroutine that sends.
type sending struct {
	max   time.Duration // constant; 0: no limit
	timer *time.Timer   // nil: nothing was sent yet
}

// sendShare is how many times Settings.SilenceMax nothing may be read of a call, five minutes: a gateway merges answers of several servers, and reads of one when others have
// answered too; it gives up a client that reads nothing for half a minute, and a query after its own limit.
const sendShare = 30

// SendMsg implements grpc.ServerStream.
func (a *arrivingStream) SendMsg(m any) error {
	if a.sending.max == 0 {
		return a.ServerStream.SendMsg(m)
	}
	if a.sending.timer == nil {
		a.sending.timer = time.AfterFunc(a.sending.max, a.unsent)
	} else {
		a.sending.timer.Reset(a.sending.max)
	}
	defer a.sending.timer.Stop()
	return a.ServerStream.SendMsg(m)
}

func (a *arrivingStream) unsent() {
	if conn := pacedOf(a.Context()).conn; conn != nil {
		a.s.deps.Log.Info("connection closed, an answer on it was not read", "peer", conn.RemoteAddr().String(), "waited", a.sending.max)
		_ = conn.Close()
	}
}
