package fanout

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Where several servers have copies of partitions, follow.Copies decides which ones are asked. This performs it: questions run side by side,
// each under a context of its own, and those that do not count are cancelled.

// targets returns where a request reads each partition. Servers that give no sign of life are asked last; ofSilent gets the partitions that they lead.
func (s *Source) targets(ctx context.Context, r *request, m *topology.Map, try int, ofSilent func(*topology.Partition)) func(p *topology.Partition) (target, error) {
	leaders, said := query.LeaderOnly(ctx)
	leaders = r.leaders || leaders || !said && s.settings.LeaderOnly || s.deps.Copies == nil
	return func(p *topology.Partition) (target, error) {
		lead, err := s.deps.Leaders.Find(r.table, p, try)
		t := target{leader: lead.Server, epoch: lead.Epoch, guess: lead.Guess}
		if err == nil && s.silent(lead.Server) {
			ofSilent(p)
		}
		if leaders || len(p.Placements) < 2 {
			return t, err
		}
		listed := s.deps.Copies(lease.Partition{Table: r.table, ID: p.ID})
		if len(listed) < 2 { // its leader alone has the rows, or there is no lease row to go by
			return t, err
		}
		r.hedge.Lock()
		t.copies = r.hedge.Order(time.Now(), follow.Spread(p, listed))
		r.hedge.Unlock()
		t.copies = follow.SilentLast(t.copies, s.silent)
		if t.enough = enough(p, m); s.age(r.table) >= follow.DoubtAge {
			t.enough = len(t.copies) + 1 // other servers may have copies by now: these are not enough
		}
		return t, nil
	}
}

// enough returns the number of copies whose rows, merged, include every acknowledged row, although each copy may lack some: among that many there is one of every in-sync list
// under which a row was acknowledged.
func enough(p *topology.Partition, m *topology.Map) int {
	n := len(p.Placements)
	return n - m.Config.ShortestList(p.ID, n) + 1
}

// race is the questions to the copies of a group.
//
// A question's goroutine may outlive the race: it ends when its server answers or its context does. So that each answer is either kept or dropped, and its memory
// released, it looks at over under mu before it puts its result into the channel:
//
//	before end sets over   ─▶ results, which has room for all: read by run, or emptied by end
//	after it               ─▶ dropped where it came
type race struct {
	// Constant.
	s       *Source
	r       *request
	g       *group
	results chan result // with room for all: no goroutine waits to put one in

	// Owned by the goroutine that runs the race.
	machine follow.Copies
	open    map[follow.CopyAsk]*question
	refusal []error // of each copy, the newest

	mu sync.Mutex
	// over says that nothing more counts: an answer that comes now is dropped by the goroutine that asked.
	over bool
}

// question is one that was asked. It is owned by the goroutine that runs the race; the one that asks has but its context.
type question struct {
	server topology.ServerID
	cancel context.CancelFunc
	began  time.Time
	late   bool
	over   bool // it has its answer
	answer answer
}

type result struct {
	ask    follow.CopyAsk
	answer answer
	err    error
}

// askCopies asks the copies of a group's partitions; its arguments and results are those of ask. Questions run under long, which lasts as long as the rows of an answer
// are read, and are cancelled one by one; others ends only the race.
func (s *Source) askCopies(long, others context.Context, r *request, g *group) ([]answer, []follow.Failure, error) {
	x := &race{s: s, r: r, g: g, machine: s.follow.Policy.Copies(g.copies, g.seq, g.enough, r.less && r.plan == nil, r.plan != nil), open: map[follow.CopyAsk]*question{},
		refusal: make([]error, len(g.copies))}
	x.results = make(chan result, 2*len(g.copies)) // each is asked twice at most
	err := x.run(long, others)
	return x.end(long, err)
}

// listenEvery is how often a race looks whether the servers that it waits for give signs of life.
const listenEvery = 50 * time.Millisecond

// run asks until the machine has an outcome. Errors are those of a request that ended.
func (x *race) run(long, others context.Context) error {
	wake := time.NewTimer(listenEvery)
	defer wake.Stop()
	var late time.Time        // when those that are waited for will be late; zero: they are
	var leads <-chan struct{} // nil until a copy is late
	more := x.machine.Begin()
	for {
		if x.ask(long, more); len(more) > 0 {
			late = time.Now().Add(x.late())
		}
		if more = x.silent(); len(more) > 0 {
			continue
		}
		if x.machine.Outcome() != follow.Open {
			return nil
		}
		pause := listenEvery
		if !late.IsZero() {
			pause = min(pause, time.Until(late))
		}
		wake.Reset(pause)
		select {
		case <-others.Done():
			return fault.Wrap(others.Err(), fault.Canceled, "ask copies")
		case <-wake.C:
			if late.IsZero() || time.Now().Before(late) {
				continue
			}
			late, more, leads = time.Time{}, x.isLate(), x.look()
		case <-leads:
			leads = x.look()
		case res := <-x.results:
			more = x.answered(res)
		}
	}
}

// silent asks another copy at once where all that are waited for give no sign of life.
func (x *race) silent() []follow.CopyAsk {
	if x.s.deps.Silence == nil || x.machine.Outcome() != follow.Open {
		return nil
	}
	more := x.machine.Silent(x.s.silent)
	if len(more) > 0 {
		x.s.metrics.hedges.Inc()
	}
	return more
}

// look gives the machine the present leaders, and returns a channel that is closed when one may change.
func (x *race) look() <-chan struct{} {
	changed := x.s.deps.Leaders.Changed()
	for i, p := range x.g.partitions {
		if l, err := x.s.deps.Leaders.Find(x.r.table, p, 0); err == nil {
			x.machine.Look(follow.Lead{Server: l.Server, Guess: l.Guess}, l.Server == x.g.leads[i] && l.Epoch == x.g.epochs[i])
		}
	}
	return changed
}

