package follow

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Copies asks the placements of partitions that lie on several servers, until one answer is whole, or several together are.
//
//	Begin ─▶ ask the first ── it fails, or is late ─▶ ask the next ─▶ … ─▶ none is left: ask those that may lack rows, all at once
//	             │ one that surely has every row answers                        │ enough answered
//	             ▼                                                              ▼
//	           Whole: the others are cancelled                                Merged by rank
//
// The servers decide whether they surely have every row (storage/chain, "Sure"). All acknowledged rows are on each placement of the in-sync list,
// which are min_in_sync of N placements at least, also where the table is to have more: so the rows of any N - min_in_sync + 1 placements are complete together.
type Copies struct {
	policy *Policy
	seq    uint64 // of the map by which the servers were chosen
	enough int
	less   bool
	other  bool

	copies  []copyState
	spare   bool // those that may lack rows are asked
	outcome Outcome
	cause   error
	reason  Reason
	busy    error // of the first server that has no room for the request
}

type copyState struct {
	server       topology.ServerID
	sure, unsure askState
	refused      bool // it may lack rows, and would give those that it has
}

type askState uint8

const (
	notAsked askState = iota
	waited
	answered
	failed
)

// CopyAsk is one question to one copy: Mode SureCopies, or UnsureCopies to one that may lack rows.
type CopyAsk struct {
	Copy int // in the order given
	Mode peer.Copies
}

// Outcome is the state of the questions.
type Outcome uint8

// Outcomes.
const (
	Open    Outcome = iota
	Whole           // one answer has every row
	Merged          // the answers, merged by rank, have every row together
	Lacking         // the answers may lack rows, which the asker allows
	Failed          // there is no answer; another try may find one, for Failure's reason
	Refused         // no other try would be better
)

// Copies begins to ask servers in an order, by the map of seq. Answers of so many that may lack rows are complete; more than there are servers: those
// never are. less allows an answer that may lack rows where there is no other. other says that the asker has another way to an answer, if none of the servers surely has
// every row.
func (p *Policy) Copies(order []topology.ServerID, seq uint64, enough int, less, other bool) Copies {
	c := Copies{policy: p, seq: seq, enough: max(1, enough), less: less, other: other, copies: make([]copyState, len(order))}
	for i, s := range order {
		c.copies[i].server = s
	}
	return c
}

// Begin returns the first questions.
func (c *Copies) Begin() []CopyAsk { return c.next() }

// Late handles that for some time there was no answer to the questions asked, and returns more. Where the asker has another way, and all others may lack rows since they get nothing
// from their leader, one that is late is not waited for: it is most likely that leader, and frozen.
func (c *Copies) Late() []CopyAsk {
	if c.outcome != Open {
		return nil
	}
	asks := c.next()
	if c.other && len(asks) == 0 && c.outcome == Open && c.refusals() > 0 && c.refusals() == len(c.copies)-1 {
		c.outcome = Failed
	}
	return asks
}

// Silent handles that some servers give no sign of life, and returns more questions: if all servers that are asked are silent, none of them is waited for until it is late. Where the asker
// has another way, and there is no other to ask, this is the end.
func (c *Copies) Silent(is func(topology.ServerID) bool) []CopyAsk {
	if c.outcome != Open || slices.ContainsFunc(c.copies, func(x copyState) bool { return (x.sure == waited || x.unsure == waited) && !is(x.server) }) {
		return nil
	}
	asks := c.next()
	if c.other && len(asks) == 0 && c.outcome == Open {
		if c.outcome = Failed; c.cause == nil {
			c.cause, c.reason = fault.Errorf(fault.Unavailable, "no copy gives a sign of life"), Unanswered
		}
	}
	return asks
}

// Look gets the leader of one of the partitions, now that a copy is late. If it has failed to answer before, it may answer now: as a leader it surely has
// every row. Then the silent ones are left for another try. One that led already when the copies were first asked has failed as a leader, most likely because it is
// dead: no other try would be better before another leads, which needs seconds, and the silent copies may have the answer any moment.
func (c *Copies) Look(l Lead, led bool) {
	if led || c.outcome != Open || !c.spare || c.waits(peer.UnsureCopies) || l.Server == "" || l.Guess {
		return
	}
	for _, x := range c.copies {
		if x.server == l.Server && x.sure != failed {
			return
		}
	}
	c.outcome, c.reason = Failed, Moved
	if c.cause == nil {
		c.cause = fault.Errorf(fault.Stale, "server %s leads by now", l.Server)
	}
}

