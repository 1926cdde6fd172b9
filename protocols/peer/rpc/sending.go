package rpc

import (
	"context"
	"time"
)

// sending closes the connection of a call of which nothing is read for sending.max: gRPC's send waits for room as long as the connection lives, and with it the answer, the turn among queries, the
// goroutine, and what a storage keeps open for it. It belongs to the goroutine that sends.
type sending struct {
	max   time.Duration // constant; 0: no limit
	reads bool          // constant: of a select, whose caller may wait for its own client
	timer *time.Timer   // nil: nothing was sent yet
}

// selectShare is how many times sending.max, an hour, nothing may be read of a select that has a deadline, and so ends by itself. A gateway merges the rows of several servers for a client that reads them as
// slowly as it likes, within query.timeout: it reads nothing of a server whose rows come last. A select has few rows in memory.
const selectShare = 12

// limit is how long the next message may wait. Behind a deadline gRPC ends the wait.
func (s *sending) limit(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok && s.reads {
		return min(max(time.Until(deadline), 0)+s.max, selectShare*s.max)
	}
	return s.max
}

// sendShare is how many times Settings.SilenceMax nothing may be read of a call, five minutes: a gateway merges answers of several servers, and reads of one when others have
// answered too; it gives up a client that reads nothing for half a minute, and a query after its own limit.
const sendShare = 30

// SendMsg implements grpc.ServerStream.
func (a *arrivingStream) SendMsg(m any) error {
	if a.sending.max == 0 {
		return a.ServerStream.SendMsg(m)
	}
	most := a.sending.limit(a.Context())
	if a.sending.timer == nil {
		a.sending.timer = time.AfterFunc(most, a.unsent)
	} else {
		a.sending.timer.Reset(most)
	}
	defer a.sending.timer.Stop()
	return a.ServerStream.SendMsg(m)
}

func (a *arrivingStream) unsent() {
	if conn := pacedOf(a.Context()).conn; conn != nil {
		a.s.deps.Log.Info("connection closed, an answer on it was not read", "peer", conn.RemoteAddr().String())
		_ = conn.Close()
	}
}
