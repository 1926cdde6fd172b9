package follow

import "github.com/spillwaydb/spillway/metadata/topology"

// Attempt is one question to one server, about one partition or several. The zero Attempt has not begun.
//
//	asked ── Silent ──▶ watched ── Look: another leads ──▶ left
//	  └───────────────────┴───────── Answer ──▶ over ◀──────┘
type Attempt struct {
	policy *Policy
	asked  topology.ServerID
	state  attemptState
}

type attemptState uint8

const (
	idle attemptState = iota
	asked
	watched
	left
	over
)

// Begin makes an attempt to ask a server.
func (p *Policy) Begin(server topology.ServerID) Attempt {
	return Attempt{policy: p, asked: server, state: asked}
}

// Watches reports whether the server's silence matters: there may be another to ask.
func (a *Attempt) Watches() bool { return !a.policy.Alone }

// Silent is called after SilenceMax without an answer. It reports whether to look at the leaders, now and at every change,
// until the answer.
func (a *Attempt) Silent() (look bool) {
	if a.state != asked || a.policy.Alone {
		return false
	}
	a.state = watched
	return true
}

// Look compares with the present leader of one of the partitions. It reports whether to cancel the question: another server leads, and this
// one is silent.
func (a *Attempt) Look(l Lead) (cancel bool) {
	if a.state != watched || l.Server == "" || l.Guess || l.Server == a.asked {
		return false
	}
	a.state = left
	return true
}

// Deaf records that the server did not answer a ping either. It reports whether to cancel the question.
func (a *Attempt) Deaf() (cancel bool) {
	if a.state != watched || a.policy.StageAfter == 0 {
		return false
	}
	a.state = left
	return true
}

// Answer handles the end of the question. An answer that was already on its way when the attempt was cancelled counts, unless
// it would have gone on under the attempt's context.
func (a *Attempt) Answer(err error) (Verdict, Reason) {
	was := a.state
	a.state = over
	if was == left && (err != nil || a.policy.Streams) {
		return Again, Moved
	}
	return a.policy.judge(err)
}
