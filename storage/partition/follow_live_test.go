package partition

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/series"
)

// live carries frames over as they come, in a goroutine of its own.
type live struct {
	frames chan []byte
	mu     sync.Mutex
	upto   point.Serial
	news   chan struct{}
}

func (c *live) Pass(_, _ point.Serial, rec []byte, _ brick.Wait) { c.frames <- bytes.Clone(rec) }

func (c *live) HandOn() {}

func (c *live) AwaitSoon(ctx context.Context, s point.Serial) error { return c.Await(ctx, s) }

func (c *live) Await(ctx context.Context, s point.Serial) error {
	for {
		c.mu.Lock()
		ok, news := !c.upto.Less(s), c.news
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *live) follow(t *testing.T, f *bench, epoch point.Epoch) {
	for rec := range c.frames {
		wait, err := f.Follow(epoch, rec)
		if err == nil {
			err = wait.Wait()
		}
		if err != nil {
			t.Error(err)
			return
		}
		c.mu.Lock()
		c.upto = f.Last()
		close(c.news)
		c.news = make(chan struct{})
		c.mu.Unlock()
	}
}

// Writers, flushes, deletions, segments and readers at once: every acked row is on both placements.
func TestAFollowerKeepsUpWithWritersAndFlushes(t *testing.T) {
	l, f := openBench(t, vfs.NewMem(), 0), following(t, vfs.NewMem(), 1)
	defer l.close()
	defer f.close()
	c := &live{frames: make(chan []byte, 4096), news: make(chan struct{})}
	l.must(l.LeadChain(1, c))
	var follower, writers, others sync.WaitGroup
	follower.Go(func() { c.follow(t, f, 1) })
	for w := range 4 {
		writers.Go(func() {
			ref := l.index.Intern(labelsOf(fmt.Sprint("w", w)))
			defer l.index.Release(ref)
			for i := range 200 {
				fresh := l.index.Intern(labelsOf(fmt.Sprint("w", w, "-", i/20)))
				err := l.Append(&Rows{Stamp: point.Stamp(i*4+w+1) << 12, Level: point.All, Refs: []series.Ref{ref, fresh}, Times: []point.Nanos{point.Nanos(i), point.Nanos(i)}, Values: []float64{1, 2}})
				l.index.Release(fresh)
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	loop := func(f func() error) {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop(func() error { return l.Flush(t.Context(), ByAge) })
	loop(func() error { return l.Delete(t.Context(), 1, only("w0"), 0, 10) })
	loop(func() error {
		if err := f.fetch(l, 1); !fault.Is(err, fault.Stale) && !fault.Is(err, fault.Throttled) {
			return err
		}
		return nil
	})
	loop(func() error {
		v, err := f.View()
		if err == nil {
			_, err = v.Match(nil)
			v.Close()
		}
		return err
	})
	writers.Wait()
	close(stop)
	others.Wait()
	l.must(l.Flush(t.Context(), ByAge))
	close(c.frames)
	follower.Wait()
	f.must(f.fetch(l, 1))
	same(t, l, f)
}
