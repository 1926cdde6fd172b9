package query

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/debug"
	rtm "runtime/metrics"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// guard ends the largest query when the heap outgrows its limit although all booked memory fits. Prometheus'
// engine bounds its samples, which may need more memory than that: count_values over a range makes
// room for all steps for each new value. Room that can be foreseen is booked before (rooms.go).
type guard struct {
	// Constant after newGuard.
	log   *slog.Logger
	heap  func() heap
	every time.Duration

	mu struct {
		sync.Mutex
		running map[*watched]struct{}
		looking bool
	}
}

// heap is the state of the collector.
type heap struct {
	limit int64 // the collector's
	used  int64 // obtained from the system and not returned
	live  int64 // alive in the last collection
}

// short reports whether collecting garbage no longer helps.
func (h heap) short() bool { return h.used-h.limit > h.limit/64 || h.live > h.limit/16*15 }

const (
	guardPeriod = 5 * time.Millisecond
	guardIdle   = 20 // periods without a query after which the guard stops looking
)

func newGuard(log *slog.Logger) *guard {
	g := &guard{log: log, heap: readHeap, every: guardPeriod}
	g.mu.running = map[*watched]struct{}{}
	return g
}

// readHeap asks the runtime; it costs some ten microseconds.
func readHeap() heap {
	s := []rtm.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/live:bytes"}}
	rtm.Read(s)
	return heap{
		limit: debug.SetMemoryLimit(-1),
		used:  int64(s[0].Value.Uint64() - s[1].Value.Uint64()),
		live:  int64(s[2].Value.Uint64()),
	}
}

// watched is an evaluation that the guard may end.
type watched struct {
	guard  *guard
	loan   *budget.Loan
	cancel context.CancelFunc
	gone   chan struct{} // closed when it left
	used   int64         // by the heap when it began
	ended  bool          // guarded by guard.mu
}

// errShort is the answer to a query that was ended for its memory.
func errShort() error {
	return fault.Errorf(fault.Throttled, "the process ran short of memory and this was the largest query: select fewer series or a shorter range, or raise --memory")
}

// watch begins to watch an evaluation under the context it returns.
func (g *guard) watch(ctx context.Context, loan *budget.Loan) (context.Context, *watched) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watched{guard: g, loan: loan, cancel: cancel, gone: make(chan struct{})}
	if loan == nil {
		return ctx, w
	}
	w.used = g.heap().used
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.running[w] = struct{}{}
	if !g.mu.looking {
		g.mu.looking = true
		go g.look()
	}
	return ctx, w
}

// leave ends it. Its context ends with the parent.
func (w *watched) leave() {
	close(w.gone)
	w.guard.mu.Lock()
	defer w.guard.mu.Unlock()
	delete(w.guard.mu.running, w)
}

// cause is err, or why the guard ended the evaluation.
func (w *watched) cause(err error) error {
	w.guard.mu.Lock()
	defer w.guard.mu.Unlock()
	if w.ended {
		return errShort()
	}
	return err
}

// look checks the heap until no query has run for a while.
func (g *guard) look() {
	tick := time.NewTicker(g.every)
	defer tick.Stop()
	for idle := 0; ; {
		<-tick.C
		g.mu.Lock()
		n := len(g.mu.running)
		if idle++; n > 0 {
			idle = 0
		}
		if idle > guardIdle {
			g.mu.looking = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		if n == 0 {
			continue
		}
		if h := g.heap(); h.short() {
			g.relieve(h)
		}
	}
}

// relieve ends the query that holds most, and waits until its memory is free before it picks another.
func (g *guard) relieve(h heap) {
	w := g.largest(h)
	if w == nil {
		return
	}
	g.log.Warn("memory ran short: the largest query was ended", "bytes", w.loan.Held())
	w.cancel()
	for range guardPatience {
		select {
		case <-w.gone:
			runtime.GC()
			return
		case <-time.After(g.every):
		}
		if h := g.heap(); h.used-h.limit > h.limit/16 {
			return // another has to go too
		}
	}
}

// guardPatience is how many periods the guard waits for a query that it ended before it ends another.
const guardPatience = 60

// guardGrowth: a query that holds little is ended only if the heap has grown by this part of the limit since it began. Bodies of writes alone make the heap
// grow by a tenth in the time of a small query.
const guardGrowth = 4

// largest marks as ended the evaluation that holds most, of those that are not. It spares one that holds little if the heap
// has not grown by much since that one began, or while one that was ended has yet to notice: its end would free nothing.
func (g *guard) largest(h heap) *watched {
	g.mu.Lock()
	defer g.mu.Unlock()
	ending := false
	for w := range g.mu.running {
		ending = ending || w.ended
	}
	var found *watched
	for w := range g.mu.running {
		if w.loan.Held() <= budget.SmallLoan && (ending || h.used-w.used < h.limit/guardGrowth) {
			continue
		}
		if !w.ended && (found == nil || w.loan.Held() > found.loan.Held()) {
			found = w
		}
	}
	if found != nil {
		found.ended = true
	}
	return found
}
