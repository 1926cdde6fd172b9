package follow

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Request is one write or read over all its tries. The runner asks servers by one map per try (Attempt), and reports
// failures here.
type Request struct {
	policy   *Policy
	deadline time.Time
	try      int
	fresh    int // the first try after the last news

	// Of the wait for the next try.
	seq    uint64 // of the map of the last try
	asked  []Lead
	sent   int
	paused time.Time // when the pause is over; zero: there is none, only news are waited for
	ends   time.Time // when waiting is over without news
	stage  time.Time // when the rows are staged; zero: they are not
	staged time.Time // not before
}

// Request begins a request.
func (p *Policy) Request(now time.Time) Request {
	return Request{policy: p, deadline: now.Add(p.Patience)}
}

// Try is the number of the try under way, from 0. It selects the server where the leader can only be guessed.
func (r *Request) Try() int { return r.try }

// Deadline is when the request is abandoned.
func (r *Request) Deadline() time.Time { return r.deadline }

// Failure is a part without an answer yet: partitions for which the same server was asked, or one that had no server.
type Failure struct {
	Partitions []*topology.Partition
	Asked      topology.ServerID // "": there was no server to ask
	Guess      bool              // no server was seen to lead, and this was one of the placements
	Sent       bool              // the server got the question, or may have
	Deaf       bool              // it did not answer a ping either
	Full       bool              // it leads, and accepts no rows until a person makes room on its disk
	Since      time.Time         // since when the leader is away, as of other requests too; zero: unknown
	Reason     Reason
	Err        error
}

// Do is the next step.
type Do uint8

// The next steps.
const (
	Send   Do = iota // begin the next try, by the newest map
	Wait             // until a map or leader changes (Look), or until Effect.Until (Tick)
	GiveUp           // with the errors of the failures
	Stage            // the rows of the failures on other servers, then Unstaged if that failed
)

// Effect is the action that a step asks of the runner.
type Effect struct {
	Do      Do
	Until   time.Time  // of Wait
	Refresh bool       // beside waiting: look for a newer map, then Look
	Newer   peer.MapAt // of Refresh: the newest map that a server named; Seq 0: none did
	Again   int        // of Send: failures that were sent before, and draw on the budget
}

// Failed handles the failures of a try by the map of seq. draw, in [0, 1), is the pause's jitter. After a Wait the runner
// looks first: changes during the try are followed at once, even if the try lasted longer than the patience. Where every failure is Full, nothing but such
// news and staging is waited for; beside others they are tried again with those, whose rows may be kept.
func (r *Request) Failed(now time.Time, seq uint64, failures []Failure, draw float64) Effect {
	r.seq, r.sent, r.paused, r.stage, r.ends, r.asked = seq, 0, time.Time{}, time.Time{}, r.deadline, r.asked[:0]
	var e Effect
	full := len(failures) > 0
	for i := range failures {
		f := &failures[i]
		for range f.Partitions {
			r.asked = append(r.asked, Lead{f.Asked, f.Guess})
		}
		if f.Sent {
			r.sent++
		}
		full = full && f.Full
		if at := f.Since.Add(r.policy.StageAfter); r.policy.StageAfter > 0 && !f.Since.IsZero() && (r.stage.IsZero() || at.Before(r.stage)) {
			r.stage = at
		}
		if f.Reason != Stale {
			continue
		}
		e.Refresh = true
		if at, ok := peer.MapOf(f.Err); ok && at.Seq > max(seq, e.Newer.Seq) {
			e.Newer = at
		}
	}
	if e.Refresh || r.policy.Repeat && !full {
		r.paused = now.Add(r.policy.pause(r.try-r.fresh, draw))
	}
	if !r.stage.IsZero() && r.stage.Before(r.staged) {
		r.stage = r.staged
	}
	if full && r.stage.IsZero() { // no time that a sender waits is enough
		r.ends = now
	}
	if r.policy.TriesMax > 0 && r.try+1 >= r.policy.TriesMax {
		return Effect{Do: GiveUp}
	}
	e.Do, e.Until = Wait, r.until()
	return e
}

// Look uses the newest map at hand, and the leaders of the failed partitions now, in the order of the failures. seq 0: the
// table is gone.
func (r *Request) Look(now time.Time, seq uint64, leads []Lead) Effect {
	news := seq == 0 || seq > r.seq
	for i, l := range leads {
		// A server that was asked on a guess and refused leads by now: it is asked again at once, not after the pause.
		news = news || l.Server != "" && (l.Server != r.asked[i].Server || r.asked[i].Guess && !l.Guess)
	}
	if !news {
		return r.wait(now)
	}
	e := r.send()
	if r.policy.TriesMax == 0 { // where tries are bounded, short pauses would use them up
		r.fresh = r.try
	}
	return e
}

// Tick handles the passage of time.
func (r *Request) Tick(now time.Time) Effect {
	if r.mayStage(now) {
		return Effect{Do: Stage}
	}
	if !r.paused.IsZero() && !now.Before(r.paused) && now.Before(r.deadline) {
		return r.send()
	}
	return r.wait(now)
}

func (r *Request) send() Effect {
	r.try++
	return Effect{Do: Send, Again: r.sent}
}

// wait continues to wait, or ends the request.
func (r *Request) wait(now time.Time) Effect {
	if r.mayStage(now) {
		return Effect{Do: Stage}
	}
	if !now.Before(r.ends) {
		return Effect{Do: GiveUp}
	}
	return Effect{Do: Wait, Until: r.until()}
}

// until is when the wait ends without news: the pause is over, or patience is, or every part that failed met a full disk.
func (r *Request) until() time.Time {
	until := r.ends
	for _, at := range []time.Time{r.paused, r.stage} {
		if !at.IsZero() && at.Before(until) {
			until = at
		}
	}
	return until
}

func (r *Request) mayStage(now time.Time) bool {
	return !r.stage.IsZero() && !now.Before(r.stage) && now.Before(r.deadline)
}

// Unstaged records that the rows could not be staged: leaders are asked again, and after StageAfter the rows are staged again.
func (r *Request) Unstaged(now time.Time) { r.staged = now.Add(r.policy.StageAfter) }
