package fanout

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/deletion"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// stagedDeleteTimeout is how long a server may need to delete in its staged rows, or to hold them: longer than a row may be on its way to a leader.
	stagedDeleteTimeout = 15 * time.Second
	// renewPeriod is the time between renewals of a hold, which lasts for three of them (staging.HoldFor).
	renewPeriod = 5 * time.Second
)

// DeleteSeries implements query.Source. It deletes everywhere or returns an error: after an error some rows may be deleted, and
// doing it again is right. Package deletion has the order.
func (s *Source) DeleteSeries(ctx context.Context, q *peer.Select) error {
	d := &deleting{s: s, q: q, hold: rand.Uint64() | 1}
	defer d.stopRenewals()
	var m deletion.Machine
	step, began := m.Begin(), false
	for {
		var at []topology.ServerID
		var err error
		switch step.Do {
		case deletion.Find:
			at, err = d.find(ctx)
		case deletion.Hold:
			at, err = d.holdAt(ctx, step.Servers)
		case deletion.Partitions:
			began = true
			err = d.inPartitions(ctx)
		case deletion.Staged:
			err = d.staged(ctx, q.Lo, q.Hi, step.Servers, step.Held)
		case deletion.StagedPart:
			err = d.stagedPart(ctx, step.Servers, step.Held)
		case deletion.Release:
			d.release(ctx, step.Servers)
		case deletion.End:
			if began {
				return fault.Annotate(step.Err, "the deletion is not complete: rows may be left, and of those that had replaced others the older values may be read; repeating it is safe, and completes it")
			}
			return step.Err
		}
		step = m.Next(at, err)
	}
}

// deleting is a deletion under way.
type deleting struct {
	s        *Source
	q        *peer.Select
	hold     uint64
	renewals context.CancelFunc // nil: there are none
	renewing sync.WaitGroup

	mu      sync.Mutex
	deleted map[point.PartitionID]bool // the partitions that did; nil: none
}

// select of staged rows of any partition.
func (d *deleting) of(kind peer.Copies, hold uint64) *peer.Select {
	mine := *d.q
	mine.Partitions, mine.MapSeq, mine.MapNext, mine.Copies, mine.Hold = nil, 0, 0, kind, hold
	return &mine
}

// find lists the servers with staged rows of the table. Errors are Unavailable.
func (d *deleting) find(ctx context.Context) ([]topology.ServerID, error) {
	if d.s.deps.Stagers == nil {
		return nil, nil
	}
	at, err := d.s.deps.Stagers(ctx, d.q.Table)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "find the servers with staged rows of table %q, in which deletions remove rows too", d.q.Table)
	}
	return at, nil
}

// each asks servers beside each other, and returns the error of one.
func (d *deleting) each(ctx context.Context, at []topology.ServerID, ask func(ctx context.Context, id topology.ServerID, st peer.Storage) error) error {
	var g errgroup.Group
	g.SetLimit(d.s.settings.ParallelMax)
	for _, id := range at {
		g.Go(func() error {
			_, err := one(ctx, d.s, id, func(ctx context.Context, st peer.Storage) (struct{}, error) { return struct{}{}, ask(ctx, id, st) })
			d.s.metrics.request(err)
			return err
		})
	}
	return g.Wait()
}

// holdAt asks the servers with staged rows whether they are there, and has them hold the rows. One that is away refuses the deletion: it has rows on its disk. Errors are
// Unavailable: nothing was deleted.
func (d *deleting) holdAt(ctx context.Context, at []topology.ServerID) (held []topology.ServerID, err error) {
	there, stop := context.WithTimeout(ctx, stagedTimeout)
	err = d.each(there, at, d.answers)
	stop()
	if err != nil {
		return nil, err
	}
	within, stop := context.WithTimeout(ctx, stagedDeleteTimeout)
	defer stop()
	var mu sync.Mutex
	d.renew(ctx, at)
	err = d.each(within, at, func(ctx context.Context, id topology.ServerID, st peer.Storage) error {
		switch err := st.DeleteSeries(ctx, d.of(peer.StagedHolds, d.hold)); {
		case fault.Is(err, fault.Invalid): // it is older: rows that it forwards meanwhile are deleted at the end
			return nil
		case err != nil:
			return fault.Wrap(err, fault.Unavailable, "server %s may have staged rows of table %q, and does not hold them: nothing was deleted; do it again", id, d.q.Table)
		}
		mu.Lock()
		defer mu.Unlock()
		held = append(held, id)
		return nil
	})
	return held, err
}