// Answer handles the end of a question, and returns more of them.
func (c *Copies) Answer(a CopyAsk, err error) []CopyAsk {
	x := &c.copies[a.Copy]
	state := &x.sure
	if a.Mode == peer.UnsureCopies {
		state = &x.unsure
	}
	if c.outcome != Open || *state != waited {
		return nil
	}
	if err == nil {
		*state = answered
		c.took(a)
		return nil
	}
	*state = failed
	verdict, reason := c.policy.judge(err)
	switch {
	case fault.Is(err, fault.Corrupt): // another copy may be whole
		verdict, reason = Again, Unanswered
	case fault.Is(err, fault.Throttled) && peer.IsAnswer(err): // another copy may have room; if none has, the asker gets this error at once
		verdict, reason = Again, Unanswered
		if c.busy == nil {
			c.busy = err
		}
	}
	switch at, named := peer.MapOf(err); {
	case verdict == Final:
		c.outcome, c.cause, c.reason = Refused, err, None
		return nil
	case named && at.Seq > c.seq: // rows may be where that map has them: another copy would not miss them
		c.outcome, c.cause, c.reason = Failed, err, Stale
		return nil
	}
	if c.cause == nil || reason == Stale && c.reason != Stale {
		c.cause, c.reason = err, reason
	}
	x.refused = x.refused || peer.IsUnsure(err) && a.Mode == peer.SureCopies
	return c.more()
}

// more returns the questions after a failure: another copy is asked at once. Where there is none, or enough have said that they may lack rows, those are.
func (c *Copies) more() []CopyAsk {
	if !c.spare && c.refusals() >= c.enough {
		return c.settle(c.fallBack())
	}
	if asks := c.another(); asks != nil {
		return asks
	}
	if !c.spare && c.waits(peer.SureCopies) { // it may have every row; it is waited for until it is late
		return nil
	}
	return c.settle(c.fallBack())
}

func (c *Copies) refusals() (n int) {
	for _, x := range c.copies {
		if x.refused {
			n++
		}
	}
	return n
}

// took counts an answer.
func (c *Copies) took(a CopyAsk) {
	if a.Mode == peer.SureCopies {
		c.outcome = Whole
		for i := range c.copies { // the others do not count
			if i != a.Copy {
				c.copies[i].sure = notAsked
			}
			c.copies[i].unsure = notAsked
		}
		return
	}
	if len(c.Answers()) >= c.enough {
		c.outcome = Merged
		return
	}
	c.settle(nil)
}

// next asks one more copy; where there is none, those that may lack rows.
func (c *Copies) next() []CopyAsk {
	if asks := c.another(); asks != nil {
		return asks
	}
	return c.settle(c.fallBack())
}

// another asks the next copy that was not asked yet.
func (c *Copies) another() []CopyAsk {
	i := slices.IndexFunc(c.copies, func(x copyState) bool { return x.sure == notAsked })
	if i < 0 {
		return nil
	}
	c.copies[i].sure = waited
	return []CopyAsk{{i, peer.SureCopies}}
}

// fallBack asks the copies that may lack rows for those they have, if enough may answer.
func (c *Copies) fallBack() (asks []CopyAsk) {
	c.spare = true
	may := 0
	for _, x := range c.copies {
		if x.unsure == answered || x.unsure == waited || x.unsure == notAsked && (x.refused || x.sure == waited) {
			may++
		}
	}
	if may < c.enough && !c.less {
		return nil
	}
	for i := range c.copies {
		if x := &c.copies[i]; x.refused && x.unsure == notAsked {
			x.unsure = waited
			asks = append(asks, CopyAsk{i, peer.UnsureCopies})
		}
	}
	return asks
}

// settle ends it if no question is open and none is about to be asked.
func (c *Copies) settle(asks []CopyAsk) []CopyAsk {
	switch {
	case len(asks) > 0 || c.waits(peer.SureCopies) || c.waits(peer.UnsureCopies):
	case c.less && len(c.Answers()) > 0:
		c.outcome = Lacking
	case c.busy != nil && c.reason != Stale:
		c.outcome, c.cause, c.reason = Refused, c.busy, None
	default:
		c.outcome = Failed
	}
	return asks
}

func (c *Copies) waits(mode peer.Copies) bool {
	return slices.ContainsFunc(c.copies, func(x copyState) bool {
		return mode == peer.SureCopies && x.sure == waited || mode == peer.UnsureCopies && x.unsure == waited
	})
}

// Outcome returns how it stands.
func (c *Copies) Outcome() Outcome { return c.outcome }

// Answers are the questions whose answers make up the outcome.
func (c *Copies) Answers() (all []CopyAsk) {
	for i, x := range c.copies {
		if x.sure == answered {
			all = append(all, CopyAsk{i, peer.SureCopies})
		}
		if x.unsure == answered {
			all = append(all, CopyAsk{i, peer.UnsureCopies})
		}
	}
	return all
}

// Failure returns why there is no answer: Failed names the reason for another try.
func (c *Copies) Failure() (Reason, error) { return c.reason, c.cause }
