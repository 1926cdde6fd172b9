package query

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// crowded counts its callers that are inside at once.
type crowded struct {
	Source
	inside, peak atomic.Int32
}

func (c *crowded) LabelValues(context.Context, *peer.Select, string, int) ([]string, bool, error) {
	c.work()
	return nil, false, nil
}

func (c *crowded) work() {
	c.peak.Store(max(c.peak.Load(), c.inside.Add(1)))
	defer c.inside.Add(-1)
	time.Sleep(time.Millisecond) // calls overlap, if anything lets them
}

func (c *crowded) Select(context.Context, *peer.Select) (peer.SeriesSet, error) {
	c.work()
	return nil, nil
}

// TestWritesKeepHalfTheProcessorsBesideLookups: exports and label look-ups waited for no turns, so that eight of them kept every place of the
// scheduler and the writes of others waited 50 ms.
func TestWritesKeepHalfTheProcessorsBesideLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &crowded{}
		r, err := New(Deps{Source: source, Processors: 4, Lane: lane.New(func() bool { return true }, 4)}, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				for range 50 {
					ctx, l, err := r.Lookup(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					table := r.Table("default")
					switch i % 3 {
					case 0:
						_, _, err = table.LabelValues(ctx, 0, 1, "host", nil, 0)
					case 1:
						_, _, err = table.Series(ctx, 0, 1, [][]*labels.Matcher{nil}, 0)
					case 2:
						q, _ := table.Querier(0, 1)
						set := q.Select(ctx, true, nil)
						set.Next()
						err = set.Err()
						q.Close()
					}
					if err != nil {
						t.Error(err)
					}
					l.End()
				}
			})
		}
		all.Wait()
		if got := source.peak.Load(); got != 2 {
			t.Errorf("%d look-ups took a processor at once, want 2", got)
		}
		if taken, waiting := r.engine.lane.InUse(); taken != 0 || waiting != 0 {
			t.Errorf("%d turns taken, %d wait", taken, waiting)
		}
	})
}
