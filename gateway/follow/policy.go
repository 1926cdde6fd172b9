package follow

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// PingMax is how long a server that sent nothing at all for SilenceMax may delay the answer to a ping, where its silence alone is a reason to leave it.
const PingMax = 300 * time.Millisecond

// SilenceMax is how long a server may be silent before the view is checked for another leader.
const SilenceMax = 500 * time.Millisecond

// Policy holds the differences between kinds of requests. Constant while requests use it.
type Policy struct {
	// Patience is how long a request waits for a better moment, from its beginning. Changes at hand are followed after it,
	// too.
	Patience time.Duration
	// TriesMax bounds the tries of one request; 0: only Patience does.
	TriesMax int
	// PauseMin and PauseMax bound the wait before the same server is asked again; it doubles with each try, and is jittered by half. Without TriesMax it begins
	// anew with each newer map or other leader: a leader's lease row may be seen here before the leader itself has the answer of the store, and refuses.
	PauseMin, PauseMax time.Duration
	// Repeat asks a server that was Unavailable again after the pause. Without it only a newer map or another leader leads
	// to a retry.
	Repeat bool
	// Alone says that there is no other server: an Unavailable is final, and a silent server is not left.
	Alone bool
	// UnknownIsStale treats a NotFound as an old map of the server, which does not know the table yet.
	UnknownIsStale bool
	// StageAfter is how long the leader of a partition may be away before its rows are staged on other servers; 0: they never are.
	StageAfter time.Duration
	// Streams says that an answer goes on under the attempt's context: an attempt that was cancelled has none.
	Streams bool
}

// Writes is the policy of writes that go on trying for so long.
func Writes(patience time.Duration, alone bool) Policy {
	return Policy{Patience: patience, PauseMin: 10 * time.Millisecond, PauseMax: 500 * time.Millisecond, Repeat: true, Alone: alone}
}

// Reads is the policy of reads that go on trying for so long.
func Reads(patience time.Duration) Policy {
	return Policy{Patience: patience, TriesMax: 8, PauseMin: 20 * time.Millisecond, PauseMax: 2560 * time.Millisecond, UnknownIsStale: true, Streams: true}
}

// pause is the wait after try number n (from 0) by the same map and leaders. draw is in [0, 1).
func (p *Policy) pause(try int, draw float64) time.Duration {
	d := min(p.PauseMin<<min(try, 10), p.PauseMax)
	return d/2 + time.Duration(draw*float64(d))
}

// Reason is the cause of a retry.
type Reason uint8

// Reasons.
const (
	None       Reason = iota
	Leaderless        // there was no server to ask
	Unanswered        // the server is away, or cannot act
	Stale             // the server has another map, or does not lead
	Moved             // the server was silent, and another leads
)

// String gives the name used in metrics.
func (r Reason) String() string {
	return [...]string{None: "", Leaderless: "leaderless", Unanswered: "leader", Stale: "stale", Moved: "moved"}[r]
}

// Verdict is the meaning of an answer for its attempt.
type Verdict uint8

// Verdicts.
const (
	Done  Verdict = iota // it is the answer asked for
	Again                // another try may succeed, for a Reason
	Final                // no other try would be better
)

// judge classifies an answer.
func (p *Policy) judge(err error) (Verdict, Reason) {
	switch {
	case err == nil:
		return Done, None
	case fault.Is(err, fault.Stale), p.UnknownIsStale && fault.Is(err, fault.NotFound):
		return Again, Stale
	case fault.Is(err, fault.Unavailable) && !p.Alone:
		return Again, Unanswered
	}
	return Final, None
}

// Lead is the leader of a partition, as the view of leases shows it at one moment. The zero Lead: none, or unknown.
type Lead struct {
	Server topology.ServerID
	Guess  bool // it never had a leader, and this is one of its placements
}
