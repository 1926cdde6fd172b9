package fanout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestAQueryWaitsForStagedRowsThatItNeeds: a server that needs seconds to read its staged rows is left out where others hold them too, and waited for where none does, unless its
// connection is given up, or the query's own time is over.
func TestAQueryWaitsForStagedRowsThatItNeeds(t *testing.T) {
	const waits = whole + ", waits: 7"
	type slow map[topology.ServerID]time.Duration
	for _, c := range []struct {
		name     string
		replicas int // one: each frame has one holder; three: two
		slow     slow
		silent   topology.ServerID // the connection to it is given up after two seconds
		owes     topology.ServerID // it owes a sign of life when the query begins
		partial  bool
		within   time.Duration // of the query
		want     string        // "" is an error
		took     time.Duration
	}{
		{name: "none is slow", replicas: 1, want: waits},
		{name: "the other holder is not slow", replicas: 3, slow: slow{"n2": 5 * time.Second}, want: waits, took: time.Second / 4},
		{name: "the other holder is not slow, and this one owes a sign of life", replicas: 3, slow: slow{"n2": 5 * time.Second}, owes: "n2", want: waits},
		{name: "the only holder owes a sign of life", replicas: 1, slow: slow{"n2": 5 * time.Second}, owes: "n2", want: waits, took: 5 * time.Second},
		{name: "the other one is slow, and this one owes a sign of life", replicas: 3, slow: slow{"n2": 5 * time.Second, "n3": 3 * time.Second}, owes: "n3", want: waits, took: 3 * time.Second},
		{name: "the only holder is slow", replicas: 1, slow: slow{"n2": 5 * time.Second}, want: waits, took: 5 * time.Second},
		{name: "both are slow", replicas: 3, slow: slow{"n2": 5 * time.Second, "n3": 3 * time.Second}, want: waits, took: 3 * time.Second},
		{name: "both are slow, one by less than a second", replicas: 3, slow: slow{"n2": 5 * time.Second, "n3": time.Second / 2}, want: waits, took: time.Second / 2},
		{name: "the only holder is frozen", replicas: 1, silent: "n2", took: 2 * time.Second},
		{name: "one is frozen, the other one slow", replicas: 3, slow: slow{"n3": 3 * time.Second}, silent: "n2", want: waits, took: 3 * time.Second},
		{name: "the query's time is over", replicas: 3, slow: slow{"n2": 5 * time.Second, "n3": 5 * time.Second}, within: 2 * time.Second, took: 2 * time.Second},
		{name: "the answer need not be whole", replicas: 1, slow: slow{"n2": 5 * time.Second}, partial: true, want: whole, took: time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.change(func() {
					m := *w.m
					m.Config.Replicas = c.replicas
					w.m = &m
				})
				holders := []topology.ServerID{"n2", "n3"}[:min(c.replicas, 2)]
				for _, id := range holders {
					w.stage(id)
				}
				for id, d := range c.slow {
					w.servers[id].slow = d
				}
				w.source.deps.Staged = func(string) []topology.ServerID { return holders }
				if c.silent != "" {
					w.servers[c.silent].slow, w.servers[c.silent].refuses = 2*time.Second, fault.Wrap(peer.ErrSilent, fault.Unavailable, "it sent nothing for 2 s")
				}
				w.source.deps.Silence = func(id topology.ServerID) time.Duration {
					if id == c.owes {
						return time.Minute
					}
					return 0
				}
				ctx := w.t.Context()
				if c.partial {
					ctx = query.WithPartial(ctx)
				}
				if c.within > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, c.within)
					defer stop()
				}
				start := time.Now()
				got, err := w.rows(ctx)
				if got != c.want || (err != nil) != (c.want == "") {
					t.Errorf("read %q, %v", got, err)
				}
				if c.silent != "" && err != nil && !(errors.Is(err, peer.ErrSilent) && strings.Contains(err.Error(), "server n2")) { // the query is evaluated once more for it
					t.Error(err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %v, should be %v", took, c.took)
				}
				w.closed()
			})
		})
	}
}