// answers is an error if a server does not answer.
func (d *deleting) answers(ctx context.Context, id topology.ServerID, st peer.Storage) error {
	c, ok := st.(peer.StagedCounter)
	if !ok {
		return nil // a deletion there says that it is too old
	}
	if _, err := c.StagedStats(ctx, d.q.Table); err != nil && !fault.Is(err, fault.Invalid) { // it is there, and older
		return fault.Wrap(err, fault.Unavailable, "server %s may have staged rows of table %q and does not answer: nothing was deleted; do it again when it does", id, d.q.Table)
	}
	return nil
}

// renew has holds last until stopRenewals. Those that end nevertheless end the deletion where it deletes in staged rows.
func (d *deleting) renew(ctx context.Context, at []topology.ServerID) {
	ctx, d.renewals = context.WithCancel(ctx)
	d.renewing.Go(func() {
		tick := time.NewTicker(renewPeriod)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			within, stop := context.WithTimeout(ctx, renewPeriod)
			for _, id := range at {
				if st, ok := d.s.deps.Servers.Server(id); ok {
					d.renewing.Go(func() { _ = st.DeleteSeries(within, d.of(peer.StagedRenewals, d.hold)) })
				}
			}
			context.AfterFunc(within, stop)
		}
	})
}

func (d *deleting) stopRenewals() {
	if d.renewals != nil {
		d.renewals()
		d.renewing.Wait()
	}
}

// release ends the holds, also if no caller waits for the deletion any more.
func (d *deleting) release(ctx context.Context, at []topology.ServerID) {
	d.stopRenewals()
	within, stop := context.WithTimeout(context.WithoutCancel(ctx), stagedTimeout)
	defer stop()
	var g errgroup.Group
	for _, id := range at {
		if st, ok := d.s.deps.Servers.Server(id); ok {
			g.Go(func() error { return st.DeleteSeries(within, d.of(peer.StagedReleases, d.hold)) })
		}
	}
	_ = g.Wait() // the others end by themselves
}

// stagedPart deletes staged rows on servers, at the times for which all partitions have deleted. Were only a part of the ring done, newer staged rows would go,
// and older ones in the other partitions would show again. It goes on though no caller waits for the deletion any more.
func (d *deleting) stagedPart(ctx context.Context, at, held []topology.ServerID) error {
	m, err := d.s.known(d.q.Table)
	if err != nil || m == nil {
		return err
	}
	d.mu.Lock()
	whole := deletedTimes(m.Overlapping(d.q.Lo, d.q.Hi), d.deleted, d.q.Lo, d.q.Hi)
	d.mu.Unlock()
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), stagedDeleteTimeout)
	defer stop()
	for _, of := range whole {
		err = errors.Join(err, d.staged(ctx, of.lo, of.hi, at, held))
	}
	return err
}

// interval is the times [lo, hi].
type interval struct{ lo, hi point.Nanos }

