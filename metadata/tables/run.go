package tables

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/files"
)

// Run follows the store until ctx ends: changes of other processes become visible here. A watch that fell too far behind
// is answered by reading everything anew (C15).
func (t *Tables) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	t.random.Lock()
	rng := rand.New(rand.NewPCG(t.random.rng.Uint64(), t.random.rng.Uint64()))
	t.random.Unlock()
	g.Go(func() error {
		return coord.Follow(ctx, heard{t.deps.Store, t}, files.Prefix, follower{t}, t.deps.Log, rng)
	})
	g.Go(func() error { t.fetchLoop(ctx); return nil })
	g.Go(func() error { t.saveLoop(ctx); return nil })
	return g.Wait()
}

// follower takes rows in.
type follower struct{ t *Tables }

// Listed implements coord.Follower.
func (f follower) Listed(rows []coord.Row, _ coord.Revision) error {
	f.t.listed(rows)
	return nil
}

// Changed implements coord.Follower.
func (f follower) Changed(events []coord.Event) error {
	for _, e := range events {
		name := files.TableOf(e.Key)
		if e.Deleted {
			f.t.deleted(name, e.Revision)
		} else if err := f.t.learn(e.Row); err != nil {
			f.t.deps.Log.Error("a table cannot be read; it is served as it was known, if it was", "table", name, "error", err)
		}
	}
	return nil
}

// deleted takes in that a person deleted a row at rev, unless it was made again since.
func (t *Tables) deleted(name string, rev coord.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.mu.tables[name]; v != nil && v.at < rev {
		t.forgetLocked(name)
	}
}

// heard notes since when the store is not followed.
type heard struct {
	coord.Store
	t *Tables
}

// Watch implements coord.Store.
func (h heard) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	h.t.following(true)
	defer h.t.following(false)
	return h.Store.Watch(ctx, prefix, after, f)
}

func (t *Tables) following(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case on:
		t.mu.since = time.Time{}
	case t.mu.since.IsZero():
		t.mu.since = time.Now()
	}
}

// fetchLoop fetches what rows name, and tries again what it could not get.
func (t *Tables) fetchLoop(ctx context.Context) {
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for pause := 100 * time.Millisecond; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.wanted:
		case <-again.C:
		}
		if t.fetchWanted(ctx) {
			pause = 100 * time.Millisecond
			continue
		}
		again.Reset(t.jitter(pause))
		pause = min(2*pause, 5*time.Second)
	}
}

// savePause is how long changes are collected before they are cached.
const savePause = time.Second

func (t *Tables) saveLoop(ctx context.Context) {
	if t.deps.Cache == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			t.saveCache(time.Now())
			return
		case <-t.save:
		}
		select {
		case <-ctx.Done():
		case <-time.After(t.jitter(savePause)):
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
