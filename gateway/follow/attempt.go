package follow

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// Attempt is one question to one server, about one partition or several. The zero Attempt has not begun.
//
//	asked ── Silent ──▶ watched ── Look: another leads ──▶ left
//	  │                   │ ▲ └─── Listen: nothing came; a ping; Deaf: still nothing ──▶ left
//	  │                   └─┘ Listen: something came, of any request                       │
//	  └───────────────────┴───────── Answer ──▶ over ◀───────────────────────────────────┘
//
// A server that sends anything works, however late it is with this answer: rows that are staged because it is busy are work for the others, and for it once more. A frozen
// or dead one, or one that is cut off, sends nothing at all. One that sends and never answers this question, as when the disk of its log hangs, is left when another leads,
// when it says so itself (storage/chain, Stalled), or at the request's deadline.
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

// Listen is called while the attempt is watched. silence is for how long nothing at all has come from the server since the question. It reports whether to ask for a sign
// of life now, with PingMax to answer, else when to call it again.
func (a *Attempt) Listen(silence time.Duration) (ping bool, again time.Duration) {
	if silence < SilenceMax {
		return false, SilenceMax - silence
	}
	return true, 0
}

// Deaf handles a ping that was not answered while it was waited for; silence is that of Listen by now. It reports whether to cancel the question.
// If the wait lasted much longer than PingMax, this process was held up itself, and the answer may lie unread: the server is asked again.
func (a *Attempt) Deaf(silence, waited time.Duration) (cancel bool) {
	if a.state != watched || a.policy.StageAfter == 0 || silence < SilenceMax || waited >= 2*PingMax {
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
