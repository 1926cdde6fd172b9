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

// holderTimeout is how long one holder may need to keep a frame before another one is chosen.
const holderTimeout = time.Second

var errHolderSlow = fault.Errorf(fault.Unavailable, "no answer in %v", holderTimeout)

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

func (a *absence) failed(p follow.PartitionOf, deaf bool) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := a.Failed(time.Now(), p, deaf)
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
func (w *attempt) stage(ctx context.Context, avoid []topology.ServerID) error {
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
		if err := w.hold(ctx, &in, in.Staging.Nonce, avoid); err != nil {
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

// hold puts one frame on its holders, which at chooses. One that fails is replaced; the frame keeps its name, so that those that have it keep it once, and
// are sent it again with the new list: each holder looks after the others.
func (w *attempt) hold(ctx context.Context, in *peer.Insert, at uint64, avoid []topology.ServerID) error {
	n := w.m.Config.MinInSync()
	var have []topology.ServerID
	var failed error
	for {
		more, err := w.t.f.deps.Staging.Holders(n-len(have), at, slices.Concat(avoid, have))
		if err != nil {
			return errors.Join(failed, err)
		}
		in.Staging.Holders = in.Staging.Holders[:0]
		for _, s := range slices.Concat(have, more) {
			in.Staging.Holders = append(in.Staging.Holders, string(s))
		}
		more, have = slices.Concat(have, more), nil
		errs := make([]error, len(more))
		var g errgroup.Group
		for i, s := range more {
			g.Go(func() error {
				errs[i] = w.holdAt(ctx, s, in)
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
			avoid = append(slices.Clone(avoid), s)
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

func (w *attempt) holdAt(ctx context.Context, id topology.ServerID, in *peer.Insert) error {
	// Not by a deadline: a server that is slow for a second, as one that makes many partitions, would count as one that does not answer, and reads would pass it over.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(holderTimeout, func() { stop(errHolderSlow) })
	defer late.Stop()
	storage, ok := w.t.f.deps.Servers.Server(id)
	if !ok {
		return fault.Errorf(fault.Unavailable, "storage server %q is not known here", id)
	}
	err := w.on(ctx, id, storage, func(l *link) error {
		if err := l.define(ctx, w.g.dict, in); err != nil {
			return err
		}
		return l.stream.Insert(ctx, in)
	})
	if err != nil && errors.Is(context.Cause(ctx), errHolderSlow) {
		return errHolderSlow
	}
	return err
}

// away lists the servers that failed in a try: they hold no frame of it.
func (w *attempt) away() (all []topology.ServerID) {
	for _, f := range w.failed {
		if f.Asked != "" && !slices.Contains(all, f.Asked) {
			all = append(all, f.Asked)
		}
	}
	return all
}
