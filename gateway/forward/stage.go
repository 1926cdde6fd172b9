package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Staging chooses the servers that keep rows while their leader is away; *staged.View does.
type Staging interface {
	// Holders chooses n servers that are not in avoid. Errors are Unavailable.
	Holders(n int, nonce uint64, avoid []topology.ServerID) ([]topology.ServerID, error)
	// Takers counts the servers that accept rows: those over which smeared rows are spread.
	Takers() int
	// Note records that rows of a table are staged on servers.
	Note(now time.Time, table string, servers []topology.ServerID)
}

const (
	// holderTimeout is how long one holder may need to keep a frame before another one is chosen.
	holderTimeout = time.Second
	// holderSoon is that for rows whose sender has waited for their leader already, while there are others to choose.
	holderSoon = 300 * time.Millisecond
	// slowFor is how long other servers are chosen rather than one that did not answer in time.
	slowFor = 2 * time.Second
)

var errHolderSlow = fault.Errorf(fault.Unavailable, "no answer in time")

// unwanted are servers that are chosen last to hold a frame, or not at all.
type unwanted struct {
	gone    []topology.ServerID // did not answer, or refused: never
	slow    []topology.ServerID // asked for this frame, and did not answer in time: last
	leaders []topology.ServerID // of rows of this frame, that answered: the copies may be the trouble, or the server itself
}

// slowServers remembers which servers did not keep a frame in time.
type slowServers struct {
	mu sync.Mutex
	at map[topology.ServerID]time.Time // a few
}

func (s *slowServers) note(now time.Time, id topology.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[topology.ServerID]time.Time{}
	}
	s.at[id] = now
}

func (s *slowServers) now(now time.Time) (all []topology.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.at {
		if now.Sub(at) > slowFor {
			delete(s.at, id)
			continue
		}
		all = append(all, id)
	}
	return all
}

// labelsBound makes shorten count the labels of each row: their longest length on each holder's stream is not the same.
const labelsBound = 1 << 20

// absence remembers which leaders are away. Nothing is locked while none is.
type absence struct {
	any atomic.Bool
	mu  sync.Mutex
	follow.Absence
}

func partitionOf(table string, p *topology.Partition) follow.PartitionOf {
	return follow.PartitionOf{Table: table, ID: uint64(p.ID)}
}

func (a *absence) failed(began time.Time, p follow.PartitionOf, f *follow.Failure) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := a.Failed(time.Now(), began, p, f)
	a.any.Store(a.Len() > 0)
	return since
}

func (a *absence) skip(p follow.PartitionOf) bool {
	if !a.any.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Skip(time.Now(), p)
}

func (a *absence) answered(p follow.PartitionOf) {
	if !a.any.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Answered(p)
	a.any.Store(a.Len() > 0)
}

// stages reports whether rows are staged when their leader is away.
func (f *Forwarder) stages() bool { return f.follow.Policy.StageAfter > 0 }

// stage makes the remaining rows durable on as many servers as an ack of all needs. Rows of several partitions, and of several pieces of a share, lie in frames
// of their own; each has the rank that the next try would have given it.
//
// An atomic write waits for its leader: by the time that staged rows are forwarded, their partition may be several.
func (w *attempt) stage(ctx context.Context, not unwanted) error {
	if w.whole != nil {
		return fault.Errorf(fault.Unavailable, "atomic writes are not staged")
	}
	set := &w.t.f.settings
	b := w.rest
	rest := pieces{ids: b.IDs, times: b.Times, values: b.Values, hists: b.Hists, exemplars: b.Exemplars}
	for rest.len() > 0 {
		in := peer.Insert{MapSeq: w.m.Seq, Level: w.level, Stamp: w.ranks.of(rest.acked), Staging: &peer.Staging{Do: peer.Stage, Nonce: rand.Uint64()}}
		rest.first(&in, set.InsertRowsMax)
		shorten(&in, set.InsertBytesMax, labelsBound, w.g.dict)
		if err := w.hold(ctx, []*peer.Insert{&in}, in.Staging.Nonce, holderSoon, not); err != nil {
			if w.restamp(err, &w.ranks, &rest) {
				continue
			}
			return err
		}
		w.t.f.metrics.staged.Add(float64(len(in.IDs) + len(in.Hists)))
		rest.drop(&in)
	}
	return nil
}