func (x *race) late() time.Duration {
	x.r.hedge.Lock()
	defer x.r.hedge.Unlock()
	return x.r.hedge.Late()
}

// isLate asks another copy beside those that are waited for.
func (x *race) isLate() []follow.CopyAsk {
	more := x.machine.Late()
	x.r.hedge.Lock()
	defer x.r.hedge.Unlock()
	for a, q := range x.open {
		if !q.late && !q.over && a.Mode == peer.SureCopies {
			q.late = true
			x.r.hedge.WasLate(time.Now(), q.server)
		}
	}
	if len(more) > 0 {
		x.r.hedge.Hedged()
		x.s.metrics.hedges.Inc()
	}
	return more
}

// ask begins questions.
func (x *race) ask(long context.Context, asks []follow.CopyAsk) {
	for _, a := range asks {
		g := *x.g
		g.server, g.mode = x.g.copies[a.Copy], a.Mode
		g.overlaps = g.overlaps || a.Mode == peer.UnsureCopies // with the rows of the other copies
		ctx, cancel := context.WithCancel(long)
		x.open[a] = &question{server: g.server, cancel: cancel, began: time.Now()}
		go x.question(ctx, a, &g)
	}
}

func (x *race) question(ctx context.Context, a follow.CopyAsk, g *group) {
	res := result{ask: a}
	if st, ok := x.s.deps.Servers.Server(g.server); ok {
		res.answer, res.err = x.asked(ctx, g, st)
	} else {
		res.err = fault.Errorf(fault.Unavailable, "storage server %q is not known here", g.server)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.results <- res // it has room for all
	} else if res.err == nil {
		res.answer.drop()
	}
}

func (x *race) asked(ctx context.Context, g *group, st peer.Storage) (a answer, err error) {
	defer fault.Caught(&err)
	return x.r.ask(ctx, g, st)
}

func (x *race) answered(res result) []follow.CopyAsk {
	q := x.open[res.ask]
	x.r.hedge.Lock()
	switch {
	case res.err == nil || fault.Is(res.err, fault.Stale):
		x.r.hedge.Answered(q.server, time.Since(q.began))
	case fault.Is(res.err, fault.Unavailable):
		x.r.hedge.Shun(time.Now(), q.server)
	}
	x.r.hedge.Unlock()
	x.s.metrics.copy(res.ask, res.err)
	q.answer, q.over = res.answer, true
	if res.err != nil {
		q.cancel()
		x.refusal[res.ask.Copy] = res.err
	}
	return x.machine.Answer(res.ask, res.err)
}

// end cancels what does not count and returns what does. Answers that came and do not count are dropped here, also those that were not read from the channel.
func (x *race) end(long context.Context, err error) ([]answer, []follow.Failure, error) {
	var answers []answer
	if o := x.machine.Outcome(); err == nil && o != follow.Failed && o != follow.Refused {
		for _, a := range x.machine.Answers() {
			q := x.open[a]
			answers = append(answers, q.answer)
			if q.answer.complete {
				q.cancel()
			} else {
				context.AfterFunc(long, q.cancel) // its rows are read under its context
			}
			delete(x.open, a)
		}
	}
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	for _, q := range x.open {
		q.cancel()
		if q.answer.drop != nil {
			q.answer.drop()
		}
	}
	for {
		select {
		case res := <-x.results: // it came while the race ended
			if res.err == nil {
				res.answer.drop()
			}
			continue
		default:
		}
		break
	}
	return x.result(long, answers, err)
}

func (x *race) result(ctx context.Context, answers []answer, err error) ([]answer, []follow.Failure, error) {
	if err != nil {
		return nil, nil, err
	}
	reason, cause := x.machine.Failure()
	switch x.machine.Outcome() {
	case follow.Refused:
		return nil, nil, cause
	case follow.Failed:
		// A newer map may have partitions for steps of which no server was asked.
		if at, named := peer.MapOf(cause); x.r.plan != nil && !(named && at.Seq > x.g.seq) {
			return nil, nil, nil
		}
		return nil, x.g.failures(follow.Failure{Sent: true, Reason: reason, Err: x.named(cause)}), nil
	case follow.Merged:
		x.s.metrics.merged.Inc()
	case follow.Lacking:
		x.s.metrics.partial.Inc()
		query.Warn(ctx, "the answer may lack rows of "+names(x.g.partitions)+": "+cause.Error())
	}
	return answers, nil, nil
}

// An error names so many copies, with so many bytes of the reason of each.
const (
	namedCopiesMax = 8
	namedReasonMax = 200
)

// named puts in front of the cause the other copies that were asked, with their reasons.
func (x *race) named(cause error) error {
	var others []string
	for i, server := range x.g.copies {
		_, sure := x.open[follow.CopyAsk{Copy: i, Mode: peer.SureCopies}]
		_, unsure := x.open[follow.CopyAsk{Copy: i, Mode: peer.UnsureCopies}]
		switch err := x.refusal[i]; {
		case len(others) == namedCopiesMax:
		case err == nil && (sure || unsure):
			others = append(others, string(server)+": no answer yet")
		case err != nil && err.Error() != cause.Error():
			text := err.Error()
			others = append(others, string(server)+": "+strings.ToValidUTF8(text[:min(len(text), namedReasonMax)], ""))
		}
	}
	if len(others) == 0 {
		return cause
	}
	return fault.Annotate(cause, "no copy answers; %s", strings.Join(others, "; "))
}
