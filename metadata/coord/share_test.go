package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestSharedIsAStore(t *testing.T) {
	coordtest.Run(t, func(*testing.T) coord.Store { return coord.Share(mem.New()) })
}

// counted counts the watches there are, and can break them.
type counted struct {
	coord.Store
	now, all atomic.Int64

	mu    sync.Mutex
	stops []context.CancelCauseFunc
}

func (c *counted) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	c.now.Add(1)
	c.all.Add(1)
	defer c.now.Add(-1)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.mu.Lock()
	c.stops = append(c.stops, stop)
	c.mu.Unlock()
	err := c.Store.Watch(ctx, prefix, after, f)
	if broke := context.Cause(ctx); fault.Is(broke, fault.Unavailable) {
		return broke
	}
	return err
}

var errBroke = fault.Errorf(fault.Unavailable, "the connection is lost")

func (c *counted) breakAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stop := range c.stops {
		stop(errBroke)
	}
	c.stops = nil
}

func put(t *testing.T, s coord.Store, key, value string) coord.Revision {
	t.Helper()
	rev, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: key, Value: []byte(value)}})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	return rev
}

// Readers come, go and are slow, watches break, rows are written meanwhile: each reader sees every change after its list,
// in order, none twice, even if it overwrites the values; and there is one watch however many they are.
func TestSharedSendsEachReaderEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &counted{Store: mem.New()}
		s := coord.Share(inner)
		dice := rand.New(rand.NewPCG(1, 2))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		seen := 0
		var mu sync.Mutex
		for i := range 8 {
			own := rand.New(rand.NewPCG(uint64(i), 3))
			wg.Go(func() {
				for ctx.Err() == nil {
					rows, rev, err := s.List(ctx, "a/")
					if err != nil {
						return
					}
					value := map[string]string{}
					for _, r := range rows {
						value[r.Key] = string(r.Value)
					}
					last, quits := rev, own.IntN(200)
					time.Sleep(time.Duration(own.IntN(3)) * time.Millisecond) // rows change between a list and its watch
					err = s.Watch(ctx, "a/", rev, func(events []coord.Event) error {
						for _, e := range events {
							var was, is int
							fmt.Sscan(value[e.Key], &was)
							fmt.Sscan(string(e.Value), &is)
							if e.Revision <= last || is != was+1 {
								t.Errorf("reader %d: %s was %d and is %d, at %d after %d", i, e.Key, was, is, e.Revision, last)
							}
							last, value[e.Key] = e.Revision, string(e.Value)
							clear(e.Value)
							mu.Lock()
							seen++
							mu.Unlock()
						}
						if quits -= len(events); quits < 0 {
							return errors.New("enough")
						}
						time.Sleep(time.Duration(own.IntN(20)) * time.Millisecond)
						return nil
					})
					if fault.Is(err, fault.Unavailable) && !errors.Is(err, errBroke) {
						t.Errorf("reader %d: %v", i, err)
					}
				}
			})
		}
		count := [5]int{}
		const writes = 2000
		for range writes {
			k := dice.IntN(len(count))
			count[k]++
			put(t, s, fmt.Sprintf("a/%d", k), fmt.Sprint(count[k]))
			put(t, s, "b", "of no interest")
			time.Sleep(time.Duration(dice.IntN(3)) * time.Millisecond)
			if n := inner.now.Load(); n > 1 {
				// A watch without users may end while the next has begun.
				synctest.Wait()
				if n = inner.now.Load(); n > 1 {
					t.Fatalf("%d watches", n)
				}
			}
			if dice.IntN(writes/10) == 0 {
				inner.breakAll()
			}
		}
		cancel()
		wg.Wait()
		if inner.now.Load() != 0 {
			t.Error("a watch goes on that nobody uses")
		}
		if seen < writes {
			t.Errorf("%d changes seen: this proves nothing", seen)
		}
		t.Logf("%d changes reported by %d watches", seen, inner.all.Load())
	})
}