// deletedTimes lists the times in [lo, hi] that have partitions, all of which deleted. Where hi is the last time there is, that one is in none.
func deletedTimes(ps []*topology.Partition, deleted map[point.PartitionID]bool, lo, hi point.Nanos) (all []interval) {
	type edge struct {
		at        point.Nanos
		did, left int // how many more partitions deleted, and did not, from there on
	}
	var edges []edge
	end := max(hi, hi+1) // the first time beyond
	for _, p := range ps {
		change := edge{at: max(p.TimeLo, lo), did: 1}
		if !deleted[p.ID] {
			change.did, change.left = 0, 1
		}
		edges = append(edges, change, edge{min(p.TimeHi, end), -change.did, -change.left})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	did, left, within := 0, 0, false
	for i, e := range edges {
		did, left = did+e.did, left+e.left
		if i+1 < len(edges) && edges[i+1].at == e.at {
			continue
		}
		whole := did > 0 && left == 0
		switch {
		case whole && !within:
			all = append(all, interval{lo: e.at})
		case !whole && within:
			all[len(all)-1].hi = e.at - 1
		}
		within = whole
	}
	return all
}

// staged deletes in the staged rows of servers with times in [lo, hi]. Errors are Unavailable: some rows may be deleted.
func (d *deleting) staged(ctx context.Context, lo, hi point.Nanos, at, held []topology.ServerID) error {
	within, stop := context.WithTimeout(ctx, stagedDeleteTimeout)
	defer stop()
	return d.each(within, at, func(within context.Context, id topology.ServerID, st peer.Storage) error {
		hold := d.hold
		if !slices.Contains(held, id) {
			hold = 0
		}
		mine := d.of(peer.StagedDeletes, hold)
		mine.Lo, mine.Hi = lo, hi
		switch err := st.DeleteSeries(within, mine); {
		case err == nil || ctx.Err() != nil:
			return err
		case fault.Is(err, fault.Invalid): // the matchers are compiled here too: it does not know this kind of deletion
			return fault.Wrap(err, fault.Unavailable, "server %s may have staged rows of table %q and is too old to delete in them: upgrade it, and do it again", id, d.q.Table)
		default:
			return fault.Wrap(err, fault.Unavailable, "server %s may have staged rows of table %q, and did not delete in them: do it again when the server answers", id, d.q.Table)
		}
	})
}

func (d *deleting) inPartitions(ctx context.Context) error {
	if err := d.below(ctx); err != nil {
		return err
	}
	// Rows may be on their way from a partition that unloads to its heirs. It waits for these rows before it deletes, and sends none of the deleted ones
	// afterwards; so the heirs delete once more after it did, and where they unload themselves, their heirs again.
	deep := d.s.unloadsDeep(d.q)
	for round := 0; ; round++ {
		err := d.atLeaders(ctx, d.q)
		deep = max(deep, d.s.unloadsDeep(d.q)) // one that ended meanwhile counts
		if err != nil || round >= deep {
			return err
		}
	}
}

// below deletes in the partitions that unload into others, before these, the oldest first: a deletion that fails there, which is likelier since they may have to wait for rows on their
// way, must not have removed the later values from those above, and show the older ones again.
func (d *deleting) below(ctx context.Context) error {
	q := d.q
	m, err := d.s.known(q.Table)
	if err != nil || m == nil {
		return nil // the request to all partitions says so
	}
	layers, overlapping := layersOf(m.Overlapping(q.Lo, q.Hi))
	for layer := range d.s.unloadsDeep(q) {
		below := *q
		below.Partitions = []point.PartitionID{}
		for id := range overlapping {
			if layers[id] == layer && (q.Partitions == nil || slices.Contains(q.Partitions, id)) {
				below.Partitions = append(below.Partitions, id)
			}
		}
		slices.Sort(below.Partitions)
		if err := d.atLeaders(ctx, &below); err != nil {
			return err
		}
	}
	return nil
}

// atLeaders deletes in partitions, and notes those that did.
func (d *deleting) atLeaders(ctx context.Context, q *peer.Select) error {
	_, err := gather(ctx, d.s, q, true, func(ctx context.Context, q *peer.Select, st peer.Storage) (struct{}, error) {
		err := st.DeleteSeries(ctx, q)
		if err != nil {
			return struct{}{}, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.deleted == nil {
			d.deleted = map[point.PartitionID]bool{}
		}
		for _, id := range q.Partitions {
			d.deleted[id] = true
		}
		return struct{}{}, nil
	})
	return err
}

// unloadsDeep is how many partitions with rows of the query unload into one another, at most.
func (s *Source) unloadsDeep(q *peer.Select) (deep int) {
	m, err := s.known(q.Table)
	if err != nil || m == nil {
		return 0
	}
	layers, _ := layersOf(m.Overlapping(q.Lo, q.Hi))
	for _, n := range layers {
		deep = max(deep, n)
	}
	return deep
}
