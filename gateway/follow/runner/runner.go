package runner

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Tables returns the newest maps at hand; tables.Tables implements it.
type Tables interface {
	Get(name string) (*topology.Map, bool)
	// Changed gives a channel that is closed at the next change of any table.
	Changed() <-chan struct{}
}

// Leaders returns the servers to ask; leaders.View implements it.
type Leaders interface {
	// Find names the server. Where it can only guess, each try may name another. Errors are Unavailable and say why.
	Find(table string, p *topology.Partition, try int) (leaders.Lead, error)
	// Changed gives a channel that is closed when an answer of Find may change.
	Changed() <-chan struct{}
}

// Maps looks for a map newer than m: at the place that a server named, else in the coordination store; tables.Refresher
// implements it.
type Maps interface {
	// Begin gives a channel that is closed when there was an answer, or none for some time; nil: a newer map is at hand.
	Begin(ctx context.Context, table string, m *topology.Map, newer peer.MapAt) <-chan singleflight.Result
	// Refresh is Begin, and waits.
	Refresh(ctx context.Context, table string, m *topology.Map, newer peer.MapAt)
}

// Runner performs requests by one policy. Safe for concurrent use; constant once it is used.
type Runner struct {
	Policy  follow.Policy
	Tables  Tables
	Leaders Leaders
	Maps    Maps
	// Ping asks a server for a sign of life, where the policy stages: one that gives none is left. Nil: it is waited for.
	Ping func(ctx context.Context, server topology.ServerID) error
	// LastReceived returns when anything last came from a server, in answer to whatever request; zero: nothing is known. Nil: only answers to pings count.
	LastReceived func(server topology.ServerID) time.Time

	attempts sync.Pool // *Attempt
}

// Changes are the map and leader changes since this was called: call it, then look at maps and leaders.
type Changes struct{ tables, leaders <-chan struct{} }

// Changes begins to watch maps and leaders.
func (r *Runner) Changes() Changes { return Changes{r.Tables.Changed(), r.Leaders.Changed()} }

// Await waits, after a try by map m that left failures, until another try makes sense. The effect is Send, or GiveUp; also when ctx ended,
// where the caller looks at ctx.
func (r *Runner) Await(ctx context.Context, req *follow.Request, table string, m *topology.Map, failed []follow.Failure, ch Changes) follow.Effect {
	e := req.Failed(time.Now(), m.Seq, failed, rand.Float64())
	if e.Do == follow.GiveUp {
		return e
	}
	var refreshed <-chan singleflight.Result
	if e.Refresh { // beside the pause: a store that is away must not delay the next try
		refreshed = r.Maps.Begin(ctx, table, m, e.Newer)
	}
	if e = r.look(req, table, m, failed); e.Do != follow.Wait {
		return e
	}
	timer := time.NewTimer(time.Until(e.Until))
	defer timer.Stop()
	for e.Do == follow.Wait {
		select {
		case <-ctx.Done():
			return follow.Effect{Do: follow.GiveUp}
		case <-timer.C:
			if e = req.Tick(time.Now()); e.Do == follow.Wait {
				timer.Reset(time.Until(e.Until))
			}
		case <-refreshed:
			refreshed = nil
			e = r.look(req, table, m, failed)
		case <-ch.tables:
			ch.tables = r.Tables.Changed()
			e = r.look(req, table, m, failed)
		case <-ch.leaders:
			ch.leaders = r.Leaders.Changed()
			e = r.look(req, table, m, failed)
		}
	}
	return e
}

// look gives the request the present map and leaders.
func (r *Runner) look(req *follow.Request, table string, m *topology.Map, failed []follow.Failure) follow.Effect {
	var seq uint64
	if now, ok := r.Tables.Get(table); ok {
		seq = now.Seq
	}
	var leads []follow.Lead
	for _, f := range failed {
		for _, p := range f.Partitions {
			leads = append(leads, r.lead(table, p, req.Try()))
		}
	}
	return req.Look(time.Now(), seq, leads)
}

// lead is the leader of a partition, in the machine's form.
func (r *Runner) lead(table string, p *topology.Partition, try int) follow.Lead {
	l, err := r.Leaders.Find(table, p, try)
	if err != nil {
		return follow.Lead{}
	}
	return follow.Lead{Server: l.Server, Guess: l.Guess}
}