// A slow reader gets ErrCompacted and must list, and no other reader notices.
func TestSharedDoesNotWaitForTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coord.Share(&counted{Store: mem.New()})
		ctx, cancel := context.WithCancel(t.Context())
		start := put(t, s, "a", "")
		stuck, slow := make(chan struct{}), make(chan error, 1)
		go func() {
			slow <- s.Watch(ctx, "a", start, func([]coord.Event) error { <-stuck; return nil })
		}()
		var quick atomic.Int64
		ended := make(chan error, 1)
		go func() {
			ended <- s.Watch(ctx, "a", start, func(es []coord.Event) error { quick.Add(int64(len(es))); return nil })
		}()
		synctest.Wait()
		const n = 10000
		for i := range n {
			put(t, s, "a", fmt.Sprint(i))
			if i%100 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if quick.Load() != n {
			t.Errorf("%d of %d changes seen", quick.Load(), n)
		}
		close(stuck)
		if err := <-slow; !errors.Is(err, coord.ErrCompacted) {
			t.Errorf("the slow one ended with %v", err)
		}
		// From before the kept changes: list. After the list: all is well.
		if err := s.Watch(ctx, "a", start, func([]coord.Event) error { return nil }); !errors.Is(err, coord.ErrCompacted) {
			t.Errorf("a watch from long ago ended with %v", err)
		}
		cancel()
		if err := <-ended; !fault.Is(err, fault.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestSharedKeepsFewBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coord.Share(mem.New())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		start := put(t, s, "a", "")
		var quick atomic.Int64
		stuck, slow := make(chan struct{}), make(chan error, 1)
		go func() { slow <- s.Watch(ctx, "a", start, func([]coord.Event) error { <-stuck; return nil }) }()
		go func() {
			_ = s.Watch(ctx, "a", start, func(es []coord.Event) error { quick.Add(int64(len(es))); return nil })
		}()
		synctest.Wait()
		for range 10 { // 10 MB, far fewer rows than are kept
			put(t, s, "a", string(make([]byte, 1<<20)))
			synctest.Wait()
		}
		close(stuck)
		if err := <-slow; !errors.Is(err, coord.ErrCompacted) {
			t.Errorf("the slow one ended with %v", err)
		}
		if quick.Load() != 10 {
			t.Errorf("%d of 10 changes seen", quick.Load())
		}
		cancel()
	})
}

// A follower that lists before the first watch began, and watches after, lists again at once, not after a pause.
func TestFollowListsAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coord.Share(mem.New())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		early := &late{Store: s, f: func() { // between its list and its watch another's watch begins, from later on
			rev := put(t, s, "a", "1")
			go func() { _ = s.Watch(ctx, "a", rev, func([]coord.Event) error { return nil }) }()
			synctest.Wait()
		}}
		began, f := time.Now(), make(rowsSeen, 10)
		go func() {
			_ = coord.Follow(ctx, early, "a", f, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 1)))
		}()
		for _, want := range []string{"", "1"} {
			if got := <-f; got != want {
				t.Errorf("listed %q, not %q", got, want)
			}
		}
		put(t, s, "a", "2")
		if got := <-f; got != "2" || !time.Now().Equal(began) {
			t.Errorf("heard %q after %v", got, time.Since(began))
		}
	})
}

// late calls f once, before the first watch.
type late struct {
	coord.Store
	once sync.Once
	f    func()
}

func (l *late) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	l.once.Do(l.f)
	return l.Store.Watch(ctx, prefix, after, f)
}

type rowsSeen chan string

func (r rowsSeen) Listed(rows []coord.Row, _ coord.Revision) error {
	all := ""
	for _, row := range rows {
		all += string(row.Value)
	}
	r <- all
	return nil
}

func (r rowsSeen) Changed(events []coord.Event) error {
	for _, e := range events {
		r <- string(e.Value)
	}
	return nil
}
