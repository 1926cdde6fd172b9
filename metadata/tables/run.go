package tables

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
)

// Run follows the store until ctx ends: changes of other processes become visible here. A watch that fell too far behind
// is answered by reading everything anew (C15).
func (t *Tables) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	t.random.Lock()
	rng := rand.New(rand.NewPCG(t.random.rng.Uint64(), t.random.rng.Uint64()))
	t.random.Unlock()
	g.Go(func() error {
		return coord.Follow(ctx, t.deps.Store, mapstore.Prefix, follower{t}, t.deps.Log, rng)
	})
	g.Go(func() error { t.saveLoop(ctx); return nil })
	if t.settings.Prove {
		g.Go(func() error { t.proveLoop(ctx); return nil })
	}
	return g.Wait()
}

// follower takes rows in.
type follower struct{ t *Tables }

// Listed implements coord.Follower.
func (f follower) Listed(rows []coord.Row, rev coord.Revision) error {
	f.t.listed(rows, rev)
	return nil
}

// Changed implements coord.Follower.
func (f follower) Changed(events []coord.Event) error {
	for _, e := range events {
		name := mapstore.TableOf(e.Key)
		if e.Deleted {
			f.t.step(name, RowGone{e.Revision})
		} else if err := f.t.learn(e.Row); err != nil {
			f.t.deps.Log.Error("a table's row cannot be read; the newest map that is known of it stays in use, if there is one", "table", name, "error", err)
		}
	}
	return nil
}

// step gives a table's machine an input, and performs its effects, both under mu: a reader that Publish wakes finds the new
// map. An input that brings a row or a map makes the machine.
func (t *Tables) step(name string, in Input) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.mu.tables[name]
	if v == nil {
		if _, gone := in.(RowGone); gone {
			return
		}
		v = &table{}
		v.Step(Proven{t.mu.proven}, nil) // there was no such table then
		t.mu.tables[name] = v
	}
	t.stepLocked(name, v, in)
}

// stepLocked does not wait: slow effects go on in the background.
func (t *Tables) stepLocked(name string, v *table, in Input) {
	for _, e := range v.Step(in, nil) {
		switch e := e.(type) {
		case Fetch:
			t.fetchLocked(name, v, e)
		case Publish:
			close(t.mu.changed)
			t.mu.changed = make(chan struct{})
		case Forget:
			delete(t.mu.tables, name)
			t.settledLocked(v, nil)
			t.saveLocked(name)
		case Retry:
			t.afterLocked(name, v, e.After, RetryDue{})
		case Settled:
			t.settledLocked(v, e.Err)
		case SaveLater:
			t.afterLocked(name, v, e.After, SaveDue{})
		case Save:
			t.saveLocked(name)
		}
	}
}

func (t *Tables) settledLocked(v *table, err error) {
	for _, c := range v.settled {
		c <- err // there is room for it: no caller that went away holds mu up
	}
	v.settled = nil
}

func (t *Tables) saveLocked(name string) {
	if t.deps.Cache == nil {
		return
	}
	t.mu.unsaved[name] = true
	select {
	case t.save <- struct{}{}:
	default: // one is in the channel: saveLoop looks at unsaved after it has read that
	}
}

// afterLocked gives a machine an input later, unless it has ended by then.
func (t *Tables) afterLocked(name string, v *table, d time.Duration, in Input) {
	time.AfterFunc(t.jitter(d), func() { t.still(name, v, in) })
}

// still gives the machine its input if it is the table's machine still. One that was forgotten, as its table was deleted, may have a successor of the same name by now:
// an answer to the former's Fetch is a map of the table that is gone.
func (t *Tables) still(name string, v *table, in Input) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.tables[name] == v && !t.mu.closed {
		t.stepLocked(name, v, in)
	}
}

// fetchLocked fetches under the life of Tables, not of the caller whose input led to it: others wait for the same map. Close sets closed before it waits for all
// fetches, so none begins behind that.
func (t *Tables) fetchLocked(name string, v *table, f Fetch) {
	if t.mu.closed {
		return
	}
	t.fetching.Go(func() {
		m, err := t.fetchFrom(t.life, name, f.Want, f.Since, f.Have)
		if err != nil && t.life.Err() == nil {
			t.deps.Log.Warn("a table's newest map cannot be fetched; the known one, if any, stays in use", "table", name, "error", err)
		}
		t.still(name, v, Fetched{f.ID, m, err})
	})
}

// saveLoop writes changes to the cache. In the end it writes all that was put off: a process that ends in order begins anew with its newest maps.
func (t *Tables) saveLoop(ctx context.Context) {
	if t.deps.Cache == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			t.mu.Lock()
			for name, v := range t.mu.tables {
				t.stepLocked(name, v, SaveDue{})
			}
			t.mu.Unlock()
			t.saveCache(time.Now())
			return
		case <-t.save:
		}
		t.saveCache(time.Now())
	}
}

// jitter gives d, give or take a half, so that processes do not move in step.
func (t *Tables) jitter(d time.Duration) time.Duration {
	t.random.Lock()
	defer t.random.Unlock()
	return d/2 + time.Duration(t.random.rng.Int64N(int64(d)))
}