// hold puts frames on their holders, which at chooses: the same for all. One that fails is replaced; the frames keep their names, so that those that have them keep them once, and
// are sent them again with the new list: each holder looks after the others. soon is how long one may need while there are others.
func (w *attempt) hold(ctx context.Context, all []*peer.Insert, at uint64, soon time.Duration, not unwanted) error {
	n := w.m.Config.MinInSync()
	var have []topology.ServerID
	var failed error
	for {
		more, err := w.holders(n-len(have), at, &not, have)
		if err != nil {
			return errors.Join(failed, err)
		}
		holders := make([]string, 0, n)
		for _, s := range slices.Concat(have, more) {
			holders = append(holders, string(s))
		}
		for _, in := range all {
			in.Staging.Holders = holders
		}
		more, have = slices.Concat(have, more), nil
		errs := make([]error, len(more))
		var g errgroup.Group
		for i, s := range more {
			timeout := soon
			if slices.Contains(not.slow, s) {
				timeout = holderTimeout
			}
			g.Go(func() error {
				errs[i] = w.holdAt(ctx, s, all, timeout)
				return nil
			})
		}
		_ = g.Wait()
		for i, s := range more {
			if errs[i] == nil {
				have = append(have, s)
				continue
			}
			if _, again := peer.NeedsStamp(errs[i]); again {
				return errs[i]
			}
			failed = fault.Annotate(errs[i], "stage at %s", s)
			if errors.Is(errs[i], errHolderSlow) && !slices.Contains(not.slow, s) {
				not.slow = append(slices.Clone(not.slow), s)
			} else {
				not.gone = append(slices.Clone(not.gone), s)
			}
		}
		if len(have) == n {
			w.t.f.deps.Staging.Note(time.Now(), w.t.name, have)
			return nil
		}
		if ctx.Err() != nil {
			return failed
		}
	}
}

// holders chooses n servers beside those that have a frame: unwanted ones only where there are no others.
func (w *attempt) holders(n int, at uint64, not *unwanted, have []topology.ServerID) (chosen []topology.ServerID, err error) {
	slow := slices.Concat(not.slow, w.t.f.slow.now(time.Now()))
	for _, avoid := range [][]topology.ServerID{slices.Concat(slow, not.leaders), slow, not.slow, nil} {
		if chosen, err = w.t.f.deps.Staging.Holders(n, at, slices.Concat(not.gone, have, avoid)); err == nil {
			return chosen, nil
		}
	}
	return nil, err
}

func (w *attempt) holdAt(ctx context.Context, id topology.ServerID, all []*peer.Insert, timeout time.Duration) error {
	// Not by a deadline: a server that is slow for a second, as one that makes many partitions, would count as one that does not answer, and reads would pass it over.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(timeout, func() { stop(errHolderSlow) })
	defer late.Stop()
	storage, ok := w.t.f.deps.Servers.Server(id)
	if !ok {
		return fault.Errorf(fault.Unavailable, "storage server %q is not known here", id)
	}
	err := w.on(ctx, id, storage, func(l *link) error {
		for _, in := range all {
			if err := l.define(ctx, w.g.dict, in); err != nil {
				return err
			}
		}
		return peer.InsertTogether(ctx, l.stream, all)
	})
	if err != nil && errors.Is(context.Cause(ctx), errHolderSlow) {
		w.t.f.slow.note(time.Now(), id)
		return errHolderSlow
	}
	return err
}

// away sorts the servers that failed in a try: they hold no frame of it, unless they answered and there are too few others.
func (w *attempt) away() (not unwanted) {
	for _, f := range w.failed {
		if f.Asked == "" || slices.Contains(not.gone, f.Asked) || slices.Contains(not.leaders, f.Asked) {
			continue
		}
		if f.Reason == follow.Unanswered && !f.Deaf && peer.IsAnswer(f.Err) {
			not.leaders = append(not.leaders, f.Asked)
		} else {
			not.gone = append(not.gone, f.Asked)
		}
	}
	return not
}
